/* Ranks tell each other, over the local transport. */
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "doctor/state.h"
#include "tests/transport/local.h"

namespace
{

/* A thread for each rank; `per_node` of them are a node. */
template <typename Body>
void run(int world, int per_node, Body body)
{
    std::vector<tw_transport_t *> transports((size_t)world);
    std::vector<int> node_of;
    for (int r = 0; r < world; r++) {
        node_of.push_back(r / per_node);
    }
    ASSERT_EQ(tw_transport_local_create(world, node_of.data(), transports.data()), TW_OK);
    std::vector<std::thread> threads;
    for (int r = 0; r < world; r++) {
        threads.emplace_back([&, r]() {
            tw_doctor_rank_t rank = {};
            rank.transport = transports[(size_t)r];
            rank.rank = r;
            rank.world = world;
            body(rank);
            tw_transport_destroy(rank.transport);
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

TEST(DoctorWords, RankZerosBytesAreEverybodys)
{
    for (int world : {1, 2, 3, 4, 5, 8, 13}) {
        run(world, 1, [](tw_doctor_rank_t &rank) {
            std::vector<int> data(1000, rank.rank == 0 ? 7 : 0);
            for (int i = 0; i < 3; i++) {
                EXPECT_EQ(tw_doctor_share(&rank, data.data(), data.size() * sizeof(int)), TW_OK);
                EXPECT_EQ(data, std::vector<int>(1000, 7)) << rank.rank << " of " << rank.world;
            }
        });
    }
}

TEST(DoctorWords, NobodyLeavesBeforeAllHaveCome)
{
    for (int world : {1, 2, 3, 6, 9}) {
        std::vector<int> come((size_t)world);
        run(world, 2, [&](tw_doctor_rank_t &rank) {
            for (int round = 1; round <= 20; round++) {
                __atomic_store_n(&come[(size_t)rank.rank], round, __ATOMIC_RELEASE);
                EXPECT_EQ(tw_doctor_meet(&rank), TW_OK);
                for (int &other : come) {
                    EXPECT_GE(__atomic_load_n(&other, __ATOMIC_ACQUIRE), round);
                }
            }
        });
    }
}

/* Of a thousand ranks none tells, or waits for, more than ten. */
TEST(DoctorWords, ARankHasFewToTell)
{
    run(64, 1, [](tw_doctor_rank_t &rank) {
        EXPECT_EQ(tw_doctor_meet(&rank), TW_OK);
        tw_transport_counters_t counters;
        tw_transport_inter_node_counters(rank.transport, &counters);
        EXPECT_LE(counters.messages, 7u) << rank.rank;
    });
}

TEST(DoctorWords, EachNodeSaysItsOwn)
{
    for (int per_node : {1, 2, 3}) {
        run(6, per_node, [per_node](tw_doctor_rank_t &rank) {
            tw_doctor_result_t result = {};
            std::vector<int> leaders;
            for (int r = 0; r < rank.world; r += per_node) {
                leaders.push_back(r);
            }
            result.leader = leaders.data();
            result.n_nodes = (int)leaders.size();
            std::vector<std::vector<int>> said(leaders.size());
            /* As many as its number: the first has none. */
            const std::vector<int> own((size_t)rank.rank, rank.rank);
            const auto take = [](void *ctx, int node, const void *data, size_t bytes) {
                const int *first = static_cast<const int *>(data);
                (*static_cast<std::vector<std::vector<int>> *>(ctx))[(size_t)node] =
                    std::vector<int>(first, first + bytes / sizeof(int));
                return TW_OK;
            };
            const tw_doctor_words_t words = {own.data(), own.size() * sizeof(int), 6 * sizeof(int), take,
                                             &said};
            EXPECT_EQ(tw_doctor_collect_nodes(&rank, &result, &words), TW_OK);
            for (size_t node = 0; node < leaders.size() && rank.rank == 0; node++) {
                EXPECT_EQ(said[node], std::vector<int>((size_t)leaders[node], leaders[node])) << node;
            }
        });
    }
}

/* The first rank of a node asks; of this process there is one clock. */
TEST(DoctorWords, ClocksOfNodes)
{
    run(6, 2, [](tw_doctor_rank_t &rank) {
        int leaders[] = {0, 2, 4};
        tw_doctor_result_t result = {};
        result.leader = leaders;
        result.n_nodes = 3;
        tw_doctor_facts_t facts = {};
        EXPECT_EQ(tw_doctor_compare_clocks(&rank, &result, &facts), TW_OK);
        EXPECT_EQ(facts.clock_uncertain_sec > 0, rank.rank == 2 || rank.rank == 4);
        EXPECT_LE(std::abs(facts.clock_sec), facts.clock_uncertain_sec);
    });
}

} // namespace
