/* Replicas in other memory than the host's: nobody but the table's operations touches it, what they enqueue
 * happens late, and all is as in the host's memory, byte for byte. */
#include <sys/mman.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/hpz/replicas.h"

namespace
{

using HpzMemory = tw::Fixture;

/* Memory that only operations see; they run when they are waited for, or some of them before. */
class Elsewhere
{
  public:
    explicit Elsewhere(uint32_t seed) : random_(seed)
    {
        arena_ = static_cast<uint8_t *>(
            mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        EXPECT_NE(arena_, MAP_FAILED);
        EXPECT_EQ(tw_quant_delta_create(nullptr, &delta_), TW_OK);
        table_.ctx = this;
        table_.reserve = [](void *ctx, size_t n_elems, size_t n_segments, int) {
            of(ctx)->n_segments_ = n_segments;
            of(ctx)->n_elems_ = n_elems;
            of(ctx)->fresh_ = static_cast<uint16_t *>(take(ctx, n_elems * sizeof(uint16_t)));
            return TW_OK;
        };
        table_.group = [](void *, tw_coll_t *parent, const int *ranks, int n, tw_coll_t **out,
                          tw_stream_t *stream) {
            *stream = nullptr;
            return tw_coll_group_create(parent, ranks, n, out);
        };
        table_.copy = [](void *ctx, void *to, const void *from, size_t n_bytes) {
            return of(ctx)->push([=] { std::copy_n((const char *)from, n_bytes, (char *)to); });
        };
        table_.zero = [](void *ctx, void *at, size_t n_bytes) {
            return of(ctx)->push([=] { std::fill_n((char *)at, n_bytes, '\0'); });
        };
        table_.narrow = [](void *ctx, const float *from, uint16_t *to, size_t n) {
            return of(ctx)->push([=] { tw_convert_from_fp32(TW_TYPE_BF16, from, 1, to, n); });
        };
        table_.fresh = [](void *ctx) { return of(ctx)->fresh_; };
        table_.encode = [](void *ctx, const tw_quant_delta_segment_t *segments, size_t n, void *dst,
                           size_t dst_bytes, size_t *bytes) {
            size_t n_elems = 0;
            for (size_t i = 0; i < n; i++) {
                n_elems += segments[i].n_elems;
            }
            EXPECT_LE(n, of(ctx)->n_segments_);
            EXPECT_LE(n_elems, of(ctx)->n_elems_);
            return of(ctx)->now(
                [&] { return tw_quant_delta_encode(of(ctx)->delta_, segments, n, dst, dst_bytes, bytes); });
        };
        table_.decode = [](void *ctx, const tw_quant_delta_segment_t *segments, size_t n, const void *src,
                           size_t src_bytes) {
            return of(ctx)->now(
                [&] { return tw_quant_delta_decode(of(ctx)->delta_, segments, n, src, src_bytes); });
        };
        table_.wait = [](void *ctx) {
            of(ctx)->n_calls++;
            return of(ctx)->now([] { return TW_OK; });
        };
    }
    Elsewhere(const Elsewhere &) = delete;
    Elsewhere &operator=(const Elsewhere &) = delete;
    ~Elsewhere()
    {
        EXPECT_TRUE(queue_.empty()) << "what is enqueued was not waited for";
        munmap(arena_, bytes_);
        tw_quant_delta_destroy(delta_);
    }

    tw_hpz_params_t params(tw_hpz_params_t params)
    {
        params.memory = &table_;
        params.take = take;
        params.take_ctx = this;
        return params;
    }
    /* While body runs, everybody sees it. */
    void open(const std::function<void()> &body)
    {
        mprotect(arena_, bytes_, PROT_READ | PROT_WRITE);
        body();
        mprotect(arena_, bytes_, PROT_NONE);
    }

    int calls_left = -1; /* until one fails; -1: none does */
    int n_calls = 0;

  private:
    static Elsewhere *of(void *ctx)
    {
        return static_cast<Elsewhere *>(ctx);
    }
    static void *take(void *ctx, size_t n_bytes)
    {
        Elsewhere *own = of(ctx);
        void *at = own->arena_ + own->used_;
        own->used_ += (n_bytes + 63) / 64 * 64;
        EXPECT_LE(own->used_, bytes_);
        return at;
    }
    bool fails()
    {
        n_calls++;
        calls_left -= calls_left > 0;
        return calls_left == 0;
    }
    tw_status_t push(std::function<void()> item)
    {
        if (fails()) {
            return TW_ERR_CUDA;
        }
        queue_.push_back(std::move(item));
        for (size_t n = random_() % 4 == 0 ? random_() % 3 : 0; n > 0 && !queue_.empty(); n--) {
            open(queue_.front());
            queue_.pop_front();
        }
        return TW_OK;
    }
    tw_status_t now(const std::function<tw_status_t()> &last)
    {
        tw_status_t status = TW_OK;
        for (; !queue_.empty(); queue_.pop_front()) {
            open(queue_.front());
        }
        open([&] { status = last(); });
        return status;
    }

    static constexpr size_t bytes_ = size_t(1) << 24;
    tw_hpz_memory_t table_ = {};
    std::mt19937 random_;
    std::deque<std::function<void()>> queue_;
    uint8_t *arena_;
    size_t used_ = 0, n_elems_ = 0, n_segments_ = 0;
    uint16_t *fresh_ = nullptr;
    tw_quant_delta_t *delta_ = nullptr;
};

std::vector<uint16_t> replica_of(const tw::Rank &rank, int unit, Elsewhere *memory)
{
    std::vector<uint16_t> all(tw_hpz_secondary_elems(rank.layout(), unit, tw_hpz_local(rank.hpz)));
    const auto copy = [&] { std::copy_n(tw::replica_of(rank.hpz, unit), all.size(), all.data()); };
    memory ? memory->open(copy) : copy();
    return all;
}

struct Pair {
    Elsewhere memory;
    tw::Rank here, there;

    Pair(tw_coll_t *coll, size_t n, const tw_hpz_params_t &params, int rank)
        : memory((uint32_t)rank + 1), here(coll, tw::tensors_of(n), params),
          there(coll, tw::tensors_of(n), memory.params(params))
    {
    }
    void expect_equal(uint64_t version)
    {
        tw_hpz_counters_t a, b;
        tw_hpz_counters_get(here.hpz, &a);
        tw_hpz_counters_get(there.hpz, &b);
        EXPECT_EQ(a.inter_node_bytes, b.inter_node_bytes);
        EXPECT_EQ(b.planned_inter_node_bytes, b.inter_node_bytes);
        EXPECT_EQ(a.delta_bytes, b.delta_bytes);
        for (int u = 0; u < here.units(); u++) {
            EXPECT_EQ(replica_of(here, u, nullptr), replica_of(there, u, &memory)) << "unit " << u;
        }
        EXPECT_EQ(tw_hpz_check(there.hpz, version), TW_OK);
    }
};

void on_pairs(const std::vector<int> &shape, size_t n, const tw_hpz_params_t &params,
              const std::function<void(Pair &, int)> &body)
{
    tw::World world(tw::nodes_of(shape));
    world.run([&](int r) {
        Pair pair(world.coll(r), n, params, r);
        body(pair, r);
    });
}

TEST_F(HpzMemory, SyncsAreThoseOfTheHosts)
{
    set_env("TW_COLL_CHECK", "n"); /* no messages but the changes */
    for (size_t room : {0, 900}) { /* units whole; slice by slice */
        tw_hpz_params_t params = tw::params_with("");
        params.sync_elems = room;
        params.slice_elems = room > 0 ? 64 : 0;
        on_pairs({2, 2}, 3001, params, [&](Pair &pair, int) {
            for (uint64_t version = 1; version < 12; version++) {
                const tw_hpz_sync_t kind = version % 5 == 1 ? TW_HPZ_FULL : TW_HPZ_LOSSLESS;
                ASSERT_EQ(pair.here.sync_in_order(kind, version), TW_OK);
                ASSERT_EQ(pair.there.sync_in_order(kind, version), TW_OK);
                pair.expect_equal(version);
                pair.here.update(version);
                pair.there.update(version);
            }
            EXPECT_GT(pair.memory.n_calls, 0);
            /* the new values wait there, not here */
            EXPECT_LT(tw_hpz_sync_bytes(pair.there.hpz, TW_HPZ_LOSSLESS, 4),
                      tw_hpz_sync_bytes(pair.here.hpz, TW_HPZ_LOSSLESS, 4));
        });
    }
}

TEST_F(HpzMemory, WhatWasStoredIsGathered)
{
    on_pairs({3, 3}, 97, tw::params_with(""), [](Pair &pair, int) {
        for (int u = 0; u < pair.there.units(); u++) {
            std::vector<uint16_t> full(tw_hpz_full_elems(pair.there.layout(), u));
            for (size_t i = 0; i < full.size(); i++) {
                full[i] = (uint16_t)(i * 7 + (size_t)u);
            }
            ASSERT_EQ(tw_hpz_store(pair.there.hpz, u, full.data(), 5), TW_OK);
            pair.memory.open([&] { EXPECT_EQ(pair.there.gather(u, 5), full); });
        }
    });
}

TEST_F(HpzMemory, AWrongReplicaIsFound)
{
    expect_log("unit 1: the replica of rank 3 is not that of rank 1, in tensor 3");
    on_pairs({2, 2}, 100, tw::params_with(""), [](Pair &pair, int r) {
        ASSERT_EQ(pair.there.sync(TW_HPZ_FULL, 1), TW_OK);
        if (r == 3) {
            pair.memory.open([&] { pair.there.hpz->units[1].replica[0] ^= 1; });
        }
        EXPECT_EQ(tw_hpz_check(pair.there.hpz, 1), TW_ERR_MISMATCH);
    });
}

TEST_F(HpzMemory, ACheckThatFailsOnOneRankEndsOnAll)
{
    allow_log("");
    std::atomic<int> n_ready{0};
    on_pairs({2, 2}, 100, tw::params_with(""), [&](Pair &pair, int r) {
        EXPECT_EQ(pair.there.sync(TW_HPZ_FULL, 1), TW_OK);
        for (n_ready++; n_ready < 4;) { /* an end on one rank would end the others' syncs, too */
            std::this_thread::yield();
        }
        pair.memory.calls_left = r == 3 ? 1 : -1;
        EXPECT_LT(tw_hpz_check(pair.there.hpz, 1), TW_OK);
    });
}

/* Whichever of its operations fails, the sync does, and leaves nothing under way. A rank alone: no other one
 * waits for it. */
TEST_F(HpzMemory, OperationsThatFailAreNotLost)
{
    for (tw_hpz_sync_t kind : {TW_HPZ_FULL, TW_HPZ_LOSSLESS}) {
        for (int failing = 1; failing < 8; failing++) {
            on_pairs({1}, 100, tw::params_with(""), [&](Pair &pair, int) {
                ASSERT_EQ(pair.there.sync_in_order(TW_HPZ_FULL, 1), TW_OK);
                pair.there.update(1);
                pair.memory.calls_left = failing;
                EXPECT_EQ(pair.there.sync_in_order(kind, 2), TW_ERR_CUDA) << failing;
                int n_spoilt = 0; /* those before have followed, those after it are as they were */
                for (int u = 0; u < pair.there.units(); u++) {
                    n_spoilt += tw_hpz_version(pair.there.hpz, u) == 0;
                }
                EXPECT_EQ(n_spoilt, 1) << failing;
                pair.memory.calls_left = -1;
            });
        }
    }
}

TEST_F(HpzMemory, WhatIsOfTheHostsMemoryIsRefused)
{
    expect_log("there is nothing to take it from");
    expect_log("quantized deltas and lags are of the host's");
    tw::World world(tw::nodes_of({1}));
    Elsewhere memory(1);
    tw_hpz_tensor_t tensor = {64, 0, 0, 0, 0};
    for (bool has_take : {false, true}) {
        tw_hpz_params_t params = memory.params(tw::params_with(has_take ? "int4" : ""));
        tw_hpz_t *hpz = nullptr;
        params.take = has_take ? params.take : nullptr;
        params.coll = world.coll(0);
        params.tensors = &tensor;
        params.n_tensors = 1;
        EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_ERR_UNSUPPORTED);
    }
}

} // namespace
