/* Do the ranks agree? What happens when they do not. */
#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/communicator.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using tw::make_case;

/* Rank 2 posts something else: everybody gets an error, and the one who noticed says what. */
void expect_mismatch(const tw::Case &usual, const tw::Case &other)
{
    tw::World world(tw::nodes_of({1, 1, 1, 1, 1}));
    std::atomic<int> mismatches{0};
    world.run([&](int rank) {
        tw::Job job(rank == 2 ? other : usual, world.size(), rank);
        tw_status_t status = tw_coll_run(world.coll(rank), job.args());
        mismatches += status == TW_ERR_MISMATCH;
        EXPECT_TRUE(status == TW_ERR_MISMATCH || status == TW_ERR_PEER)
            << "rank " << rank << ": " << tw_status_string(status);
    });
    EXPECT_GE(mismatches.load(), 1);
}

class Check : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", "512");
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
    }
};

class Mismatch : public Check, public ::testing::WithParamInterface<int>
{
};

TEST_P(Mismatch, IsAnErrorOnAllRanks)
{
    tw::Case usual = make_case(TW_COLL_ALLREDUCE, "ring", {4000, 7}), other = usual;
    switch (GetParam()) {
    case 0:
        other.reduction = TW_COLL_MEAN;
        break;
    case 1:
        other.type = TW_TYPE_FP16;
        break;
    case 2:
        other.n_elems = {4000, 8};
        break;
    case 3:
        other.n_elems = {4007};
        break;
    case 4:
        other.algo = "direct";
        break;
    case 5:
        other = make_case(TW_COLL_ALLGATHER, "ring", {4000, 7});
        break;
    default:
        usual.op = other.op = TW_COLL_ALLGATHER;
        other.uneven = true;
    }
    allow_log("disagrees about an operation");
    allow_log("another size than");
    allow_log("were expected");
    expect_log("gave the job up: ranks disagree about an operation");
    expect_mismatch(usual, other);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mismatch, ::testing::Range(0, 7));

/* What is said of both operations is what they are. */
TEST_F(Check, TheErrorSaysWhatBothTakeItFor)
{
    allow_log("another size than");
    allow_log("were expected");
    expect_log("disagrees about an operation");
    expect_log("gave the job up: ranks disagree about an operation");
    expect_mismatch(make_case(TW_COLL_ALLREDUCE, "ring", {4000, 7}),
                    make_case(TW_COLL_ALLREDUCE, "ring", {4000, 8}));
    const size_t before = log_count("(ring) of 4007 bf16, there"),
                 behind = log_count("(ring) of 4008 bf16, there");
    EXPECT_GE(before + behind, 1u); /* either neighbour may be the first to notice */
    EXPECT_EQ(log_count("allreduce (ring) of 4008 bf16"), before + behind);
    EXPECT_EQ(log_count("allreduce (ring) of 4007 bf16"), before + behind);
}

/* Both chunks, and the variable: longer than what is sent, so that no message has another size. */
TEST_F(Check, ChunksThatDifferAreNamed)
{
    set_env("TW_COLL_CHUNK", "64K");
    expect_log("TW_COLL_CHUNK)");
    expect_log("gave the job up: ranks disagree about an operation");
    tw::World world(tw::nodes_of({1, 1, 1}));
    world.coll(1)->options.chunk_bytes = 128 << 10;
    world.run([&](int rank) {
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world.size(), rank);
        EXPECT_LT(tw_coll_run(world.coll(rank), job.args()), 0);
    });
    EXPECT_GE(log_count("; chunks are of 65536 bytes here and 131072 there (TW_COLL_CHUNK)") +
                  log_count("; chunks are of 131072 bytes here and 65536 there (TW_COLL_CHUNK)"),
              1u);
}

/* Whoever it is, the one after it in the ring hears of it and says who: in worlds of 2 to 8. */
TEST_F(Check, TheRankThatDisagreesIsNamed)
{
    allow_log("disagrees about an operation");
    allow_log("gave the job up");
    for (int world = 2; world <= 8; world++) {
        int other = world * 5 % world + world / 2, next = (other + 1) % world;
        tw::World ranks(tw::nodes_of(std::vector<int>((size_t)world, 1)));
        ranks.run([&](int rank) { /* a barrier has no data that could be of a wrong size */
                                  tw_coll_args_t args = {};
                                  args.op = TW_COLL_BARRIER;
                                  args.step = rank == other;
                                  tw_status_t status = tw_coll_run(ranks.coll(rank), &args);
                                  if (status == TW_OK) { /* its messages were quicker than the news */
                                      status = tw_coll_run(ranks.coll(rank), &args);
                                  }
                                  EXPECT_LT(status, 0) << "rank " << rank << " of " << world;
        });
        EXPECT_GE(
            log_count("rank " + std::to_string(next) + ": rank " + std::to_string(other) + " disagrees") +
                log_count("rank " + std::to_string(other) + ": rank " +
                          std::to_string((other + world - 1) % world) + " disagrees"),
            1u)
            << world;
    }
}

/* A post that fails on one rank alone: the others hear of it rather than wait. */
TEST_F(Check, AFailedPostEndsTheJob)
{
    allow_log("there is no plain algorithm");
    allow_log("gave the job up");
    for (int world = 2; world <= 8; world++) {
        int bad = world / 2;
        tw::World ranks(tw::nodes_of(std::vector<int>((size_t)world, 1)));
        ranks.run([&](int rank) {
            tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world, rank);
            EXPECT_EQ(tw_coll_run(ranks.coll(rank), job.args()), TW_OK);
        });
        ranks.run([&](int rank) {
            tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world, rank);
            tw_coll_args_t args = *job.args();
            args.algo = rank == bad ? "rong" : args.algo;
            tw_status_t status = tw_coll_run(ranks.coll(rank), &args);
            if (rank == bad) {
                EXPECT_EQ(status, TW_ERR_INVALID);
            } else {
                EXPECT_TRUE(status == TW_ERR_MISMATCH || status == TW_ERR_PEER) << tw_status_string(status);
            }
        });
        expect_log("rank " + std::to_string(bad) + " could not post operation number 1");
    }
}

/* All alike: nothing is lost, and neither is the count of operations. */
TEST_F(Check, APostThatFailsOnAllRanksDoesNot)
{
    expect_log("there is no plain algorithm \"rong\"");
    for (int world = 1; world <= 8; world++) {
        tw::World ranks(tw::nodes_of(std::vector<int>((size_t)world, 1)));
        ranks.run([&](int rank) {
            tw::Case c = make_case(TW_COLL_ALLREDUCE, "ring", {4000});
            for (int round = 0; round < 3; round++) {
                tw::Job job(c, world, rank);
                tw_coll_args_t wrong = *job.args();
                wrong.algo = "rong";
                EXPECT_EQ(tw_coll_run(ranks.coll(rank), &wrong), TW_ERR_INVALID);
                EXPECT_EQ(tw_coll_run(ranks.coll(rank), &wrong), TW_ERR_INVALID);
                EXPECT_EQ(tw_coll_run(ranks.coll(rank), job.args()), TW_OK);
                EXPECT_EQ(job.check(tw::Reference(c, world), world + 1), "");
            }
        });
    }
}

/* The others post nothing either: there is nobody to tell, and nothing to time out. */
TEST_F(Check, AFailedPostMeetsNothing)
{
    set_env("TW_COLL_TIMEOUT", "300ms");
    expect_log("there is no plain algorithm");
    tw::World world(tw::nodes_of({1, 1, 1}));
    world.run([&](int rank) {
        if (rank != 1) {
            return;
        }
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), 3, rank);
        tw_coll_args_t wrong = *job.args();
        wrong.algo = "rong";
        EXPECT_EQ(tw_coll_run(world.coll(rank), &wrong), TW_ERR_INVALID);
        for (int i = 0; i < 50; i++) { /* nobody waits for it: no timeout */
            EXPECT_EQ(tw_coll_progress(world.coll(rank)), TW_OK);
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    });
}

struct Codecs {
    const char *codec, *inner;
    uint64_t seed;
    uint32_t step, tensor;
};

/* All that a quantized operation's bits depend on is compared. */
TEST_F(Check, CodecsSeedsAndTensorsAreCompared)
{
    const Codecs usual = {"int4:block=64", "int8", 1, 2, 3};
    const Codecs others[] = {{"int4:block=128", "int8", 1, 2, 3}, {"int4:block=64,hadamard", "int8", 1, 2, 3},
                             {"int4:block=64", "int4", 1, 2, 3},  {"int4:block=64", "int8", 9, 2, 3},
                             {"int4:block=64", "int8", 1, 9, 3},  {"int4:block=64", "int8", 1, 2, 9}};
    allow_log("another size than");
    allow_log("were expected");
    expect_log("disagrees about an operation");
    expect_log("gave the job up: ranks disagree about an operation");
    for (const Codecs &other : others) {
        tw::World world(tw::nodes_of({1, 1, 1}));
        world.run([&](int rank) {
            const Codecs &mine = rank == 1 ? other : usual;
            tw_quant_codec_t codec, inner;
            ASSERT_EQ(tw_quant_codec_parse(mine.codec, &codec), TW_OK);
            ASSERT_EQ(tw_quant_codec_parse(mine.inner, &inner), TW_OK);
            std::vector<float> src(3000, 1), dst(1000);
            tw_coll_segment_t segment = {};
            segment.src = src.data();
            segment.dst = dst.data();
            segment.n_elems = src.size();
            segment.tensor = mine.tensor;
            tw_coll_args_t args = {};
            args.op = TW_COLL_REDUCE_SCATTER;
            args.type = TW_TYPE_FP32;
            args.segments = &segment;
            args.n_segments = 1;
            args.codec = &codec;
            args.inner_codec = &inner;
            args.seed = mine.seed;
            args.step = mine.step;
            args.algo = "two_hop";
            args.force_codec = 1;
            tw_status_t status = tw_coll_run(world.coll(rank), &args);
            if (rank > 0) { /* the one that differs and the next one; the other may be through before */
                EXPECT_LT(status, 0) << rank << ": " << other.codec << " " << other.inner;
            }
        });
    }
}

} // namespace
