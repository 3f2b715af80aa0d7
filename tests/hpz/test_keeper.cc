/* Gathers that remember: what all ranks get is what all ranks gave, for a fraction of the bytes, or an
 * error. */
#include "hpz/keeper.h"

#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "hpz/keep_state.h"
#include "tests/collectives/world.h"

namespace
{

/* A rank with its keeper. */
struct Rank {
    tw_transport_t *transport = nullptr;
    tw_coll_t *coll = nullptr;
    tw_hpz_keeper_t *keeper = nullptr;
    int rank = 0, world = 0;
    tw_hpz_kept_t *kept = nullptr;
    int step = -1; /* of the gather before */
};

constexpr size_t n_elems = 3000, run_bytes = 2 * n_elems;
const tw_hpz_part_t part = {0, n_elems, TW_TYPE_BF16, 0};

tw_hpz_kept_params_t params_of(const char *name, int has_room = 1)
{
    return {name, run_bytes, &part, 1, has_room, nullptr};
}

/* Of a rank, an element and a step: a tenth of the elements moves. */
uint16_t value_of(int rank, size_t elem, int step)
{
    size_t moves = elem % 10 == 0 ? (size_t)step : 0;
    return (uint16_t)(0x3c00 + (elem * 31 + (size_t)rank * 7) % 100 + moves % 50);
}

std::vector<uint16_t> whole_of(int world, int step)
{
    std::vector<uint16_t> whole;
    for (int r = 0; r < world; r++) {
        for (size_t e = 0; e < n_elems; e++) {
            whole.push_back(value_of(r, e, step));
        }
    }
    return whole;
}

/* What a rank brings: its own run, and nothing of the others'. */
std::vector<uint16_t> own_of(const Rank &rank, int step)
{
    std::vector<uint16_t> whole((size_t)rank.world * n_elems, 0xffff);
    for (size_t e = 0; e < n_elems; e++) {
        whole[(size_t)rank.rank * n_elems + e] = value_of(rank.rank, e, step);
    }
    return whole;
}

tw_status_t gather(tw_hpz_kept_t *kept, std::vector<uint16_t> *whole, tw_hpz_gathered_t *done = nullptr,
                   int lossless = 0)
{
    tw_status_t status = tw_hpz_kept_gather_post(kept, whole->data(), lossless);
    return status == TW_OK ? tw_hpz_kept_wait(kept, done) : status;
}

class HpzKeeper : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_DETERMINISTIC", "y");
    }
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void begin(const std::vector<int> &ranks_per_node, tw_status_t expected = TW_OK)
    {
        std::vector<int> nodes = tw::nodes_of(ranks_per_node);
        std::vector<tw_transport_t *> transports(nodes.size());
        ASSERT_EQ(tw_transport_local_create((int)nodes.size(), nodes.data(), transports.data()), TW_OK);
        ranks.resize(nodes.size());
        run([&](Rank &rank, int r) {
            rank.transport = transports[(size_t)r];
            rank.rank = r;
            rank.world = (int)nodes.size();
            tw_coll_params_t params = tw::params_of(rank.transport);
            params.progress_thread = 1;
            EXPECT_EQ(tw_coll_create(&params, &rank.coll), TW_OK);
            EXPECT_EQ(tw_hpz_keeper_create(rank.coll, &rank.keeper), expected);
        });
    }
    void end()
    {
        run([](Rank &rank, int) {
            tw_hpz_keeper_destroy(rank.keeper);
            tw_coll_destroy(rank.coll);
        });
        for (Rank &rank : ranks) {
            tw_transport_destroy(rank.transport);
        }
        ranks.clear();
    }
    void run(const std::function<void(Rank &, int)> &body)
    {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < ranks.size(); r++) {
            threads.emplace_back([&, r] { body(ranks[r], (int)r); });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
    /* body(rank, its kept unit) */
    void with_unit(const std::function<void(Rank &, tw_hpz_kept_t *)> &body)
    {
        run([&](Rank &rank, int) {
            tw_hpz_kept_params_t params = params_of("layer");
            tw_hpz_kept_t *kept = nullptr;
            int refusing;
            ASSERT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept, &refusing), TW_OK);
            body(rank, kept);
            tw_hpz_kept_destroy(kept);
        });
    }

    std::vector<Rank> ranks;
};

TEST_F(HpzKeeper, WhatIsGivenIsGathered)
{
    set_env("TW_HPZ_CHECK_STEPS", "2");
    for (const std::vector<int> &shape :
         std::vector<std::vector<int>>{{1}, {1, 1}, {2, 2}, {1, 1, 1}, {3, 3}, {3}}) {
        begin(shape);
        with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
            for (int step : {0, 0, 1, 1, 1, 2, 0, 3, 3}) {
                std::vector<uint16_t> whole = own_of(rank, step);
                ASSERT_EQ(gather(kept, &whole), TW_OK);
                ASSERT_EQ(whole, whole_of(rank.world, step)) << step;
            }
        });
        end();
    }
}

/* Planned is counted; the first gather is whole, the next ones are what has changed, or 40 bytes a rank. */
TEST_F(HpzKeeper, BytesAreThoseOfTheChanges)
{
    begin({2, 2, 2});
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        uint64_t sent = 0;
        tw_hpz_gathered_t done;
        for (int step : {0, 0, 1}) {
            std::vector<uint16_t> whole = own_of(rank, step);
            ASSERT_EQ(gather(kept, &whole, &done), TW_OK);
            sent += done.inter_node_bytes;
            EXPECT_EQ(tw_hpz_keeper_inter_node_bytes(rank.keeper), sent);
            EXPECT_GT(done.elapsed_sec, 0);
            if (step == 1) {
                EXPECT_EQ(done.changed_bytes, run_bytes);
                EXPECT_LT(done.inter_node_bytes, run_bytes);
            } else if (sent == done.inter_node_bytes) {
                EXPECT_GE(sent, 2 * run_bytes);
                EXPECT_LE(sent, 2 * (run_bytes + 100));
            } else {
                EXPECT_EQ(done.changed_bytes, 0U);
                EXPECT_LE(done.inter_node_bytes, 2 * 60U);
            }
        }
        tw_hpz_kept_params_t params = params_of("layer");
        EXPECT_EQ(tw_hpz_kept_memory_bytes(rank.keeper, &params), 3 * 3 * n_elems);
    });
}

/* One rank changes, the others do not. */
TEST_F(HpzKeeper, ChangesOfSomeRanks)
{
    begin({2, 2});
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        std::vector<uint16_t> expected = whole_of(rank.world, 0);
        for (int changing = -1; changing < rank.world; changing++) {
            std::vector<uint16_t> whole = own_of(rank, rank.rank == changing ? 9 : 0);
            for (size_t e = 0; e < n_elems && changing >= 0; e++) {
                for (int r = 0; r < rank.world; r++) {
                    expected[(size_t)r * n_elems + e] = value_of(r, e, r == changing ? 9 : 0);
                }
            }
            ASSERT_EQ(gather(kept, &whole), TW_OK);
            ASSERT_EQ(whole, expected);
        }
    });
}

/* Several units under way at once, one posted again before it was waited for. */
TEST_F(HpzKeeper, UnitsUnderWay)
{
    begin({2, 2});
    run([](Rank &rank, int) {
        tw_hpz_kept_t *kept[3];
        std::vector<uint16_t> whole[3];
        int refusing;
        for (int u = 0; u < 3; u++) {
            const std::string name = "layer" + std::to_string(u);
            tw_hpz_kept_params_t params = params_of(name.c_str());
            ASSERT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept[u], &refusing), TW_OK);
        }
        for (int step = 0; step < 4; step++) {
            for (int u = 0; u < 3; u++) {
                whole[u] = own_of(rank, step + u);
                ASSERT_EQ(tw_hpz_kept_gather_post(kept[u], whole[u].data(), 0), TW_OK);
            }
            std::vector<uint16_t> again = own_of(rank, step + 7);
            ASSERT_EQ(tw_hpz_kept_gather_post(kept[0], again.data(), 0), TW_OK);
            while (tw_hpz_kept_test(kept[2], nullptr) == TW_IN_PROGRESS) {
                std::this_thread::yield();
            }
            for (int u = 0; u < 3; u++) {
                EXPECT_EQ(tw_hpz_kept_wait(kept[u], nullptr), TW_OK);
                EXPECT_EQ(whole[u], whole_of(rank.world, step + u));
            }
            EXPECT_EQ(again, whole_of(rank.world, step + 7));
        }
        for (tw_hpz_kept_t *one : kept) {
            tw_hpz_kept_destroy(one);
        }
    });
}

/* Values near 1 that move by a little each step. */
std::vector<uint16_t> own_near_one(const Rank &rank, int step)
{
    std::vector<uint16_t> whole((size_t)rank.world * n_elems, 0xffff);
    for (size_t e = 0; e < n_elems; e++) {
        whole[(size_t)rank.rank * n_elems + e] = (uint16_t)(0x3f80 + (e * 7 + (size_t)step * 3) % 8);
    }
    return whole;
}

/* A norm, then a rounded matrix: all ranks get the same, off by no more than the change was; the norm is what
 * was given. */
TEST_F(HpzKeeper, RoundedPartsAreTheSameEverywhere)
{
    const size_t n_norm = 100;
    const tw_hpz_part_t parts[] = {{0, n_norm, TW_TYPE_BF16, 0},
                                   {2 * n_norm, n_elems - n_norm, TW_TYPE_BF16, 1}};
    set_env("TW_HPZ_CHECK_STEPS", "2");
    for (const std::vector<int> &shape : std::vector<std::vector<int>>{{1, 1}, {2, 2}, {1, 1, 1}}) {
        begin(shape);
        std::vector<std::vector<uint16_t>> found(ranks.size());
        for (int step : {0, 1, 1, 2, 3}) {
            run([&](Rank &rank, int r) {
                tw_quant_codec_t codec;
                ASSERT_EQ(tw_quant_codec_parse("int4", &codec), TW_OK);
                tw_hpz_kept_params_t params = {"layer", run_bytes, parts, 2, 1, &codec};
                int refusing;
                if (step == 0) {
                    ASSERT_EQ(tw_hpz_kept_create(rank.keeper, &params, &rank.kept, &refusing), TW_OK);
                }
                std::vector<uint16_t> own = own_near_one(rank, step);
                found[(size_t)r] = own;
                tw_hpz_gathered_t done;
                ASSERT_EQ(gather(rank.kept, &found[(size_t)r], &done, step == 3), TW_OK);
                bool is_again = step == rank.step || step == 0 || step == 3;
                EXPECT_EQ(done.rounded_bytes, is_again ? 0 : 2 * (n_elems - n_norm)) << step;
                for (size_t e = 0; e < n_elems; e++) {
                    size_t at = (size_t)r * n_elems + e;
                    int off = std::abs((int)found[(size_t)r][at] - (int)own[at]);
                    EXPECT_LE(off, e < n_norm || step == 0 || step == 3 ? 0 : 1) << e;
                }
                if (step == rank.step) {
                    EXPECT_EQ(done.changed_bytes, 0U);
                    EXPECT_LE(done.inter_node_bytes, (shape.size() - 1) * 80);
                }
                rank.step = step;
            });
            for (const std::vector<uint16_t> &one : found) {
                EXPECT_EQ(one, found[0]) << step;
            }
        }
        run([](Rank &rank, int) { tw_hpz_kept_destroy(rank.kept); });
        end();
    }
}

TEST_F(HpzKeeper, AnotherCodecIsAnError)
{
    begin({1, 1});
    expect_log("unit layer: rank 1 gathers another unit, or one of another shape");
    allow_log("");
    run([](Rank &rank, int r) {
        const tw_hpz_part_t rounded = {0, n_elems, TW_TYPE_BF16, 1};
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(r == 0 ? "int4" : "int2", &codec), TW_OK);
        tw_hpz_kept_params_t params = {"layer", run_bytes, &rounded, 1, 1, &codec};
        tw_hpz_kept_t *kept = nullptr;
        int refusing;
        EXPECT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept, &refusing), TW_ERR_MISMATCH);
    });
}

TEST_F(HpzKeeper, NoRoomOnOneRankIsNoRoomAnywhere)
{
    begin({2, 2});
    run([](Rank &rank, int r) {
        tw_hpz_kept_params_t params = params_of("layer", r < 2);
        tw_hpz_kept_t *kept = nullptr;
        int refusing;
        EXPECT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept, &refusing), TW_OK);
        EXPECT_EQ(kept, nullptr);
        EXPECT_EQ(refusing, 2);
    });
}

TEST_F(HpzKeeper, AnotherShapeIsAnError)
{
    begin({1, 1});
    expect_log("unit layer: rank 1 gathers another unit, or one of another shape");
    allow_log("");
    run([](Rank &rank, int r) {
        tw_hpz_kept_params_t params = params_of("layer");
        params.run_bytes += r == 1 ? 2 : 0;
        tw_hpz_kept_t *kept = nullptr;
        int refusing;
        EXPECT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept, &refusing), TW_ERR_MISMATCH);
        EXPECT_EQ(kept, nullptr);
    });
}

/* Of what the keeper waits for: the communicator's, whenever that was set, then what is said. */
TEST_F(HpzKeeper, HasTheTimeoutOfItsCommunicator)
{
    begin({2, 2});
    run([](Rank &rank, int) {
        tw_coll_timeout_set(rank.coll, 77);
        tw_hpz_keeper_destroy(rank.keeper);
        rank.keeper = nullptr;
        ASSERT_EQ(tw_hpz_keeper_create(rank.coll, &rank.keeper), TW_OK);
        for (double expected : {77.0, 88.0}) {
            if (expected == 88.0) {
                tw_hpz_keeper_timeout_set(rank.keeper, expected);
            }
            for (const tw_coll_t *one : {rank.keeper->all_ranks, rank.keeper->in_node, rank.keeper->rail,
                                         rank.keeper->rail_records}) {
                EXPECT_EQ(tw_coll_timeout(one), expected);
            }
        }
    });
}

/* Rank 1 does not gather: rank 0 gives up after the new limit. */
TEST_F(HpzKeeper, ARankIsWaitedForUntilTheTimeout)
{
    begin({1, 1});
    allow_log("");
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        std::vector<uint16_t> whole = own_of(rank, 0);
        ASSERT_EQ(gather(kept, &whole), TW_OK);
        tw_hpz_keeper_timeout_set(rank.keeper, rank.rank == 0 ? 0.2 : 1000);
        if (rank.rank == 0) {
            EXPECT_EQ(gather(kept, &whole), TW_ERR_TIMEOUT);
        }
    });
}

TEST_F(HpzKeeper, UnequalNodesAreUnsupported)
{
    expect_log("need as many ranks on each");
    begin({2, 1}, TW_ERR_UNSUPPORTED);
}

/* Two units; rank 1 leaves one gather of the first out. Returns what the ranks' gathers end with. */
TEST_F(HpzKeeper, ASkippedGatherIsAnError)
{
    begin({1, 1});
    allow_log("");
    run([](Rank &rank, int r) {
        tw_hpz_kept_t *kept[2];
        int refusing;
        for (int u = 0; u < 2; u++) {
            tw_hpz_kept_params_t params = params_of(u == 0 ? "a" : "b");
            ASSERT_EQ(tw_hpz_kept_create(rank.keeper, &params, &kept[u], &refusing), TW_OK);
        }
        std::vector<uint16_t> whole = own_of(rank, 0);
        tw_status_t status = r == 0 ? gather(kept[0], &whole) : TW_OK;
        whole = own_of(rank, 0);
        status = status == TW_OK ? gather(kept[1], &whole) : status;
        EXPECT_LT(status, 0);
        whole = own_of(rank, 0);
        EXPECT_LT(gather(kept[1], &whole), 0); /* from then on */
        tw_hpz_kept_destroy(kept[0]);
        tw_hpz_kept_destroy(kept[1]);
    });
    /* who is first ends the job, perhaps before the other one has looked */
    EXPECT_GT(log_count("unit a: rank 1 gathers another unit") +
                  log_count("unit b: rank 0 gathers another unit"),
              0U);
}

TEST_F(HpzKeeper, ReplicasThatDifferAreFound)
{
    set_env("TW_HPZ_CHECK_STEPS", "3");
    begin({1, 1, 1});
    expect_log("unit layer: the replica is not what rank 2 has");
    allow_log("");
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        tw_status_t status = TW_OK;
        for (int step = 0; step < 4 && status == TW_OK; step++) {
            std::vector<uint16_t> whole = own_of(rank, 0);
            whole[(size_t)rank.rank * n_elems] = (uint16_t)step; /* what follows it stays as it is */
            status = gather(kept, &whole);
            if (step == 0 && rank.rank == 1) {
                tw_hpz_kept_run(kept, 2)[run_bytes - 1] ^= 1;
            }
            /* the others hear of it at once, or at their next gather */
            EXPECT_EQ(status == TW_OK, step < 2 || (step == 2 && rank.rank != 1 && status == TW_OK)) << step;
        }
    });
}

TEST_F(HpzKeeper, ReplicasThatStayAreCheckedOnce)
{
    set_env("TW_HPZ_CHECK_STEPS", "2");
    begin({1, 1});
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        for (int n = 0; n < 4; n++) {
            std::vector<uint16_t> whole = own_of(rank, 0);
            EXPECT_EQ(gather(kept, &whole), TW_OK) << n;
            if (n == 1 && rank.rank == 1) { /* after the gather that has checked */
                tw_hpz_kept_run(kept, 0)[run_bytes - 1] ^= 1;
            }
        }
    });
}

TEST_F(HpzKeeper, ReplicasOfOtherVersionsAreAnError)
{
    begin({1, 1});
    allow_log("");
    with_unit([](Rank &rank, tw_hpz_kept_t *kept) {
        std::vector<uint16_t> whole = own_of(rank, 0);
        EXPECT_EQ(gather(kept, &whole), TW_OK);
        kept->version = rank.rank == 1 ? 7 : 1;
        EXPECT_LT(gather(kept, &whole), 0);
    });
    EXPECT_GT(
        log_count("unit layer: gather 2 of a replica at version 1, but rank 1 is at gather 2 and version 7") +
            log_count(
                "unit layer: gather 2 of a replica at version 7, but rank 0 is at gather 2 and version 1"),
        0U);
}

} // namespace
