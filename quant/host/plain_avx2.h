/** Loads and stores a group, 32 floats in four AVX2 registers, from and to any type. Private to
 *  group_avx2.h. */
#pragma once

#include "quant/host/simd_avx2.h"

#include "quant/host/group_simd.h"

/** tw_float_store for 32 elements, but wrong for NaN. */
INLINE void group_store_small(tw_type_t type, void *dst, size_t i, group_t g)
{
    if (type != TW_TYPE_BF16) {
        group_store(type, dst, i, g);
        return;
    }
    UNROLL
    for (int r = 0; r < 4; r += 2) {
        __m256i packed = _mm256_packus_epi32(bf16_round8(g.v[r]), bf16_round8(g.v[r + 1]));
        packed = _mm256_permute4x64_epi64(packed, 0xd8);
        _mm256_storeu_si256((__m256i *)((uint16_t *)dst + i + 8 * (size_t)r), packed);
    }
}

/** Whether all magnitudes are below `max`. A NaN is not. */
INLINE int group_is_below(group_t g, float max)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), top = _mm256_set1_epi32((int)tw_float_bits(max));
    __m256i m = _mm256_setzero_si256();
    UNROLL
    for (int r = 0; r < 4; r++) {
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(g.v[r]), magnitude));
    }
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(top, m)) == -1;
}

/** Limit finite values to [-max, max]; infinities and NaN stay. */
INLINE group_t group_saturate(group_t g, float max)
{
    const __m256 top = _mm256_set1_ps(max), bottom = _mm256_set1_ps(-max), sign = _mm256_set1_ps(-0.0f);
    const __m256 infinity = _mm256_set1_ps(tw_float_of_bits(TW_FLOAT_INF_BITS));
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m256 is_infinite = _mm256_cmp_ps(_mm256_andnot_ps(sign, g.v[r]), infinity, _CMP_EQ_OQ);
        /* if g.v[r] is NaN, min and max return their second operand, the NaN */
        __m256 inside = _mm256_max_ps(bottom, _mm256_min_ps(top, g.v[r]));
        g.v[r] = _mm256_blendv_ps(inside, g.v[r], is_infinite);
    }
    return g;
}
