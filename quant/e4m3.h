/** Weights in e4m3, with one scale a tensor, a power of two, and what they stand for as bf16, which has room
 *  for it: no bit is lost on the way to bf16 and back. Host memory. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The least exponent, within these limits, with which a tensor whose largest magnitude is amax fits: amax <=
 *  448 * 2^exponent. */
#define TW_QUANT_E4M3_LEAST (-100)
#define TW_QUANT_E4M3_MOST 120
int tw_quant_e4m3_exponent(float amax);

/** to bf16[n]: the nearest of e4m3's numbers times 2^exponent, a tie to even, saturated; NaN where `from` is
 *  not finite. */
void tw_quant_e4m3_round(const float *from, int exponent, uint16_t *to, size_t n);
/** codes [n]: the same of bf16, as codes; of what tw_quant_e4m3_round made with this exponent they are exact.
 *  values: back. */
void tw_quant_e4m3_codes(const uint16_t *from, int exponent, uint8_t *codes, size_t n);
void tw_quant_e4m3_values(const uint8_t *codes, int exponent, uint16_t *to, size_t n);

TW_C_END
