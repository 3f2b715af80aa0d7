/** The scales of 8 blocks at once. Only for files compiled with -mavx2. Private to the folder. */
#pragma once

#include "quant/arithmetic/block.h"

#include <immintrin.h>

/** Make the scales (as bits) and inverses of 8 blocks from the bits of their largest magnitudes, like
 *  tw_block_scale and tw_block_inverse. Above `limit` the scale is NaN, the inverse 0. */
static inline void scales8(const uint32_t amax[8], uint32_t limit, int reach, tw_quant_scale_t type,
                           uint32_t scale[8], float inverse[8])
{
    __m256i m = _mm256_loadu_si256((const __m256i *)amax);
    __m256i nonfinite = _mm256_cmpgt_epi32(m, _mm256_set1_epi32((int)limit));
    __m256i none = _mm256_or_si256(nonfinite, _mm256_cmpeq_epi32(m, _mm256_setzero_si256()));
    __m256 quotient = _mm256_div_ps(_mm256_castsi256_ps(m), _mm256_set1_ps((float)reach));
    __m256i bits =
        _mm256_max_epi32(_mm256_castps_si256(quotient), _mm256_set1_epi32((int)TW_BLOCK_SCALE_MIN));
    if (type == TW_QUANT_SCALE_BF16) {
        bits = _mm256_and_si256(_mm256_add_epi32(bits, _mm256_set1_epi32(0xffff)),
                                _mm256_set1_epi32((int)0xffff0000));
    }
    __m256i inverted = _mm256_castps_si256(_mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_castsi256_ps(bits)));
    __m256i nan = _mm256_and_si256(nonfinite, _mm256_set1_epi32((int)TW_FLOAT_NAN_BITS));
    _mm256_storeu_si256((__m256i *)scale, _mm256_or_si256(nan, _mm256_andnot_si256(none, bits)));
    _mm256_storeu_ps(inverse, _mm256_castsi256_ps(_mm256_andnot_si256(none, inverted)));
}
