/* Converts weights to and from e4m3: a sign, 4 bits of exponent, 3 of mantissa; 0x7f is NaN. */
#include "quant/e4m3.h"

#include <math.h>

#include "quant/arithmetic/block.h"

#define NOT_A_NUMBER 0x7f
#define SIGN 0x80

int tw_quant_e4m3_exponent(float amax)
{
    int exponent;
    float mantissa = frexpf(amax, &exponent); /* 448 is 0.875 * 2^9 */
    exponent = amax > 0 ? exponent - 9 + (mantissa > 0.875f) : TW_QUANT_E4M3_LEAST;
    exponent = exponent < TW_QUANT_E4M3_LEAST ? TW_QUANT_E4M3_LEAST : exponent;
    return isinf(amax) || exponent > TW_QUANT_E4M3_MOST ? TW_QUANT_E4M3_MOST : exponent;
}

/** The code of x. `inverse` is 1 / (the value of e4m3's smallest number, scaled). Zeros keep their sign. */
static uint8_t code_of(float x, float inverse)
{
    uint32_t bits = tw_float_bits(x), magnitude = tw_float_abs_bits(x);
    uint8_t code = (uint8_t)tw_block_fp8_nearest(tw_float_of_bits(magnitude) * inverse);
    return magnitude > TW_FLOAT_MAX_BITS ? NOT_A_NUMBER : (uint8_t)(code | (bits >> 24 & SIGN));
}

static uint16_t bf16_of(uint8_t code, float step)
{
    uint32_t magnitude = tw_float_bits(tw_block_fp8_value(code & ~SIGN) * step) >> 16;
    magnitude = (code & ~SIGN) == NOT_A_NUMBER ? TW_FLOAT_NAN_BITS >> 16 : magnitude;
    return (uint16_t)(magnitude | (uint32_t)(code & SIGN) << 8);
}

void tw_quant_e4m3_round(const float *from, int exponent, uint16_t *to, size_t n)
{
    float step = ldexpf(1, exponent - 9), inverse = ldexpf(1, 9 - exponent);
    for (size_t i = 0; i < n; i++) {
        to[i] = bf16_of(code_of(from[i], inverse), step);
    }
}

void tw_quant_e4m3_codes(const uint16_t *from, int exponent, uint8_t *codes, size_t n)
{
    float inverse = ldexpf(1, 9 - exponent);
    for (size_t i = 0; i < n; i++) {
        codes[i] = code_of(tw_float_of_bits((uint32_t)from[i] << 16), inverse);
    }
}

void tw_quant_e4m3_values(const uint8_t *codes, int exponent, uint16_t *to, size_t n)
{
    float step = ldexpf(1, exponent - 9);
    for (size_t i = 0; i < n; i++) {
        to[i] = bf16_of(codes[i], step);
    }
}
