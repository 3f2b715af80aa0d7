/** Processes that a test starts: their output is collected, they are waited for with a limit, and they die
 *  with the test. */
#ifndef TW_TESTS_COMMON_PROCESS_H
#define TW_TESTS_COMMON_PROCESS_H

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace process
{

/** Where a child's stderr goes: collected apart, into the same text as stdout, or wherever this process's
 *  goes. */
enum class Stderr { apart, with_stdout, inherited };

/** What to start: a program, or a function in a forked process. */
struct Spec {
    std::vector<std::string> argv;          /**< argv[0]: a path, or a name for PATH; empty: `body` */
    std::map<std::string, std::string> env; /**< besides this process's own */
    std::function<void()> before;           /**< called in the child, before the program or the body */
    std::function<int()> body;              /**< returns the exit status */
    Stderr stderr_to = Stderr::apart;
};

/** How a child ended. */
struct Result {
    int code = -1; /**< exit status, or 128 + signal; -1: it has not ended */
    std::string out, err;
    bool in_time = true; /**< false: killed, for it took too long */
};

/** A child is the leader of a process group, and reads nothing. It dies with this object, and with the thread
 *  that made it. */
class Child
{
  public:
    explicit Child(const Spec &spec);
    explicit Child(const std::function<int()> &body);
    explicit Child(const std::vector<std::string> &argv);
    ~Child();
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;

    /** The child's process; -1: it has ended. */
    pid_t pid() const
    {
        return pid_;
    }
    void signal(int number) const;
    /** What it has written to stdout so far. */
    const std::string &out();
    const std::string &err();
    /** Wait until it ends; it is killed after `limit_sec`. */
    Result wait(double limit_sec = 900);

  private:
    friend void listen(const std::vector<Child *> &children, int timeout_ms);
    void start(const Spec &spec);
    void read_some();
    void reap();

    pid_t pid_ = -1;
    int fds_[2] = {-1, -1}; /* for reading its stdout and stderr; -1: closed, or not collected */
    Result result_;
};

/** Wait until one of the children writes something or ends; then read what all have written, and note who has
 *  ended. Whoever waits for one of several children calls this for all, so that none blocks on a full
 *  pipe. */
void listen(const std::vector<Child *> &children, int timeout_ms);

/** Start and wait. */
Result run(const std::vector<std::string> &argv);

/** The contents of a file, as far as it can be read. */
std::string slurp(const std::string &path);

/** A Python that has a module: TW_TORCH_PYTHON, the one in PATH, or that of the PyTorch tests. "": none
 *  has. */
std::string python_with(const std::string &module);

/** A TCP port of 127.0.0.1 that was free a moment ago. */
int free_port();

} // namespace process

#endif
