#include "tests/common/process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"

extern char **environ;

namespace process
{

namespace
{

constexpr int look_ms = 20; /* how often a child's end is looked for */

[[noreturn]] void fail(const char *what)
{
    throw std::runtime_error(std::string(what) + ": " + strerror(errno));
}

/* A program's arguments and environment, made before the fork: this process may have threads, so its child
 * must not allocate. */
class Image
{
  public:
    explicit Image(const Spec &spec) : arguments_(spec.argv)
    {
        for (char **each = environ; *each != nullptr; each++) {
            const std::string text = *each;
            if (!spec.env.count(text.substr(0, text.find('=')))) {
                variables_.push_back(text);
            }
        }
        for (const auto &[name, value] : spec.env) {
            variables_.push_back(name + "=" + value);
        }
        argv_ = pointers(arguments_);
        envp_ = pointers(variables_);
    }
    [[noreturn]] void exec() const
    {
        (void)close_range(3, ~0u, 0); /* a GPU's driver has files open */
        execvpe(argv_[0], argv_.data(), envp_.data());
        const char *why = strerror(errno);
        (void)!write(STDERR_FILENO, why, strlen(why));
        _exit(127);
    }
    void use_environment() const
    {
        environ = const_cast<char **>(envp_.data());
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
    std::vector<std::string> arguments_, variables_;
    std::vector<char *> argv_, envp_;
};

/* In the child. */
[[noreturn]] void be_child(const Spec &spec, const Image &image, int out, int err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    if (spec.stderr_to != Stderr::inherited) {
        dup2(spec.stderr_to == Stderr::apart ? err : out, STDERR_FILENO);
    }
    image.use_environment();
    if (spec.before) {
        spec.before();
    }
    if (spec.argv.empty()) {
        _exit(spec.body());
    }
    image.exec();
}

} // namespace

Child::Child(const Spec &spec)
{
    start(spec);
}

Child::Child(const std::function<int()> &body)
{
    Spec spec;
    spec.body = body;
    start(spec);
}

Child::Child(const std::vector<std::string> &argv)
{
    Spec spec;
    spec.argv = argv;
    start(spec);
}

void Child::start(const Spec &spec)
{
    const Image image(spec);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || fcntl(out[0], F_SETFL, O_NONBLOCK) ||
        fcntl(err[0], F_SETFL, O_NONBLOCK)) {
        fail("no pipe");
    }
    pid_ = fork();
    if (pid_ == 0) {
        be_child(spec, image, out[1], err[1]);
    }
    close(out[1]);
    close(err[1]);
    fds_[0] = out[0];
    fds_[1] = err[0];
    if (pid_ < 0) {
        fail("no process");
    }
    setpgid(pid_, pid_); /* both do it: whoever signals the group next finds it */
}

Child::~Child()
{
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    for (int fd : fds_) {
        if (fd >= 0) {
            close(fd);
        }
    }
}

void Child::signal(int number) const
{
    if (pid_ > 0) {
        kill(pid_, number);
    }
}

/* What is in the pipes now. */
void Child::read_some()
{
    std::string *const texts[2] = {&result_.out, &result_.err};
    for (int i = 0; i < 2; i++) {
        char buffer[4096];
        ssize_t got = -1;
        while (fds_[i] >= 0 && (got = read(fds_[i], buffer, sizeof(buffer))) > 0) {
            texts[i]->append(buffer, static_cast<size_t>(got));
        }
        if (got == 0 && fds_[i] >= 0) {
            close(fds_[i]);
            fds_[i] = -1;
        }
    }
}

void Child::reap()
{
    int status = 0;
    if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) != pid_) {
        return;
    }
    pid_ = -1;
    read_some(); /* its own children may keep the pipes open */
    result_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

const std::string &Child::out()
{
    read_some();
    return result_.out;
}

const std::string &Child::err()
{
    read_some();
    return result_.err;
}

Result Child::wait(double limit_sec)
{
    const double until = tw_time_sec() + limit_sec;
    while (pid_ > 0) {
        listen({this}, look_ms);
        if (pid_ > 0 && result_.in_time && tw_time_sec() > until) {
            result_.in_time = false;
            signal(SIGKILL);
        }
    }
    return result_;
}

void listen(const std::vector<Child *> &children, int timeout_ms)
{
    std::vector<pollfd> waits;
    for (const Child *child : children) {
        for (int fd : child->fds_) {
            waits.push_back({child->pid_ > 0 ? fd : -1, POLLIN, 0}); /* -1 is passed over */
        }
    }
    poll(waits.data(), waits.size(), std::min(timeout_ms, look_ms));
    for (Child *child : children) {
        child->read_some();
        child->reap();
    }
}

Result run(const std::vector<std::string> &argv)
{
    return Child(argv).wait();
}

std::string slurp(const std::string &path)
{
    std::ostringstream text; /* a file of /proc may go while it is read: no exception then */
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

std::string python_with(const std::string &module)
{
    const char *given = getenv("TW_TORCH_PYTHON"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    std::string folder = cache ? cache : std::string(home ? home : "/root") + "/.cache";
    std::vector<std::string> pythons = {given && *given ? given : "python3", "python3"};
    glob_t paths;
    if (glob((folder + "/thinwire/torch-*/venv/bin/python3").c_str(), 0, nullptr, &paths) == 0) {
        pythons.insert(pythons.end(), paths.gl_pathv, paths.gl_pathv + paths.gl_pathc);
        globfree(&paths);
    }
    for (const std::string &python : pythons) {
        if (run({"env", python, "-c", "import " + module}).code == 0) {
            return python;
        }
    }
    return "";
}

int free_port()
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    socklen_t bytes = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&address), bytes) ||
        getsockname(fd, reinterpret_cast<sockaddr *>(&address), &bytes)) {
        fail("no free port on 127.0.0.1");
    }
    close(fd);
    return ntohs(address.sin_port);
}

} // namespace process
