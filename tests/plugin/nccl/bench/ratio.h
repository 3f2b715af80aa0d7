/** Ratios of rounds, each of which has measured two transports one after the other. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The median of n ratios, and an interval that holds the true median with a probability of at least 95 %,
 *  whatever the distribution is: the narrowest between two of the ratios, equally far from both ends of their
 *  order. With fewer than 6 ratios it is the lowest and the highest, and promises less. */
typedef struct net_ratio {
    double median, low, high;
} net_ratio_t;

/** Sorts the ratios; n > 0. */
net_ratio_t net_ratio_of(double *ratios, int n);

TW_C_END
