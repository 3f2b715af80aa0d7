/** One element of a lossless delta: changes, states, contexts. The readable code; lanes.h does the same in
 *  vectors. Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/delta/delta.h"

/** Map a bf16's bits to an integer, so that integers have the order of the values. It is its own inverse:
 *  different bits, also of 0 and NaN, give different integers. */
TW_HD static inline uint16_t tw_delta_order(uint16_t bits)
{
    return (uint16_t)(bits ^ (0x7fff & -(bits >> 15)));
}

/** The change in units in the last place, modulo 2^16. */
TW_HD static inline int16_t tw_delta_change(uint16_t old_bits, uint16_t new_bits)
{
    return (int16_t)(tw_delta_order(new_bits) - tw_delta_order(old_bits));
}

TW_HD static inline uint16_t tw_delta_changed(uint16_t old_bits, int16_t change)
{
    return tw_delta_order((uint16_t)(tw_delta_order(old_bits) + change));
}

/** Map 0, -1, 1, -2, 2 ... to 0, 1, 2, 3, 4 ... */
TW_HD static inline uint16_t tw_delta_zigzag(int16_t x)
{
    return (uint16_t)((uint32_t)x << 1 ^ (uint32_t)(x >> 15));
}

TW_HD static inline int16_t tw_delta_unzigzag(uint16_t z)
{
    return (int16_t)(z >> 1 ^ -(z & 1));
}

/** The index of the highest bit that is 1; x is not 0. */
TW_HD static inline uint32_t tw_delta_octave(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return 31u - (uint32_t)__clz((int)x);
#else
    return 31u - (uint32_t)__builtin_clz(x);
#endif
}

/** Code a change in one byte, its state: the sign, and 7 bits of size. These hold |change| + 8 as a float of
 *  3 mantissa bits, with 3 subtracted from its exponent. So sizes up to 7 are exact; from there on there are
 *  8 steps an octave. State 0 is no change. */
TW_HD static inline uint8_t tw_delta_state(int16_t change)
{
    uint32_t size = (uint32_t)(change < 0 ? -change : change) + 8;
    uint32_t exponent = tw_delta_octave(size);
    uint32_t code = (exponent - 3) * 8 + ((size >> (exponent - 3)) & 7);
    return (uint8_t)(code | (change < 0 ? 0x80 : 0));
}

/** The least size that has this state. The caller may have overwritten states: those above 103 have no
 *  meaning but do no harm; their sizes are cut to 16 bits. */
TW_HD static inline uint32_t tw_delta_state_size(uint8_t state)
{
    uint32_t code = state & 0x7f;
    return (uint16_t)(((8 + (code & 7)) << (code >> 3)) - 8);
}

/** The class of a state, the second part of a context: 0 to 3 for sizes 0; 1; 2 to 3; 4 or more. */
TW_HD static inline uint32_t tw_delta_state_class(uint8_t state)
{
    uint32_t code = state & 0x7f;
    uint32_t least = code < 4 ? code : 4;
    return least - (least > 2);
}

/** The row of the model for an old value's exponent. */
TW_HD static inline uint32_t tw_delta_exponent(uint32_t base, uint16_t old_bits)
{
    uint32_t exponent = old_bits >> 7 & 0xff;
    uint32_t above = exponent > base ? exponent - base : 0;
    return above < TW_DELTA_EXPONENTS ? above : TW_DELTA_EXPONENTS - 1;
}

/** The predicted size of a change, in the direction of the previous change. */
TW_HD static inline int32_t tw_delta_predict(uint8_t state, uint32_t factor)
{
    return (int32_t)((tw_delta_state_size(state) * factor + 64) >> 7);
}

/** The number that is coded: the change minus the predicted change. Both are negated if the previous change
 *  was negative. */
TW_HD static inline int16_t tw_delta_rest(int16_t change, uint8_t state, uint32_t factor)
{
    int32_t sign = -(state >> 7), turned = (change ^ sign) - sign;
    return (int16_t)(turned - tw_delta_predict(state, factor));
}

TW_HD static inline int16_t tw_delta_unrest(int16_t rest, uint8_t state, uint32_t factor)
{
    int32_t turned = rest + tw_delta_predict(state, factor);
    int32_t sign = -(state >> 7);
    return (int16_t)((turned ^ sign) - sign);
}

/** Raw bits of a table's symbols. Table 6 is for a mean z from 1 to 2, 7 from 2 to 4, and so on. With these
 *  raw bits symbols have a mean from 2 to 4, from table 7 on. */
TW_HD static inline uint32_t tw_delta_raw_bits(uint32_t table)
{
    uint32_t bits = table > 7 ? table - 7 : 0;
    return bits < TW_DELTA_RAW_BITS_MAX ? bits : TW_DELTA_RAW_BITS_MAX;
}
