/** Loops over elements, which compilers vectorise. Each backend includes them and compiles them for its
 *  instructions, without fused multiply-add. */
#pragma once

#include "quant/ecdq/value.h"

static void loops_quantize(const float *values, const uint16_t *expected, const uint16_t *halves, size_t n,
                           int16_t *integers, uint8_t *symbols)
{
    for (size_t i = 0; i < n; i++) {
        int32_t integer = (int32_t)tw_ecdq_integer(values[i], expected[i], halves[i]);
        integers[i] = (int16_t)integer;
        symbols[i] = tw_ecdq_symbol(integer, expected[i]);
    }
}

static void loops_dequantize(const uint8_t *symbols, const uint16_t *expected, const uint16_t *halves,
                             size_t n, float *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = tw_ecdq_value((float)(symbols[i] - TW_ECDQ_REACH), expected[i], halves[i]);
    }
}
