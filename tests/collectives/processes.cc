#include "tests/collectives/processes.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/transport.h"

namespace tw
{

namespace
{

/* A port that nobody uses now. */
int free_port()
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    socklen_t length = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int failed = bind(fd, (sockaddr *)&address, length) || getsockname(fd, (sockaddr *)&address, &length);
    close(fd);
    return failed ? 0 : ntohs(address.sin_port);
}

std::string run_rank(const tw_job_t &job, const std::function<std::string(tw_coll_t *)> &body)
{
    tw_transport_t *transport = nullptr;
    tw_coll_t *coll = nullptr;
    tw_status_t status = tw_transport_ucx_create(&job, &transport);
    if (status != TW_OK) {
        return std::string("transport: ") + tw_status_string(status);
    }
    tw_coll_params_t params = {};
    params.transport = transport;
    status = tw_coll_create(&params, &coll);
    std::string wrong = status == TW_OK ? body(coll) : std::string("create: ") + tw_status_string(status);
    tw_coll_destroy(coll);
    tw_transport_destroy(transport);
    return wrong;
}

/* In the child: tell the parent what is wrong, and end. */
[[noreturn]] void be_rank(const tw_job_t &job, int node, int out,
                          const std::function<std::string(tw_coll_t *)> &body, int limit_sec)
{
    alarm((unsigned)limit_sec);
    setenv("TW_NODE_ID", ("node" + std::to_string(node)).c_str(), 1);
    std::string wrong = run_rank(job, body);
    if (!wrong.empty() && write(out, wrong.data(), wrong.size()) < 0) {
        _exit(3);
    }
    _exit(wrong.empty() ? 0 : 1);
}

std::string read_all(int fd)
{
    std::string text;
    char buf[512];
    ssize_t n;
    while ((n = read(fd, buf, sizeof(buf))) > 0) {
        text.append(buf, (size_t)n);
    }
    close(fd);
    return text;
}

tw_job_t make_job(int world)
{
    tw_job_t job = {};
    job.world = world;
    job.local_rank = job.local_world = -1;
    job.master_port = free_port();
    job.launcher = "test";
    std::strcpy(job.master_addr, "127.0.0.1");
    std::snprintf(job.token, sizeof(job.token), "collectives test %d", (int)getpid());
    return job;
}

} // namespace

std::string run_processes(const std::vector<int> &node_of,
                          const std::function<std::string(tw_coll_t *)> &body, int limit_sec)
{
    std::vector<pid_t> children;
    std::vector<int> pipes;
    std::string wrong;
    tw_job_t job = make_job((int)node_of.size());

    for (size_t r = 0; r < node_of.size(); r++) {
        int ends[2];
        if (pipe(ends)) {
            return "pipe";
        }
        job.rank = (int)r;
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            be_rank(job, node_of[r], ends[1], body, limit_sec);
        }
        close(ends[1]);
        pipes.push_back(ends[0]);
        children.push_back(child);
    }
    for (size_t r = 0; r < children.size(); r++) {
        std::string said = read_all(pipes[r]);
        int status = -1;
        waitpid(children[r], &status, 0);
        if (status != 0 && said.empty()) {
            said = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "failed";
        }
        if (!said.empty()) {
            wrong += "rank " + std::to_string(r) + ": " + said + "\n";
        }
    }
    return wrong;
}

} // namespace tw
