/* Syncs: replicas equal on all nodes whatever the kind, kinds that lose nothing give bf16(master), counted
 * bytes are planned ones. */
#include <algorithm>
#include <mutex>
#include <thread>

#include "quant/e4m3.h"
#include "tests/common/sanitized.h"
#include "tests/hpz/replicas.h"

namespace
{

using HpzSync = tw::Fixture;

/* The masters of all ranks after `steps` updates, as the same sums give them. */
float master_after(size_t tensor, size_t elem, uint64_t steps)
{
    float master = tw::Rank::weight(tensor, elem);
    for (uint64_t s = 1; s <= steps; s++) {
        master += tw::Rank::update(tensor, elem, s);
    }
    return master;
}

void expect_masters(tw::Rank &rank, uint64_t version)
{
    for (size_t t = 0; t < rank.tensors.size(); t++) {
        int unit = rank.tensors[t].unit;
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
        for (size_t i = 0; i < piece.n_elems; i++) {
            ASSERT_EQ(tw::replica_of(rank.hpz, unit)[piece.offset + i],
                      tw::narrow(master_after(t, piece.first + i, version)))
                << "tensor " << t << " element " << piece.first + i;
        }
    }
}

void expect_planned_bytes(tw::Rank &rank)
{
    tw_hpz_counters_t counters;
    tw_hpz_counters_get(rank.hpz, &counters);
    EXPECT_EQ(counters.inter_node_bytes, counters.planned_inter_node_bytes);
}

/* All N and L up to 8, but no more than 16 ranks: the collectives have their own sweeps. Under a sanitizer no
 * more than 8, which has each N and each L. */
TEST_F(HpzSync, LosslessSyncsMakeTheMastersOnEveryNode)
{
    const int most = tw::is_sanitized ? 6 : 12;
    for (int n = 1; n <= 8; n++) {
        for (int l = 1; l <= 8 && n * l <= most; l++) {
            tw::on_ranks(std::vector<int>((size_t)n, l), tw::tensors_of(61), tw::params_with(""),
                         [&](tw::Rank &rank, int) {
                             ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
                             rank.update(1);
                             rank.update(2);
                             ASSERT_EQ(rank.sync(TW_HPZ_LOSSLESS, 2), TW_OK);
                             expect_masters(rank, 2);
                             expect_planned_bytes(rank);
                             EXPECT_EQ(tw_hpz_check(rank.hpz, 2), TW_OK);
                         });
        }
    }
}

/* At version 1 masters are as they were made, and frozen ones stay so. */
void expect_rounded(tw::Rank &rank, const std::vector<int8_t> &exponents, uint64_t version)
{
    for (size_t t = 0; t < rank.tensors.size(); t++) {
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
        const uint16_t *replica = tw::replica_of(rank.hpz, rank.tensors[t].unit);
        for (size_t i = 0; i < piece.n_elems; i++) {
            float master = master_after(t, piece.first + i, rank.tensors[t].frozen ? 0 : version - 1);
            uint16_t want = tw::narrow(master);
            if (exponents[t] != TW_HPZ_BF16) {
                tw_quant_e4m3_round(&master, exponents[t], &want, 1);
            }
            ASSERT_EQ(want, replica[piece.offset + i]) << "tensor " << t << " element " << piece.first + i;
        }
    }
}

/* Tensors of fp8 beside others, one of them frozen; exponents move, up and down. */
TEST_F(HpzSync, Fp8FollowsTheRoundedMasters)
{
    const std::vector<tw_hpz_tensor_t> tensors = {{3000, 0, 0, 0, 0}, {3, 0, 1, 0, 0},    {5000, 1, 0, 0, 0},
                                                  {70, 1, 0, 0, 0},   {2000, 1, 0, 0, 1}, {1, 2, 0, 0, 0}};
    auto exponents_at = [](uint64_t version) {
        int8_t moved = (int8_t)(version == 3 ? -13 : -12);
        return std::vector<int8_t>{moved, TW_HPZ_BF16, -11, TW_HPZ_BF16, -12, -12};
    };
    for (const std::vector<int> &shape : std::vector<std::vector<int>>{{1, 1}, {2, 2}, {1, 1, 1}, {3}}) {
        tw_hpz_params_t params = tw::params_with("");
        params.sync_elems = shape.size() == 2 ? 600 : 0;
        params.slice_elems = 100;
        tw::on_ranks(shape, tensors, params, [&](tw::Rank &rank, int) {
            std::vector<int8_t> exponents = exponents_at(1);
            ASSERT_EQ(tw_hpz_exponents_set(rank.hpz, exponents.data()), TW_OK);
            ASSERT_EQ(rank.sync_in_order(TW_HPZ_FULL, 1), TW_OK);
            expect_rounded(rank, exponents, 1);
            for (uint64_t version = 2; version <= 4; version++) {
                rank.update(version - 1);
                const std::vector<int8_t> next = exponents_at(version);
                std::copy(next.begin(), next.end(), exponents.begin()); /* where they are */
                ASSERT_EQ(rank.sync_in_order(TW_HPZ_LOSSLESS, version), TW_OK);
                expect_rounded(rank, exponents, version);
            }
            expect_planned_bytes(rank);
            EXPECT_EQ(tw_hpz_check(rank.hpz, 4), TW_OK);
        });
    }
}

/* One unit: what several do is tested above. */
const std::vector<tw_hpz_tensor_t> one_unit = {
    {700, 0, 0, 0, 0}, {3, 0, 1, 0, 0}, {1, 0, 0, 0, 0}, {351, 0, 0, 0, 0}};

void thousand_updates(const char *delta, tw_hpz_sync_t kind, const std::vector<int> &shape, uint64_t steps)
{
    std::vector<uint64_t> hashes(8);
    std::vector<uint64_t> bytes(8);
    tw::on_ranks(shape, one_unit, tw::params_with(delta), [&](tw::Rank &rank, int r) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        for (uint64_t s = 2; s <= steps; s++) {
            rank.update(s);
            ASSERT_EQ(rank.sync(kind, s), TW_OK);
            if (s % 100 == 0) {
                ASSERT_EQ(tw_hpz_check(rank.hpz, s), TW_OK);
            }
        }
        hashes[(size_t)r] = rank.gathered_hash(steps);
        expect_planned_bytes(rank);
        if (kind == TW_HPZ_LOSSLESS) {
            rank.for_own([&](size_t t, size_t e, const float *master) {
                tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
                EXPECT_EQ(tw::replica_of(rank.hpz, rank.tensors[t].unit)[piece.offset + e - piece.first],
                          tw::narrow(*master));
            });
        }
    });
    for (size_t r = 1; r < (size_t)tw::nodes_of(shape).size(); r++) {
        EXPECT_EQ(hashes[r], hashes[0]) << "rank " << r;
    }
}

TEST_F(HpzSync, ThousandLosslessDeltas)
{
    thousand_updates("", TW_HPZ_LOSSLESS, {2, 2}, 1000);
}

TEST_F(HpzSync, ThousandLossyDeltas)
{
    thousand_updates("int4:hadamard,stochastic", TW_HPZ_QUANTIZED, {2, 2}, 1000);
    thousand_updates("int8", TW_HPZ_QUANTIZED, {1, 1, 1}, 100);
}

/* What one delta rounds away, the next ones send: with masters that stand still, the replica comes to
 * bf16(master). */
TEST_F(HpzSync, LossyDeltasCatchUp)
{
    tw::on_ranks({2, 2}, tw::tensors_of(700), tw::params_with("int4"), [](tw::Rank &rank, int) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        rank.update(1);
        for (uint64_t s = 2; s < 12; s++) {
            ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, s), TW_OK);
        }
        rank.for_own([&](size_t t, size_t e, const float *master) {
            tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
            float value =
                tw::widen(tw::replica_of(rank.hpz, rank.tensors[t].unit)[piece.offset + e - piece.first]);
            /* its own rounding to bf16, and a step of the scale that the largest weight's rounding leaves */
            EXPECT_LE(std::fabs(value - *master), std::fabs(*master) / 256 + 0.1F / 512 / 7) << t << " " << e;
        });
    });
}

/* Unquantized tensors hold bf16(master) after every quantized delta. */
TEST_F(HpzSync, UnquantizedTensorsTravelPlain)
{
    tw::on_ranks({2, 2}, tw::tensors_of(700), tw::params_with("int4"), [](tw::Rank &rank, int) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        rank.update(1);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 2), TW_OK);
        rank.for_own([&](size_t t, size_t e, const float *master) {
            tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
            if (rank.tensors[t].unquantized) {
                EXPECT_EQ(tw::replica_of(rank.hpz, rank.tensors[t].unit)[piece.offset + e - piece.first],
                          tw::narrow(*master));
            }
        });
    });
}

/* Each sync of each unit sends (N - 1) times what its pieces take, over all ranks. */
TEST_F(HpzSync, BytesAreThoseOfThePieces)
{
    set_env("TW_COLL_CHECK", "n"); /* no messages but the pieces */
    const size_t n = 4096;         /* of each tensor; pieces of 1,024 on 2 x 2 */
    uint64_t full = 0, delta = 0, planned_full = 0, planned_delta = 0;
    std::mutex mutex;
    tw::on_ranks({2, 2}, {{n, 0, 0, 0, 0}, {n, 0, 1, 0, 0}}, tw::params_with("int4"),
                 [&](tw::Rank &rank, int) {
                     tw_hpz_counters_t before, after;
                     uint64_t plan_full = tw_hpz_planned_sync_bytes(rank.hpz, 0, TW_HPZ_FULL, 0);
                     uint64_t plan_delta = tw_hpz_planned_sync_bytes(rank.hpz, 0, TW_HPZ_QUANTIZED, 0);
                     ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
                     tw_hpz_counters_get(rank.hpz, &before);
                     ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 2), TW_OK);
                     tw_hpz_counters_get(rank.hpz, &after);
                     std::lock_guard<std::mutex> lock(mutex);
                     full += before.inter_node_bytes;
                     delta += after.inter_node_bytes - before.inter_node_bytes;
                     planned_full += plan_full;
                     planned_delta += plan_delta;
                     EXPECT_EQ(after.delta_elems, 2 * n / 4);
                     EXPECT_EQ(after.syncs[TW_HPZ_FULL], 1U);
                     EXPECT_EQ(after.syncs[TW_HPZ_QUANTIZED], 1U);
                 });
    EXPECT_EQ(full, 2 * n * sizeof(uint16_t));
    EXPECT_EQ(delta, 4 * (1024 / 2 + 1024 / 128 * 2) + n * sizeof(uint16_t));
    EXPECT_EQ(planned_full, full);
    EXPECT_EQ(planned_delta, delta);
}

TEST_F(HpzSync, WhatCannotBeginIsRefused)
{
    expect_log("a full one first");
    expect_log("no codec was given");
    expect_log("without memory for lossless deltas");
    expect_log("to version 0");
    expect_log("no sync is under way");
    expect_log("one is under way");
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, tw::params_with("", 0), [](tw::Rank &rank, int) {
        const float *master = rank.masters[0].data();
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_QUANTIZED, master, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_LOSSLESS, master, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, master, 0), TW_ERR_INVALID);
        EXPECT_EQ(tw_hpz_sync_finish(rank.hpz, 0), TW_ERR_INVALID);
        ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, master, 1), TW_OK);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, master, 1), TW_ERR_INVALID);
        EXPECT_EQ(tw_hpz_sync_finish(rank.hpz, 0), TW_OK);
    });
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, tw::params_with("int8"), [](tw::Rank &rank, int) {
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_QUANTIZED, rank.masters[0].data(), 1), TW_ERR_STALE);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_LOSSLESS, rank.masters[0].data(), 1), TW_ERR_STALE);
    });
}

/* Ten equal units, room for three: begin says so, memory stays below what the header promises, and testing
 * alone, without a wait, brings all of them home. */
TEST_F(HpzSync, NoMoreUnderWayThanThereIsRoomFor)
{
    const size_t n = 400, n_units = 10;
    std::vector<tw_hpz_tensor_t> tensors;
    for (size_t u = 0; u < n_units; u++) {
        tensors.push_back({n, (int)u, 0, 0, 0});
    }
    for (tw_hpz_sync_t kind : {TW_HPZ_FULL, TW_HPZ_LOSSLESS}) {
        tw_hpz_params_t params = tw::params_with("");
        params.sync_elems = 3 * n / 2; /* of two places on a node */
        tw::on_ranks({2, 2}, tensors, params, [&](tw::Rank &rank, int) {
            ASSERT_EQ(rank.sync_in_order(TW_HPZ_FULL, 1), TW_OK);
            rank.update(1);
            size_t held = tw_hpz_memory_bytes(rank.hpz), most = 0, begun = 0, done = 0;
            while (done < n_units) {
                tw_status_t status = TW_OK;
                while (begun < n_units && status == TW_OK) {
                    status = tw_hpz_sync_begin(rank.hpz, (int)begun, kind, rank.masters[begun].data(), 2);
                    begun += status == TW_OK;
                }
                ASSERT_EQ(status, begun < n_units ? TW_IN_PROGRESS : TW_OK);
                ASSERT_LE(begun - done, 3U);
                ASSERT_TRUE(begun == n_units || begun - done == 3);
                most = std::max(most, tw_hpz_memory_bytes(rank.hpz) - held);
                do {
                    status = tw_hpz_sync_test(rank.hpz, (int)done);
                } while (status == TW_IN_PROGRESS);
                ASSERT_EQ(status, TW_OK);
                done++;
            }
            expect_masters(rank, 1);
            EXPECT_EQ(tw_hpz_memory_bytes(rank.hpz), held);
            /* what is sent and received, the new values where they are kept, and 12 bytes a message */
            size_t fresh = kind == TW_HPZ_LOSSLESS ? 2 * params.sync_elems / 2 : 0;
            EXPECT_LE(most, 2 * params.sync_elems + fresh + 3 * 2 * 12);
            EXPECT_GT(most, 0U);
        });
    }
}

/* One unit may always be under way. */
TEST_F(HpzSync, AUnitLargerThanTheRoomGoesAlone)
{
    tw_hpz_params_t params = tw::params_with("");
    params.sync_elems = 1;
    tw::on_ranks({1, 1, 1}, tw::tensors_of(61), params, [](tw::Rank &rank, int) {
        EXPECT_EQ(rank.sync_in_order(TW_HPZ_FULL, 1), TW_OK);
        ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_LOSSLESS, rank.masters[0].data(), 2), TW_OK);
        EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 1, TW_HPZ_LOSSLESS, rank.masters[1].data(), 2), TW_IN_PROGRESS);
        EXPECT_EQ(tw_hpz_sync_finish(rank.hpz, 0), TW_OK);
        EXPECT_EQ(tw_hpz_version(rank.hpz, 0), 2U);
    });
}

/* What a sync of a unit makes, and the most memory that it took: slice by slice, where there is no room for
 * the unit. */
struct Made {
    std::vector<uint64_t> hashes;
    size_t most = 0;
    uint64_t lag_blocks = 0;
    bool operator==(const Made &other) const
    {
        return hashes == other.hashes && lag_blocks == other.lag_blocks;
    }
};

/* The same rank without a communicator. */
void expect_planned_memory(const tw_hpz_t *hpz)
{
    tw_hpz_params_t params = hpz->params;
    tw_hpz_t *planned = nullptr;
    params.coll = nullptr;
    params.place = {hpz->rank, hpz->n_nodes, hpz->ranks_per_node};
    ASSERT_EQ(tw_hpz_create(&params, &planned), TW_OK);
    for (int kind = 0; kind <= TW_HPZ_SYNC_COUNT; kind++) {
        EXPECT_EQ(tw_hpz_sync_bytes(planned, (tw_hpz_sync_t)kind, 3),
                  tw_hpz_sync_bytes(hpz, (tw_hpz_sync_t)kind, 3));
    }
    EXPECT_EQ(tw_hpz_memory_bytes(planned), tw_hpz_memory_bytes(hpz));
    tw_hpz_destroy(planned);
    if (params.sync_elems == 0) { /* all units are under way: lossless ones, the own too, as they are coded */
        size_t n_elems = 0;
        for (int u = 0; u < hpz->n_units; u++) {
            n_elems += tw_hpz_secondary_elems(hpz->layout, u, hpz->local);
        }
        EXPECT_EQ(tw_hpz_sync_bytes(hpz, TW_HPZ_LOSSLESS, 16) - tw_hpz_sync_bytes(hpz, TW_HPZ_LOSSLESS, 8),
                  n_elems);
    }
}

Made make(const std::vector<int> &shape, size_t n, tw_hpz_sync_t kind, size_t room, int lag)
{
    Made made;
    std::mutex mutex;
    tw_hpz_params_t params = tw::params_with("int4:block=64,hadamard,stochastic");
    params.sync_elems = room;
    params.slice_elems = 64;
    params.lag_bound = lag ? 1e-3 : 0;
    params.lag_plain = lag;
    made.hashes.resize(tw::nodes_of(shape).size());
    tw::on_ranks(
        shape, {{n, 0, 0, 0, 0}, {3, 0, 1, 0, 0}, {n / 3, 0, 0, 0, 0}, {5, 1, 0, 0, 0}}, params,
        [&](tw::Rank &rank, int r) {
            ASSERT_EQ(rank.sync_in_order(TW_HPZ_FULL, 1), TW_OK);
            size_t held = tw_hpz_memory_bytes(rank.hpz), most = 0;
            for (uint64_t version = 2; version < 4; version++) {
                rank.update(version);
                ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 0, kind, rank.masters[0].data(), version), TW_OK);
                tw_status_t status = TW_IN_PROGRESS;
                while (status == TW_IN_PROGRESS) {
                    most = std::max(most, tw_hpz_memory_bytes(rank.hpz) - held);
                    status = tw_hpz_sync_test(rank.hpz, 0);
                    std::this_thread::yield();
                }
                ASSERT_EQ(status, TW_OK);
                ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 1, kind, rank.masters[1].data(), version), TW_OK);
                ASSERT_EQ(tw_hpz_sync_finish(rank.hpz, 1), TW_OK);
                ASSERT_EQ(tw_hpz_check(rank.hpz, version), TW_OK);
            }
            expect_planned_bytes(rank);
            EXPECT_LE(most, tw_hpz_sync_bytes(rank.hpz, kind, 24));
            EXPECT_LE(tw_hpz_sync_bytes(rank.hpz, kind, 24),
                      tw_hpz_sync_bytes(rank.hpz, TW_HPZ_SYNC_COUNT, 0));
            expect_planned_memory(rank.hpz);
            tw_hpz_counters_t counters;
            tw_hpz_counters_get(rank.hpz, &counters);
            made.hashes[(size_t)r] = rank.gathered_hash(3);
            std::lock_guard<std::mutex> lock(mutex);
            made.most = std::max(made.most, most);
            made.lag_blocks += counters.lag_blocks;
        });
    return made;
}

/* The same bits, whatever the room; what is under way takes no more memory in a unit four times as large. */
void expect_slices(const std::vector<int> &shape, tw_hpz_sync_t kind, int lag)
{
    const size_t nodes = shape.size(), room = 400, n = 1001;
    Made whole = make(shape, n, kind, 0, lag), some = make(shape, n, kind, room, lag);
    EXPECT_EQ(some, whole);
    EXPECT_EQ(make(shape, n, kind, 1, lag), whole);
    EXPECT_GT(whole.most, some.most);
    /* sent and received, the new values; beside a lossy delta what is late, and its number */
    size_t word = kind == TW_HPZ_QUANTIZED && lag ? 4 : 2;
    EXPECT_LE(make(shape, 4 * n, kind, room, lag).most, room * word + room / nodes * 2 + 2 * nodes * 8);
}

TEST_F(HpzSync, SlicesMakeWhatTheUnitMakes)
{
    expect_slices({2, 2}, TW_HPZ_FULL, 0);
    expect_slices({2, 2}, TW_HPZ_LOSSLESS, 0);
    expect_slices({2, 2}, TW_HPZ_QUANTIZED, 0);
    expect_slices({1, 1, 1}, TW_HPZ_QUANTIZED, 1);
    EXPECT_GT(make({1, 1}, 1001, TW_HPZ_QUANTIZED, 1, 1).lag_blocks, 0U);
}

TEST_F(HpzSync, SlicesAreSentAsPlanned)
{
    set_env("TW_COLL_CHECK", "n");
    for (size_t room : {0, 1, 900}) {
        tw_hpz_params_t params = tw::params_with("int4:block=64");
        params.sync_elems = room;
        params.slice_elems = 64;
        tw::on_ranks({2, 2}, {{4096, 0, 0, 0, 0}, {77, 0, 1, 0, 0}}, params, [](tw::Rank &rank, int) {
            tw_hpz_counters_t before, after;
            uint64_t full = tw_hpz_planned_sync_bytes(rank.hpz, 0, TW_HPZ_FULL, 0);
            uint64_t delta = tw_hpz_planned_sync_bytes(rank.hpz, 0, TW_HPZ_QUANTIZED, 0);
            EXPECT_EQ(full, rank.masters[0].size() * 2)
                << "no rail's message is sent twice to one other node";
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
            tw_hpz_counters_get(rank.hpz, &before);
            ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 2), TW_OK);
            tw_hpz_counters_get(rank.hpz, &after);
            EXPECT_EQ(before.inter_node_bytes, full);
            EXPECT_EQ(after.inter_node_bytes - before.inter_node_bytes, delta);
            EXPECT_EQ(after.delta_elems, rank.masters[0].size());
            EXPECT_EQ(after.syncs[TW_HPZ_QUANTIZED], 1U);
        });
    }
}

/* Deltas leave out what is frozen, quantized or not, whole units of it too; a full sync has it. */
TEST_F(HpzSync, FrozenTensorsAreInFullSyncsAlone)
{
    const std::vector<tw_hpz_tensor_t> tensors = {
        {500, 0, 0, 0, 0}, {900, 0, 0, 0, 1}, {7, 0, 1, 0, 1}, {9, 0, 1, 0, 0}, {60, 1, 0, 0, 1}};
    tw::on_ranks({2, 2}, tensors, tw::params_with("int4"), [&](tw::Rank &rank, int) {
        auto is_new = [&](size_t tensor, uint64_t version, const std::vector<uint16_t> &before) {
            tw_hpz_piece_t piece = tw_hpz_full_piece(rank.layout(), tensor);
            std::vector<uint16_t> now = rank.gather(tensors[tensor].unit, version);
            auto at = static_cast<std::ptrdiff_t>(piece.offset),
                 end = at + static_cast<std::ptrdiff_t>(piece.n_elems);
            return !std::equal(now.begin() + at, now.begin() + end, before.begin() + at);
        };
        uint64_t version = 1;
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, version), TW_OK);
        for (tw_hpz_sync_t kind : {TW_HPZ_QUANTIZED, TW_HPZ_LOSSLESS, TW_HPZ_FULL}) {
            const std::vector<uint16_t> before[] = {rank.gather(0, version), rank.gather(1, version)};
            tw_hpz_counters_t first, last;
            tw_hpz_counters_get(rank.hpz, &first);
            rank.update(++version); /* of all: who is frozen does not move in training */
            ASSERT_EQ(rank.sync(kind, version), TW_OK);
            tw_hpz_counters_get(rank.hpz, &last);
            for (size_t t = 0; t < tensors.size(); t++) {
                EXPECT_EQ(is_new(t, version, before[tensors[t].unit]),
                          kind == TW_HPZ_FULL || !tensors[t].frozen)
                    << tw_hpz_sync_name(kind) << " " << t;
            }
            EXPECT_EQ(last.inter_node_bytes - first.inter_node_bytes,
                      last.planned_inter_node_bytes - first.planned_inter_node_bytes);
            EXPECT_EQ(last.inter_node_bytes - first.inter_node_bytes > 600, kind == TW_HPZ_FULL);
        }
        EXPECT_EQ(tw_hpz_check(rank.hpz, version), TW_OK);
    });
}

/* A full sync begins lossless deltas anew: no previous change is left, of the own piece nor of the others',
 * in any slice. */
TEST_F(HpzSync, FullSyncsForgetPreviousChanges)
{
    for (size_t room : {0, 500}) {
        tw_hpz_params_t params = tw::params_with("");
        params.sync_elems = room;
        params.slice_elems = 100;
        tw::on_ranks({1, 1}, {{2000, 0, 0, 0, 0}, {7, 0, 1, 0, 0}}, params, [](tw::Rank &rank, int) {
            const tw_hpz_unit_t *unit = &rank.hpz->units[0];
            auto changes = [&] { return 2007 - std::count(unit->states, unit->states + 2007, 0); };
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
            rank.update(1);
            ASSERT_EQ(rank.sync(TW_HPZ_LOSSLESS, 2), TW_OK);
            EXPECT_GT(changes(), 1000);
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 3), TW_OK);
            EXPECT_EQ(changes(), 0);
        });
    }
}

/* A rank ends with syncs under way: nothing leaks, nobody hangs. */
TEST_F(HpzSync, DestroyedUnderWay)
{
    tw::on_ranks({1, 1}, tw::tensors_of(500), tw::params_with(""), [](tw::Rank &rank, int) {
        ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, rank.masters[0].data(), 1), TW_OK);
        EXPECT_GE(tw_hpz_memory_bytes(rank.hpz), rank.masters[0].size() * 4);
    });
    tw_hpz_params_t params = tw::params_with("");
    params.sync_elems = 130;
    params.slice_elems = 1;
    tw::on_ranks({1, 1}, tw::tensors_of(500), params, [](tw::Rank &rank, int) {
        ASSERT_EQ(tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_FULL, rank.masters[0].data(), 1), TW_OK);
        EXPECT_EQ(rank.hpz->partial, 0);
    });
}

} // namespace
