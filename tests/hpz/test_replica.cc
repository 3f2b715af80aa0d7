/* Replicas: stored, gathered inside the node, refused when stale. */
#include <numeric>

#include "tests/hpz/replicas.h"

namespace
{

using HpzReplica = tw::Fixture;

uint16_t value_of(size_t i, int unit)
{
    return (uint16_t)(i * 7 + (size_t)unit);
}

TEST_F(HpzReplica, WhatWasStoredIsGathered)
{
    for (const std::vector<int> &shape : std::vector<std::vector<int>>{{1}, {1, 1}, {3, 3}, {4}, {8}}) {
        tw::on_ranks(shape, tw::tensors_of(97), tw::params_with(""), [](tw::Rank &rank, int) {
            for (int u = 0; u < rank.units(); u++) {
                std::vector<uint16_t> full(tw_hpz_full_elems(rank.layout(), u));
                for (size_t i = 0; i < full.size(); i++) {
                    full[i] = value_of(i, u);
                }
                EXPECT_EQ(tw_hpz_version(rank.hpz, u), 0U);
                ASSERT_EQ(tw_hpz_store(rank.hpz, u, full.data(), 5), TW_OK);
                EXPECT_EQ(tw_hpz_version(rank.hpz, u), 5U);
                EXPECT_EQ(rank.gather(u, 5), full);
            }
            tw_hpz_counters_t counters;
            tw_hpz_counters_get(rank.hpz, &counters);
            EXPECT_EQ(counters.inter_node_bytes, 0U);
        });
    }
}

TEST_F(HpzReplica, OfFp32)
{
    for (const std::vector<int> &shape : std::vector<std::vector<int>>{{1}, {3, 3}, {4}}) {
        tw_hpz_params_t params = tw::params_with("", 0);
        params.fp32_replicas = 1;
        int world = std::accumulate(shape.begin(), shape.end(), 0);
        tw::on_ranks(shape, tw::tensors_of(97), params, [&](tw::Rank &rank, int index) {
            size_t n_elems = 0;
            int is_last = index + 1 == world;
            for (int u = 0; u < rank.units(); u++) {
                std::vector<float> full(tw_hpz_full_elems(rank.layout(), u)), gathered(full.size());
                tw_coll_request_t *request;
                for (size_t i = 0; i < full.size(); i++) {
                    full[i] = 1.0f / (float)(i + 1 + (size_t)u); /* all 32 bits */
                }
                ASSERT_EQ(tw_hpz_store(rank.hpz, u, full.data(), 5), TW_OK);
                ASSERT_EQ(tw_hpz_gather_post(rank.hpz, u, 5, gathered.data(), &request), TW_OK);
                ASSERT_EQ(tw_coll_wait(request), TW_OK);
                EXPECT_EQ(gathered, full);
                n_elems += tw_hpz_secondary_elems(rank.layout(), u, tw_hpz_local(rank.hpz));
            }
            EXPECT_EQ(tw_hpz_memory_bytes(rank.hpz), n_elems * sizeof(float));
            EXPECT_EQ(tw_hpz_check(rank.hpz, 5), TW_OK);
            /* a bit of the lower half */
            auto *replica = static_cast<uint32_t *>(const_cast<void *>(tw_hpz_replica(rank.hpz, 0)));
            replica[0] ^= shape.size() > 1 && is_last ? 1u : 0u;
            EXPECT_EQ(tw_hpz_check(rank.hpz, 5), shape.size() > 1 ? TW_ERR_MISMATCH : TW_OK);
        });
    }
    expect_log("unit 0: the replica of rank 5 is not that of rank 2, in tensor 0");
}

TEST_F(HpzReplica, OfFp32FollowNoChanges)
{
    expect_log("replicas of fp32 follow no deltas");
    expect_log("full sync: replicas of fp32 are filled by gathers alone");
    tw::World world(tw::nodes_of({1, 1}));
    world.run([&](int r) {
        tw_hpz_tensor_t tensor = {64, 0, 0, 0, 0};
        float master[64] = {0};
        for (const char *delta : {"", "int4:block=32", "none"}) {
            tw_hpz_params_t params = tw::params_with(*delta == 'i' ? delta : "", *delta == 0);
            tw_hpz_t *hpz = nullptr;
            params.coll = world.coll(r);
            params.tensors = &tensor;
            params.n_tensors = 1;
            params.fp32_replicas = 1;
            EXPECT_EQ(tw_hpz_create(&params, &hpz), *delta == 'n' ? TW_OK : TW_ERR_UNSUPPORTED);
            if (hpz) {
                EXPECT_EQ(tw_hpz_sync_begin(hpz, 0, TW_HPZ_FULL, master, 1), TW_ERR_INVALID);
            }
            tw_hpz_destroy(hpz);
        }
    });
}

/* All of a job made before one asks: whoever is refused first ends the job. */
std::vector<tw_status_t> gather_all(const std::vector<int> &shape, const std::vector<uint64_t> &stored,
                                    uint64_t asked)
{
    tw::World world(tw::nodes_of(shape));
    std::vector<std::unique_ptr<tw::Rank>> ranks(stored.size());
    std::vector<tw_status_t> ends(stored.size());
    const std::vector<tw_hpz_tensor_t> tensors = {{64, 0, 0, 0, 0}};
    world.run([&](int r) {
        std::vector<uint16_t> full(64);
        ranks[(size_t)r] = std::make_unique<tw::Rank>(world.coll(r), tensors, tw::params_with(""));
        if (stored[(size_t)r] > 0) {
            ASSERT_EQ(tw_hpz_store(ranks[(size_t)r]->hpz, 0, full.data(), stored[(size_t)r]), TW_OK);
        }
    });
    world.run([&](int r) {
        std::vector<uint16_t> full(64);
        tw_coll_request_t *request;
        tw_status_t status = tw_hpz_gather_post(ranks[(size_t)r]->hpz, 0, asked, full.data(), &request);
        ends[(size_t)r] = status == TW_OK ? tw_coll_wait(request) : status;
    });
    return ends;
}

TEST_F(HpzReplica, StaleGatherIsRefused)
{
    const std::vector<tw_status_t> stale(4, TW_ERR_STALE);
    expect_log("unit 0: its replica holds version 1, asked for is 2");
    expect_log("unit 0: its replica holds version 0, asked for is 1");
    expect_log("unit 0: its replica holds version 0, asked for is 0");
    expect_log("gave the job up");
    EXPECT_EQ(gather_all({2, 2}, {1, 1, 1, 1}, 2), stale);
    EXPECT_EQ(gather_all({2, 2}, {0, 0, 0, 0}, 1), stale);
    EXPECT_EQ(gather_all({2, 2}, {0, 0, 0, 0}, 0), stale);
    EXPECT_EQ(gather_all({2, 2}, {2, 2, 2, 2}, 2), std::vector<tw_status_t>(4, TW_OK));
}

/* One rank is stale: the other of its node does not wait for it. */
TEST_F(HpzReplica, OneStaleRankEndsTheGather)
{
    expect_log("rank 1: unit 0: its replica holds version 1, asked for is 2");
    expect_log("gave the job up");
    std::vector<tw_status_t> ends = gather_all({2}, {2, 1}, 2);
    EXPECT_EQ(ends[1], TW_ERR_STALE);
    EXPECT_LT(ends[0], 0);
}

TEST_F(HpzReplica, NodesOfUnequalSizeAreRefused)
{
    expect_log("need as many ranks on each");
    tw::World world(tw::nodes_of({2, 1}));
    world.run([&](int r) {
        tw_hpz_tensor_t tensor = {64, 0, 0, 0, 0};
        tw_hpz_params_t params = tw::params_with("");
        tw_hpz_t *hpz = nullptr;
        params.coll = world.coll(r);
        params.tensors = &tensor;
        params.n_tensors = 1;
        EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_ERR_UNSUPPORTED);
        EXPECT_EQ(hpz, nullptr);
        params.replicas = 0; /* a partition alone is one over all ranks */
        EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_OK);
        EXPECT_EQ(tw_hpz_node(hpz), r);
        EXPECT_EQ(tw_hpz_local(hpz), 0);
        tw_hpz_destroy(hpz);
    });
}

TEST_F(HpzReplica, WithoutReplicasNothingIsStored)
{
    expect_log("there are none");
    expect_log("there are no replicas");
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, {}, [](tw::Rank &rank, int) {
        std::vector<uint16_t> full(64);
        EXPECT_EQ(tw_hpz_memory_bytes(rank.hpz), 0U);
        EXPECT_EQ(tw_hpz_store(rank.hpz, 0, full.data(), 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, rank.masters[0].data(), 1), TW_ERR_INVALID);
    });
}

} // namespace
