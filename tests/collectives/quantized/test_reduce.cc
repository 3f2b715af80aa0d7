/* Quantized reduce-scatter and all-reduce, against sums in fp64. */
#include <mutex>

#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class QuantReduce : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    }
};

const char *const algos[] = {"one_hop", "two_hop"};
const tw_coll_op_t ops[] = {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

TEST_F(QuantReduce, EveryWorldAndSize)
{
    set_env("TW_COLL_CHUNK", "1K");
    for (int w = 1; w <= 8; w++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        for (tw_coll_op_t op : ops) {
            for (const char *algo : algos) {
                tw::Case c;
                c.op = op;
                c.algo = algo;
                for (size_t n : {0, 1, 2, 7, 257, 4099, 20011}) {
                    c.sizes = {n};
                    c.in_place = n % 2 == 1;
                    c.reduction = n % 3 == 1 ? TW_COLL_MEAN : TW_COLL_SUM;
                    check_case(world, c);
                }
            }
        }
    }
}

TEST_F(QuantReduce, EveryGrid)
{
    set_env("TW_COLL_CHUNK", "1K");
    const std::vector<std::vector<int>> grids = {{2, 2}, {3, 3}, {2, 2, 2}, {4, 4},
                                                 {4},    {3, 1}, {1, 2, 4}, {2, 1, 1}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : ops) {
            for (const char *algo : algos) {
                for (const char *inner : {"", "int8:block=64"}) {
                    tw::Case c;
                    c.op = op;
                    c.algo = algo;
                    c.inner = inner;
                    c.codec = "int4:block=32";
                    c.sizes = {20011, 3, 0, 1, 4096, 700};
                    c.reduction = TW_COLL_MEAN;
                    c.in_place = *inner != '\0';
                    check_case(world, c);
                }
            }
        }
    }
}

TEST_F(QuantReduce, EveryTypeAndCodec)
{
    set_env("TW_COLL_CHUNK", "4K");
    tw::World world(tw::nodes_of({2, 1}));
    for (tw_coll_op_t op : ops) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
            for (const std::string &codec : tw::codec_texts(true)) {
                tw::Case c;
                c.op = op;
                c.type = type;
                c.codec = codec;
                c.inner = type == TW_TYPE_FP16 ? "int8:block=32" : "";
                c.algo = "two_hop";
                c.sizes = {30011, 5};
                check_case(world, c);
                c.algo = "one_hop";
                check_case(world, c);
            }
        }
    }
}

TEST_F(QuantReduce, UnevenShards)
{
    set_env("TW_COLL_CHUNK", "1K");
    tw::World world(tw::nodes_of({2, 1, 1}));
    for (const char *algo : algos) {
        for (bool in_place : {false, true}) {
            tw::Case c;
            c.op = TW_COLL_REDUCE_SCATTER;
            c.algo = algo;
            c.in_place = in_place;
            c.sizes = {10000, 3, 0, 7001};
            c.counts = {{0, 9000, 0, 1000}, {0, 0, 3, 0}, {0, 0, 0, 0}, {1, 0, 7000, 0}};
            check_case(world, c);
        }
    }
}

/* A bucket of tensors gives what each tensor gives alone. */
TEST_F(QuantReduce, BucketShapeDoesNotMatter)
{
    set_env("TW_COLL_CHUNK", "512");
    tw::World world(tw::nodes_of({2, 2}));
    for (tw_coll_op_t op : ops) {
        tw::Case bucket;
        bucket.op = op;
        bucket.algo = "two_hop";
        bucket.codec = "int4:block=32,stochastic";
        bucket.sizes = {1237, 2, 777};
        std::vector<tw::RankBuffers> together = run_case(world, bucket);
        tw::Case alone = bucket;
        alone.sizes = {1237};
        std::vector<tw::RankBuffers> single = run_case(world, alone);
        for (int r = 0; r < 4; r++) {
            EXPECT_TRUE(together[(size_t)r].dst[0] == single[(size_t)r].dst[0]);
        }
    }
}

/* Neither does the size of the messages. */
TEST_F(QuantReduce, ChunksDoNotMatter)
{
    for (tw_coll_op_t op : ops) {
        for (const char *algo : algos) {
            for (const char *inner : {"", "int8:block=64,stochastic"}) {
                tw::Case c;
                c.op = op;
                c.algo = algo;
                c.codec = "int4:block=32,stochastic";
                c.inner = inner;
                c.sizes = {30011, 77};
                std::vector<tw::RankBuffers> results[2];
                for (int i : {0, 1}) {
                    set_env("TW_COLL_CHUNK", i == 0 ? "512" : "1M");
                    tw::World world(tw::nodes_of({2, 1, 2}));
                    results[i] = run_case(world, c);
                }
                for (size_t r = 0; r < 5; r++) {
                    EXPECT_TRUE(results[0][r].dst == results[1][r].dst) << tw::name_of(c);
                }
            }
        }
    }
}

/* Stochastic rounding repeats, and another step rounds differently. */
TEST_F(QuantReduce, StochasticRepeats)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c;
    c.op = TW_COLL_REDUCE_SCATTER;
    c.algo = "one_hop";
    c.codec = "int4:stochastic";
    c.sizes = {5003};
    std::vector<tw::RankBuffers> first = run_case(world, c), again = run_case(world, c);
    c.step++;
    std::vector<tw::RankBuffers> other = run_case(world, c);
    EXPECT_TRUE(first[1].dst == again[1].dst);
    EXPECT_FALSE(first[1].dst == other[1].dst);
}

/* Ranks do not round the same value the same way: the error of a mean of equal contributions shrinks with
 * W. */
TEST_F(QuantReduce, StochasticErrorsAverageOut)
{
    const int w = 8;
    const size_t n = 8192;
    tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
    tw_quant_codec_t codec = tw::parse_codec("int4:stochastic,scale=fp32");
    std::vector<float> in(n);
    for (size_t i = 0; i < n; i++) {
        in[i] = i % 128 == 0 ? 7.0f : 0.5f; /* steps of 1: 0.5 rounds to 0 or 1 */
    }
    double square = 0;
    std::mutex lock;
    world.run([&](int rank) {
        std::vector<float> out(tw_coll_shard_elems(n, w, rank));
        tw_coll_segment_t segment = {};
        segment.src = in.data();
        segment.dst = out.data();
        segment.n_elems = n;
        tw_coll_args_t args = {};
        args.op = TW_COLL_REDUCE_SCATTER;
        args.type = TW_TYPE_FP32;
        args.segments = &segment;
        args.n_segments = 1;
        args.reduction = TW_COLL_MEAN;
        args.codec = &codec;
        args.algo = "one_hop";
        args.force_codec = 1;
        EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        std::lock_guard<std::mutex> guard(lock);
        for (float value : out) {
            square += value < 6 ? (value - 0.5) * (value - 0.5) : 0;
        }
    });
    /* the variance of a mean of w fair coins is 1 / 4w; of one coin for all, 1 / 4. The estimate from n
     * values is within a few times sqrt(2 / n) of it. */
    double variance = square / (double)n, expected = 1.0 / (4 * w);
    EXPECT_NEAR(variance, expected, 6 * expected * std::sqrt(2.0 / (double)n) + expected / 128);
}

/* NaN in one rank's contribution: NaN in that block on the owner, and the encoder counts it. */
TEST_F(QuantReduce, NanIsCounted)
{
    tw::World world(tw::nodes_of({2, 1}));
    tw_quant_codec_t codec = tw::parse_codec("int8:block=32");
    for (const char *algo : algos) {
        world.run([&](int rank) {
            std::vector<float> in(300, 1.0f), out(100);
            if (rank == 1) {
                in[250] = NAN; /* shard 2, block 1 of its 4 */
            }
            tw_coll_segment_t segment = {};
            segment.src = in.data();
            segment.dst = out.data();
            segment.n_elems = 300;
            tw_coll_args_t args = {};
            args.op = TW_COLL_REDUCE_SCATTER;
            args.type = TW_TYPE_FP32;
            args.segments = &segment;
            args.n_segments = 1;
            args.codec = &codec;
            args.algo = algo;
            args.force_codec = 1;
            uint64_t before = tw_coll_nonfinite_blocks(world.coll(rank));
            EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
            for (size_t i = 0; i < 100; i++) {
                EXPECT_EQ(std::isnan(out[i]), rank == 2 && i >= 32 && i < 64)
                    << algo << " " << rank << " " << i;
            }
            /* who adds it up inside the node meets it when encoding the sum: local 0 gathers for rank 2 */
            bool met = std::string(algo) == "one_hop" ? rank == 1 : rank == 0;
            EXPECT_EQ(tw_coll_nonfinite_blocks(world.coll(rank)) - before, met ? 1u : 0u)
                << algo << " " << rank;
        });
    }
}

} // namespace
