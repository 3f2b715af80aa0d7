/* Collectives on GPU memory over a simulated NCCL: bit for bit those of the CPU, in whatever order streams
 * run. */
#include "tests/collectives/gpu/world.h"
#include "tests/common/fixture.h"

namespace
{

class GpuStream : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
        set_env("TW_COLL_CHUNK", "1K");
        set_env("TW_COLL_TIMEOUT", "5s");
    }

    static void check(tw::World &cpu, tw::GpuWorld &gpu, const tw::Case &c)
    {
        expect_same(c, gpu.run(c), run_case(cpu, c));
    }
};

const std::vector<std::vector<int>> grids = {{2, 2}, {3, 3},    {2, 2, 2}, {4, 4}, {4},
                                             {3, 1}, {1, 2, 4}, {2, 1, 1}, {8}};
const tw_coll_op_t reductions[] = {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

TEST_F(GpuStream, AllgatherOfEveryWorldAndSize)
{
    for (int w = 1; w <= 8; w++) {
        std::vector<int> nodes = tw::nodes_of(std::vector<int>((size_t)w, 1));
        tw::World cpu(nodes);
        tw::GpuWorld gpu(nodes, (uint32_t)w);
        for (const char *algo : {"hierarchical", "direct"}) {
            tw::Case c;
            c.algo = algo;
            for (size_t n : {0, 1, 2, 7, 257, 4099, 20011}) {
                c.sizes = {n};
                c.in_place = n % 2 == 1;
                check(cpu, gpu, c);
            }
        }
    }
}

TEST_F(GpuStream, ReductionsOfEveryWorldAndSize)
{
    for (int w = 1; w <= 8; w++) {
        std::vector<int> nodes = tw::nodes_of(std::vector<int>((size_t)w, 1));
        tw::World cpu(nodes);
        tw::GpuWorld gpu(nodes, (uint32_t)w);
        for (tw_coll_op_t op : reductions) {
            for (const char *algo : {"one_hop", "two_hop"}) {
                tw::Case c;
                c.op = op;
                c.algo = algo;
                for (size_t n : {0, 1, 2, 7, 257, 4099, 20011}) {
                    c.sizes = {n};
                    c.in_place = n % 2 == 1;
                    c.reduction = n % 3 == 1 ? TW_COLL_MEAN : TW_COLL_SUM;
                    check(cpu, gpu, c);
                }
            }
        }
    }
}

TEST_F(GpuStream, AllgatherOfEveryGrid)
{
    uint32_t seed = 1;
    for (const std::vector<int> &grid : grids) {
        tw::World cpu(tw::nodes_of(grid));
        tw::GpuWorld gpu(tw::nodes_of(grid), ++seed);
        for (const char *algo : {"hierarchical", "direct"}) {
            tw::Case c;
            c.algo = algo;
            c.sizes = {20011, 3, 0, 1, 4096, 700};
            check(cpu, gpu, c);
            c.codec = "int4:block=32,stochastic";
            c.in_place = true;
            check(cpu, gpu, c);
        }
    }
}

TEST_F(GpuStream, ReductionsOfEveryGrid)
{
    uint32_t seed = 1;
    for (const std::vector<int> &grid : grids) {
        tw::World cpu(tw::nodes_of(grid));
        tw::GpuWorld gpu(tw::nodes_of(grid), ++seed);
        for (tw_coll_op_t op : reductions) {
            for (const char *algo : {"one_hop", "two_hop"}) {
                for (const char *inner : {"", "int8:block=64,stochastic"}) {
                    tw::Case c;
                    c.op = op;
                    c.algo = algo;
                    c.inner = inner;
                    c.codec = "int4:block=32,stochastic";
                    c.sizes = {9011, 3, 0, 1, 4096, 700};
                    c.reduction = TW_COLL_MEAN;
                    c.in_place = *inner != '\0';
                    check(cpu, gpu, c);
                }
            }
        }
    }
}

TEST_F(GpuStream, EveryTypeAndCodec)
{
    tw::World cpu(tw::nodes_of({2, 1}));
    tw::GpuWorld gpu(tw::nodes_of({2, 1}));
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
            for (const std::string &codec : tw::codec_texts(true)) {
                tw::Case c;
                c.op = op;
                c.type = type;
                c.codec = codec;
                c.algo = op == TW_COLL_ALLGATHER ? "hierarchical" : "two_hop";
                c.inner = op != TW_COLL_ALLGATHER && type == TW_TYPE_FP16 ? "int8:block=32" : "";
                c.sizes = {30011, 5};
                check(cpu, gpu, c);
            }
        }
    }
}

TEST_F(GpuStream, UnevenShards)
{
    tw::World cpu(tw::nodes_of({2, 1, 1}));
    tw::GpuWorld gpu(tw::nodes_of({2, 1, 1}));
    for (bool in_place : {false, true}) {
        for (const char *algo : {"hierarchical", "direct", "one_hop", "two_hop"}) {
            tw::Case c;
            c.algo = algo;
            c.op = algo[0] == 'o' || algo[0] == 't' ? TW_COLL_REDUCE_SCATTER : TW_COLL_ALLGATHER;
            c.in_place = in_place;
            c.sizes = {10000, 3, 0, 7001};
            c.counts = {{0, 9000, 0, 1000}, {0, 0, 3, 0}, {0, 0, 0, 0}, {1, 0, 7000, 0}};
            check(cpu, gpu, c);
        }
    }
}

TEST_F(GpuStream, ManyTinySegments)
{
    tw::World cpu(tw::nodes_of({2, 2}));
    tw::GpuWorld gpu(tw::nodes_of({2, 2}));
    tw::Case c;
    for (size_t s = 0; s < 300; s++) {
        c.sizes.push_back(s % 7);
    }
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        c.op = op;
        c.algo = op == TW_COLL_ALLGATHER ? "hierarchical" : "two_hop";
        check(cpu, gpu, c);
    }
}

TEST_F(GpuStream, Plain)
{
    uint32_t seed = 1;
    for (const std::vector<int> &grid : grids) {
        std::vector<int> nodes = tw::nodes_of(grid);
        tw::World cpu(nodes);
        tw::GpuWorld gpu(nodes, ++seed);
        for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP32}) {
                tw::Case c;
                c.op = op;
                c.type = type;
                c.codec = "";
                c.sizes = {5011, 3, 0, 1, 4096, 700};
                c.reduction = type == TW_TYPE_FP32 ? TW_COLL_MEAN : TW_COLL_SUM;
                c.in_place = seed % 2 == 0;
                c.algo = "direct";
                check(cpu, gpu, c);
                c.algo = op == TW_COLL_ALLGATHER ? "hierarchical" : "two_hop";
                check(cpu, gpu, c);
            }
        }
    }
}

TEST_F(GpuStream, BytesAreGathered)
{
    tw::World cpu(tw::nodes_of({2, 2}));
    tw::GpuWorld gpu(tw::nodes_of({2, 2}));
    std::vector<std::vector<char>> whole(4, std::vector<char>(1003));
    std::vector<tw_coll_segment_t> segments(4);
    for (int r = 0; r < 4; r++) {
        size_t first = tw_coll_shard_offset(1003, 4, r);
        for (size_t i = 0; i < tw_coll_shard_elems(1003, 4, r); i++) {
            whole[(size_t)r][first + i] = (char)(first + i);
        }
        segments[(size_t)r].dst = whole[(size_t)r].data();
        segments[(size_t)r].n_elems = 1003;
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLGATHER;
        args.type = TW_TYPE_BYTE;
        args.segments = &segments[(size_t)r];
        args.n_segments = 1;
        EXPECT_EQ(gpu.post(r, args), TW_OK);
    }
    EXPECT_TRUE(gpu.finish());
    for (int r = 0; r < 4; r++) {
        for (size_t i = 0; i < 1003; i++) {
            ASSERT_EQ(whole[(size_t)r][i], (char)i) << r << " " << i;
        }
    }
}

const std::vector<std::vector<int>> few_grids = {{1, 1, 1}, {2, 2}, {3, 1, 2}};

TEST_F(GpuStream, SegmentsWithCodecsOfTheirOwn)
{
    for (const std::vector<int> &grid : few_grids) {
        tw::World cpu(tw::nodes_of(grid));
        tw::GpuWorld gpu(tw::nodes_of(grid), 11);
        expect_mixed_segments(cpu, [&](const tw::Case &c) { return gpu.run(c); });
    }
}

TEST_F(GpuStream, MeansOfFp16DoNotOverflow)
{
    std::vector<std::vector<int>> with_one_node = few_grids;
    with_one_node.push_back({3});
    for (const std::vector<int> &grid : with_one_node) {
        tw::World cpu(tw::nodes_of(grid));
        tw::GpuWorld gpu(tw::nodes_of(grid), 12);
        expect_fp16_means(cpu, [&](const tw::Case &c) { return gpu.run(c); });
    }
}

/* The CPU's bits without a name on either side: NCCL only carries them, and adds nothing up. */
TEST_F(GpuStream, DeterministicAsOnTheCpu)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    set_env("TW_COLL_MODEL", "measure");
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}, {2, 1}, {3, 2}, {3}}) {
        tw::World cpu(tw::nodes_of(grid));
        tw::GpuWorld gpu(tw::nodes_of(grid), 3);
        for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            for (const char *codec : {"", "int8:block=64", "int4:block=32,stochastic"}) {
                tw::Case c;
                c.op = op;
                c.codec = codec;
                c.sizes = {6000, 0, 60}; /* even shards: "native" could */
                expect_same(c, gpu.run(c, 0), run_case(cpu, c, 0));
                EXPECT_STRNE(gpu.plan(0).algo, "native");
                EXPECT_EQ(gpu.plan(0).quantized, codec[0] != '\0' && grid.size() > 1);
            }
        }
    }
}

/* Graphs may use it. */
TEST_F(GpuStream, TrimLeavesTheWorkspace)
{
    tw::GpuWorld gpu(tw::nodes_of({1, 1}));
    tw::Case c;
    c.sizes = {20001};
    (void)gpu.run(c);
    const size_t held = tw_coll_workspace_bytes(gpu.coll(0));
    tw_coll_trim(gpu.coll(0));
    EXPECT_GT(held, 0u);
    EXPECT_EQ(tw_coll_workspace_bytes(gpu.coll(0)), held);
}

/* NCCL's own where all shards are even; else not. */
TEST_F(GpuStream, NativeWhereItFits)
{
    tw::World cpu(tw::nodes_of({2, 2}));
    tw::GpuWorld gpu(tw::nodes_of({2, 2}));
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        for (bool in_place : {false, true}) {
            tw::Case c;
            c.op = op;
            c.codec = "";
            c.in_place = in_place;
            c.reduction = TW_COLL_MEAN;
            c.sizes = {4000, 0, 12};
            tw::Case direct = c;
            direct.algo = "direct"; /* the simulated NCCL adds like it */
            expect_same(c, gpu.run(c), run_case(cpu, direct));
            EXPECT_STREQ(gpu.plan(0).algo, "native");
            c.sizes = {4001};
            (void)gpu.run(c);
            EXPECT_STREQ(gpu.plan(0).algo, op == TW_COLL_ALLREDUCE   ? "native"
                                           : op == TW_COLL_ALLGATHER ? "hierarchical"
                                                                     : "two_hop");
        }
    }
}

/* Operations of different shapes, also on different streams, share the workspace and the wire. */
TEST_F(GpuStream, OneBehindTheOther)
{
    tw::World cpu(tw::nodes_of({2, 2}));
    for (uint32_t seed = 1; seed < 20; seed++) {
        tw::GpuWorld gpu(tw::nodes_of({2, 2}), seed);
        tw::Case a, b, c;
        a.sizes = {30000};
        b.op = TW_COLL_REDUCE_SCATTER;
        b.algo = "two_hop";
        b.sizes = {20001, 17};
        c.op = TW_COLL_ALLREDUCE;
        c.algo = "one_hop";
        c.codec = "int4";
        c.sizes = {7, 9001};
        tw::Case *cases[] = {&a, &b, &c}; /* once alone, so that the workspace no longer moves */
        for (tw::Case *each : cases) {
            (void)gpu.run(*each);
        }
        auto pa = gpu.post(a), pb = gpu.post(b, 1, true), pc = gpu.post(c);
        EXPECT_TRUE(gpu.finish());
        expect_same(a, gpu.results(a, std::move(pa)), run_case(cpu, a));
        expect_same(b, gpu.results(b, std::move(pb)), run_case(cpu, b));
        expect_same(c, gpu.results(c, std::move(pc)), run_case(cpu, c));
    }
}

/* An operation does not pass the one before it because a third was captured between them. */
TEST_F(GpuStream, OneBehindTheOtherAroundACapture)
{
    tw::World cpu(tw::nodes_of({2, 2}));
    for (uint32_t seed = 1; seed < 20; seed++) {
        tw::GpuWorld gpu(tw::nodes_of({2, 2}), seed);
        tw::Case a, b, c;
        a.sizes = {30000};
        b.op = TW_COLL_REDUCE_SCATTER;
        b.algo = "two_hop";
        b.sizes = {20001, 17};
        c.sizes = {10000};
        tw::Case *cases[] = {&a, &b, &c}; /* once alone, so that the workspace no longer moves */
        for (tw::Case *each : cases) {
            (void)gpu.run(*each);
        }
        auto pa = gpu.post(a);
        for (int r = 0; r < 4; r++) {
            gpu.device(r).capture = 7;
        }
        auto pc = gpu.post(c);
        for (int r = 0; r < 4; r++) {
            gpu.device(r).capture = 0;
        }
        auto pb = gpu.post(b, 1, true);
        EXPECT_TRUE(gpu.finish());
        expect_same(a, gpu.results(a, std::move(pa)), run_case(cpu, a));
        expect_same(b, gpu.results(b, std::move(pb)), run_case(cpu, b));
        (void)gpu.results(c, std::move(pc));
    }
}

/* FSDP2's order of things. A stream copies weights into place, the next one gathers them, the computation
 * copies them out and makes gradients, a fourth one reduces those: all of it is enqueued before anything
 * runs, for several units, and nobody asks for a request. Without `waits` the events between the streams are
 * left out. */
class Fsdp
{
  public:
    Fsdp(tw::GpuWorld *world, int rank, bool waits)
        : gpu(*world), device(world->device(rank)), me(rank), is_waiting(waits)
    {
        for (tw_stream_t *stream : {&copies, &gathers, &computes, &reduces}) {
            *stream = device.new_stream();
        }
    }

    void unit(const tw::Case &weights, const tw::Case &grads, std::vector<tw::Bytes> *gathered,
              std::vector<tw::Bytes> *reduced)
    {
        units.push_back(std::make_unique<Unit>());
        Unit &now = *units.back();
        tw::prepare(weights, gpu.size(), me, &now.weights);
        tw::prepare(grads, gpu.size(), me, &now.grads);
        now.gather = std::make_unique<tw::RankCase>(weights, &now.weights, 1);
        now.reduce = std::make_unique<tw::RankCase>(grads, &now.grads, 1);
        come(copies, &now.weights.dst);
        order(copies, gathers);
        post(&now.gather->args, gathers);
        order(gathers, computes);
        copy(computes, &now.weights.dst, gathered);
        come(computes, &now.grads.src);
        order(computes, reduces);
        post(&now.reduce->args, reduces);
        order(reduces, computes);
        copy(computes, &now.grads.dst, reduced);
    }

  private:
    struct Unit {
        tw::RankBuffers weights, grads;
        std::unique_ptr<tw::RankCase> gather, reduce;
    };

    /* What comes on `after` waits for what is on `before` by now. */
    void order(tw_stream_t before, tw_stream_t after)
    {
        auto event = std::make_shared<bool>(!is_waiting);
        device.push(before, [event] { return *event = true; });
        device.push(after, [event] { return *event; });
    }

    void copy(tw_stream_t on, const std::vector<tw::Bytes> *from, std::vector<tw::Bytes> *to)
    {
        device.push(on, [from, to] {
            *to = *from;
            return true;
        });
    }

    /* The buffers' bytes are there only when the stream gets to it. */
    void come(tw_stream_t on, std::vector<tw::Bytes> *buffers)
    {
        std::vector<tw::Bytes> bytes = *buffers;
        for (tw::Bytes &one : *buffers) {
            std::fill(one.begin(), one.end(), (char)0x7f);
        }
        device.push(on, [bytes, buffers] {
            for (size_t s = 0; s < bytes.size(); s++) {
                std::copy(bytes[s].begin(), bytes[s].end(), (*buffers)[s].begin());
            }
            return true;
        });
    }

    void post(tw_coll_args_t *args, tw_stream_t on)
    {
        args->stream = on;
        EXPECT_EQ(tw_coll_post(gpu.coll(me), args, nullptr), TW_OK);
    }

    tw::GpuWorld &gpu;
    tw::SimDevice &device;
    int me;
    bool is_waiting;
    tw_stream_t copies, gathers, computes, reduces;
    std::vector<std::unique_ptr<Unit>> units;
};

/* Rank-major: a segment for each rank and tensor. */
tw::Case rank_major(tw_coll_op_t op, const char *algo, const char *codec, size_t world, size_t unit)
{
    tw::Case c;
    c.op = op;
    c.algo = algo;
    c.codec = codec;
    c.in_place = op == TW_COLL_ALLGATHER;
    for (size_t r = 0; r < world; r++) {
        for (size_t n : {901, 17, 300}) {
            c.sizes.push_back(n + unit); /* the simulation has one call of a shape at a time */
            c.counts.push_back(std::vector<size_t>(world));
            c.counts.back()[r] = n + unit;
        }
    }
    return c;
}

/* How many units of all ranks do not find what the CPU finds. */
size_t n_wrong_as_fsdp(uint32_t seed, bool waits)
{
    const size_t n_units = 3;
    const std::vector<int> nodes = tw::nodes_of({2, 2});
    tw::World cpu(nodes);
    tw::GpuWorld gpu(nodes, seed);
    std::vector<tw::Case> weights, grads;
    for (size_t u = 0; u < n_units; u++) {
        weights.push_back(rank_major(TW_COLL_ALLGATHER, "direct", "int8", nodes.size(), u));
        grads.push_back(rank_major(TW_COLL_REDUCE_SCATTER, "one_hop", "int4", nodes.size(), u));
        (void)gpu.run(weights[u]); /* once alone, so that the workspace no longer moves */
        (void)gpu.run(grads[u]);
    }
    std::vector<std::unique_ptr<Fsdp>> ranks;
    std::vector<std::vector<tw::Bytes>> gathered(nodes.size() * n_units), reduced(nodes.size() * n_units);
    for (size_t r = 0; r < nodes.size(); r++) {
        ranks.push_back(std::make_unique<Fsdp>(&gpu, (int)r, waits));
        for (size_t u = 0; u < n_units; u++) {
            ranks[r]->unit(weights[u], grads[u], &gathered[r * n_units + u], &reduced[r * n_units + u]);
        }
    }
    EXPECT_TRUE(gpu.finish());
    size_t n_wrong = 0;
    for (size_t u = 0; u < n_units; u++) {
        const auto whole = run_case(cpu, weights[u]), part = run_case(cpu, grads[u]);
        for (size_t r = 0; r < nodes.size(); r++) {
            n_wrong += gathered[r * n_units + u] != whole[r].dst || reduced[r * n_units + u] != part[r].dst;
        }
    }
    return n_wrong;
}

TEST_F(GpuStream, AsFsdpEnqueues)
{
    for (uint32_t seed = 1; seed <= 10; seed++) {
        EXPECT_EQ(n_wrong_as_fsdp(seed, true), 0u) << "seed " << seed;
    }
    EXPECT_GT(n_wrong_as_fsdp(1, false), 0u); /* the events are what it takes */
}

/* The plan's promise is what is sent, and hops inside the node spare the link: each shard leaves its node
 * once per node. */
TEST_F(GpuStream, InterNodeBytes)
{
    const std::vector<int> grid = {3, 3};
    std::vector<int> nodes = tw::nodes_of(grid);
    tw::GpuWorld gpu(nodes);
    const size_t n = 60000;
    tw::Case c;
    c.codec = "int8:block=32";
    c.sizes = {n};
    tw_quant_codec_t codec = tw::parse_codec(c.codec);
    size_t shard = tw_quant_encoded_bytes(&codec, n / 6);
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        c.op = op;
        std::vector<tw::GpuPosted> posted = gpu.post(c);
        std::fill(gpu.net.sent_bytes.begin(), gpu.net.sent_bytes.end(), 0);
        EXPECT_TRUE(gpu.finish());
        uint64_t total = 0;
        for (int r = 0; r < 6; r++) {
            uint64_t planned = 0, sent = 0;
            EXPECT_EQ(tw_coll_planned_inter_node_bytes(gpu.coll(r), &posted[(size_t)r].asked->args, &planned),
                      TW_OK);
            for (int to = 0; to < 6; to++) {
                sent += nodes[(size_t)to] != nodes[(size_t)r] ? gpu.net.sent_bytes[(size_t)(r * 6 + to)] : 0;
            }
            EXPECT_EQ(sent, planned);
            total += sent;
        }
        EXPECT_EQ(total, (op == TW_COLL_ALLREDUCE ? 2 : 1) * 6 * shard);
    }
}

TEST_F(GpuStream, DeclinesOnOneNodeAndForTinyTensors)
{
    tw::GpuWorld one(tw::nodes_of({4})), two(tw::nodes_of({2, 2}));
    tw::Case c;
    c.sizes = {1 << 20};
    (void)one.run(c, 0);
    EXPECT_EQ(one.plan(0).quantized, 0);
    EXPECT_STRNE(one.plan(0).reason, "");
    (void)two.run(c, 0);
    EXPECT_EQ(two.plan(0).quantized, 1);
    EXPECT_STREQ(two.plan(0).reason, "");
    c.sizes = {100};
    (void)two.run(c, 0);
    EXPECT_EQ(two.plan(0).quantized, 0);
    EXPECT_STRNE(two.plan(0).reason, "");
}

TEST_F(GpuStream, ExplainsItself)
{
    set_env("TW_COLL_EXPLAIN", "y");
    tw::GpuWorld gpu(tw::nodes_of({2, 2}));
    tw::Case c;
    c.sizes = {100000};
    testing::internal::CaptureStderr();
    (void)gpu.run(c);
    (void)gpu.run(c);
    std::string said = testing::internal::GetCapturedStderr();
    const std::string want =
        "allgather of 195.31K bf16 on 4 GPUs, 2 nodes: int8:block=32 hierarchical, chunk 1K, ";
    size_t at = said.find(want);
    EXPECT_NE(at, std::string::npos) << said;
    EXPECT_EQ(said.find(want, at + 1), std::string::npos) << "once is enough";
}

/* What is prepared, or has been posted before, allocates nothing. */
TEST_F(GpuStream, NoAllocationOncePrepared)
{
    tw::GpuWorld gpu(tw::nodes_of({2, 1}));
    tw::Case c;
    tw::RankBuffers buffers;
    c.sizes = {40000};
    for (int r = 0; r < 3; r++) {
        tw::RankBuffers mine;
        prepare(c, 3, r, &mine);
        tw::RankCase asked(c, &mine, 1);
        EXPECT_EQ(tw_coll_prepare(gpu.coll(r), &asked.args), TW_OK);
        EXPECT_EQ(gpu.device(r).n_allocated, 1);
        EXPECT_EQ(tw_coll_workspace_bytes(gpu.coll(r)), gpu.device(r).allocated_bytes);
        gpu.device(r).capture = 7; /* allowed now */
    }
    (void)gpu.run(c);
    (void)gpu.run(c);
    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(gpu.device(r).n_allocated, 1);
    }
    c.op = TW_COLL_ALLREDUCE; /* takes more */
    tw::RankBuffers mine;
    prepare(c, 3, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    expect_log("rank 0: allreduce: call tw_coll_prepare before a graph is captured");
    EXPECT_EQ(gpu.post(0, asked.args), TW_ERR_INVALID);
    for (int r = 0; r < 3; r++) {
        gpu.device(r).capture = 0;
    }
}

TEST_F(GpuStream, BadArguments)
{
    tw::GpuWorld gpu(tw::nodes_of({1, 1}));
    tw::Case c;
    tw::RankBuffers mine;
    c.sizes = {1000};
    prepare(c, 2, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    auto post = [&] { return gpu.post(0, asked.args); };
    asked.args.op = TW_COLL_BROADCAST;
    expect_log("rank 0: operation 3 (broadcast) does not work on GPU memory");
    EXPECT_EQ(post(), TW_ERR_UNSUPPORTED);
    asked.args.op = TW_COLL_ALLGATHER;
    asked.args.algo = "two_hop";
    expect_log("rank 0: allgather: there is no quantized algorithm \"two_hop\" for this");
    EXPECT_EQ(post(), TW_ERR_UNSUPPORTED);
    asked.args.algo = nullptr;
    tw_quant_codec_t lossless = tw::parse_codec("lossless");
    const tw_quant_codec_t *codec = asked.args.codec;
    asked.args.codec = &lossless;
    expect_log("lossless messages have lengths of their own, and NCCL needs lengths beforehand");
    EXPECT_EQ(post(), TW_ERR_UNSUPPORTED);
    asked.args.codec = codec;
    EXPECT_EQ(tw_coll_prepare(gpu.coll(0), &asked.args), TW_OK);
    asked.segments[0].dst = nullptr;
    expect_log("rank 0: allgather: segment 0: dst is NULL");
    EXPECT_EQ(post(), TW_ERR_INVALID);
    asked.args.segments = nullptr;
    expect_log("rank 0: allgather: segments is NULL");
    EXPECT_EQ(post(), TW_ERR_INVALID);
    EXPECT_EQ(tw_coll_progress(gpu.coll(0)), TW_OK)
        << "mistakes that are found before anything starts do no harm";
}

/* A rank that never comes: the others give up, and their kernels are told to end. */
TEST_F(GpuStream, MissingRank)
{
    set_env("TW_COLL_TIMEOUT", "50ms");
    tw::GpuWorld gpu(tw::nodes_of({1, 1, 1}));
    tw::Case c;
    tw::RankBuffers mine[2];
    tw_coll_request_t *requests[2];
    c.sizes = {1000};
    std::vector<std::unique_ptr<tw::RankCase>> asked;
    for (int r = 0; r < 2; r++) {
        prepare(c, 3, r, &mine[r]);
        asked.push_back(std::make_unique<tw::RankCase>(c, &mine[r], 1));
        EXPECT_EQ(gpu.post(r, asked.back()->args, &requests[r]), TW_OK);
    }
    EXPECT_FALSE(gpu.finish());
    EXPECT_EQ(tw_coll_test(requests[0]), TW_IN_PROGRESS);
    for (int r = 0; r < 2; r++) {
        expect_log("rank " + std::to_string(r) + ": allgather (hierarchical, number 0) has not moved for");
        EXPECT_EQ(tw_coll_wait(requests[r]), TW_ERR_TIMEOUT);
        EXPECT_EQ(gpu.net.n_aborts[(size_t)r], 1);
        EXPECT_EQ(tw_coll_progress(gpu.coll(r)), TW_ERR_TIMEOUT);
        EXPECT_EQ(gpu.post(r, asked[(size_t)r]->args), TW_ERR_TIMEOUT);
    }
}

/* What NCCL reports later ends the communicator, at the next call. */
TEST_F(GpuStream, ErrorOnTheDevice)
{
    tw::GpuWorld gpu(tw::nodes_of({1, 1}));
    tw::Case c;
    tw::RankBuffers mine;
    c.sizes = {10};
    prepare(c, 2, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    gpu.net.errors[0] = TW_ERR_PEER;
    gpu.net.errors[1] = TW_ERR_PEER;
    EXPECT_EQ(tw_coll_progress(gpu.coll(0)), TW_ERR_PEER);
    EXPECT_EQ(gpu.post(1, asked.args), TW_ERR_PEER);
    EXPECT_EQ(gpu.net.n_aborts[0] + gpu.net.n_aborts[1], 2);
    tw_coll_abort(gpu.coll(0));
    EXPECT_EQ(gpu.net.n_aborts[0], 1) << "once is enough";
    EXPECT_EQ(tw_coll_progress(gpu.coll(0)), TW_ERR_PEER);
}

/* Of a call that NCCL does by itself the plan says what NCCL's ring sends between nodes: each of them all but
 * a shard, and twice that to reduce and gather. */
TEST_F(GpuStream, InterNodeBytesOfNative)
{
    tw::GpuWorld gpu(tw::nodes_of({2, 2, 1}));
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        tw::Case c;
        c.op = op;
        c.codec = "";
        c.sizes = {5000};
        std::vector<tw::GpuPosted> posted = gpu.post(c);
        EXPECT_TRUE(gpu.finish());
        EXPECT_STREQ(gpu.plan(0).algo, "native");
        const uint64_t shard = 1000 * tw_type_bytes(c.type);
        for (int r = 0; r < 5; r++) {
            uint64_t planned = 0;
            EXPECT_EQ(tw_coll_planned_inter_node_bytes(gpu.coll(r), &posted[(size_t)r].asked->args, &planned),
                      TW_OK);
            const bool is_first = r == 0 || r == 2 || r == 4;
            EXPECT_EQ(planned, is_first ? (op == TW_COLL_ALLREDUCE ? 2 : 1) * 4 * shard : 0) << r;
        }
    }
}

} // namespace
