/** One element: its step, its integer, and back. Nothing here may be contracted. */
#pragma once

#include "quant/ecdq/ecdq.h"

/** An element's step, a normal number whatever is expected. */
static inline float tw_ecdq_step(uint16_t expected)
{
    int32_t quarters = (expected & TW_LOSSLESS_SCALE_MASK) - TW_LOSSLESS_BIAS;
    quarters = quarters < 4 ? 4 : quarters;
    quarters = quarters > 1015 ? 1015 : quarters;
    return tw_float_of_bits((uint32_t)quarters << 21);
}

/** Between -1/2 and 1/2; exact. */
static inline float tw_ecdq_dither_of(uint16_t half)
{
    return ((float)half + 0.5f) * 0x1p-16f - 0.5f;
}

/** The integer of an element, as a float; TW_ECDQ_RAW: it has none. */
static inline float tw_ecdq_integer(float value, uint16_t expected, uint16_t half)
{
    float x = value / tw_ecdq_step(expected) + tw_ecdq_dither_of(half);
    float size = tw_float_of_bits(tw_float_bits(x) & 0x7fffffff);
    float rounded = (x + 0x1.8p23f) - 0x1.8p23f; /* to the nearest even: below 2^22 */
    return size < (float)(TW_ECDQ_WIDE_MAX - 1) ? rounded : (float)TW_ECDQ_RAW;
}

static inline float tw_ecdq_value(float integer, uint16_t expected, uint16_t half)
{
    return (integer - tw_ecdq_dither_of(half)) * tw_ecdq_step(expected);
}
