/** Runs a program and collects what it says, for tests. */
#ifndef TW_TESTS_BENCH_PROCESS_H
#define TW_TESTS_BENCH_PROCESS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace process
{

struct Result {
    int code; /* exit code, or 128 + signal */
    std::string out, err;
};

inline std::string slurp(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/* A child with its output in files, so that nobody blocks on a pipe. */
class Child
{
  public:
    /* Runs body in a forked process, leader of its own process group. */
    explicit Child(const std::function<int()> &body)
    {
        const char *folder = getenv("TEST_TMPDIR");
        static int counter = 0;
        base_ = std::string(folder ? folder : "/tmp") + "/child." + std::to_string(getpid()) + "." +
                std::to_string(counter++);
        pid_ = fork();
        if (pid_ == 0) {
            setpgid(0, 0);
            redirect(base_ + ".out", STDOUT_FILENO);
            redirect(base_ + ".err", STDERR_FILENO);
            _exit(body());
        }
        setpgid(pid_, pid_);
    }
    explicit Child(const std::vector<std::string> &args)
        : Child([&args]() {
              std::vector<char *> argv;
              for (const std::string &arg : args) {
                  argv.push_back(const_cast<char *>(arg.c_str()));
              }
              argv.push_back(nullptr);
              execvp(argv[0], argv.data());
              return 127;
          })
    {
    }
    ~Child()
    {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
        unlink((base_ + ".out").c_str());
        unlink((base_ + ".err").c_str());
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;

    pid_t pid() const
    {
        return pid_;
    }
    std::string out() const
    {
        return slurp(base_ + ".out");
    }
    Result wait()
    {
        int status = 0;
        waitpid(pid_, &status, 0);
        pid_ = -1;
        return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), out(),
                slurp(base_ + ".err")};
    }

  private:
    static void redirect(const std::string &path, int fd)
    {
        int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, fd);
        close(file);
    }
    std::string base_;
    pid_t pid_;
};

inline Result run(const std::vector<std::string> &args)
{
    return Child(args).wait();
}

} // namespace process

#endif
