/* TW_COLL_SCRATCH is the most scratch memory that a communicator has, whatever the operation and its size. */

#include "collectives/communicator.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class ScratchLimit : public tw::Fixture
{
  protected:
    /* Operations of every algorithm on many times as much as may be held; in pieces, so that messages are
     * packed. */
    void check(const std::vector<int> &node_of, size_t limit, size_t bytes)
    {
        set_env("TW_COLL_SCRATCH", std::to_string(limit));
        tw::World world(node_of);
        for (size_t i = 0; tw_coll_algo_get(TW_MEM_HOST, i) != nullptr; i++) {
            const tw_coll_algo_info_t *info = tw_coll_algo_get(TW_MEM_HOST, i);
            for (const char *inner : {"", "int8:block=32"}) {
                bool has_inner = info->quantized && !info->lossless_only;
                if (info->op == TW_COLL_BARRIER || (*inner != '\0' && !has_inner)) {
                    continue;
                }
                run_one(world, info, inner, bytes);
                for (int r = 0; r < world.size(); r++) {
                    EXPECT_LE(tw_scratch_peak_bytes(world.coll(r)->scratch), limit)
                        << tw_coll_op_name(info->op) << " " << info->name << " " << inner << ", rank " << r
                        << " of " << world.size();
                }
            }
        }
        for (int r = 0; r < world.size(); r++) { /* it was used at all */
            EXPECT_GT(tw_scratch_peak_bytes(world.coll(r)->scratch), limit / 8);
            EXPECT_EQ(tw_scratch_used_bytes(world.coll(r)->scratch), 0u);
        }
    }
    void run_one(tw::World &world, const tw_coll_algo_info_t *info, const char *inner, size_t bytes)
    {
        size_t w = (size_t)world.size();
        world.run([&](int rank) {
            tw::Case c;
            c.op = info->op;
            c.algo = info->name;
            c.type = TW_TYPE_BF16;
            c.codec = info->lossless_only ? "lossless" : info->quantized ? "int4:block=32" : "";
            c.inner = inner;
            /* All-to-all: everybody sends alike. */
            c.sizes.assign(n_segments, bytes / 2 / n_segments / w * w);
            tw::RankBuffers mine;
            if (info->op == TW_COLL_ALLTOALL || info->op == TW_COLL_BROADCAST) {
                tw::Case like = c;
                like.op = TW_COLL_ALLREDUCE;
                prepare(like, world.size(), rank, &mine);
            } else {
                prepare(c, world.size(), rank, &mine);
            }
            tw::RankCase asked(c, &mine, 1);
            EXPECT_EQ(tw_coll_run(world.coll(rank), &asked.args), TW_OK) << info->name;
        });
    }
    size_t n_segments = 8;
};

TEST_F(ScratchLimit, HoldsForEveryAlgorithm)
{
    for (const std::vector<int> &grid :
         std::vector<std::vector<int>>{{1}, {1, 1}, {1, 1, 1}, {2, 2}, {4}, {3, 1, 2}}) {
        check(tw::nodes_of(grid), 128 << 10, 1 << 19);
    }
}

/* Each message is of many small segments, and so is packed: a copy goes when its message has gone. */
TEST_F(ScratchLimit, HoldsForPackedMessages)
{
    constexpr size_t LIMIT = 64 << 10;
    n_segments = 512;
    set_env("TW_COLL_SCRATCH", std::to_string(LIMIT));
    set_env("TW_COLL_CHUNK", "8192");
    tw::World world({0, 1, 2});
    for (size_t i = 0; tw_coll_algo_get(TW_MEM_HOST, i); i++) {
        const tw_coll_algo_info_t *info = tw_coll_algo_get(TW_MEM_HOST, i);
        if (info->op != TW_COLL_BARRIER && !info->quantized) {
            run_one(world, info, "", 1 << 19);
        }
        for (int r = 0; r < world.size(); r++) {
            EXPECT_LE(tw_scratch_peak_bytes(world.coll(r)->scratch), LIMIT) << info->name << ", rank " << r;
        }
    }
}

TEST_F(ScratchLimit, HoldsAt24Ranks)
{
    check(tw::nodes_of({8, 8, 8}), 512 << 10, 1 << 19);
}

/* Several operations at once, each of which wants all of it; waited for in any order. */
TEST_F(ScratchLimit, IsSharedByOperations)
{
    constexpr size_t LIMIT = 256 << 10, N_OPS = 4;
    set_env("TW_COLL_SCRATCH", std::to_string(LIMIT));
    tw::World world(tw::nodes_of({2, 2}));
    world.run([&](int rank) {
        std::vector<tw::RankBuffers> mine(N_OPS);
        tw_coll_request_t *requests[N_OPS];
        tw::Case c;
        c.op = TW_COLL_ALLREDUCE;
        c.type = TW_TYPE_FP32;
        c.codec = "int8:block=32"; /* a chunk is at least eight blocks */
        c.sizes = {1 << 18};
        for (size_t i = 0; i < N_OPS; i++) {
            c.algo = i % 2 ? "two_hop" : "one_hop";
            prepare(c, world.size(), rank, &mine[i]);
            tw::RankCase asked(c, &mine[i], 1);
            ASSERT_EQ(tw_coll_post(world.coll(rank), &asked.args, &requests[i]), TW_OK);
        }
        for (size_t i = 0; i < N_OPS; i++) {
            EXPECT_EQ(tw_coll_wait(requests[(i + (size_t)rank) % N_OPS]), TW_OK);
            EXPECT_EQ(tw::check_rank(c, world.size(), 2, rank, mine[0]), "");
        }
        EXPECT_LE(tw_scratch_peak_bytes(world.coll(rank)->scratch), LIMIT);
    });
}

} // namespace
