#include "core/core.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tw_quantile(double *values, size_t n_values, double share)
{
    double position, fraction;
    if (n_values == 0) {
        return NAN;
    }
    qsort(values, n_values, sizeof(*values), compare_doubles);
    position = share * (double)(n_values - 1);
    size_t below = (size_t)position;
    fraction = position - (double)below;
    if (fraction == 0) {
        return values[below];
    }
    return values[below] * (1 - fraction) + values[below + 1] * fraction;
}

double tw_median(double *values, size_t n_values)
{
    return tw_quantile(values, n_values, 0.5);
}
