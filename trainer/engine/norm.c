#include "trainer/engine/norm.h"

#include <math.h>
#include <string.h>

#define N_EXPONENTS 256
/* Most values to count before 64-bit bins could overflow: a square is below 2^16 (bf16) or 2^48 (fp32). */
#define MAX_RUN_BF16 ((size_t)1 << 40)
#define MAX_RUN_FP32 ((size_t)1 << 15)

/** Add value * 2^shift to limbs. */
static void add_shifted(uint64_t *limbs, uint64_t value, unsigned shift)
{
    size_t limb = shift / 64;
    unsigned __int128 carry = (unsigned __int128)value << (shift % 64);
    for (; carry != 0 && limb < TW_NORM_LIMBS; limb++) {
        carry += limbs[limb];
        limbs[limb] = (uint64_t)carry;
        carry >>= 64;
    }
}

/** Sum the squares of mantissas by exponent. Two sets of bins are used in turn: neighbouring values often
 *  have the same exponent, and adding both to one bin would make the second wait for the first. */
static void count_bf16(uint64_t bins[2][N_EXPONENTS], const uint16_t *values, size_t n_elems)
{
    for (size_t i = 0; i < n_elems; i++) {
        unsigned exponent = (values[i] >> 7) & 0xff;
        unsigned mantissa = (values[i] & 0x7fu) | (exponent > 0 ? 0x80u : 0);
        bins[i & 1][exponent] += exponent < 0xff ? mantissa * mantissa : 1;
    }
}

static void count_fp32(uint64_t bins[2][N_EXPONENTS], const float *values, size_t n_elems)
{
    for (size_t i = 0; i < n_elems; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        unsigned exponent = (bits >> 23) & 0xff;
        uint64_t mantissa = (bits & 0x7fffffu) | (exponent > 0 ? 0x800000u : 0);
        bins[i & 1][exponent] += exponent < 0xff ? mantissa * mantissa : 1;
    }
}

void tw_norm_add_bins(tw_norm_t *norm, const uint64_t *bins, unsigned shift)
{
    for (unsigned e = 0; e < N_EXPONENTS - 1; e++) {
        /* denormals have the exponent of the smallest normal values */
        add_shifted(norm->limbs, bins[e], shift + (e > 0 ? 2 * (e - 1) : 0));
    }
    norm->n_nonfinite += bins[N_EXPONENTS - 1] << shift;
}

void tw_norm_add(tw_norm_t *norm, tw_type_t type, const void *values, size_t n_elems)
{
    size_t most = type == TW_TYPE_FP32 ? MAX_RUN_FP32 : MAX_RUN_BF16;
    while (n_elems > 0) {
        uint64_t bins[2][N_EXPONENTS] = {{0}};
        size_t n = n_elems < most ? n_elems : most;
        if (type == TW_TYPE_FP32) {
            count_fp32(bins, values, n);
        } else {
            count_bf16(bins, values, n);
        }
        for (unsigned e = 0; e < N_EXPONENTS; e++) {
            bins[0][e] += bins[1][e];
        }
        tw_norm_add_bins(norm, bins[0], 0);
        values = (const char *)values + n * tw_type_bytes(type);
        n_elems -= n;
    }
}

void tw_norm_merge(tw_norm_t *norm, const tw_norm_t *other)
{
    for (size_t i = 0; i < TW_NORM_LIMBS; i++) {
        add_shifted(norm->limbs, other->limbs[i], (unsigned)(64 * i));
    }
    norm->n_nonfinite += other->n_nonfinite;
}

double tw_norm_value(const tw_norm_t *norm, tw_type_t type)
{
    double sum = 0;
    int unit_exponent = type == TW_TYPE_FP32 ? -298 : -266;
    if (norm->n_nonfinite > 0) {
        return NAN;
    }
    for (size_t i = TW_NORM_LIMBS; i-- > 0;) {
        sum += ldexp((double)norm->limbs[i], (int)(64 * i) + unit_exponent);
    }
    return sqrt(sum);
}
