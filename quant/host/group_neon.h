/** Groups of 32 floats in eight NEON registers, and their operations, from which group.h's codec is built.
 *  Private to the folder. Every operation gives the same bits as its scalar counterpart. */
#pragma once

#include "quant/host/simd_neon.h"

#include "quant/host/group_simd.h"

/* ---- the plain side ------------------------------------------------------------------------------------ */

/** tw_float_store, but wrong for NaN. */
INLINE void group_store_small(tw_type_t type, void *dst, size_t i, group_t g)
{
    if (type != TW_TYPE_BF16) {
        group_store(type, dst, i, g);
        return;
    }
    FOR_EACH_REGISTER(r)
    {
        vst1_u16((uint16_t *)dst + i + 4 * (size_t)r, bf16_round4(g.v[r]));
    }
}

/** Limit finite values to [-max, max]; infinities and NaN stay. */
INLINE group_t group_saturate(group_t g, float max)
{
    FOR_EACH_REGISTER(r)
    {
        uint32x4_t is_infinite = vceqq_u32(simd_magnitude(g.v[r]), vdupq_n_u32(TW_FLOAT_INF_BITS));
        simd_t inside = vmaxq_f32(simd_set(-max), vminq_f32(simd_set(max), g.v[r]));
        g.v[r] = vbslq_f32(is_infinite, g.v[r], inside);
    }
    return g;
}

/* ---- largest magnitude --------------------------------------------------------------------------------- */

typedef struct {
    uint32x4_t bits; /* bits of fp32 magnitudes */
} amax_t;

INLINE amax_t amax_zero(void)
{
    return (amax_t){vdupq_n_u32(0)};
}

INLINE amax_t amax_of_group(amax_t amax, group_t g)
{
    FOR_EACH_REGISTER(r)
    {
        amax.bits = vmaxq_u32(amax.bits, simd_magnitude(g.v[r]));
    }
    return amax;
}

INLINE uint32_t amax_bits(amax_t amax)
{
    return vmaxvq_u32(amax.bits);
}

/** Whether all magnitudes are below `max`. A NaN is not. */
INLINE int group_is_below(group_t g, float max)
{
    return amax_bits(amax_of_group(amax_zero(), g)) < tw_float_bits(max);
}

/** The largest magnitude of n elements of 16 bits, as bits; n is a multiple of 32. */
INLINE uint16_t amax_of_halves(const uint16_t *src, size_t n)
{
    const uint16x8_t sign = vdupq_n_u16(0x8000);
    uint16x8_t m0 = vdupq_n_u16(0), m1 = m0;
    for (size_t i = 0; i < n; i += 16) {
        m0 = vmaxq_u16(m0, vbicq_u16(vld1q_u16(src + i), sign));
        m1 = vmaxq_u16(m1, vbicq_u16(vld1q_u16(src + i + 8), sign));
    }
    return vmaxvq_u16(vmaxq_u16(m0, m1));
}

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

/** One butterfly stage between registers r and r + stride. */
INLINE group_t group_butterfly(group_t g, int stride)
{
    group_t h;
    FOR_EACH_REGISTER(r)
    {
        h.v[r] = r & stride ? vsubq_f32(g.v[r ^ stride], g.v[r]) : vaddq_f32(g.v[r], g.v[r ^ stride]);
    }
    return h;
}

/** tw_block_hadamard32. Products with 1 and -1 are exact, so fused operations round only the sum. */
INLINE group_t group_rotate(group_t g)
{
    const simd_t signs1 = {1, -1, 1, -1}, signs2 = {1, 1, -1, -1};
    FOR_EACH_REGISTER(r)
    {
        g.v[r] = vfmaq_f32(vrev64q_f32(g.v[r]), g.v[r], signs1);
        g.v[r] = vfmaq_f32(vextq_f32(g.v[r], g.v[r], 2), g.v[r], signs2);
    }
    g = group_butterfly(group_butterfly(group_butterfly(g, 1), 2), 4);
    return group_mul(g, TW_BLOCK_HADAMARD_NORM);
}

/** Make the scales (as bits) and inverses of 8 blocks from the bits of their largest magnitudes, like
 *  tw_block_scale and tw_block_inverse. Above `limit` the scale is NaN, the inverse 0. */
static inline void scales8(const uint32_t amax[8], uint32_t limit, int reach, tw_quant_scale_t type,
                           uint32_t scale[8], float inverse[8])
{
    for (int i = 0; i < 8; i += 4) {
        uint32x4_t m = vld1q_u32(amax + i), nonfinite = vcgtq_u32(m, vdupq_n_u32(limit));
        uint32x4_t none = vorrq_u32(nonfinite, vceqzq_u32(m));
        uint32x4_t bits = simd_bits(vdivq_f32(simd_of_bits(m), simd_set((float)reach)));
        bits = vmaxq_u32(bits, vdupq_n_u32(TW_BLOCK_SCALE_MIN));
        if (type == TW_QUANT_SCALE_BF16) {
            bits = vbicq_u32(vaddq_u32(bits, vdupq_n_u32(0xffff)), vdupq_n_u32(0xffff));
        }
        simd_t inverted = vdivq_f32(simd_set(1.0f), simd_of_bits(bits));
        uint32x4_t nan = vandq_u32(nonfinite, vdupq_n_u32(TW_FLOAT_NAN_BITS));
        vst1q_u32(scale + i, vorrq_u32(nan, vbicq_u32(bits, none)));
        vst1q_f32(inverse + i, simd_of_bits(vbicq_u32(simd_bits(inverted), none)));
    }
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/** Store 32 integers as codes, in order: bytes, nibbles or two bits each. */
INLINE void codes_store(int bits, uint8_t *codes, const int32x4_t q[8])
{
    uint8x16_t bytes[2];
    UNROLL
    for (int half = 0; half < 2; half++) {
        const int32x4_t *of = q + 4 * half;
        int16x8_t low = vcombine_s16(vmovn_s32(of[0]), vmovn_s32(of[1]));
        int16x8_t high = vcombine_s16(vmovn_s32(of[2]), vmovn_s32(of[3]));
        bytes[half] = vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
    if (bits == 8) {
        vst1q_u8(codes, bytes[0]);
        vst1q_u8(codes + 16, bytes[1]);
        return;
    }
    uint8x16_t even = vuzp1q_u8(bytes[0], bytes[1]), odd = vuzp2q_u8(bytes[0], bytes[1]);
    if (bits == 4) {
        vst1q_u8(codes, vsliq_n_u8(even, odd, 4));
        return;
    }
    uint8x16_t pairs = vsliq_n_u8(even, odd, 2);
    uint8x8_t low = vget_low_u8(pairs), high = vget_high_u8(pairs);
    vst1_u8(codes, vsli_n_u8(vuzp1_u8(low, high), vuzp2_u8(low, high), 4));
}

/** Load 32 codes in order, as signed bytes. */
INLINE int8x16x2_t codes_load(int bits, const uint8_t *codes)
{
    if (bits == 8) {
        return vld1q_s8_x2((const int8_t *)codes);
    }
    if (bits == 4) {
        int8x16_t packed = vreinterpretq_s8_u8(vld1q_u8(codes));
        return vzipq_s8(vshrq_n_s8(vshlq_n_s8(packed, 4), 4), vshrq_n_s8(packed, 4));
    }
    uint8x8_t packed = vld1_u8(codes), upper = vshr_n_u8(packed, 4);
    int8x16_t nibbles = vreinterpretq_s8_u8(vcombine_u8(vzip1_u8(packed, upper), vzip2_u8(packed, upper)));
    return vzipq_s8(vshrq_n_s8(vshlq_n_s8(nibbles, 6), 6), vshrq_n_s8(vshlq_n_s8(nibbles, 4), 6));
}

/** tw_block_fp8_nearest, without saturation: tw_block_scale's scales keep |v| below 464 * 512. */
INLINE int32x4_t fp8_nearest(simd_t v)
{
    uint32x4_t bits = simd_magnitude(v), odd = vandq_u32(vshrq_n_u32(bits, 20), vdupq_n_u32(1));
    uint32x4_t up = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7ffff)), odd), 20);
    uint32x4_t code =
        vbslq_u32(vcltq_u32(bits, vdupq_n_u32(TW_BLOCK_FP8_NORMAL)), vcvtnq_u32_f32(simd_of_bits(bits)),
                  vsubq_u32(up, vdupq_n_u32(TW_BLOCK_FP8_BIAS)));
    uint32x4_t sign = vandq_u32(vcltzq_f32(v), vdupq_n_u32(128));
    return vreinterpretq_s32_u32(vsubq_u32(code, sign));
}

/** tw_block_fp8_value of each code. */
INLINE simd_t fp8_value(int32x4_t code)
{
    uint32x4_t magnitude = vandq_u32(vreinterpretq_u32_s32(code), vdupq_n_u32(0x7f));
    uint32x4_t large = vshlq_n_u32(vaddq_u32(magnitude, vdupq_n_u32(TW_BLOCK_FP8_BIAS)), 20);
    uint32x4_t value =
        vbslq_u32(vcltq_u32(magnitude, vdupq_n_u32(8)), simd_bits(vcvtq_f32_u32(magnitude)), large);
    return simd_of_bits(vorrq_u32(value, vandq_u32(vreinterpretq_u32_s32(code), vdupq_n_u32(0x80000000u))));
}

/** Round y * inverse to nearest even. Only 2-bit codes are clamped; for others tw_block_scale's scales keep
 *  |y * inverse| below qmax + 0.5. */
INLINE void group_quantize(tw_quant_kind_t kind, group_t g, float inverse, uint8_t *codes)
{
    int32x4_t q[8];
    FOR_EACH_REGISTER(r)
    {
        simd_t v = vmulq_f32(g.v[r], simd_set(inverse));
        q[r] = kind == TW_QUANT_FP8 ? fp8_nearest(v) : vcvtnq_s32_f32(v);
        if (kind == TW_QUANT_INT2) {
            q[r] = vminq_s32(vdupq_n_s32(1), vmaxq_s32(vdupq_n_s32(-1), q[r]));
        }
    }
    codes_store(TW_CODE_BITS(kind), codes, q);
}

/** Round stochastically, as tw_block_round_stochastic does, with 32 random words. */
INLINE void group_quantize_stochastic(tw_quant_kind_t kind, group_t g, float inverse, const uint32_t *words,
                                      uint8_t *codes)
{
    const int32x4_t qmax = vdupq_n_s32(tw_block_qmax(kind)), qmin = vdupq_n_s32(-tw_block_qmax(kind));
    int32x4_t q[8];
    FOR_EACH_REGISTER(r)
    {
        simd_t v = vmulq_f32(g.v[r], simd_set(inverse)), whole = vrndmq_f32(v);
        simd_t uniform =
            vmulq_f32(vcvtq_f32_u32(vshrq_n_u32(vld1q_u32(words + 4 * r), 8)), simd_set(0x1p-24f));
        uint32x4_t up = vcltq_f32(uniform, vsubq_f32(v, whole)); /* all ones: -1 */
        q[r] = vsubq_s32(vcvtq_s32_f32(whole), vreinterpretq_s32_u32(up));
        q[r] = vminq_s32(qmax, vmaxq_s32(qmin, q[r]));
    }
    codes_store(TW_CODE_BITS(kind), codes, q);
}

/** Decode 32 codes: multiply them by the scale, without a clamp. */
INLINE group_t group_dequantize(tw_quant_kind_t kind, const uint8_t *codes, decoder_t decoder)
{
    int8x16x2_t bytes = codes_load(TW_CODE_BITS(kind), codes);
    group_t g;
    FOR_EACH_REGISTER(r)
    {
        int8x16_t own = bytes.val[r / 4];
        int16x8_t eight = r & 2 ? vmovl_high_s8(own) : vmovl_s8(vget_low_s8(own));
        int32x4_t q = r & 1 ? vmovl_high_s16(eight) : vmovl_s16(vget_low_s16(eight));
        g.v[r] = vmulq_f32(kind == TW_QUANT_FP8 ? fp8_value(q) : vcvtq_f32_s32(q), decoder.scale);
    }
    return g;
}

/* ---- random words -------------------------------------------------------------------------------------- */

#define RANDOM_QUADS 8 /* quads that a call of random_quads makes */

/** One round of Philox on four counters; x.val[i] has their words i. */
INLINE uint32x4x4_t philox_round(uint32x4x4_t x, uint32_t key0, uint32_t key1)
{
    const uint32x4_t c0 = x.val[0], c2 = x.val[2];
    uint32x4_t a0 = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(c0), TW_PHILOX_M0));
    uint32x4_t a1 = vreinterpretq_u32_u64(vmull_high_n_u32(c0, TW_PHILOX_M0));
    uint32x4_t b0 = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(c2), TW_PHILOX_M1));
    uint32x4_t b1 = vreinterpretq_u32_u64(vmull_high_n_u32(c2, TW_PHILOX_M1));
    return (uint32x4x4_t){
        {veorq_u32(vuzp2q_u32(b0, b1), veorq_u32(x.val[1], vdupq_n_u32(key0))), vuzp1q_u32(b0, b1),
         veorq_u32(vuzp2q_u32(a0, a1), veorq_u32(x.val[3], vdupq_n_u32(key1))), vuzp1q_u32(a0, a1)}};
}

/** Make the random words of RANDOM_QUADS quads from `quad` on, as tw_philox_quad does. */
INLINE void random_quads(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t quad, uint32_t *words)
{
    UNROLL
    for (int half = 0; half < 2; half++) {
        uint64x2_t first = vaddq_u64(vdupq_n_u64(quad + 4 * (uint64_t)half), (uint64x2_t){0, 1});
        uint32x4_t low = vreinterpretq_u32_u64(first);
        uint32x4_t high = vreinterpretq_u32_u64(vaddq_u64(first, vdupq_n_u64(2)));
        uint32x4x4_t x = {
            {vuzp1q_u32(low, high), vuzp2q_u32(low, high), vdupq_n_u32(tensor), vdupq_n_u32(step)}};
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
            x = philox_round(x, key0, key1);
            key0 += TW_PHILOX_W0;
            key1 += TW_PHILOX_W1;
        }
        vst4q_u32(words + 16 * half, x);
    }
}
