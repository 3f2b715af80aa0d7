/* See job.h: job SCENARIO, the rest from the environment. It prints "ok" when all was as it should be. */
#include "tests/plugin/interpose/job.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include <dlfcn.h>
#include <unistd.h>

#include "plugin/interpose/interpose.h"

using job::self;
using standin::Stream;

namespace
{

constexpr size_t COUNT = 96 << 10; /* of a shard: 192 KiB of bf16 */

cudaStream_t handle(Stream &stream)
{
    return (cudaStream_t)&stream;
}

ncclComm_t join(ncclConfig_t *config = nullptr)
{
    ncclComm_t comm = nullptr;
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    if (config == nullptr) {
        OK(ncclCommInitRank(&comm, self().world, id, self().rank));
    } else {
        ncclResult_t result = ncclCommInitRankConfig(&comm, self().world, id, self().rank, config);
        CHECK(result == (config->blocking != 0 ? ncclSuccess : ncclInProgress));
    }
    return comm;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

tw_type_t ours(ncclDataType_t type)
{
    return type == ncclFloat32 ? TW_TYPE_FP32 : type == ncclFloat16 ? TW_TYPE_FP16 : TW_TYPE_BF16;
}

/** Of element i of a rank: a few sizes, no two ranks the same. */
float value(int rank, size_t i)
{
    return std::sin((float)i * 0.37f + (float)rank) * (float)(1 + (i / 512) % 5);
}

std::vector<char> tensor(int rank, size_t count, ncclDataType_t type)
{
    std::vector<float> values(count);
    std::vector<char> out(count * tw_type_bytes(ours(type)));
    for (size_t i = 0; i < count; i++) {
        values[i] = value(rank, i);
    }
    tw_convert_from_fp32(ours(type), values.data(), 1, out.data(), count);
    return out;
}

std::vector<float> floats(const std::vector<char> &bytes, ncclDataType_t type)
{
    size_t count = bytes.size() / tw_type_bytes(ours(type));
    std::vector<float> out(count);
    tw_convert_to_fp32(ours(type), bytes.data(), out.data(), count);
    return out;
}

std::vector<char> through_codec(const std::vector<char> &plain, ncclDataType_t type, const char *text)
{
    tw_quant_params_t params = {};
    tw_quant_t *quant = nullptr;
    CHECK(tw_quant_codec_parse(text, &params.codec) == TW_OK);
    CHECK(tw_quant_create(&params, &quant) == TW_OK);
    size_t count = plain.size() / tw_type_bytes(ours(type));
    std::vector<char> encoded(tw_quant_encoded_bytes(&params.codec, count)), out(plain.size());
    tw_quant_args_t args = {};
    args.type = ours(type);
    args.factor = 1;
    tw_quant_segment_t segment = {};
    segment.src = plain.data();
    segment.dst = encoded.data();
    segment.n_elems = count;
    CHECK(tw_quant_encode(quant, &args, &segment, 1) == TW_OK);
    segment.src = encoded.data();
    segment.dst = out.data();
    CHECK(tw_quant_decode(quant, &args, &segment, 1) == TW_OK);
    tw_quant_destroy(quant);
    return out;
}

/** How the whole of a gather should be; codec "": exact. */
std::vector<char> gathered(int world, size_t count, ncclDataType_t type, const char *codec)
{
    std::vector<char> all;
    for (int r = 0; r < world; r++) {
        std::vector<char> shard = tensor(r, count, type);
        if (*codec != '\0') {
            shard = through_codec(shard, type, codec);
        }
        all.insert(all.end(), shard.begin(), shard.end());
    }
    return all;
}

/* ---- calls ------------------------------------------------------------------------------------------------- */

/** How many calls of it reached NCCL itself since the last time. */
int reached(const char *name)
{
    static std::map<std::string, int> seen;
    int n = standin_calls(name), before = seen[name];
    seen[name] = n;
    return n - before;
}

using Gather = std::function<ncclResult_t(const void *, void *, cudaStream_t)>;

/** An all-gather by this call, out of place or in place: whole and right. */
void expect_gather(const Gather &call, int world, int rank, size_t count, ncclDataType_t type,
                   const char *codec, bool in_place)
{
    Stream stream;
    std::vector<char> own = tensor(rank, count, type), kept = own,
                      all(own.size() * (size_t)world, (char)0x7f);
    const void *from = own.data();
    if (in_place) {
        memcpy(&all[own.size() * (size_t)rank], own.data(), own.size());
        from = &all[own.size() * (size_t)rank];
    }
    OK(call(from, all.data(), handle(stream)));
    stream.synchronize();
    CHECK_THAT(all == gathered(world, count, type, codec),
               std::string(codec) + (in_place ? " in place" : " out of place"));
    CHECK_THAT(own == kept, "what was gathered from has changed");
}

Gather all_gather(ncclComm_t comm, size_t count, ncclDataType_t type)
{
    return [=](const void *from, void *to, cudaStream_t stream) {
        return ncclAllGather(from, to, count, type, comm, stream);
    };
}

void expect_near(const std::vector<char> &got, const std::vector<float> &want, ncclDataType_t type,
                 double bound, const char *what)
{
    std::vector<float> values = floats(got, type);
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double off = std::fabs((double)values[i] - (double)want[i]);
        worst = off > worst || std::isnan(off) ? off : worst;
    }
    CHECK_THAT(worst <= bound, std::string(what) + ": off by " + std::to_string(worst) + ", at most " +
                                   std::to_string(bound));
}

/** Sum over ranks of shard `shard`, times factor; shard -1: of the first elements (all-reduce). */
std::vector<float> summed(int world, size_t count, int shard, ncclDataType_t type, float factor)
{
    std::vector<float> sum(count);
    for (int r = 0; r < world; r++) {
        std::vector<float> all = floats(tensor(r, shard < 0 ? count : count * (size_t)world, type), type);
        for (size_t i = 0; i < count; i++) {
            sum[i] += all[(shard < 0 ? 0 : (size_t)shard * count) + i] * factor;
        }
    }
    return sum;
}

/** Each input is off by at most so much, for values up to 5; and the result is rounded. */
double bound_of(const char *codec, int world, float factor)
{
    tw_quant_codec_t parsed;
    CHECK(tw_quant_codec_parse(codec, &parsed) == TW_OK);
    return (double)world * (double)std::fabs(factor) * (2 * tw_quant_error_bound(&parsed, 5.0) + 5.0 / 128);
}

void expect_scatter(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                    const char *codec, bool in_place)
{
    Stream stream;
    int world = self().world;
    std::vector<char> all = tensor(self().rank, count * (size_t)world, type);
    std::vector<char> own(all.size() / (size_t)world, (char)0x7f);
    char *to = in_place ? &all[own.size() * (size_t)self().rank] : own.data();
    OK(ncclReduceScatter(all.data(), to, count, type, op, comm, handle(stream)));
    stream.synchronize();
    memcpy(own.data(), to, own.size());
    expect_near(own, summed(world, count, self().rank, type, factor), type, bound_of(codec, world, factor),
                "reduce-scatter");
}

void expect_allreduce(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                      const char *codec, bool in_place)
{
    Stream stream;
    int world = self().world;
    std::vector<char> from = tensor(self().rank, count, type), to(from.size(), (char)0x7f);
    void *at = in_place ? from.data() : to.data();
    OK(ncclAllReduce(from.data(), at, count, type, op, comm, handle(stream)));
    stream.synchronize();
    memcpy(to.data(), at, to.size());
    expect_near(to, summed(world, count, -1, type, factor), type, 2 * bound_of(codec, world, factor),
                "all-reduce");
    /* the same bits on every rank */
    std::vector<char> all(to.size() * (size_t)world);
    OK(ncclAllGather(to.data(), all.data(), to.size(), ncclUint8, comm, handle(stream)));
    stream.synchronize();
    for (int r = 0; r < world; r++) {
        CHECK_THAT(memcmp(&all[(size_t)r * to.size()], to.data(), to.size()) == 0,
                   "rank " + std::to_string(r) + " has other bits");
    }
}

/* ---- scenarios --------------------------------------------------------------------------------------------- */

void gathers()
{
    ncclComm_t comm = join();
    for (ncclDataType_t type : {ncclBfloat16, ncclFloat16, ncclFloat32}) {
        for (bool in_place : {false, true}) {
            expect_gather(all_gather(comm, COUNT, type), self().world, self().rank, COUNT, type, "int8",
                          in_place);
            CHECK_THAT(reached("ncclAllGather") <= 1,
                       "it was not replaced"); /* the first: of the ranks' places */
        }
    }
    OK(ncclCommDestroy(comm));
}

void reductions()
{
    ncclComm_t comm = join();
    ncclRedOp_t scaled;
    float factor = 0.25f;
    OK(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    for (bool in_place : {false, true}) {
        expect_scatter(comm, COUNT, ncclBfloat16, ncclSum, 1, "int4", in_place);
        expect_scatter(comm, COUNT, ncclFloat32, ncclAvg, 1.0f / (float)self().world, "int4", in_place);
        expect_scatter(comm, COUNT, ncclFloat32, scaled, factor, "int4", in_place);
        expect_allreduce(comm, 4 * COUNT, ncclFloat32, ncclSum, 1, "int4", in_place);
        expect_allreduce(comm, 4 * COUNT + 1, ncclBfloat16, ncclAvg, 1.0f / (float)self().world, "int4",
                         in_place);
    }
    CHECK_THAT(reached("ncclReduceScatter") == 0 && reached("ncclAllReduce") == 0, "not replaced");
    OK(ncclRedOpDestroy(scaled, comm));
    OK(ncclCommDestroy(comm));
}

const std::map<std::string, job::Scenario> scenarios = {
    {"gathers", gathers},
    {"reductions", reductions},
};

} // namespace

namespace job
{

const Job &self()
{
    static const Job job = {atoi(getenv("RANK")), atoi(getenv("WORLD_SIZE")), atoi(getenv("PER_NODE"))};
    return job;
}

void fail(const char *file, int line, const char *condition, const std::string &why)
{
    fprintf(stderr, "rank %d: %s:%d: %s: %s\n", self().rank, file, line, condition, why.c_str());
    _exit(1);
}

Scenario find(const std::string &name)
{
    auto found = scenarios.find(name);
    return found != scenarios.end() ? found->second : nullptr;
}

} // namespace job

int main(int argc, char **argv)
{
    job::Scenario scenario = argc > 1 ? job::find(argv[1]) : nullptr;
    if (scenario == nullptr || getenv("RANK") == nullptr) {
        fprintf(stderr, "usage: job SCENARIO, with RANK, WORLD_SIZE and PER_NODE\n");
        return 2;
    }
    scenario();
    printf("ok\n");
    return 0;
}
