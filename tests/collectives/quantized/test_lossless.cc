/* The lossless codec in collectives: the bits of the plain operation, in fewer bytes. */
#include <array>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/collectives/sweep.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE, TW_COLL_ALLTOALL};

class Lossless : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        EXPECT_EQ(tw_quant_codec_parse("lossless", &lossless), TW_OK);
    }

    /** What a rank has after a case; codec NULL: plain. */
    std::vector<uint8_t> run(tw::World &world, int rank, const tw::Case &c, const tw_quant_codec_t *codec)
    {
        tw::Job job(c, world.size(), rank);
        tw_coll_args_t args = *job.args();
        args.codec = codec;
        args.force_codec = codec != nullptr;
        EXPECT_EQ(world.run(rank, &args), TW_OK) << c.name();
        EXPECT_EQ(world.plan(rank).quantized, codec != nullptr) << c.name();
        return job.result();
    }

    void expect_same_bits(tw::World &world, const tw::Case &c)
    {
        world.run([&](int rank) {
            std::vector<uint8_t> plain = run(world, rank, c, nullptr);
            EXPECT_EQ(run(world, rank, c, &lossless), plain) << c.name() << ", rank " << rank;
        });
    }

    tw_quant_codec_t lossless;
};

/** Weights of a matrix: rows and columns of different sizes. */
std::vector<uint16_t> make_matrix(size_t rows, size_t columns, uint32_t seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(rows * columns);
    for (size_t i = 0; i < values.size(); i++) {
        float scale = (float)(1 + i / columns % 7) * (float)(1 + i % columns % 5),
              value = 0.01f * scale * normal(random);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        values[i] = (uint16_t)(bits >> 16);
    }
    return values;
}

/* Every world, also on one node, where nothing is packed in sums; several small tensors, shards that are
 * empty. */
TEST_F(Lossless, HasTheBitsOfThePlainOperation)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    set_env("TW_COLL_CHUNK", "16K");
    for (const std::vector<int> &nodes : tw::all_worlds()) {
        tw::World world(nodes);
        int kind = 0;
        for (tw_coll_op_t op : ops) {
            for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32}) {
                tw::Case c = tw::make_case(op, "auto",
                                           kind % 2 ? std::vector<size_t>{20011}
                                                    : std::vector<size_t>{3, 9000, 0, 1, 4099});
                c.type = type;
                c.in_place = kind / 2 % 2;
                c.uneven = kind / 4 % 2 && op != TW_COLL_ALLREDUCE;
                c.reduction = kind / 3 % 2 ? TW_COLL_MEAN : TW_COLL_SUM;
                expect_same_bits(world, c);
                kind++;
            }
        }
    }
}

/* By name, on a communicator that measures: the routes of a gather, and sums made in one hop or in two. */
TEST_F(Lossless, EveryAlgorithm)
{
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}, {1, 3}}) {
        tw::World world(tw::nodes_of(grid));
        for (const char *algo : {"ring", "hierarchical", "direct"}) {
            expect_same_bits(world, tw::make_case(TW_COLL_ALLGATHER, algo, {70001, 5}));
        }
        for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            world.run([&](int rank) {
                std::vector<uint8_t> two[2], one[2];
                for (int i = 0; i < 2; i++) {
                    two[i] =
                        run(world, rank, tw::make_case(op, "two_hop", {70001, 5}), i ? &lossless : nullptr);
                    one[i] = run(world, rank, tw::make_case(op, i ? "one_hop" : "direct", {70001, 5}),
                                 i ? &lossless : nullptr);
                }
                EXPECT_EQ(one[0], one[1]) << rank;
                EXPECT_EQ(two[0], two[1]) << rank;
            });
        }
    }
}

/* Sums that are rounded, and encoded again, on their way: several tensors, of which shards have parts. */
TEST_F(Lossless, TreesAndTori)
{
    set_env("TW_COLL_CHUNK", "4K");
    for (const std::vector<int> &grid : {std::vector<int>{1},
                                         {3},
                                         {1, 1, 1, 1},
                                         {1, 1, 1, 1, 1, 1},
                                         {2, 2},
                                         {1, 3},
                                         {3, 1, 2},
                                         {2, 2, 2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        int kind = 0;
        for (const char *algo : {"torus_2d", "torus_3d", "double_tree", "binomial"}) {
            for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32}) {
                tw::Case c = tw::make_case(TW_COLL_ALLREDUCE, algo, {3, 9000, 0, 1, 4099});
                c.type = type;
                c.in_place = kind % 2;
                c.reduction = kind % 3 ? TW_COLL_MEAN : TW_COLL_SUM;
                expect_same_bits(world, c);
                kind++;
            }
        }
    }
}

/* Where bits count, a short tensor does not go plain by an algorithm that adds up in another order than the
 * one that was asked for. */
TEST_F(Lossless, ByNameASumHasTheSameOrderAtAnySize)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    tw::World world(tw::nodes_of({2, 2}));
    const std::pair<const char *, const char *> names[] = {
        {"torus_2d", "torus_2d"}, {"binomial", "binomial"}, {"one_hop", "direct"}, {"two_hop", "two_hop"}};
    for (const auto &[name, plain_name] : names) {
        for (size_t n : {1001, 70001}) {
            world.run([&, packed = name, plain = plain_name](int rank) {
                const auto want = run(world, rank, tw::make_case(TW_COLL_ALLREDUCE, plain, {n}), nullptr);
                tw::Job job(tw::make_case(TW_COLL_ALLREDUCE, packed, {n}), world.size(), rank);
                tw_coll_args_t args = *job.args();
                args.codec = &lossless;
                EXPECT_EQ(world.run(rank, &args), TW_OK);
                EXPECT_EQ(job.result(), want) << packed << " " << n << ", rank " << rank;
            });
        }
    }
}

/* What loses something would do so on each hop: there is no such algorithm, and nothing takes it unasked. */
TEST_F(Lossless, TreesAndToriTakeNoOtherCodec)
{
    expect_log("there is no quantized algorithm \"torus_2d\"");
    tw::World world({0, 1, 2, 3});
    tw_quant_codec_t int8;
    ASSERT_EQ(tw_quant_codec_parse("int8", &int8), TW_OK);
    world.run([&](int rank) {
        tw::Job job(tw::make_case(TW_COLL_ALLREDUCE, "torus_2d", {5000}), world.size(), rank);
        tw_coll_args_t args = *job.args();
        args.codec = &int8;
        args.force_codec = 1;
        EXPECT_EQ(world.run(rank, &args), TW_ERR_INVALID);
        args.codec = &lossless;
        args.algo = nullptr;
        EXPECT_EQ(world.run(rank, &args), TW_OK);
        const std::string chosen = world.plan(rank).algo;
        EXPECT_TRUE(chosen == "one_hop" || chosen == "two_hop") << chosen;
    });
}

/* Nor a segment that has one of its own. */
TEST_F(Lossless, TreesAndToriTakeNoOtherCodecOfASegment)
{
    expect_log("there is no quantized algorithm \"torus_2d\"");
    tw_quant_codec_t int8;
    ASSERT_EQ(tw_quant_codec_parse("int8", &int8), TW_OK);
    for (const char *deterministic : {"n", "y"}) {
        set_env("TW_COLL_DETERMINISTIC", deterministic);
        tw::World world({0, 1, 2, 3});
        world.run([&](int rank) {
            tw::Job job(tw::make_case(TW_COLL_ALLREDUCE, "torus_2d", {5000, 5000}), world.size(), rank);
            std::vector<tw_coll_segment_t> segments(job.args()->segments, job.args()->segments + 2);
            tw_coll_args_t args = *job.args();
            segments[1].codec = &int8;
            args.segments = segments.data();
            args.codec = &lossless;
            args.force_codec = 1;
            EXPECT_EQ(world.run(rank, &args), TW_ERR_INVALID) << deterministic;
        });
    }
}

/* NaN with their payloads, infinities, zeros of both signs, denormals. */
TEST_F(Lossless, AnyBitsAreGathered)
{
    std::vector<uint16_t> all(1 << 16);
    for (size_t i = 0; i < all.size(); i++) {
        all[i] = (uint16_t)i;
    }
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 1}}) {
        tw::World world(tw::nodes_of(grid));
        world.run([&](int rank) {
            std::vector<uint16_t> out(all.size());
            tw_coll_segment_t segment = {};
            segment.src = all.data() + tw_coll_shard_offset(all.size(), world.size(), rank);
            segment.dst = out.data();
            segment.n_elems = all.size();
            tw_coll_args_t args = {};
            args.op = TW_COLL_ALLGATHER;
            args.type = TW_TYPE_BF16;
            args.segments = &segment;
            args.n_segments = 1;
            args.codec = &lossless;
            args.force_codec = 1;
            EXPECT_EQ(world.run(rank, &args), TW_OK);
            EXPECT_EQ(out, all);
        });
    }
}

/* Plain, quantized and lossless segments in one operation: each has the result that it has alone. */
TEST_F(Lossless, BesideOtherSegments)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    tw_quant_codec_t int8, inner;
    ASSERT_EQ(tw_quant_codec_parse("int8:block=64", &int8), TW_OK);
    ASSERT_EQ(tw_quant_codec_parse("int8:block=96", &inner), TW_OK);
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : ops) {
            world.run([&](int rank) {
                const tw::Case c = tw::make_case(op, "auto", {5000, 5000, 5000});
                std::vector<std::vector<uint8_t>> results;
                for (int with = 0; with < 2; with++) {
                    tw::Job job(c, world.size(), rank);
                    std::vector<tw_coll_segment_t> segments(job.args()->segments, job.args()->segments + 3);
                    tw_coll_args_t args = *job.args();
                    segments[0].unquantized = 1;
                    segments[2].codec = with ? &lossless : nullptr;
                    segments[2].unquantized = !with;
                    args.segments = segments.data();
                    args.codec = &int8;
                    args.inner_codec = op == TW_COLL_REDUCE_SCATTER ? &inner : nullptr;
                    EXPECT_EQ(world.run(rank, &args), TW_OK);
                    results.push_back(job.result());
                }
                EXPECT_EQ(results[0], results[1]) << tw_coll_op_name(op) << ", rank " << rank;
            });
        }
    }
}

/* It would be of no use without this: fewer bytes between nodes, at most what was planned, and plain bytes
 * inside them. What must lose nothing is packed, too. */
TEST_F(Lossless, SendsFewerBytes)
{
    const size_t rows = 900, columns = 400, n = rows * columns;
    for (const std::vector<int> &grid : {std::vector<int>{1, 1}, {2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : ops) {
            world.run([&](int rank) {
                std::vector<uint16_t> in = make_matrix(rows, columns, (uint32_t)rank), out(n);
                tw_coll_segment_t segments[2] = {};
                for (size_t s = 0; s < 2; s++) {
                    segments[s].src = in.data() + s * n / 3;
                    segments[s].dst = out.data() + s * n / 3;
                    segments[s].n_elems = s ? n - n / 3 : n / 3;
                    segments[s].row_elems = columns;
                    segments[s].unquantized = s == 1;
                }
                tw_coll_args_t args = {};
                args.op = op;
                args.type = TW_TYPE_BF16;
                args.segments = segments;
                args.n_segments = 2;
                args.force_codec = 1;
                uint64_t planned[2];
                tw_coll_counters_t at[3];
                tw_coll_counters_get(world.coll(rank), &at[0]);
                for (int i = 0; i < 2; i++) {
                    args.codec = i ? &lossless : nullptr;
                    EXPECT_EQ(tw_coll_planned_inter_node_bytes(world.coll(rank), &args, &planned[i]), TW_OK);
                    EXPECT_EQ(world.run(rank, &args), TW_OK);
                    tw_coll_counters_get(world.coll(rank), &at[i + 1]);
                }
                double plain = (double)(at[1].inter_node_bytes - at[0].inter_node_bytes);
                double packed = (double)(at[2].inter_node_bytes - at[1].inter_node_bytes);
                uint64_t spared = at[2].inter_node_spared_bytes - at[1].inter_node_spared_bytes;
                EXPECT_EQ(packed + (double)spared, (double)planned[1]);
                EXPECT_EQ(at[1].inter_node_spared_bytes, at[0].inter_node_spared_bytes);
                if (plain > 0) {
                    EXPECT_LT(packed, 0.72 * plain) << tw_coll_op_name(op);
                    EXPECT_GT(packed, 0.5 * plain) << tw_coll_op_name(op);
                }
            });
        }
    }
}

/** What a rank sent to other nodes. */
struct Sent {
    uint64_t bytes, spared;
};

/* counts are elements for each rank, [from][to]. Returns what this rank sent plain, and then with the
 * codec. */
std::array<Sent, 2> run_alltoall(tw::World &world, int rank, const tw_quant_codec_t &lossless,
                                 const std::vector<std::vector<size_t>> &counts, bool force)
{
    std::vector<size_t> out(counts.size());
    for (size_t from = 0; from < out.size(); from++) {
        out[from] = counts[from][(size_t)rank];
    }
    const std::vector<size_t> &in = counts[(size_t)rank];
    const size_t n_in = std::accumulate(in.begin(), in.end(), (size_t)0),
                 n_out = std::accumulate(out.begin(), out.end(), (size_t)0);
    std::vector<uint16_t> src = make_matrix((n_in + 127) / 128, 128, (uint32_t)rank), dst[2];
    std::array<Sent, 2> sent;
    for (size_t packs = 0; packs < 2; packs++) {
        tw_coll_counters_t before, after;
        tw_coll_counters_get(world.coll(rank), &before);
        dst[packs].resize(n_out);
        tw_coll_segment_t segment = {};
        segment.src = src.data();
        segment.dst = dst[packs].data();
        segment.n_elems = n_in;
        segment.counts = in.data();
        segment.recv_counts = out.data();
        segment.row_elems = 128;
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLTOALL;
        args.type = TW_TYPE_BF16;
        args.segments = &segment;
        args.n_segments = 1;
        args.codec = packs ? &lossless : nullptr;
        args.force_codec = force;
        EXPECT_EQ(world.run(rank, &args), TW_OK);
        EXPECT_EQ(world.plan(rank).quantized, (int)packs);
        tw_coll_counters_get(world.coll(rank), &after);
        sent[packs] = {after.inter_node_bytes - before.inter_node_bytes,
                       after.inter_node_spared_bytes - before.inter_node_spared_bytes};
    }
    EXPECT_EQ(dst[0], dst[1]) << "rank " << rank;
    EXPECT_EQ(sent[0].spared, 0u);
    return sent;
}

TEST_F(Lossless, ShortMessagesOfAnAllToAllGoPlain)
{
    const size_t little = 8192, much = 1 << 16;
    for (const std::string link : {"1gbit", "1mbit"}) {
        for (const char *deterministic : {"n", "y"}) {
            set_env("TW_COLL_MODEL", "inter:beta=" + link);
            set_env("TW_COLL_DETERMINISTIC", deterministic);
            tw::World world(tw::nodes_of({1, 1, 1}));
            world.run([&](int rank) {
                std::vector<std::vector<size_t>> counts(3, std::vector<size_t>(3, little));
                const auto [plain, packed] = run_alltoall(world, rank, lossless, counts, false);
                EXPECT_EQ(packed.spared > 0, link == "1mbit") << link;
                EXPECT_TRUE(packed.spared > 0 || packed.bytes == plain.bytes) << "nothing but the tensor";
                EXPECT_GT(run_alltoall(world, rank, lossless, counts, true)[1].spared, 0u) << "told to";
                counts[1] = {much, 1, 0};
                const uint64_t ragged = run_alltoall(world, rank, lossless, counts, false)[1].spared;
                EXPECT_EQ(ragged, rank == 1 ? std::max(ragged, (uint64_t)much / 2) : packed.spared) << link;
            });
        }
    }
}

TEST_F(Lossless, RefusesNonsense)
{
    tw::World world(tw::nodes_of({1, 1}));
    std::vector<uint16_t> values(64);
    tw_quant_codec_t int8;
    ASSERT_EQ(tw_quant_codec_parse("int8", &int8), TW_OK);
    tw_coll_segment_t segment = {};
    segment.src = segment.dst = values.data();
    segment.n_elems = values.size();
    tw_coll_args_t args = {};
    tw_coll_request_t *request;
    args.op = TW_COLL_ALLREDUCE;
    args.type = TW_TYPE_BF16;
    args.segments = &segment;
    args.n_segments = 1;
    args.codec = &int8;
    args.inner_codec = &lossless;
    expect_log("inner_codec has messages that say their length");
    world.run([&](int rank) { EXPECT_EQ(tw_coll_post(world.coll(rank), &args, &request), TW_ERR_INVALID); });
}

} // namespace
