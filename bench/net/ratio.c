/* The interval is that of the sign test: each round's ratio lies on either side of the true median as a coin
 * falls, so the places of the interval's ends in the order of all follow from n alone. */
#include "bench/net/ratio.h"

#include <math.h>

/** At each end. */
#define OUTSIDE 0.025

/** How many of the lowest, and of the highest, can be left out. */
static int n_left_out(int n)
{
    double of_so_many = pow(0.5, n), sum = 0; /* of n coins, k are heads */
    int k = 0;
    for (; k < n / 2; k++) {
        sum += of_so_many;
        if (sum > OUTSIDE) {
            break;
        }
        of_so_many *= (double)(n - k) / (k + 1);
    }
    return k > 0 ? k - 1 : 0;
}

net_ratio_t net_ratio_of(double *ratios, int n)
{
    const double median = tw_median(ratios, (size_t)n); /* sorts them */
    const int out = n_left_out(n);
    return (net_ratio_t){.median = median, .low = ratios[out], .high = ratios[n - 1 - out]};
}
