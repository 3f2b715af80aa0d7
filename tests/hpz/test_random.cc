/* What nobody has thought of: random shapes, tensors and syncs must keep what syncs promise, and no message
 * does harm. */
#include <limits>
#include <mutex>

#include "tests/common/sanitized.h"
#include "tests/fuzz/mutate.h"
#include "tests/hpz/replicas.h"

namespace
{

using HpzRandom = tw::Fixture;
using tw::fuzz::Input;
using tw::fuzz::Random;

std::vector<tw_hpz_tensor_t> random_tensors(Random &random)
{
    static const size_t most[] = {2, 9, 130, 4000};
    std::vector<tw_hpz_tensor_t> tensors;
    int unit = 0;
    for (size_t n = 1 + random.below(9); n > 0; n--) {
        tensors.push_back({random.below(most[random.below(4)]), unit, random.below(4) == 0, 0, 0});
        unit += random.below(3) == 0;
    }
    return tensors;
}

tw_hpz_params_t random_params(Random &random)
{
    static const char *const deltas[] = {"int8", "int4:hadamard", "int2:hadamard,block=64",
                                         "int4:block=32,stochastic"};
    tw_hpz_params_t params = tw::params_with(deltas[random.below(4)]);
    params.sync_elems = random.below(2) ? 0 : 1 + random.below(3000);
    params.slice_elems = random.below(2) ? 0 : 1 + random.below(200);
    params.lag_bound = random.below(2) ? 0 : 0.25;
    params.lag_plain = params.lag_bound > 0 && random.below(2);
    return params;
}

/* All sizes of moves, signs of zero, what is no number; the same for an element wherever it lies. */
float moved(float master, size_t tensor, size_t elem, uint64_t step, bool any)
{
    static const float odd[] = {-0.0F, 1e-40F, 3e38F, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
    float chance = std::fabs(tw::noise(3, tensor, elem, step));
    if (any && chance < 0.002F) {
        return odd[elem % 5];
    }
    return master + tw::noise(4, tensor, elem, step) * std::exp2(-20 * chance);
}

void expect_masters(tw::Rank &rank)
{
    rank.for_own([&](size_t t, size_t e, const float *master) {
        tw_hpz_piece_t piece = tw_hpz_secondary_piece(rank.layout(), t, tw_hpz_local(rank.hpz));
        ASSERT_EQ(tw::replica_of(rank.hpz, rank.tensors[t].unit)[piece.offset + e - piece.first],
                  tw::narrow(*master))
            << "tensor " << t << " element " << e;
    });
}

/* Units begin in order, as far as there is room; each is then tested or waited for. */
void sync_all(tw::Rank &rank, tw_hpz_sync_t kind, uint64_t version, Random &random)
{
    int begun = 0, done = 0;
    while (done < rank.units()) {
        tw_status_t status = TW_OK;
        while (begun < rank.units() && status == TW_OK && (begun == done || random.below(4))) {
            status = tw_hpz_sync_begin(rank.hpz, begun, kind, rank.masters[(size_t)begun].data(), version);
            begun += status == TW_OK;
        }
        ASSERT_TRUE(status == TW_OK || status == TW_IN_PROGRESS);
        status = random.below(2) ? tw_hpz_sync_finish(rank.hpz, done) : tw_hpz_sync_test(rank.hpz, done);
        ASSERT_TRUE(status == TW_OK || status == TW_IN_PROGRESS);
        done += status == TW_OK;
    }
}

void run_random(uint64_t seed)
{
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::vector<tw_hpz_tensor_t> tensors = random_tensors(random);
    tw_hpz_params_t params = random_params(random);
    std::vector<int> shape(1 + random.below(4), 1 + (int)random.below(3));
    bool any = random.below(2); /* quantized deltas of what is no number stay that: lossless ones only */
    tw::on_ranks(shape, tensors, params, [&](tw::Rank &rank, int r) {
        Random common(seed + 1), own(seed + 2 + (uint64_t)r);
        for (uint64_t version = 1; version <= 12; version++) {
            static const tw_hpz_sync_t lossless[] = {TW_HPZ_FULL, TW_HPZ_LOSSLESS, TW_HPZ_LOSSLESS};
            size_t at = version == 1 ? 0 : common.below(any ? 3 : 5);
            tw_hpz_sync_t kind = at < 3 ? lossless[at] : TW_HPZ_QUANTIZED;
            rank.for_own(
                [&](size_t t, size_t e, float *master) { *master = moved(*master, t, e, version, any); });
            sync_all(rank, kind, version, own);
            ASSERT_EQ(tw_hpz_check(rank.hpz, version), TW_OK);
            if (kind != TW_HPZ_QUANTIZED) {
                expect_masters(rank);
            }
        }
        tw_hpz_counters_t counters;
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.inter_node_bytes, counters.planned_inter_node_bytes);
    });
}

TEST_F(HpzRandom, SyncsKeepTheirPromises)
{
    const uint64_t n_seeds = tw::is_sanitized ? 20 : 50;
    for (uint64_t seed = 0; seed < n_seeds && !HasFailure(); seed++) {
        run_random(seed);
    }
}

/* The other node's message of a sync, as it was sent; both replicas follow it. */
Input true_message(tw::Rank &rank, tw_hpz_sync_t kind, uint64_t version)
{
    static std::mutex mutex;
    static Input message;
    EXPECT_EQ(tw_hpz_sync_begin(rank.hpz, 0, kind, rank.masters[0].data(), version), TW_OK);
    if (tw_hpz_node(rank.hpz) == 1) {
        const tw_hpz_transfer_t &transfer = *STAILQ_FIRST(&rank.hpz->units[0].sync.transfers);
        size_t bytes = tw_hpz_message_varies(rank.hpz, kind)
                           ? (size_t)transfer.bytes[1]
                           : tw_hpz_message_bytes(rank.hpz, 0, transfer.slice, kind, 1);
        std::lock_guard<std::mutex> lock(mutex);
        message.assign(transfer.message, transfer.message + bytes);
    }
    EXPECT_EQ(tw_hpz_sync_finish(rank.hpz, 0), TW_OK);
    EXPECT_EQ(tw_hpz_check(rank.hpz, version), TW_OK);
    std::lock_guard<std::mutex> lock(mutex);
    return message;
}

/* Each on the replica as it was; in buffers of their own length, for the sanitizers. */
void apply_mutations(tw::Rank &rank, tw_hpz_sync_t kind, const Input &message)
{
    Random random((uint64_t)kind);
    tw_hpz_unit_t *unit = &rank.hpz->units[0];
    size_t n = tw_hpz_secondary_elems(rank.layout(), 0, 0), refused = 0;
    std::vector<uint16_t> replica(unit->replica, unit->replica + n);
    std::vector<uint8_t> states(unit->states, unit->states + n);
    tw_hpz_transfer_t transfer = {};
    transfer.slice = tw::all_of(rank.hpz, 0);
    for (int i = 0; i < 4000; i++) {
        Input hostile = tw::fuzz::mutate({message}, random);
        unit->sync.kind = kind;
        tw_status_t status = tw_hpz_message_apply(rank.hpz, &transfer, 1, hostile.data(), hostile.size());
        ASSERT_TRUE(status == TW_OK || status == TW_ERR_FORMAT || status == TW_ERR_TRUNCATED ||
                    status == TW_ERR_MISMATCH)
            << tw_status_string(status);
        refused += status != TW_OK;
        std::copy(replica.begin(), replica.end(), unit->replica);
        std::copy(states.begin(), states.end(), unit->states);
    }
    EXPECT_GT(refused, 1000U);
}

TEST_F(HpzRandom, HostileMessagesDoNoHarmAndAFullSyncMendsIt)
{
    allow_log("delta_decode: ");
    allow_log("fewer than its pieces take");
    allow_log("none of its pieces'");
    tw_hpz_params_t params = tw::params_with("int4:block=32");
    params.lag_bound = 1e-6;
    params.lag_plain = 1;
    tw::on_ranks(
        {1, 1}, {{4100, 0, 0, 0, 0}, {33, 0, 1, 0, 0}, {700, 0, 0, 0, 0}}, params, [](tw::Rank &rank, int r) {
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
            uint64_t version = 2;
            for (tw_hpz_sync_t kind : {TW_HPZ_QUANTIZED, TW_HPZ_QUANTIZED, TW_HPZ_LOSSLESS, TW_HPZ_FULL}) {
                rank.update(version);
                Input message = true_message(rank, kind, version++);
                if (r == 0) {
                    apply_mutations(rank, kind, message);
                }
                ASSERT_EQ(rank.sync(TW_HPZ_FULL, version), TW_OK);
                ASSERT_EQ(tw_hpz_check(rank.hpz, version++), TW_OK);
                expect_masters(rank);
            }
        });
}

/* More than any message may have is neither waited for nor allocated. */
TEST_F(HpzRandom, AHostileLengthEndsTheSync)
{
    expect_log("unit 0: node 1 announces 18446744073709551615 bytes of changes");
    allow_log("gave the job up");
    tw::on_ranks({1, 1}, {{5000, 0, 0, 0, 0}}, tw::params_with(""), [](tw::Rank &rank, int r) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        if (r == 0) {
            const float *master = rank.masters[0].data();
            tw_status_t status = tw_hpz_sync_begin(rank.hpz, 0, TW_HPZ_LOSSLESS, master, 2);
            EXPECT_EQ(status == TW_OK ? tw_hpz_sync_finish(rank.hpz, 0) : status, TW_ERR_FORMAT);
            EXPECT_EQ(tw_hpz_version(rank.hpz, 0), 0U);
            return;
        }
        uint64_t lengths[2] = {0, UINT64_MAX};
        tw_coll_segment_t segment = {};
        segment.dst = lengths;
        segment.n_elems = sizeof(lengths);
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLGATHER;
        args.type = TW_TYPE_BYTE;
        args.segments = &segment;
        args.n_segments = 1;
        EXPECT_EQ(tw_coll_run(rank.hpz->rail_lengths, &args), TW_OK);
    });
}

} // namespace
