/** How the lanes of a warp hold the matrices that tensor cores multiply; and the same product without tensor
 *  cores, for older GPUs and tests. Define TW_DEVICE before including this.
 *
 *  c (16,8) += a (16,16) b (16,8). Lane 4 g + t holds these elements. A word holds two bf16 elements; the low
 *  half is the one with the smaller column in a, or the smaller row in b.
 *    a, words 0 and 1  columns 2 t and 2 t + 1 of row g; of row g + 8
 *    a, words 2 and 3  columns 2 t + 8 and 2 t + 9 of row g; of row g + 8
 *    b, words 4 and 5  rows 2 t and 2 t + 1 of column g; rows 2 t + 8 and 2 t + 9
 *    c                 columns 2 t and 2 t + 1 of row g; of row g + 8
 *  Source: PTX ISA, mma.m16n8k16. It does not say in what order a GPU adds the 16 products, or how it rounds
 *  the sums. The code here adds them in order, in fp32. */
#pragma once

#include <stdint.h>
#include <string.h>

namespace tw_trainer_kernels
{

/** Rounds to the nearest bf16, ties to even. NaN stays NaN. */
TW_DEVICE uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

TW_DEVICE float bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

TW_DEVICE float add_products(float sum, uint32_t a, uint32_t b)
{
    sum += bf16_value((uint16_t)a) * bf16_value((uint16_t)b); /* a product of two bf16 is exact in fp32 */
    return sum + bf16_value((uint16_t)(a >> 16)) * bf16_value((uint16_t)(b >> 16));
}

/** Computes the lane's elements of c. word(lane, i) returns word i of any lane. All lanes call it. */
template <class WORD>
TW_DEVICE void multiply_fragments(uint32_t lane, float *c, const WORD &word)
{
    const uint32_t g = lane / 4, t = lane % 4;
    TW_UNROLL
    for (uint32_t half = 0; half < 2; half++) { /* columns of a, rows of b: 0 to 7, 8 to 15 */
        TW_UNROLL
        for (uint32_t pair = 0; pair < 4; pair++) {
            const uint32_t low = word(4 * g + pair, 2 * half), high = word(4 * g + pair, 2 * half + 1);
            TW_UNROLL
            for (uint32_t column = 0; column < 2; column++) {
                const uint32_t b = word(4 * (2 * t + column) + pair, 4 + half);
                c[column] = add_products(c[column], low, b);
                c[2 + column] = add_products(c[2 + column], high, b);
            }
        }
    }
}

} // namespace tw_trainer_kernels
