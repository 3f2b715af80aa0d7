/* Dithered integers in collectives: the same bits on all ranks, errors with a mean of 0, in few bytes. */
#include <cmath>
#include <cstring>
#include <random>

#include "tests/collectives/sweep.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t rows = 96, columns = 512, n = rows * columns;
const std::vector<std::vector<int>> grids = {{1, 1}, {1, 1, 1, 1}, {2, 2}, {1, 3}, {3}};

/** A rank's gradients: rows and columns of different sizes. */
std::vector<float> make_gradients(int rank)
{
    std::mt19937 random((uint32_t)rank + 1);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) {
        values[i] = normal(random) * (float)(1 + i / columns % 7) * (float)(1 + i % columns % 5);
    }
    return values;
}

class Ecdq : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        EXPECT_EQ(tw_quant_codec_parse("ecdq", &ecdq), TW_OK);
    }

    /** Run an operation on a rank's gradients; codec NULL: plain. Elements that it does not get are 0. */
    static tw_status_t attempt(tw::World &world, int rank, tw_coll_op_t op, const tw_quant_codec_t *codec,
                               std::vector<float> *out, uint64_t seed = 1, uint32_t step = 1)
    {
        const std::vector<float> in = make_gradients(rank);
        out->assign(n, 0);
        tw_coll_segment_t segment = {};
        segment.src = in.data();
        segment.dst = out->data();
        segment.n_elems = n;
        segment.row_elems = columns;
        tw_coll_args_t args = {};
        args.op = op;
        args.type = TW_TYPE_FP32;
        args.segments = &segment;
        args.n_segments = 1;
        args.codec = codec;
        args.force_codec = codec != nullptr;
        args.seed = seed;
        args.step = step;
        return world.run(rank, &args);
    }

    /** What a rank has after it. */
    static std::vector<float> run(tw::World &world, int rank, tw_coll_op_t op, const tw_quant_codec_t *codec,
                                  uint64_t seed = 1, uint32_t step = 1)
    {
        std::vector<float> out;
        EXPECT_EQ(attempt(world, rank, op, codec, &out, seed, step), TW_OK);
        EXPECT_EQ(world.plan(rank).quantized, codec != nullptr);
        return out;
    }

    tw_quant_codec_t ecdq;
};

/** Root of the mean square of what two results differ by, beside the second one's. */
double distance(const std::vector<float> &a, const std::vector<float> &b)
{
    double off = 0, power = 0;
    for (size_t i = 0; i < a.size(); i++) {
        off += std::pow(double(a[i]) - b[i], 2);
        power += std::pow(double(b[i]), 2);
    }
    return std::sqrt(off / power);
}

/* Whoever adds up and whoever gets: all have the same sum, also the rank that made it. A message's error is
 * 0.29 of a standard deviation; a sum of few is sent once more. */
TEST_F(Ecdq, AllRanksHaveTheSameBits)
{
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : {TW_COLL_ALLREDUCE, TW_COLL_ALLGATHER}) {
            std::vector<std::vector<float>> results((size_t)world.size());
            world.run([&](int rank) {
                const std::vector<float> plain = run(world, rank, op, nullptr);
                results[(size_t)rank] = run(world, rank, op, &ecdq);
                EXPECT_LT(distance(results[(size_t)rank], plain), 0.45);
                EXPECT_GT(distance(results[(size_t)rank], plain), 0.1);
            });
            for (const std::vector<float> &result : results) {
                EXPECT_EQ(result, results[0]) << tw_coll_op_name(op);
            }
        }
    }
}

/* Over many seeds, and over steps with one seed, the mean of what a rank has tends to the plain result: with
 * the error of one divided by the root of their number. */
TEST_F(Ecdq, ErrorsHaveAMeanOfZero)
{
    const int times = 64;
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            for (bool by_step : {false, true}) {
                world.run([&](int rank) {
                    const std::vector<float> plain = run(world, rank, op, nullptr);
                    std::vector<float> mean(n);
                    double one = 0;
                    for (uint32_t t = 0; t < times; t++) {
                        const auto result = run(world, rank, op, &ecdq, by_step ? 7 : t, by_step ? t : 7);
                        one += distance(result, plain) / times;
                        for (size_t i = 0; i < n; i++) {
                            mean[i] += result[i] / times;
                        }
                    }
                    EXPECT_NEAR(distance(mean, plain), one / 8, one / 40) << by_step;
                });
            }
        }
    }
}

/* The same seed and step give the same bits, whatever arrives first. */
TEST_F(Ecdq, TheSameSeedGivesTheSameBits)
{
    tw::World world(tw::nodes_of({1, 1, 1, 1}));
    world.run([&](int rank) {
        const auto first = run(world, rank, TW_COLL_REDUCE_SCATTER, &ecdq);
        EXPECT_EQ(run(world, rank, TW_COLL_REDUCE_SCATTER, &ecdq), first);
        EXPECT_NE(run(world, rank, TW_COLL_REDUCE_SCATTER, &ecdq, 2), first);
        EXPECT_NE(run(world, rank, TW_COLL_REDUCE_SCATTER, &ecdq, 1, 2), first);
    });
}

TEST_F(Ecdq, SendsFewBytes)
{
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1, 1}, {2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
            world.run([&](int rank) {
                tw_coll_counters_t at[3];
                tw_coll_counters_get(world.coll(rank), &at[0]);
                for (int i = 0; i < 2; i++) {
                    run(world, rank, op, i ? &ecdq : nullptr);
                    tw_coll_counters_get(world.coll(rank), &at[i + 1]);
                }
                const auto plain = double(at[1].inter_node_bytes - at[0].inter_node_bytes);
                const auto coded = double(at[2].inter_node_bytes - at[1].inter_node_bytes);
                if (plain > 0) {
                    EXPECT_LT(coded, 0.085 * plain) << tw_coll_op_name(op); /* 2.2 bits of 32, and tables */
                }
            });
        }
    }
}

/* It would be rounded on each hop: there is no such algorithm. */
TEST_F(Ecdq, TreesAndToriDoNotTakeIt)
{
    expect_log("there is no quantized algorithm \"torus_2d\"");
    tw::World world({0, 1, 2, 3});
    world.run([&](int rank) {
        tw::Job job(tw::make_case(TW_COLL_ALLREDUCE, "torus_2d", {5000}), world.size(), rank);
        tw_coll_args_t args = *job.args();
        args.codec = &ecdq;
        args.force_codec = 1;
        EXPECT_EQ(world.run(rank, &args), TW_ERR_INVALID);
    });
}

/* Another step is another codec: ranks that differ find out before anything is sent. */
TEST_F(Ecdq, RanksMustHaveTheSameStep)
{
    expect_log("codecs or seed may differ");
    allow_log("gave the job up");
    tw_quant_codec_t coarse;
    ASSERT_EQ(tw_quant_codec_parse("ecdq:step=2", &coarse), TW_OK);
    tw::World world({0, 1});
    world.run([&](int rank) {
        std::vector<float> out;
        const tw_status_t status = attempt(world, rank, TW_COLL_REDUCE_SCATTER, rank ? &coarse : &ecdq, &out);
        EXPECT_TRUE(status == TW_ERR_MISMATCH || status == TW_ERR_PEER) << tw_status_string(status);
    });
}

} // namespace
