/* Who is meant, and the id: ranks that agree, and ranks that do not. */
#include <cstring>
#include <set>

#include "collectives/communicator.h"
#include "collectives/identity.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

/** Ranks as threads, without communicators. */
class Identity : public tw::Fixture
{
  protected:
    void start(int world)
    {
        set_env("TW_COLL_MODEL", "inter:beta=1gbit");
        transports.resize((size_t)world);
        ASSERT_EQ(tw_transport_local_create(world, nullptr, transports.data()), TW_OK);
    }
    void TearDown() override
    {
        for (tw_transport_t *transport : transports) {
            tw_transport_destroy(transport);
        }
        tw::Fixture::TearDown();
    }
    tw_status_t create(int rank, const std::vector<int> &ranks, int id, tw_coll_t **coll) const
    {
        tw_coll_params_t params = {};
        params.transport = transports[(size_t)rank];
        params.ranks = ranks.empty() ? nullptr : ranks.data();
        params.n_ranks = (int)ranks.size();
        params.id = id;
        *coll = nullptr;
        return tw_coll_create(&params, coll);
    }
    void run(const std::function<void(int)> &body) const
    {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < transports.size(); r++) {
            threads.emplace_back(body, (int)r);
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
    /** An all-gather of one byte: member r's is first + r. */
    static void expect_gather(tw_coll_t *coll, int first)
    {
        std::vector<char> in = {(char)(first + tw_coll_rank(coll))}, out((size_t)tw_coll_size(coll));
        tw_coll_segment_t segment = {};
        segment.src = in.data();
        segment.dst = out.data();
        segment.n_elems = out.size();
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLGATHER;
        args.type = TW_TYPE_BYTE;
        args.segments = &segment;
        args.n_segments = 1;
        ASSERT_EQ(tw_coll_run(coll, &args), TW_OK);
        for (size_t r = 0; r < out.size(); r++) {
            EXPECT_EQ(out[r], (char)(first + (int)r));
        }
    }

    std::vector<tw_transport_t *> transports;
};

/* The lowest id that is free on all members, also where members have different ones in use. */
TEST_F(Identity, TheLowestFreeIdIsAgreed)
{
    start(4);
    run([&](int rank) {
        tw_coll_t *all, *pair, *again, *other;
        ASSERT_EQ(create(rank, {}, 0, &all), TW_OK);
        EXPECT_EQ(all->id, 1);
        ASSERT_EQ(
            create(rank, rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{3, 2}, rank < 2 ? 0 : 7, &pair),
            TW_OK);
        EXPECT_EQ(pair->id, rank < 2 ? 2 : 7);
        ASSERT_EQ(create(rank, {3, 2, 1, 0}, 0, &again), TW_OK);
        EXPECT_EQ(again->id, 3); /* 2 is in use on two of them */
        tw_coll_destroy(all);
        ASSERT_EQ(create(rank, {}, 0, &other), TW_OK);
        EXPECT_EQ(other->id, 1); /* free again */
        expect_gather(pair, 10);
        expect_gather(again, 20);
        expect_gather(other, 30);
        for (tw_coll_t *coll : {pair, again, other}) {
            tw_coll_destroy(coll);
        }
    });
}

TEST_F(Identity, AnIdInUseIsRefusedOnAllMembers)
{
    start(3);
    expect_log("id 5 is in use on rank 0");
    run([&](int rank) {
        tw_coll_t *first = nullptr, *second, *third;
        if (rank < 2) {
            ASSERT_EQ(create(rank, {0, 1}, 5, &first), TW_OK);
        }
        EXPECT_EQ(create(rank, {}, 5, &second), TW_ERR_INVALID);
        ASSERT_EQ(create(rank, {2, 1, 0}, 0, &third), TW_OK); /* nothing is left behind, and 5 stays in use */
        EXPECT_EQ(third->id, 1);
        EXPECT_EQ(third->shared->ids.bits[0], rank < 2 ? 0x22u : 0x02u);
        expect_gather(third, 1);
        tw_coll_destroy(first);
        tw_coll_destroy(third);
    });
}

TEST_F(Identity, NoIdIsLeft)
{
    start(1);
    tw_shared_t *shared;
    ASSERT_EQ(tw_shared_get(transports[0], &shared), TW_OK);
    memset(&shared->ids, 0xff, sizeof(shared->ids));
    expect_log("all 255 ids are in use");
    tw_coll_t *coll;
    EXPECT_EQ(create(0, {}, 0, &coll), TW_ERR_INVALID);
    shared->ids.bits[3] &= ~(1ull << 63); /* the last one */
    ASSERT_EQ(create(0, {}, 0, &coll), TW_OK);
    EXPECT_EQ(coll->id, 255);
    tw_coll_destroy(coll);
    EXPECT_EQ(shared->ids.bits[3] >> 63, 0u);
    tw_shared_put(shared);
    EXPECT_EQ(tw_transport_hook_get(transports[0]), nullptr);
}

TEST_F(Identity, DifferentIdsAreAMismatchOnAllMembers)
{
    start(3);
    expect_log("rank 0: making a communicator: rank 2 asks for another id");
    expect_log("rank 2: making a communicator: rank 0 asks for another id");
    allow_log("rank 1: making a communicator: rank 2 asks for another id");
    run([&](int rank) {
        tw_coll_t *coll;
        EXPECT_EQ(create(rank, {}, rank == 2 ? 4 : 3, &coll), TW_ERR_MISMATCH);
        ASSERT_EQ(create(rank, {}, 0, &coll), TW_OK); /* the job goes on */
        EXPECT_EQ(coll->id, 1);
        tw_coll_destroy(coll);
    });
}

/* Nobody waits: those that hear of it first say so, the others are told that the job is given up. */
TEST_F(Identity, DifferentGroupsAreAMismatch)
{
    const std::vector<std::vector<std::vector<int>>> lists = {
        {{0, 1, 2}, {0, 1}, {0, 1, 2}},
        {{0, 1, 2}, {0, 2, 1}, {0, 1, 2}},
        {{0, 1, 2}, {0, 1}, {2, 1}},
    };
    for (const std::vector<std::vector<int>> &list : lists) {
        start(3);
        expect_log("lists other ranks");
        allow_log("");
        std::vector<tw_status_t> status(3);
        run([&](int rank) {
            tw_coll_t *coll;
            status[(size_t)rank] = create(rank, list[(size_t)rank], 0, &coll);
        });
        int mismatches = 0;
        for (tw_status_t one : status) {
            EXPECT_TRUE(one == TW_ERR_MISMATCH || one == TW_ERR_PEER) << one;
            mismatches += one == TW_ERR_MISMATCH;
        }
        EXPECT_GE(mismatches, 1);
        for (tw_transport_t *transport : transports) {
            tw_transport_destroy(transport);
        }
        transports.clear();
    }
}

TEST_F(Identity, ARankThatDoesNotComeIsNamedByAll)
{
    start(4);
    set_env("TW_COLL_TIMEOUT", "300ms");
    for (int rank : {0, 2, 3}) {
        expect_log("rank " + std::to_string(rank) + ": making a communicator: nothing has come from rank 1");
    }
    run([&](int rank) {
        tw_coll_t *coll;
        if (rank != 1) {
            EXPECT_EQ(create(rank, {}, 0, &coll), TW_ERR_TIMEOUT);
        }
    });
}

/* What ranks must not differ in would else be a hang, or a silent difference. */
TEST_F(Identity, DifferentKindsAreAMismatch)
{
    start(2);
    expect_log("rank 0: making a communicator: rank 1 asks for another kind");
    expect_log("rank 1: making a communicator: rank 0 asks for another kind");
    run([&](int rank) {
        tw_bootstrap_t boot = {};
        tw_identity_ids_t ids = {};
        tw_topo_t topo;
        const int ranks[] = {0, 1};
        ASSERT_EQ(tw_topo_init(&topo, transports[(size_t)rank], ranks, 2), TW_OK);
        boot.transport = transports[(size_t)rank];
        boot.topo = &topo;
        boot.tag = TW_COLL_MEETING_TAG;
        int id;
        EXPECT_EQ(tw_identity_agree(&boot, &ids, (uint64_t)rank, 0, &id), TW_ERR_MISMATCH);
        EXPECT_EQ(tw_identity_agree(&boot, &ids, 9, 0, &id), TW_OK);
        EXPECT_EQ(id, 1);
        tw_identity_free(&ids, id);
        tw_topo_cleanup(&topo);
    });
}

} // namespace
