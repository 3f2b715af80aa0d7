/** Computes symbols, a vector of 16-bit elements at a time. Include one of entropy/vec_*.h first. */
#pragma once

#include "quant/entropy/lanes.h"
#include "quant/lossless/value.h"

/** The symbols of heads of 9 bits. */
INLINE vec16_t symbols_of_coded(vec16_t coded, vec16_t expected)
{
    vec16_t bottom = vec16_shr(vec16_and(expected, vec16_set(TW_LOSSLESS_SCALE_MASK & ~3)), 1);
    vec16_t above = vec16_sub(vec16_add(coded, vec16_set(TW_LOSSLESS_BIAS / 2)), bottom);
    vec16_t symbols = vec16_add(vec16_min(above, vec16_set(TW_ENTROPY_ESCAPE - 1)), vec16_set(1));
    return vec16_zero_where_zero(coded, symbols);
}

INLINE vec16_t symbols_of(vec16_t heads, vec16_t expected)
{
    return symbols_of_coded(vec16_and(vec16_shr(heads, 6), vec16_set(0x1ff)), expected);
}

/** The indices of symbols' entries among the entries of their class. */
INLINE vec16_t symbols_places_of(vec16_t symbols, vec16_t expected)
{
    return vec16_or(vec16_shl(vec16_and(expected, vec16_set(TW_LOSSLESS_PHASES - 1)), 5), symbols);
}
