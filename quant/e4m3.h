/** Weights in e4m3 with one scale for each tensor, a power of two. bf16 can hold every such weight exactly,
 *  so converting to bf16 and back loses no bit. Host memory. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Returns the exponent of the scale of a tensor whose largest magnitude is amax: the least one, within these
 *  two limits, for which amax <= 448 * 2^exponent. */
#define TW_QUANT_E4M3_LEAST (-100)
#define TW_QUANT_E4M3_MOST 120
int tw_quant_e4m3_exponent(float amax);

/** Round from[n] to the nearest e4m3 number times 2^exponent, and write that as bf16 to to[n]. Ties go to
 *  even; large numbers saturate; NaN and infinities become NaN. */
void tw_quant_e4m3_round(const float *from, int exponent, uint16_t *to, size_t n);
/** _codes: round bf16 from[n] in the same way, but to e4m3 codes. Nothing is lost if tw_quant_e4m3_round made
 *  `from` with this exponent. _values: decode such codes into bf16 to[n]. */
void tw_quant_e4m3_codes(const uint16_t *from, int exponent, uint8_t *codes, size_t n);
void tw_quant_e4m3_values(const uint8_t *codes, int exponent, uint16_t *to, size_t n);

TW_C_END
