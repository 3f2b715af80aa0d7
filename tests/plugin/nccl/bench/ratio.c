/* The interval comes from the sign test: each round's ratio is as likely above the true median as below, so
 * how many of the sorted ratios lie outside the interval follows from n alone. */
#include "tests/plugin/nccl/bench/ratio.h"

#include <math.h>

/** Probability outside the interval, at each end. */
#define OUTSIDE 0.025

/** Return how many of the lowest, and of the highest, ratios lie outside the interval. */
static int n_left_out(int n)
{
    double of_so_many = pow(0.5, n), sum = 0; /* of_so_many: probability that k of n coins are heads */
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
