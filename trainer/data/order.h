/** Private to trainer/data: the random order of the sequences of an epoch. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Return which of n (>= 1) items is at `place` (< n) in a random order drawn from (seed, epoch). The order
 *  is a permutation that needs no memory. */
uint64_t tw_data_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t place);

TW_C_END
