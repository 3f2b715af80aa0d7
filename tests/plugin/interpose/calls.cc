/* What becomes of calls. */
#include <cstdio>
#include <cstring>
#include <random>

#include "plugin/interpose/interpose.h"
#include "tests/plugin/interpose/job.h"

using standin::Event;
using standin::Stream;

namespace job
{

static void gathers()
{
    ncclComm_t comm = join();
    (void)reached("ncclAllGather");
    for (ncclDataType_t type : {ncclBfloat16, ncclFloat16, ncclFloat32}) {
        for (bool in_place : {false, true}) {
            expect_gather(all_gather(comm, COUNT, type), all_ranks(), COUNT, type, "int8", in_place);
        }
    }
    CHECK(reached("ncclAllGather") == 1); /* of the ranks' places */
    OK(ncclCommDestroy(comm));
}

static void reductions()
{
    ncclComm_t comm = join();
    ncclRedOp_t scaled;
    float factor = 0.25f, mean = 1.0f / (float)self().world;
    OK(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    for (bool in_place : {false, true}) {
        expect_scatter(comm, COUNT, ncclBfloat16, ncclSum, 1, "int4", in_place);
        expect_scatter(comm, COUNT, ncclFloat16, ncclAvg, mean, "int4", in_place);
        expect_scatter(comm, COUNT, ncclFloat32, scaled, factor, "int4", in_place);
        expect_allreduce(comm, 4 * COUNT, ncclFloat32, ncclSum, 1, "int4", in_place);
        expect_allreduce(comm, 4 * COUNT + 1, ncclBfloat16, ncclAvg, mean, "int4", in_place);
    }
    CHECK(reached("ncclReduceScatter") == 0 && reached("ncclAllReduce") == 0);
    Stream stream;
    std::vector<char> memory(COUNT * 8);
    CHECK(ncclAllReduce(memory.data(), memory.data(), 4 * COUNT, ncclBfloat16, scaled, comm,
                        handle(stream)) == ncclInvalidArgument);
    CHECK(reached("ncclAllReduce") == 1);
    OK(ncclRedOpDestroy(scaled, comm));
    OK(ncclCommDestroy(comm));
}

/** What a rank gets of another's values, beside one in 128 that is 100 times as large; its own are 0. The
 *  test reads how many of them have become 0. */
static void outlier()
{
    ncclComm_t comm = join();
    Stream stream;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> own(2 * COUNT), sum(COUNT);
    for (size_t i = 0; i < own.size(); i++) {
        bool is_own = i / COUNT == (size_t)self().rank;
        own[i] = is_own ? 0 : normal(random) * (i % 128 == 17 ? 100 : 1);
    }
    OK(ncclReduceScatter(own.data(), sum.data(), COUNT, ncclFloat32, ncclSum, comm, handle(stream)));
    stream.synchronize();
    size_t n = 0, n_zero = 0;
    for (size_t i = 0; i < sum.size(); i++) {
        n += i % 128 != 17;
        n_zero += i % 128 != 17 && sum[i] == 0;
    }
    fprintf(stderr, "beside an outlier %d %% of the others are 0\n", (int)(100 * n_zero / n));
    OK(ncclCommDestroy(comm));
}

/** Each of these is NCCL's own; the test reads in the report why. */
static void left_alone()
{
    ncclComm_t comm = join();
    Stream stream;
    size_t whole = COUNT * (size_t)self().world;
    std::vector<char> from(whole * 8), to(whole * 8);
    float factor = 3;
    ncclRedOp_t unknown, zero;
    OK(ncclRedOpCreatePreMulSum(&unknown, &factor, ncclFloat32, ncclScalarDevice, comm));
    factor = 0;
    OK(ncclRedOpCreatePreMulSum(&zero, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    (void)reached("ncclAllGather");
    auto gather = [&](size_t count, ncclDataType_t type) {
        OK(ncclAllGather(from.data(), to.data(), count, type, comm, handle(stream)));
        CHECK(reached("ncclAllGather") == 1);
    };
    auto scatter = [&](size_t count, ncclDataType_t type, ncclRedOp_t op) {
        OK(ncclReduceScatter(from.data(), to.data(), count, type, op, comm, handle(stream)));
        CHECK(reached("ncclReduceScatter") == 1);
    };
    auto reduce = [&](size_t count, ncclDataType_t type, ncclRedOp_t op) {
        OK(ncclAllReduce(from.data(), to.data(), count, type, op, comm, handle(stream)));
        CHECK(reached("ncclAllReduce") == 1);
    };
    size_t small = ((256 << 10) / 4 - 1) / (size_t)self().world;
    gather(small, ncclFloat32);
    gather(0, ncclFloat32);
    scatter(small, ncclFloat32, ncclSum);
    reduce((256 << 10) / 4 - 1, ncclFloat32, ncclSum);
    gather(COUNT, ncclInt8);
    gather(COUNT, ncclInt64);
    reduce(2 * COUNT, ncclInt32, ncclSum);
    scatter(COUNT, ncclFloat32, ncclMax);
    reduce(2 * COUNT, ncclFloat32, ncclMin);
    scatter(COUNT, ncclFloat32, unknown);
    reduce(2 * COUNT, ncclFloat32, zero);
    OK(ncclAlltoAll(from.data(), to.data(), COUNT, ncclFloat32, comm, handle(stream)));
    CHECK(reached("ncclAlltoAll") == 1);
    CHECK(ncclAllGather(nullptr, to.data(), COUNT, ncclFloat32, comm, handle(stream)) == ncclInvalidArgument);
    CHECK(ncclAllReduce(from.data(), to.data(), COUNT, ncclFloat32, ncclSum, nullptr, handle(stream)) ==
          ncclInvalidArgument);
    stream.synchronize();
    OK(ncclCommDestroy(comm));
}

/** What NCCL has sent for it, to the byte: the report's number. */
static void bytes()
{
    ncclComm_t comm = join();
    uint64_t before = 0, after = 0;
    auto sent = [&] {
        uint64_t n = 0;
        for (int r : all_ranks()) {
            n += r / self().per_node != self().rank / self().per_node ? standin_sent_bytes(comm, r) : 0;
        }
        return n;
    };
    before = sent();
    for (size_t count : {COUNT, COUNT + 1, 7 * COUNT}) {
        expect_gather(all_gather(comm, count, ncclBfloat16), all_ranks(), count, ncclBfloat16, "int8", false);
        expect_scatter(comm, count, ncclBfloat16, ncclAvg, 1.0f / (float)self().world, "int4", false);
    }
    after = sent();
    for (int r : all_ranks()) {
        before += r / self().per_node != self().rank / self().per_node ? 24 : 0; /* of the ranks' places */
    }
    fprintf(stderr, "sent %llu\n", (unsigned long long)(after - before));
    OK(ncclCommDestroy(comm));
}

/** Ours and NCCL's calls in a group, and a group in a group. */
static void groups()
{
    ncclComm_t comm = join(), other = join();
    Stream stream, second;
    std::vector<int> ranks = all_ranks();
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16);
    std::vector<char> all(own.size() * ranks.size()), again(all.size()), small(64 * ranks.size());
    char said = (char)(self().rank + 1), heard = 0;
    int next = (self().rank + 1) % self().world, last = (self().rank + self().world - 1) % self().world;
    (void)reached("ncclAllGather");
    OK(ncclGroupStart());
    OK(ncclAllGather(own.data(), all.data(), COUNT, ncclBfloat16, comm, handle(stream)));
    OK(ncclSend(&said, 1, ncclUint8, next, comm, handle(stream)));
    OK(ncclGroupStart());
    OK(ncclAllGather(own.data(), again.data(), COUNT, ncclBfloat16, other, handle(second)));
    OK(ncclGroupEnd());
    OK(ncclAllGather(own.data(), small.data(), 64, ncclUint8, comm, handle(stream)));
    OK(ncclRecv(&heard, 1, ncclUint8, last, comm, handle(stream)));
    OK(ncclGroupEnd());
    stream.synchronize();
    second.synchronize();
    CHECK(all == gathered(ranks, COUNT, ncclBfloat16, "int8"));
    CHECK(again == all);
    CHECK(heard == (char)(last + 1));
    CHECK(memcmp(&small[64 * (size_t)self().rank], own.data(), 64) == 0);
    CHECK(reached("ncclAllGather") == 1 + 2); /* of the ranks' places on two communicators */
    OK(ncclCommDestroy(comm));
    OK(ncclCommDestroy(other));
}

/** What a group was only asked about is not done; a group that NCCL refuses is not either, with NCCL's own
 *  result. */
static void groups_that_fail()
{
    ncclComm_t comm = join();
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      all(own.size() * (size_t)self().world, 1);
    std::vector<char> kept = all;
    OK(ncclGroupStart());
    OK(ncclAllGather(own.data(), all.data(), COUNT, ncclBfloat16, comm, handle(stream)));
    OK(ncclGroupSimulateEnd(nullptr));
    OK(ncclGroupStart());
    OK(ncclAllGather(own.data(), all.data(), COUNT, ncclBfloat16, comm, handle(stream)));
    standin_fail_next("ncclGroupEnd", ncclInternalError);
    CHECK(ncclGroupEnd() == ncclInternalError);
    stream.synchronize();
    CHECK(all == kept);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    expect_gather(all_gather(comm, COUNT, ncclBfloat16), all_ranks(), COUNT, ncclBfloat16, "int8", true);
    OK(ncclCommDestroy(comm));
}

static tw_ip_config_t new_config()
{
    tw_ip_config_t config = {};
    config.size = sizeof(config);
    config.magic = 0xcafebeef;
    config.version = 23200;
    return config;
}

/** The forms with a configuration: an option of ours, one of somebody else's, the event, and a caller of 2.31
 *  that has none. */
static void configs()
{
    ncclComm_t comm = join();
    tw_ip_config_t config = new_config();
    Event launched;
    tw_ip_option_t plain = {nullptr, TW_NCCL_VENDOR, TW_NCCL_OPTION_PLAIN, {1}};
    tw_ip_option_t foreign = {&plain, 12, TW_NCCL_OPTION_PLAIN, {0}};
    Gather gather = [&](const void *from, void *to, cudaStream_t stream) {
        return ncclAllGatherConfig(from, to, COUNT, ncclBfloat16, comm, stream, (ncclCollConfig_t *)&config);
    };
    auto expect = [&](const char *codec, int n_reached, uint64_t n_records) {
        uint64_t before = launched.n_records();
        expect_gather(gather, all_ranks(), COUNT, ncclBfloat16, codec, true);
        CHECK(reached("ncclAllGatherConfig") == n_reached);
        CHECK(launched.n_records() - before == n_records);
    };
    expect("int8", 0, 0);
    config.launch_event = &launched;
    expect("int8", 0, 1);
    config.options = &foreign;
    expect("", 1, 1);
    plain.value.number = 0;
    expect("int8", 0, 1);
    config.size = offsetof(tw_ip_config_t, launch_event);
    expect("int8", 0, 0);

    /* the others' arguments get there too */
    Stream stream;
    config = new_config();
    plain.value.number = 1;
    config.options = &plain;
    config.launch_event = &launched;
    uint64_t before = launched.n_records();
    std::vector<char> from = tensor(self().rank, COUNT * (size_t)self().world, ncclFloat32), to(from.size());
    const ncclCollConfig_t *as_nccl = (const ncclCollConfig_t *)&config;
    OK(ncclReduceScatterConfig(from.data(), to.data(), COUNT, ncclFloat32, ncclAvg, comm, handle(stream),
                               as_nccl));
    OK(ncclAllReduceConfig(from.data(), to.data(), COUNT, ncclFloat32, ncclSum, comm, handle(stream),
                           as_nccl));
    OK(ncclAlltoAllConfig(from.data(), to.data(), COUNT, ncclFloat32, comm, handle(stream), as_nccl));
    CHECK(reached("ncclReduceScatterConfig") == 1 && reached("ncclAllReduceConfig") == 1 &&
          reached("ncclAlltoAllConfig") == 1);
    config.options = nullptr;
    OK(ncclReduceScatterConfig(from.data(), to.data(), COUNT, ncclFloat32, ncclAvg, comm, handle(stream),
                               as_nccl));
    OK(ncclAllReduceConfig(from.data(), to.data(), COUNT, ncclFloat32, ncclSum, comm, handle(stream),
                           as_nccl));
    CHECK(reached("ncclReduceScatterConfig") == 0 && reached("ncclAllReduceConfig") == 0);
    stream.synchronize();
    CHECK(launched.n_records() - before == 5);

    /* in a group, the configuration may be gone when it ends */
    before = launched.n_records();
    OK(ncclGroupStart());
    OK(ncclAllReduceConfig(from.data(), to.data(), COUNT, ncclFloat32, ncclSum, comm, handle(stream),
                           as_nccl));
    memset(&config, 0x7f, sizeof(config));
    OK(ncclGroupEnd());
    stream.synchronize();
    CHECK(launched.n_records() - before == 1 && reached("ncclAllReduceConfig") == 0);
    OK(ncclCommDestroy(comm));
}

/** A graph is NCCL's, whenever it runs. */
static void captured()
{
    ncclComm_t comm = join();
    std::vector<int> ranks = all_ranks();
    expect_gather(all_gather(comm, COUNT, ncclBfloat16), ranks, COUNT, ncclBfloat16, "int8", false);
    (void)reached("ncclAllGather");
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16), all(own.size() * ranks.size());
    stream.begin_capture();
    OK(ncclAllGather(own.data(), all.data(), COUNT, ncclBfloat16, comm, handle(stream)));
    OK(ncclGroupStart());
    OK(ncclAllGather(own.data(), all.data(), COUNT, ncclBfloat16, comm, handle(stream)));
    OK(ncclGroupEnd());
    std::vector<standin::Launch> graph = stream.end_capture();
    CHECK(reached("ncclAllGather") == 2);
    for (int i = 0; i < 3; i++) {
        std::fill(all.begin(), all.end(), 0);
        for (const standin::Launch &launch : graph) {
            stream.launch(launch);
        }
        stream.synchronize();
        CHECK(all == gathered(ranks, COUNT, ncclBfloat16, ""));
    }
    OK(ncclCommDestroy(comm));
}

/** Off around a checkpoint, and on again. */
static void policy_at_run_time()
{
    auto set = (int (*)(const char *, const char *))find_in_library("tw_nccl_set_policy");
    ncclComm_t comm = join();
    CHECK(set != nullptr);
    Gather gather = all_gather(comm, COUNT, ncclFloat32);
    expect_gather(gather, all_ranks(), COUNT, ncclFloat32, "int8", false);
    CHECK(set("plain", nullptr) == ncclSuccess);
    expect_gather(gather, all_ranks(), COUNT, ncclFloat32, "", false);
    CHECK(set("int4:block=64", "plain") == ncclSuccess);
    expect_gather(gather, all_ranks(), COUNT, ncclFloat32, "int4:block=64", false);
    CHECK(set("int9", nullptr) == ncclInvalidArgument && set("int8", "int4:blocks=3") == ncclInvalidArgument);
    expect_gather(gather, all_ranks(), COUNT, ncclFloat32, "int4:block=64", false);
    (void)reached("ncclReduceScatter");
    expect_scatter(comm, COUNT, ncclFloat32, ncclSum, 1, "int4", false);
    CHECK(reached("ncclReduceScatter") == 1);
    OK(ncclCommDestroy(comm));
}

/** Nothing is quantized: all is bit by bit NCCL's. */
static void plain()
{
    ncclComm_t comm = join();
    (void)reached("ncclAllGather");
    for (int n_more : {1, 0}) { /* the ranks' places */
        expect_gather(all_gather(comm, COUNT, ncclFloat32), all_ranks(), COUNT, ncclFloat32, "", false);
        CHECK(reached("ncclAllGather") <= 1 + n_more);
    }
    OK(ncclCommDestroy(comm));
}

/** Of one communicator on several streams, one after another as they were called. */
static void streams()
{
    ncclComm_t comm = join();
    Stream streams[3];
    std::vector<int> ranks = all_ranks();
    std::vector<char> own = tensor(self().rank, 5 * COUNT, ncclBfloat16);
    std::vector<std::vector<char>> all(12, std::vector<char>(own.size() * ranks.size()));
    for (size_t i = 0; i < all.size(); i++) {
        size_t count = i % 2 == 0 ? 5 * COUNT : COUNT;
        OK(ncclAllGather(own.data(), all[i].data(), count, ncclBfloat16, comm, handle(streams[i % 3])));
    }
    for (Stream &stream : streams) {
        stream.synchronize();
    }
    for (size_t i = 0; i < all.size(); i++) {
        if (i % 2 == 0) {
            CHECK_THAT(all[i] == gathered(ranks, 5 * COUNT, ncclBfloat16, "int8"), std::to_string(i));
        }
    }
    OK(ncclCommDestroy(comm));
}

Scenarios calls_scenarios()
{
    return {
        {"gathers", gathers}, {"reductions", reductions}, {"left_alone", left_alone},
        {"bytes", bytes},     {"groups", groups},         {"groups_that_fail", groups_that_fail},
        {"configs", configs}, {"captured", captured},     {"policy_at_run_time", policy_at_run_time},
        {"plain", plain},     {"streams", streams},       {"outlier", outlier},
    };
}

} // namespace job
