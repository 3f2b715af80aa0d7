/** Private to trainer/model: exp without calls or branches, so that compilers can vectorize loops with it. It
 *  gives the same bits on every machine, GPUs included. Compiles as C11, C++17 and CUDA. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TW_EXP_FN __host__ __device__ static inline
#else
#define TW_EXP_FN static inline
#endif

#define TW_EXP_PER_LN2 0x1.715476p0f
/** x + TW_EXP_SHIFT has the integer nearest to x in its low mantissa bits. */
#define TW_EXP_SHIFT 0x1.8p23f
/** ln 2 as a sum of two parts. The product of an integer exponent n and HIGH is exact. */
#define TW_EXP_LN2_HIGH 0x1.62ep-1f
#define TW_EXP_LN2_LOW 0x1.0bfbe8p-15f
#define TW_EXP_7 (1.0f / 5040.0f)
#define TW_EXP_6 (1.0f / 720.0f)
#define TW_EXP_5 (1.0f / 120.0f)
#define TW_EXP_4 (1.0f / 24.0f)
#define TW_EXP_3 (1.0f / 6.0f)

/** Return e^x with an error of about 2 units in the last place. x is clamped to -87 .. 88. NaN stays NaN. The
 *  result is 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and e^r as its Taylor series up to r^7. */
TW_EXP_FN float tw_exp(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * TW_EXP_PER_LN2 + TW_EXP_SHIFT;
    float n = shifted - TW_EXP_SHIFT;
    float r = (x - n * TW_EXP_LN2_HIGH) - n * TW_EXP_LN2_LOW;
    float p = TW_EXP_7;
    p = p * r + TW_EXP_6;
    p = p * r + TW_EXP_5;
    p = p * r + TW_EXP_4;
    p = p * r + TW_EXP_3;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u; /* 2^n: n's low bits go to the exponent, 1.0f's bits are the bias */
    float power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}
