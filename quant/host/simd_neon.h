/** Loads and stores 4 floats from and to memory of any type, with NEON. Private to the folder. */
#pragma once

#include "quant/host/simd.h"

#include <arm_neon.h>

#define SIMD_ELEMS 4
typedef float32x4_t simd_t;

static inline uint32x4_t simd_bits(simd_t x)
{
    return vreinterpretq_u32_f32(x);
}

static inline simd_t simd_of_bits(uint32x4_t bits)
{
    return vreinterpretq_f32_u32(bits);
}

static inline uint32x4_t simd_magnitude(simd_t x)
{
    return vbicq_u32(simd_bits(x), vdupq_n_u32(0x80000000u));
}

static inline simd_t simd_set(float x)
{
    return vdupq_n_f32(x);
}

/** Load 4 elements at src[i]. */
static inline simd_t simd_load(tw_type_t type, const void *src, size_t i)
{
    if (type == TW_TYPE_FP32) {
        return vld1q_f32((const float *)src + i);
    }
    uint16x4_t h = vld1_u16((const uint16_t *)src + i);
    return type == TW_TYPE_FP16 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : simd_of_bits(vshll_n_u16(h, 16));
}

/** Round to bf16, nearest even; wrong for NaN. */
static inline uint16x4_t bf16_round4(simd_t x)
{
    uint32x4_t bits = simd_bits(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddhn_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}

/** bf16_round4, but right for any x. */
static inline uint16x4_t bf16_round4_any(simd_t x)
{
    uint16x4_t quiet = vorr_u16(vshrn_n_u32(simd_bits(x), 16), vdup_n_u16(0x40));
    return vbsl_u16(vmovn_u32(vceqq_f32(x, x)), bf16_round4(x), quiet);
}

/** Store 4 elements to dst[i], as tw_float_store does. */
static inline void simd_store(tw_type_t type, void *dst, size_t i, simd_t x)
{
    if (type == TW_TYPE_FP32) {
        vst1q_f32((float *)dst + i, x);
        return;
    }
    vst1_u16((uint16_t *)dst + i,
             type == TW_TYPE_FP16 ? vreinterpret_u16_f16(vcvt_f16_f32(x)) : bf16_round4_any(x));
}
