/** The vector operations of coders: on 4 elements of 32 bits, and on 8 of 16 bits. NEON, which every aarch64
 *  has. C operators work on its vectors. */
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

static int vec_usable(void)
{
    return 1;
}

#define VEC_BACKEND                     \
    {                                   \
        "neon", TW_MEM_HOST, vec_usable \
    }

#define WIDTH 4
typedef uint32x4_t vec_t;
typedef uint32x4_t mask_t; /* each element has all ones or all zeros */

#define vec_set(x) vdupq_n_u32((uint32_t)(x))
#define vec_add(a, b) ((a) + (b))
#define vec_sub(a, b) ((a) - (b))
#define vec_mul(a, b) ((a) * (b))
#define vec_and(a, b) ((a) & (b))
#define vec_andnot(a, b) vbicq_u32(b, a) /* ~a & b */
#define vec_or(a, b) ((a) | (b))
#define vec_xor(a, b) ((a) ^ (b))
#define vec_min(a, b) vminq_u32(a, b)
#define vec_max(a, b) vmaxq_u32(a, b)
#define vec_shl(a, n) ((a) << (n))
#define vec_shr(a, n) ((a) >> (n))
#define vec_sar(a, n) ((vec_t)((int32x4_t)(a) >> (n)))
#define vec_shlv(a, n) vshlq_u32(a, (int32x4_t)(n))
#define vec_shrv(a, n) vshlq_u32(a, -(int32x4_t)(n))
#define vec_lookup32(table, index) vec_gather(table, index)
#define vec_float(a) ((vec_t)vcvtq_f32_s32((int32x4_t)(a))) /* the bits of float(a) */
#define vec_select(mask, a, b) vbslq_u32(mask, a, b)
#define vec_zero_where(mask, a) vbicq_u32(a, mask)
#define mask_ge(a, b) vcgeq_u32(a, b)
#define mask_less(a, b) vcltq_u32(a, b)
#define mask_sign(a) vec_sar(a, 31)

#define WIDTH16 8
typedef uint16x8_t vec16_t;

#define vec16_set(x) vdupq_n_u16((uint16_t)(x))
#define vec16_add(a, b) ((a) + (b))
#define vec16_sub(a, b) ((a) - (b))
#define vec16_and(a, b) ((a) & (b))
#define vec16_or(a, b) ((a) | (b))
#define vec16_min(a, b) vminq_u16(a, b)
#define vec16_shl(a, n) ((a) << (n))
#define vec16_shr(a, n) ((a) >> (n))
#define vec16_zero_where_zero(a, b) vbicq_u16(b, vceqzq_u16(a))
#define vec16_load(at) vld1q_u16(at)
#define vec16_store(at, a) vst1q_u16(at, a)

static inline uint32_t mask_bits(mask_t mask)
{
    const vec_t bits = {1, 2, 4, 8};
    return vaddvq_u32(mask & bits);
}

/** Load 4 elements of 16 bits from any address. */
static inline vec_t vec_load16(const void *at)
{
    uint16x4_t halves;
    memcpy(&halves, at, sizeof(halves));
    return vmovl_u16(halves);
}

static inline vec_t vec_load8(const uint8_t *at)
{
    uint32_t bytes;
    memcpy(&bytes, at, sizeof(bytes));
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)))));
}

static inline void vec_store16(uint16_t *at, vec_t a)
{
    vst1_u16(at, vmovn_u32(a));
}

static inline void vec_store8(uint8_t *at, vec_t a)
{
    const uint16x4_t halves = vmovn_u32(a);
    const uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
    memcpy(at, &bytes, sizeof(bytes));
}

static inline vec_t vec_gather(const uint32_t *table, vec_t index)
{
    vec_t found = vld1q_dup_u32(table + index[0]);
    found = vld1q_lane_u32(table + index[1], found, 1);
    found = vld1q_lane_u32(table + index[2], found, 2);
    return vld1q_lane_u32(table + index[3], found, 3);
}

/** Look up 64-bit entries; returns their lower halves, and the upper halves in *upper. */
static inline vec_t vec_gather_pair(const uint64_t *table, vec_t index, vec_t *upper)
{
    uint64x2_t a = vld1q_dup_u64(table + index[0]), b = vld1q_dup_u64(table + index[2]);
    a = vld1q_lane_u64(table + index[1], a, 1);
    b = vld1q_lane_u64(table + index[3], b, 1);
    *upper = vuzp2q_u32((vec_t)a, (vec_t)b);
    return vuzp1q_u32((vec_t)a, (vec_t)b);
}

/** Multiply; returns the lower halves of the products, and the upper halves in *upper. */
static inline vec_t vec_mul_wide(vec_t a, vec_t b, vec_t *upper)
{
    const vec_t low = (vec_t)vmull_u32(vget_low_u32(a), vget_low_u32(b)), high = (vec_t)vmull_high_u32(a, b);
    *upper = vuzp2q_u32(low, high);
    return vuzp1q_u32(low, high);
}

static inline vec_t vec_mul_high(vec_t a, vec_t b)
{
    vec_t upper;
    vec_mul_wide(a, b, &upper);
    return upper;
}

/* Byte shuffles for each mask of 4 elements: `together` packs the low halves of the chosen elements, `apart`
 * spreads packed words to the chosen places. 0xff gives 0. */
#define HALF(i) 2 * (i), 2 * (i) + 1
#define NONE 0xff, 0xff
static const uint8_t together[16][8] = {
    {NONE, NONE, NONE, NONE},          {HALF(0), NONE, NONE, NONE},
    {HALF(1), NONE, NONE, NONE},       {HALF(0), HALF(1), NONE, NONE},
    {HALF(2), NONE, NONE, NONE},       {HALF(0), HALF(2), NONE, NONE},
    {HALF(1), HALF(2), NONE, NONE},    {HALF(0), HALF(1), HALF(2), NONE},
    {HALF(3), NONE, NONE, NONE},       {HALF(0), HALF(3), NONE, NONE},
    {HALF(1), HALF(3), NONE, NONE},    {HALF(0), HALF(1), HALF(3), NONE},
    {HALF(2), HALF(3), NONE, NONE},    {HALF(0), HALF(2), HALF(3), NONE},
    {HALF(1), HALF(2), HALF(3), NONE}, {HALF(0), HALF(1), HALF(2), HALF(3)},
};
static const uint8_t apart[16][8] = {
    {NONE, NONE, NONE, NONE},          {HALF(0), NONE, NONE, NONE},
    {NONE, HALF(0), NONE, NONE},       {HALF(0), HALF(1), NONE, NONE},
    {NONE, NONE, HALF(0), NONE},       {HALF(0), NONE, HALF(1), NONE},
    {NONE, HALF(0), HALF(1), NONE},    {HALF(0), HALF(1), HALF(2), NONE},
    {NONE, NONE, NONE, HALF(0)},       {HALF(0), NONE, NONE, HALF(1)},
    {NONE, HALF(0), NONE, HALF(1)},    {HALF(0), HALF(1), NONE, HALF(2)},
    {NONE, NONE, HALF(0), HALF(1)},    {HALF(0), NONE, HALF(1), HALF(2)},
    {NONE, HALF(0), HALF(1), HALF(2)}, {HALF(0), HALF(1), HALF(2), HALF(3)},
};

/** Store the low halves of the mask's elements, packed. Returns their end. Always writes 8 bytes. */
static inline uint16_t *vec_store_words(uint16_t *at, vec_t a, mask_t mask)
{
    const uint32_t bits = mask_bits(mask);
    vst1_u8((uint8_t *)at, vtbl1_u8(vreinterpret_u8_u16(vmovn_u32(a)), vld1_u8(together[bits])));
    return at + __builtin_popcount(bits);
}

/** Load packed words into the mask's elements; the others become 0. Always reads 8 bytes. */
static inline vec_t vec_load_words(const uint8_t *at, mask_t mask)
{
    return vmovl_u16(vreinterpret_u16_u8(vtbl1_u8(vld1_u8(at), vld1_u8(apart[mask_bits(mask)]))));
}
