/** Ranks as threads, each with an hpz and masters that move as an optimizer moves them. */
#ifndef TW_TESTS_HPZ_REPLICAS_H
#define TW_TESTS_HPZ_REPLICAS_H

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "hpz/hpz.h"
#include "hpz/state.h"
#include "tests/collectives/world.h"

namespace tw
{

inline float widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

inline uint16_t narrow(float value)
{
    uint16_t out;
    tw_convert_from_fp32(TW_TYPE_BF16, &value, 1, &out, 1);
    return out;
}

/* Three units: a large tensor beside small ones, none that divides evenly, some smaller than the number of
 * ranks. */
inline std::vector<tw_hpz_tensor_t> tensors_of(size_t n)
{
    return {{n, 0, 0, 0, 0},         {3, 0, 1, 0, 0}, {1, 1, 1, 0, 0},
            {n / 2 + 1, 1, 0, 0, 0}, {0, 1, 0, 0, 0}, {5, 2, 0, 0, 0}};
}

/** A number in [-1, 1) of four others. */
inline float noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + c * 0x94d049bb133111ebULL + d;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebULL;
    x ^= x >> 32;
    return (float)((double)(x >> 11) / 4503599627370496.0 - 1.0);
}

/** A rank: its hpz, and the masters of its primary parts. */
class Rank
{
  public:
    tw_hpz_t *hpz = nullptr;
    std::vector<tw_hpz_tensor_t> tensors;
    std::vector<std::vector<float>> masters;

    Rank(tw_coll_t *coll, const std::vector<tw_hpz_tensor_t> &the_tensors, tw_hpz_params_t params)
        : tensors(the_tensors)
    {
        params.coll = coll;
        params.tensors = tensors.data();
        params.n_tensors = tensors.size();
        EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_OK);
        for (int u = 0; u < units(); u++) {
            masters.emplace_back(tw_hpz_primary_elems(layout(), u, tw_hpz_node(hpz), tw_hpz_local(hpz)));
        }
        for_own([&](size_t t, size_t e, float *master) { *master = weight(t, e); });
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;
    ~Rank()
    {
        tw_hpz_destroy(hpz);
    }
    const tw_hpz_layout_t *layout() const
    {
        return tw_hpz_layout(hpz);
    }
    int units() const
    {
        return tw_hpz_layout_units(layout());
    }
    static float weight(size_t tensor, size_t elem)
    {
        return 0.1F * noise(1, tensor, elem, 0);
    }
    /* body(tensor, element, its master) for all of the own primary parts */
    void for_own(const std::function<void(size_t, size_t, float *)> &body)
    {
        for (size_t t = 0; t < tensors.size(); t++) {
            tw_hpz_piece_t piece = tw_hpz_primary_piece(layout(), t, tw_hpz_node(hpz), tw_hpz_local(hpz));
            for (size_t i = 0; i < piece.n_elems; i++) {
                body(t, piece.first + i, &masters[(size_t)tensors[t].unit][piece.offset + i]);
            }
        }
    }
    /* What it adds depends on the element alone, so that all can know all masters. */
    static float update(size_t tensor, size_t elem, uint64_t step)
    {
        return 6e-4F * noise(2, tensor, elem, step);
    }
    void update(uint64_t step)
    {
        for_own([&](size_t t, size_t e, float *master) { *master += update(t, e, step); });
    }
    tw_status_t sync(tw_hpz_sync_t kind, uint64_t version)
    {
        for (int u = 0; u < units(); u++) {
            tw_status_t status = tw_hpz_sync_begin(hpz, u, kind, masters[(size_t)u].data(), version);
            if (status != TW_OK) {
                return status;
            }
        }
        for (int u = units() - 1; u >= 0; u--) {
            tw_status_t status = tw_hpz_sync_finish(hpz, u);
            if (status != TW_OK) {
                return status;
            }
        }
        return TW_OK;
    }
    tw_status_t sync_in_order(tw_hpz_sync_t kind, uint64_t version)
    {
        tw_status_t status = TW_OK;
        for (int u = 0; u < units() && status == TW_OK; u++) {
            status = tw_hpz_sync_begin(hpz, u, kind, masters[(size_t)u].data(), version);
            status = status == TW_OK ? tw_hpz_sync_finish(hpz, u) : status;
        }
        return status;
    }
    std::vector<uint16_t> gather(int unit, uint64_t version)
    {
        std::vector<uint16_t> full(tw_hpz_full_elems(layout(), unit));
        tw_coll_request_t *request;
        tw_status_t status = tw_hpz_gather_post(hpz, unit, version, full.data(), &request);
        EXPECT_EQ(status == TW_OK ? tw_coll_wait(request) : status, TW_OK);
        return full;
    }
    /** A hash (FNV) of all units. */
    uint64_t gathered_hash(uint64_t version)
    {
        uint64_t hash = 14695981039346656037ULL;
        for (int u = 0; u < units(); u++) {
            for (uint16_t value : gather(u, version)) {
                hash = (hash ^ value) * 1099511628211ULL;
            }
        }
        return hash;
    }
};

/** A world of N nodes of L ranks, and body(rank) on each. */
inline void on_ranks(const std::vector<int> &ranks_per_node, const std::vector<tw_hpz_tensor_t> &tensors,
                     const tw_hpz_params_t &params, const std::function<void(Rank &, int)> &body)
{
    World world(nodes_of(ranks_per_node));
    world.run([&](int r) {
        Rank rank(world.coll(r), tensors, params);
        body(rank, r);
    });
}

/** All of a unit as one slice. */
inline tw_hpz_slice_t all_of(const tw_hpz_t *hpz, int unit)
{
    return {0, tw_hpz_primary_elems(tw_hpz_layout(hpz), unit, 0, 0)};
}

/** A unit's replica, which is of bf16. */
inline const uint16_t *replica_of(const tw_hpz_t *hpz, int unit)
{
    return static_cast<const uint16_t *>(tw_hpz_replica(hpz, unit));
}

inline tw_quant_codec_t codec_of(const char *text)
{
    tw_quant_codec_t codec;
    EXPECT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
    return codec;
}

inline tw_hpz_params_t params_with(const char *delta, int has_lossless = 1)
{
    tw_hpz_params_t params = {};
    params.replicas = 1;
    params.lossless_delta = has_lossless;
    params.seed = 7;
    if (delta[0]) {
        params.delta = codec_of(delta);
    }
    return params;
}

} // namespace tw

#endif
