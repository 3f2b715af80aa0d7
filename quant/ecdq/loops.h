/** Loops over elements that a compiler makes vectors of: included by each backend, compiled
 *  for its instructions, without contraction. */
#ifndef TW_QUANT_ECDQ_LOOPS_H
#define TW_QUANT_ECDQ_LOOPS_H

#include "quant/arithmetic/philox.h"
#include "quant/ecdq/value.h"

#define LOOPS_LANES 16 /* counters that are taken together */

static void loops_quantize(const float *values, const uint16_t *expected, const uint16_t *halves, size_t n,
                           int16_t *integers, uint8_t *symbols)
{
    for (size_t i = 0; i < n; i++) {
        int32_t integer = (int32_t)tw_ecdq_integer(values[i], expected[i], halves[i]);
        uint32_t symbol = (uint32_t)(integer + TW_ECDQ_REACH);
        symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
        integers[i] = (int16_t)integer;
        symbols[i] = (uint8_t)(expected[i] >> TW_LOSSLESS_CLASS_SHIFT << 5 | symbol);
    }
}

static void loops_dequantize(const uint8_t *symbols, const uint16_t *expected, const uint16_t *halves,
                             size_t n, float *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = tw_ecdq_value((float)(symbols[i] - TW_ECDQ_REACH), expected[i], halves[i]);
    }
}

/** One round of Philox for 16 counters. */
static inline void loops_round(uint32_t words[4][LOOPS_LANES], uint32_t key0, uint32_t key1)
{
    for (size_t i = 0; i < LOOPS_LANES; i++) {
        uint64_t p0 = (uint64_t)TW_PHILOX_M0 * words[0][i], p1 = (uint64_t)TW_PHILOX_M1 * words[2][i];
        words[0][i] = (uint32_t)(p1 >> 32) ^ words[1][i] ^ key0;
        words[1][i] = (uint32_t)p1;
        words[2][i] = (uint32_t)(p0 >> 32) ^ words[3][i] ^ key1;
        words[3][i] = (uint32_t)p0;
    }
}

static void loops_dither(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves)
{
    for (size_t g = 0; g < n_groups; g++, halves += TW_ECDQ_DITHER_GROUP) {
        uint32_t words[4][LOOPS_LANES] = {{0}}, key0 = key[0], key1 = key[1];
        for (uint32_t i = 0; i < LOOPS_LANES; i++) {
            words[0][i] = LOOPS_LANES * (group + (uint32_t)g) + i;
        }
        for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
            loops_round(words, key0, key1);
            key0 += TW_PHILOX_W0;
            key1 += TW_PHILOX_W1;
        }
        for (size_t w = 0; w < 4; w++) {
            for (size_t i = 0; i < LOOPS_LANES; i++) {
                halves[2 * LOOPS_LANES * w + i] = (uint16_t)words[w][i];
                halves[2 * LOOPS_LANES * w + LOOPS_LANES + i] = (uint16_t)(words[w][i] >> 16);
            }
        }
    }
}

#define LOOPS .dither = loops_dither, .quantize = loops_quantize, .dequantize = loops_dequantize

#endif
