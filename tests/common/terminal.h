/** A pseudo terminal with a given number of columns, for programs that behave otherwise on a terminal. */
#ifndef TESTS_COMMON_TERMINAL_H
#define TESTS_COMMON_TERMINAL_H

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

class Terminal
{
  public:
    explicit Terminal(unsigned short columns)
    {
        const struct winsize size = {24, columns, 0, 0};
        master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
        if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) {
            return;
        }
        own_ = open(ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
        (void)ioctl(own_, TIOCSWINSZ, &size);
    }
    ~Terminal()
    {
        close(own_);
        close(master_);
    }
    Terminal(const Terminal &) = delete;
    Terminal &operator=(const Terminal &) = delete;

    /** The descriptor that a program writes to; -1: this machine has no pseudo terminals. */
    int fd() const
    {
        return own_;
    }
    /** What has been written since the last call. */
    std::string text() const
    {
        std::string all;
        char some[4096];
        for (ssize_t n; (n = read(master_, some, sizeof(some))) > 0;) {
            all.append(some, (size_t)n);
        }
        return all;
    }

  private:
    int master_ = -1, own_ = -1;
};

#endif
