#include "tests/gpu/process_jobs.h"

#include <cstdio>
#include <stdexcept>

#include <sys/random.h>

namespace tw::gpu
{

namespace
{

const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

/* ---- cases ---- */

/* Several pieces of TW_COLL_CHUNK, odd ones, one of a single element, nothing. */
const std::vector<size_t> odd_sizes = {100003, 3, 0, 1, 70001};

bool gathers(const Case &c)
{
    return c.op == TW_COLL_ALLGATHER;
}

Case flat_int8(tw_coll_op_t op)
{
    Case c;
    c.op = op;
    c.algo = gathers(c) ? "direct" : "one_hop";
    c.codec = "int8";
    c.type = TW_TYPE_FP32;
    c.reduction = TW_COLL_MEAN;
    c.sizes = odd_sizes;
    c.in_place = true;
    return c;
}

Case hops_int4(tw_coll_op_t op)
{
    Case c;
    c.op = op;
    c.algo = gathers(c) ? "hierarchical" : "two_hop";
    c.codec = "int4:block=32,hadamard,stochastic";
    c.sizes = odd_sizes;
    return c;
}

Case plain(tw_coll_op_t op)
{
    Case c;
    c.op = op;
    c.algo = "direct";
    c.codec = "";
    c.sizes = odd_sizes;
    return c;
}

std::vector<ProcessCase> cases_of(tw_coll_op_t op, size_t world)
{
    const std::string name = tw_coll_op_name(op);
    std::vector<ProcessCase> cases;
    cases.push_back({ProcessCase::compare, name + " plain, bf16, sum", plain(op)});
    Case c = plain(op);
    c.type = TW_TYPE_FP32;
    c.reduction = TW_COLL_MEAN;
    c.in_place = true;
    cases.push_back({ProcessCase::compare, name + " plain, fp32, mean, in place", c});
    cases.push_back({ProcessCase::compare, name + " int8 flat, fp32, mean, in place", flat_int8(op)});
    c = flat_int8(op);
    c.codec = "int4";
    c.type = TW_TYPE_FP16;
    c.in_place = false;
    cases.push_back({ProcessCase::compare, name + " int4 flat, fp16, mean", c});
    c = hops_int4(op);
    cases.push_back({ProcessCase::compare, name + " int4 hadamard stochastic, node by node, bf16, sum", c});
    c.in_place = true;
    c.inner = gathers(c) ? "" : "int8:block=64";
    c.reduction = TW_COLL_MEAN;
    cases.push_back({ProcessCase::compare,
                     name + " int4 hadamard stochastic, node by node" + (gathers(c) ? "" : ", int8 inside") +
                         ", bf16, mean, in place",
                     c});
    c = hops_int4(op);
    c.codec = "int8:block=96";
    c.sizes = {30011};
    if (op != TW_COLL_ALLREDUCE) { /* shards of 0, 3, 3 and all the rest */
        c.counts = {std::vector<size_t>(world, 3)};
        c.counts[0][0] = 0;
        c.counts[0][world - 1] = 30011 - 3 * (world - 2);
        cases.push_back({ProcessCase::compare, name + " int8, shards of unlike sizes", c});
    }
    return cases;
}

/* All shards alike: NCCL's own wants that. */
ProcessCase native_case(tw_coll_op_t op, tw_type_t type, tw_coll_reduction_t reduction)
{
    Case c = plain(op);
    c.algo = "native";
    c.type = type;
    c.reduction = reduction;
    c.sizes = {120000, 12};
    return {op == TW_COLL_ALLGATHER ? ProcessCase::compare : ProcessCase::native,
            std::string(tw_coll_op_name(op)) + " plain, NCCL's own, " + tw_type_name(type) +
                (reduction == TW_COLL_MEAN ? ", mean" : ", sum"),
            c};
}

/* ---- jobs ---- */

std::string grid_text(const std::vector<int> &grid)
{
    std::string text;
    for (int n : grid) {
        text += (text.empty() ? "" : "+") + std::to_string(n);
    }
    return text;
}

ProcessJob job_of(bool over_nccl, const std::vector<int> &grid)
{
    ProcessJob job = {(over_nccl ? "nccl " : "ucx ") + grid_text(grid), over_nccl, grid, {}};
    for (tw_coll_op_t op : ops) {
        for (const ProcessCase &each : cases_of(op, nodes_of(grid).size())) {
            job.cases.push_back(each);
        }
        if (over_nccl) {
            job.cases.push_back(native_case(op, TW_TYPE_BF16, TW_COLL_SUM));
            job.cases.push_back(native_case(op, TW_TYPE_FP32, TW_COLL_MEAN));
            job.cases.push_back({ProcessCase::graph,
                                 std::string(tw_coll_op_name(op)) + " int4 in a CUDA graph, two replays",
                                 hops_int4(op)});
        }
    }
    return job;
}

ProcessJob death_of(bool over_nccl, tw_coll_op_t op)
{
    const std::vector<int> grid = {1, 2};
    Case c = flat_int8(op);
    c.sizes = {500003}; /* several chunks: to be in the middle of */
    return {std::string(over_nccl ? "nccl " : "ucx ") + grid_text(grid) + " killed in " + tw_coll_op_name(op),
            over_nccl,
            grid,
            {{ProcessCase::death, "the others get an error", c}},
            2};
}

std::vector<ProcessJob> make_jobs()
{
    std::vector<ProcessJob> jobs;
    for (bool over_nccl : {false, true}) {
        for (const std::vector<int> &grid : std::vector<std::vector<int>>{{2, 2}, {1, 1, 1}}) {
            jobs.push_back(job_of(over_nccl, grid));
        }
        for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_ALLREDUCE}) {
            jobs.push_back(death_of(over_nccl, op));
        }
    }
    return jobs;
}

/* ---- processes ---- */

std::string random_token()
{
    unsigned char bytes[16];
    char text[2 * sizeof(bytes) + 1];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        throw std::runtime_error("no random bytes for a token");
    }
    for (size_t i = 0; i < sizeof(bytes); i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    return text;
}

std::map<std::string, std::string> rank_env(const std::vector<int> &node_of, int rank)
{
    int local = 0, n_local = 0;
    for (int r = 0; r < (int)node_of.size(); r++) {
        const bool is_here = node_of[(size_t)r] == node_of[(size_t)rank];
        n_local += is_here;
        local += is_here && r < rank;
    }
    return {
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(node_of.size())},
        {"LOCAL_RANK", std::to_string(local)},
        {"LOCAL_WORLD_SIZE", std::to_string(n_local)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"TW_NODE_ID", "gpu-check-node-" + std::to_string(node_of[(size_t)rank])},
        {"TW_NET_DEVICES", "lo"},
        {"TW_COLL_TIMEOUT", "30s"},
        {"TW_COLL_CHUNK", "8K"},               /* several of each shard */
        {"TW_COLL_MODEL", "inter:beta=1gbit"}, /* not measured: there is nothing to choose */
    };
}

} // namespace

const std::vector<ProcessJob> &process_jobs()
{
    static const std::vector<ProcessJob> jobs = make_jobs();
    return jobs;
}

const ProcessJob *find_process_job(const std::string &name)
{
    return find_job(process_jobs(), name);
}

JobSpec spec_of(const ProcessJob &job, const std::vector<std::string> &argv)
{
    const std::vector<int> node_of = nodes_of(job.grid);
    const std::string port = std::to_string(process::free_port()), token = random_token();
    JobSpec spec;
    spec.name = job.name;
    spec.victim = job.victim;
    for (const ProcessCase &each : job.cases) {
        spec.cases.push_back(each.name);
    }
    for (int r = 0; r < (int)node_of.size(); r++) {
        ChildSpec rank = {argv, rank_env(node_of, r)};
        rank.env["MASTER_PORT"] = port; /* whatever this process has inherited */
        rank.env["TW_RENDEZVOUS_PORT"] = port;
        rank.env["TW_JOB_TOKEN"] = token;
        if (job.over_nccl) {
            rank.env.merge(nccl_env(r));
        }
        spec.ranks.push_back(rank);
    }
    return spec;
}

} // namespace tw::gpu
