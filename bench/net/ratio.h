/** Ratios of rounds, each of which has measured two transports one after the other. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The median of n ratios, and the narrowest pair of them, at equal places from both ends, that has the true
 *  median between them with a probability of at least 95 %, whatever their distribution is. Fewer than 6 are
 *  not enough for that: then it is the lowest and the highest. */
typedef struct net_ratio {
    double median, low, high;
} net_ratio_t;

/** n > 0; sorts the ratios. */
net_ratio_t net_ratio_of(double *ratios, int n);

TW_C_END
