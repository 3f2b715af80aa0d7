#include "tests/transport/ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"

extern char **environ;

int free_port()
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    socklen_t bytes = sizeof(address);
    address.sin_family = AF_INET;
    if (fd < 0 || bind(fd, (sockaddr *)&address, sizeof(address)) ||
        getsockname(fd, (sockaddr *)&address, &bytes)) {
        throw std::runtime_error(std::string("no free port: ") + strerror(errno));
    }
    close(fd);
    return ntohs(address.sin_port);
}

Ranks::Ranks(const Options &options) : options_(options), children_(options.world), start_sec_(tw_time_sec())
{
    if (!options_.port) {
        options_.port = free_port();
    }
    for (int r = 0; r < options_.world; r++) {
        start(r);
    }
}

Ranks::~Ranks()
{
    for (Child &child : children_) {
        if (child.pid > 0) {
            kill(child.pid, SIGKILL);
            waitpid(child.pid, nullptr, 0);
        }
        for (int fd : {child.out, child.err}) {
            if (fd >= 0) {
                close(fd);
            }
        }
    }
}

void Ranks::start(int rank)
{
    Env env = {{"RANK", std::to_string(rank)},
               {"WORLD_SIZE", std::to_string(options_.world)},
               {"MASTER_ADDR", options_.master_addr},
               {"TW_RENDEZVOUS_PORT", std::to_string(options_.port)},
               {"TW_JOB_TOKEN", "the token of this test"}};
    for (const auto &var : options_.env) {
        env[var.first] = var.second;
    }
    if (options_.rank_env) {
        for (const auto &var : options_.rank_env(rank)) {
            env[var.first] = var.second;
        }
    }
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
        throw std::runtime_error("no pipe");
    }
    Child &child = children_[rank];
    child.pid = fork();
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(err[1], 2);
        for (const auto &var : env) {
            setenv(var.first.c_str(), var.second.c_str(), 1);
        }
        if (options_.in_child) {
            options_.in_child(rank);
        }
        const char *program = getenv("RANK_MAIN");
        std::vector<char *> argv = {(char *)program};
        for (const std::string &argument : options_.arguments) {
            argv.push_back((char *)argument.c_str());
        }
        argv.push_back(nullptr);
        if (program) {
            execv(program, argv.data());
        }
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    child.out = out[0];
    child.err = err[0];
    child.ending = Ending();
}

void Ranks::signal(int rank, int number)
{
    kill(children_[rank].pid, number);
}

/* Output of all, so that nobody blocks on a full pipe. */
void Ranks::read_some(int timeout_ms)
{
    std::vector<pollfd> pollfds;
    for (Child &child : children_) {
        for (int fd : {child.out, child.err}) {
            if (fd >= 0) {
                pollfds.push_back({fd, POLLIN, 0});
            }
        }
    }
    poll(pollfds.data(), pollfds.size(), timeout_ms);
    for (const pollfd &p : pollfds) {
        char buffer[4096];
        if (!p.revents) {
            continue;
        }
        const ssize_t got = read(p.fd, buffer, sizeof(buffer));
        for (Child &child : children_) {
            if (p.fd != child.out && p.fd != child.err) {
                continue;
            }
            (p.fd == child.out ? child.ending.out : child.ending.err)
                .append(buffer, got > 0 ? (size_t)got : 0);
            if (got <= 0) {
                close(p.fd);
                (p.fd == child.out ? child.out : child.err) = -1;
            }
        }
    }
}

bool Ranks::wait_ready(double sec)
{
    const double until = tw_time_sec() + sec;
    const auto ready = [](const Child &child) { return child.ending.out.find("ready") != std::string::npos; };
    const auto ended = [&](const Child &child) { return child.out < 0 && !ready(child); };
    while (!std::all_of(children_.begin(), children_.end(), ready)) {
        if (tw_time_sec() > until || std::any_of(children_.begin(), children_.end(), ended)) {
            return false;
        }
        read_some(20);
    }
    return true;
}

std::string Ranks::transcript() const
{
    std::string text;
    for (const Child &child : children_) {
        text += child.ending.out + child.ending.err;
    }
    return text;
}

Ending Ranks::wait_one(int rank, double sec)
{
    const double until = tw_time_sec() + sec;
    Child &child = children_[rank];
    int status = 0;
    while (child.pid > 0 && waitpid(child.pid, &status, WNOHANG) != child.pid) {
        if (tw_time_sec() > until && child.ending.in_time) {
            child.ending.in_time = false;
            kill(child.pid, SIGKILL);
        }
        read_some(5);
    }
    if (child.pid > 0) {
        child.ending.sec = tw_time_sec() - start_sec_;
        child.ending.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        child.pid = -1;
    }
    while (child.out >= 0 || child.err >= 0) {
        read_some(20);
    }
    return child.ending;
}

std::vector<Ending> Ranks::wait_all(double sec, int except)
{
    const double until = tw_time_sec() + sec;
    std::vector<Ending> endings(children_.size());
    for (size_t r = 0; r < children_.size(); r++) {
        if ((int)r != except) {
            endings[r] = wait_one((int)r, std::max(0.0, until - tw_time_sec()));
        }
    }
    return endings;
}
