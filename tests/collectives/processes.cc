#include "tests/collectives/processes.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <unistd.h>

#include "core/core.h"
#include "tests/common/process.h"
#include "transport/transport.h"

namespace tw
{

namespace
{

using Body = std::function<std::string(tw_coll_t *)>;

std::string run_rank(const tw_job_t &job, const Body &body, int progress_thread)
{
    tw_transport_t *transport = nullptr;
    tw_coll_t *coll = nullptr;
    tw_status_t status = tw_transport_create(&job, &transport);
    if (status != TW_OK) {
        return std::string("transport: ") + tw_status_string(status);
    }
    tw_coll_params_t params = {};
    params.transport = transport;
    params.progress_thread = progress_thread;
    status = tw_coll_create(&params, &coll);
    std::string wrong = status == TW_OK ? body(coll) : std::string("create: ") + tw_status_string(status);
    tw_coll_destroy(coll);
    tw_transport_destroy(transport);
    return wrong;
}

/* In the child: say what is wrong, and end. */
int be_rank(const tw_job_t &job, int node, const Body &body, int progress_thread)
{
    setenv("TW_NODE_ID", ("node" + std::to_string(node)).c_str(), 1);
    const std::string wrong = run_rank(job, body, progress_thread);
    fputs(wrong.c_str(), stdout);
    fflush(stdout);
    return wrong.empty() ? 0 : 1;
}

tw_job_t make_job(int world)
{
    tw_job_t job = {};
    job.world = world;
    job.local_rank = job.local_world = -1;
    job.master_port = process::free_port();
    job.launcher = "test";
    std::strcpy(job.master_addr, "127.0.0.1");
    std::snprintf(job.token, sizeof(job.token), "collectives test %d", (int)getpid());
    return job;
}

} // namespace

std::string run_processes(const std::vector<int> &node_of, const Body &body, int limit_sec,
                          int progress_thread)
{
    std::vector<std::unique_ptr<process::Child>> ranks;
    const double until = tw_time_sec() + limit_sec;
    std::string wrong;
    tw_job_t job = make_job((int)node_of.size());

    fflush(stdout); /* what this process has not printed yet is not a rank's to print */
    for (size_t r = 0; r < node_of.size(); r++) {
        job.rank = (int)r;
        process::Spec spec;
        spec.body = [&job, &body, progress_thread, node = node_of[r]]() {
            return be_rank(job, node, body, progress_thread);
        };
        spec.stderr_to = process::Stderr::inherited;
        ranks.push_back(std::make_unique<process::Child>(spec));
    }
    for (size_t r = 0; r < ranks.size(); r++) {
        process::Result end = ranks[r]->wait(until - tw_time_sec());
        if (end.code > 128 && end.out.empty()) {
            end.out = end.in_time ? strsignal(end.code - 128) : "took too long";
        }
        if (end.code != 0) {
            wrong += "rank " + std::to_string(r) + ": " + (end.out.empty() ? "failed" : end.out) + "\n";
        }
    }
    return wrong;
}

} // namespace tw
