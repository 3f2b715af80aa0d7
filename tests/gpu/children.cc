#include "tests/gpu/children.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"

extern char **environ;

namespace tw::gpu
{

namespace
{

constexpr int look_ms = 20; /**< how often somebody's end is looked for */

/* Everything is made before the fork: this process may have threads, so the child must not allocate. */
class Image
{
  public:
    explicit Image(const ChildSpec &spec) : arguments(spec.argv)
    {
        for (char **each = environ; *each != nullptr; each++) {
            const std::string text = *each;
            if (!spec.env.count(text.substr(0, text.find('=')))) {
                variables.push_back(text);
            }
        }
        for (const auto &[name, value] : spec.env) {
            variables.push_back(name + "=" + value);
        }
        argv = pointers(arguments);
        envp = pointers(variables);
    }
    [[noreturn]] void exec(int out) const
    {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, 0);
        dup2(out, 1);
        dup2(out, 2);
        (void)close_range(3, ~0u, 0); /* a GPU's driver has files open */
        execve(argv[0], argv.data(), envp.data());
        const char *why = strerror(errno);
        (void)!write(2, why, strlen(why));
        _exit(127);
    }

  private:
    static std::vector<char *> pointers(std::vector<std::string> &texts)
    {
        std::vector<char *> all;
        for (std::string &text : texts) {
            all.push_back(text.data());
        }
        all.push_back(nullptr);
        return all;
    }
    std::vector<std::string> arguments, variables;
    std::vector<char *> argv, envp;
};

} // namespace

Children::Children(const std::vector<ChildSpec> &specs)
{
    for (const ChildSpec &spec : specs) {
        start(spec);
    }
}

Children::~Children()
{
    for (Child &child : children_) {
        if (child.pid > 0) {
            kill(child.pid, SIGKILL);
            waitpid(child.pid, nullptr, 0);
        }
        if (child.fd >= 0) {
            close(child.fd);
        }
    }
}

void Children::start(const ChildSpec &spec)
{
    const Image image(spec);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) || fcntl(ends[0], F_SETFL, O_NONBLOCK)) {
        throw std::runtime_error(std::string("no pipe: ") + strerror(errno));
    }
    Child child;
    child.pid = fork();
    if (child.pid == 0) {
        image.exec(ends[1]);
    }
    close(ends[1]);
    child.fd = ends[0];
    children_.push_back(child);
    if (child.pid < 0) {
        throw std::runtime_error(std::string("no process: ") + strerror(errno));
    }
}

void Children::kill_all()
{
    for (const Child &child : children_) {
        if (child.pid > 0) {
            kill(child.pid, SIGKILL);
        }
    }
}

size_t Children::n_left() const
{
    const auto lives = [](const Child &child) { return child.pid > 0; };
    const auto is_end = [](const ChildEvent &event) { return event.kind == ChildEvent::end; };
    return (size_t)std::count_if(children_.begin(), children_.end(), lives) +
           (size_t)std::count_if(events_.begin(), events_.end(), is_end);
}

/* What is in the pipe now, as lines. */
void Children::drain(size_t i)
{
    Child &child = children_[i];
    char buffer[4096];
    ssize_t got = -1;
    while (child.fd >= 0 && (got = read(child.fd, buffer, sizeof(buffer))) > 0) {
        child.rest.append(buffer, (size_t)got);
    }
    if (got == 0 && child.fd >= 0) {
        close(child.fd);
        child.fd = -1;
    }
    size_t at;
    while ((at = child.rest.find('\n')) != std::string::npos) {
        events_.push_back({ChildEvent::line, i, child.rest.substr(0, at), 0});
        child.rest.erase(0, at + 1);
    }
}

void Children::read_some(int timeout_ms)
{
    std::vector<pollfd> waits;
    for (const Child &child : children_) {
        waits.push_back({child.fd, POLLIN, 0}); /* -1 is passed over */
    }
    poll(waits.data(), waits.size(), timeout_ms);
    for (size_t i = 0; i < waits.size(); i++) {
        if (waits[i].revents) {
            drain(i);
        }
    }
}

void Children::reap()
{
    for (size_t i = 0; i < children_.size(); i++) {
        Child &child = children_[i];
        int status = 0;
        if (child.pid < 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) {
            continue;
        }
        child.pid = -1;
        drain(i);
        if (!child.rest.empty()) {
            events_.push_back({ChildEvent::line, i, child.rest, 0});
        }
        child.rest.clear();
        if (child.fd >= 0) {
            close(child.fd);
        }
        child.fd = -1;
        const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        events_.push_back({ChildEvent::end, i, "", code});
    }
}

ChildEvent Children::next(double until_sec)
{
    double left_ms = 0; /* look at least once */
    do {
        if (events_.empty() && n_left() > 0) {
            read_some((int)std::min<double>(look_ms, left_ms));
            reap();
        }
        if (!events_.empty()) {
            ChildEvent event = events_.front();
            events_.pop_front();
            return event;
        }
        left_ms = std::ceil((until_sec - tw_time_sec()) * 1e3);
    } while (n_left() > 0 && left_ms > 0);
    return {ChildEvent::silence, 0, "", 0};
}

} // namespace tw::gpu
