/** Strips of unencoded elements: conversions to fp32 and back, with float.h's bits. C++17 and CUDA. */
#pragma once

#include "quant/cuda/strip.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

/** The 32-bit words of a strip of a type. */
#define TW_STRIP_PLAIN_WORDS(type) ((type) == TW_TYPE_FP32 ? 16 : 8)

/** Convert the two elements of a word to fp32. */
template <int TYPE>
TW_HD static inline void tw_strip_widen_word(uint32_t word, float &low, float &high)
{
    if (TYPE == TW_TYPE_BF16) {
        low = tw_float_of_bits(word << 16);
        high = tw_float_of_bits(word & 0xffff0000u);
        return;
    }
#ifdef __CUDA_ARCH__
    low = __half2float(__ushort_as_half((unsigned short)word));
    high = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
#else
    low = tw_float_from_fp16((uint16_t)word);
    high = tw_float_from_fp16((uint16_t)(word >> 16));
#endif
}

template <int TYPE>
TW_HD static inline void tw_strip_widen(const uint32_t (&words)[TW_STRIP_PLAIN_WORDS(TYPE)],
                                        float (&x)[TW_STRIP_ELEMS])
{
    if constexpr (TYPE == TW_TYPE_FP32) {
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            x[i] = tw_float_of_bits(words[i]);
        }
    } else {
        for (int w = 0; w < TW_STRIP_ELEMS / 2; w++) {
            tw_strip_widen_word<TYPE>(words[w], x[2 * w], x[2 * w + 1]);
        }
    }
}

/** Convert two fp32 values, neither of them NaN, to a word: rounded to nearest even, overflow to infinity. */
template <int TYPE>
TW_HD static inline uint32_t tw_strip_narrow_word(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (TYPE == TW_TYPE_BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return (uint32_t)__bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
    }
#endif
    if (TYPE == TW_TYPE_BF16) {
        return (uint32_t)tw_float_to_bf16(low) | (uint32_t)tw_float_to_bf16(high) << 16;
    }
#ifdef __CUDA_ARCH__
    return (uint32_t)__half_as_ushort(__float2half_rn(low)) |
           (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
#else
    return (uint32_t)tw_float_to_fp16(low) | (uint32_t)tw_float_to_fp16(high) << 16;
#endif
}

/** How a result beyond its type's range is stored. */
typedef enum tw_strip_fit_mode {
    TW_STRIP_IN_RANGE, /**< all values are known to be finite and in the type's range */
    TW_STRIP_INFINITE, /**< beyond the range it becomes infinite */
    TW_STRIP_SATURATE  /**< beyond the range it becomes the largest finite value; infinities and NaN stay */
} tw_strip_fit_mode_t;

/** Convert any value to a 16-bit type. A NaN keeps its leading bits. */
template <int TYPE>
TW_HD static inline uint32_t tw_strip_narrow_any(float x, bool saturate)
{
    if (TYPE == TW_TYPE_BF16) {
        return saturate ? tw_float_to_bf16_saturate(x) : tw_float_to_bf16(x);
    }
    return saturate ? tw_float_to_fp16_saturate(x) : tw_float_to_fp16(x);
}

template <int TYPE>
TW_HD static inline void tw_strip_fit(const float (&x)[TW_STRIP_ELEMS], tw_strip_fit_mode_t mode,
                                      uint32_t (&words)[TW_STRIP_PLAIN_WORDS(TYPE)])
{
    if constexpr (TYPE == TW_TYPE_FP32) {
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            words[i] = tw_float_bits(x[i]);
        }
    } else if (mode == TW_STRIP_IN_RANGE ||
               tw_strip_amax_bits(x) <= 0x477fe000u) { /* fp16's largest number; it is in bf16's range, too */
        for (int w = 0; w < TW_STRIP_ELEMS / 2; w++) {
            words[w] = tw_strip_narrow_word<TYPE>(x[2 * w], x[2 * w + 1]);
        }
    } else {
        bool saturate = mode == TW_STRIP_SATURATE;
        for (int w = 0; w < TW_STRIP_ELEMS / 2; w++) {
            words[w] = tw_strip_narrow_any<TYPE>(x[2 * w], saturate) |
                       tw_strip_narrow_any<TYPE>(x[2 * w + 1], saturate) << 16;
        }
    }
}

TW_HD static inline float tw_strip_quiet(float x)
{
    return tw_strip_is_nan(x) ? tw_float_of_bits(TW_FLOAT_NAN_BITS) : x;
}
