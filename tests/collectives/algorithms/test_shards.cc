/* Shards: every element of an operation is in one chunk of one shard. */
#include <memory>

#include "collectives/algorithms/shards.h"
#include "collectives/schedule/run.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK = 16;

class Shard : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(tw_transport_local_create(1, nullptr, &transport), TW_OK);
        ASSERT_EQ(tw_scratch_create(1 << 20, &scratch), TW_OK);
    }
    void TearDown() override
    {
        clear();
        tw_scratch_destroy(scratch);
        tw_transport_destroy(transport);
        tw::Fixture::TearDown();
    }
    void clear()
    {
        tw_sched_destroy(build.sched);
        tw_view_cleanup(&in);
        tw_view_cleanup(&out);
        tw_topo_cleanup(&topo);
        build = {};
    }
    /* Shards of `first` (its last number is the number of elements); which sides have all of them. */
    void make(int world, int rank, const std::vector<size_t> &first, bool all_in, bool all_out)
    {
        clear();
        bounds = first;
        std::vector<uint64_t> ids((size_t)world, 7);
        ASSERT_EQ(tw_topo_init_nodes(&topo, rank, world, ids.data()), TW_OK);
        memory.assign(first.back() + 1, 0);
        size_t r = (size_t)rank, own = first[r + 1] - first[r];
        ASSERT_EQ(tw_view_init(&in, sizeof(float), 1), TW_OK);
        ASSERT_EQ(tw_view_init(&out, sizeof(float), 1), TW_OK);
        tw_view_append(&in, memory.data(), all_in ? first.back() : own);
        tw_view_append(&out, memory.data(), all_out ? first.back() : own);
        tw_sched_env_t env = {transport, scratch, topo.peer, rank, world, 4, 0, nullptr};
        ASSERT_EQ(tw_sched_create(&env, &build.sched), TW_OK);
        build.topo = &topo;
        build.in = &in;
        build.out = &out;
        build.in_first = all_in ? bounds.data() : nullptr;
        build.out_first = all_out ? bounds.data() : nullptr;
        build.chunk_elems = CHUNK;
    }
    /* Chunks of one shard follow one another and end with it. */
    void check_chunks(const tw_shard_t &shard, size_t n)
    {
        EXPECT_EQ(shard.n_elems, n);
        EXPECT_EQ(shard.n_chunks, (n + CHUNK - 1) / CHUNK);
        size_t sum = 0;
        for (size_t c = 0; c < shard.n_chunks; c++) {
            tw_span_t from = tw_shard_in(&build, &shard, c), to = tw_shard_out(&build, &shard, c);
            EXPECT_EQ(from.first, shard.in.first + sum);
            EXPECT_EQ(to.first, shard.out.first + sum);
            EXPECT_EQ(from.n, to.n);
            EXPECT_TRUE(from.n > 0 && from.n <= CHUNK);
            EXPECT_EQ(tw_shard_chunk_bytes(&build, &shard, c), from.n * sizeof(float));
            tw_span_t buffer = tw_shard_scratch(&build, &shard, c);
            EXPECT_EQ(buffer.n, from.n * sizeof(float));
            EXPECT_EQ(buffer.view, nullptr);
            EXPECT_EQ(shard.task[c], TW_TASK_NONE);
            sum += from.n;
        }
        EXPECT_EQ(sum, n);
    }

    tw_transport_t *transport = nullptr;
    tw_scratch_t *scratch = nullptr;
    tw_topo_t topo = {};
    tw_view_t in = {}, out = {};
    std::vector<size_t> bounds;
    std::vector<float> memory;
    tw_build_t build = {};
};

/* Shards of 0, 1, a chunk less one, a chunk, a chunk and one, ... elements. */
std::vector<size_t> odd_bounds(int world)
{
    const size_t sizes[] = {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5, 0, 2 * CHUNK};
    std::vector<size_t> first = {0};
    for (int r = 0; r < world; r++) {
        first.push_back(first.back() + sizes[r]);
    }
    return first;
}

TEST_F(Shard, ChunksCoverEveryPieceOnce)
{
    for (int world = 1; world <= 8; world++) {
        std::vector<size_t> first = odd_bounds(world);
        for (int rank = 0; rank < world; rank++) {
            for (int sides = 1; sides <= 3; sides++) { /* reduce-scatter, all-gather, all-reduce */
                make(world, rank, first, sides & 1, sides & 2);
                tw_shard_t *shards = tw_shards_create(&build);
                ASSERT_NE(shards, nullptr);
                for (int r = 0; r < world; r++) {
                    size_t n = first[(size_t)r + 1] - first[(size_t)r];
                    SCOPED_TRACE(std::to_string(world) + "/" + std::to_string(rank) + " shard " +
                                 std::to_string(r));
                    if (sides & 1) {
                        EXPECT_EQ(shards[r].in.first, first[(size_t)r]);
                        EXPECT_EQ(shards[r].in.n, n);
                    } else { /* only the own shard is there */
                        EXPECT_EQ(shards[r].in.n, r == rank ? n : 0);
                    }
                    if (sides & 2) {
                        EXPECT_EQ(shards[r].out.first, first[(size_t)r]);
                        EXPECT_EQ(shards[r].out.n, n);
                    } else {
                        EXPECT_EQ(shards[r].out.n, r == rank ? n : 0);
                    }
                    check_chunks(shards[r], n);
                }
            }
        }
    }
}

/* What was reduced is what is gathered; other shards stay. */
TEST_F(Shard, TurnGathersTheOwnResult)
{
    make(4, 2, {0, 5, 9, 40, 41}, true, true);
    tw_view_t elsewhere = {};
    tw_shard_t *shards = tw_shards_create(&build);
    ASSERT_NE(shards, nullptr);
    shards[2].out.view = &elsewhere;
    tw_shards_turn(&build, shards);
    EXPECT_EQ(shards[2].in.view, &elsewhere);
    EXPECT_EQ(shards[2].in.first, 9u);
    EXPECT_EQ(shards[1].in.view, &in);
    tw_shards_turn(&build, nullptr); /* out of memory before: nothing */
}

} // namespace
