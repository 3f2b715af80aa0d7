#include "tests/gpu/plugin_jobs.h"

namespace tw::gpu
{

namespace
{

constexpr size_t large = (size_t)1 << 20;

using Kind = PluginCase::Kind;
using Env = std::map<std::string, std::string>;

/* ---- cases ---- */

PluginCase of(Kind kind, const std::string &name, size_t count, ncclDataType_t type, ncclRedOp_t op = ncclSum)
{
    PluginCase c;
    c.kind = kind;
    c.name = name;
    c.count = count;
    c.type = type;
    c.op = op;
    return c;
}

PluginCase in_place(PluginCase c)
{
    c.name += ", in place";
    c.in_place = true;
    return c;
}

PluginCase with(PluginCase c, const std::string &codec)
{
    c.name += ", " + codec;
    c.codec = codec;
    return c;
}

PluginCase logs()
{
    PluginCase c;
    c.kind = Kind::logged;
    c.name = "NCCL's log";
    return c;
}

/* What NCCL itself computes, over our transport. */
std::vector<PluginCase> plain_cases()
{
    return {
        of(Kind::gather, "all-gather, one fp32 each", 1, ncclFloat32),
        of(Kind::gather, "all-gather, bf16", 100003, ncclBfloat16),
        in_place(of(Kind::gather, "all-gather, fp32", large, ncclFloat32)),
        of(Kind::scatter, "reduce-scatter, sum, bf16", 100003, ncclBfloat16),
        in_place(of(Kind::scatter, "reduce-scatter, mean, fp32", large, ncclFloat32, ncclAvg)),
        of(Kind::all_reduce, "all-reduce, sum, one fp32", 1, ncclFloat32),
        of(Kind::all_reduce, "all-reduce, sum, fp16", 100003, ncclFloat16),
        in_place(of(Kind::all_reduce, "all-reduce, sum, bf16", 4 * large + 3, ncclBfloat16)),
        of(Kind::all_reduce, "all-reduce, largest, int32", 100003, ncclInt32, ncclMax),
        of(Kind::all_reduce, "all-reduce, mean, fp32", large, ncclFloat32, ncclAvg),
        of(Kind::broadcast, "broadcast, bf16", large, ncclBfloat16),
        of(Kind::reduce, "reduce, sum, fp32", 100003, ncclFloat32),
        of(Kind::exchange, "all to all, sends and receives, fp32", 30011, ncclFloat32),
        of(Kind::ring, "send and receive, 16 MB", 4 * large, ncclFloat32),
        of(Kind::child, "a communicator split off", 100003, ncclFloat32),
        of(Kind::again, "a communicator after another", 100003, ncclFloat32),
    };
}

/* The interposer's, of which the small one and the integers stay plain. */
std::vector<PluginCase> interposed_cases(const std::string &weights, const std::string &grads)
{
    return {
        with(of(Kind::gather, "all-gather, bf16", large, ncclBfloat16), weights),
        with(in_place(of(Kind::gather, "all-gather, fp32", 100003, ncclFloat32)), weights),
        of(Kind::gather, "all-gather, small", 100, ncclFloat32),
        with(of(Kind::scatter, "reduce-scatter, mean, bf16", large, ncclBfloat16, ncclAvg), grads),
        with(in_place(of(Kind::scatter, "reduce-scatter, sum, fp32", 100003, ncclFloat32)), grads),
        with(of(Kind::all_reduce, "all-reduce, sum, bf16", large, ncclBfloat16), grads),
        of(Kind::all_reduce, "all-reduce, sum, int32", large, ncclInt32),
        of(Kind::broadcast, "broadcast, bf16", large, ncclBfloat16),
    };
}

/* ---- jobs ---- */

Env net_env()
{
    return {{"NCCL_NET_PLUGIN", "thinwire"}, {"NCCL_NET", "Thinwire"}, {"NCCL_TUNER_PLUGIN", ""}};
}

Env joined(Env one, const Env &other)
{
    one.insert(other.begin(), other.end());
    return one;
}

const char *const net_line = "NET plugin Thinwire", *const tuner_line = "TUNER/Plugin: Using Thinwire";

PluginJob net_job()
{
    PluginJob job = {"net 4", 4, net_env(), {net_line, tuner_line}, plain_cases()};
    job.cases.push_back(logs());
    return job;
}

PluginJob streams_job()
{
    PluginJob job = {"net 3, 4 streams", 3, joined(net_env(), {{"TW_NET_STREAMS", "4"}}), {net_line}, {}};
    job.cases = {of(Kind::gather, "all-gather, fp32", large, ncclFloat32),
                 of(Kind::all_reduce, "all-reduce, sum, fp32", 4 * large, ncclFloat32), logs()};
    return job;
}

PluginJob collnet_job(const std::string &codec)
{
    const Env env = {
        {"NCCL_COLLNET_ENABLE", "1"}, {"NCCL_ALGO", "CollnetChain"}, {"TW_ALLREDUCE_CODEC", codec}};
    PluginJob job = {"collnet 3", 3, joined(net_env(), env), {net_line}, {}};
    job.cases = {with(of(Kind::all_reduce, "all-reduce, sum, fp32", 4 * large, ncclFloat32), codec),
                 with(in_place(of(Kind::all_reduce, "all-reduce, sum, bf16", large, ncclBfloat16)), codec)};
    return job;
}

Env interposer_env(const std::string &weights, const std::string &grads)
{
    return {
        {"TW_INTERPOSE_GATHERS", weights}, {"TW_INTERPOSE_SUMS", grads}, {"TW_INTERPOSE_MIN_BYTES", "64K"}};
}

PluginJob preloaded_job(const std::string &weights, const std::string &grads)
{
    const Env env = joined(interposer_env(weights, grads),
                           Env{{"LD_PRELOAD", "libthinwire-nccl.so"}, {"NCCL_NET", "Socket"}});
    return {"interposer 2, preloaded", 2, env, {}, interposed_cases(weights, grads)};
}

PluginJob redirected_job(const std::string &weights, const std::string &grads)
{
    const Env env = joined(joined(net_env(), interposer_env(weights, grads)), Env{{"TW_INTERPOSE", "1"}});
    PluginJob job = {"interposer 4, by the net plugin", 4, env, {net_line}, interposed_cases(weights, grads)};
    job.cases.push_back(logs());
    return job;
}

PluginJob death_job()
{
    PluginJob job = {"net 3, one killed", 3, net_env(), {}, {}, 2};
    job.cases = {of(Kind::death, "the others get an error", 4 * large, ncclFloat32)};
    return job;
}

} // namespace

const std::vector<PluginJob> &plugin_jobs()
{
    static const std::vector<PluginJob> jobs = {
        net_job(),
        streams_job(),
        collnet_job("int8"),
        preloaded_job("int8:block=256", "int4:block=64"),
        redirected_job("int4:block=128", "int8:block=128"),
        death_job(),
    };
    return jobs;
}

const PluginJob *find_plugin_job(const std::string &name)
{
    return find_job(plugin_jobs(), name);
}

JobSpec plugin_spec_of(const PluginJob &job, const std::vector<std::string> &argv, const std::string &folder)
{
    JobSpec spec;
    spec.name = job.name;
    spec.victim = job.victim;
    for (const PluginCase &each : job.cases) {
        spec.cases.push_back(each.name);
    }
    for (int r = 0; r < job.world; r++) {
        ChildSpec rank = {argv, nccl_env(r)};
        rank.env["RANK"] = std::to_string(r);
        rank.env["WORLD_SIZE"] = std::to_string(job.world);
        rank.env["MASTER_ADDR"] = "127.0.0.1"; /* where ranks meet that the net plugin has redirected */
        rank.env["MASTER_PORT"] = "29500";
        rank.env["TW_JOB_TOKEN"] = folder;
        rank.env["TW_NET_DEVICES"] = "lo";
        rank.env["NCCL_RANK_FOLDER"] = folder;
        rank.env["NCCL_DEBUG"] = "INFO";
        rank.env["NCCL_DEBUG_FILE"] = folder + "/nccl-" + std::to_string(r) + ".log";
        for (const auto &[name, value] : job.env) {
            rank.env.erase(name);
            if (!value.empty()) {
                rank.env[name] = value;
            }
        }
        spec.ranks.push_back(rank);
    }
    return spec;
}

} // namespace tw::gpu
