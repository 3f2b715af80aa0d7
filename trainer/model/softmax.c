/* Softmax of a row, and the cross-entropy of a row of logits. */
#include "trainer/model/kernels.h"

#include <math.h>

#include "trainer/model/exp.h"

static float row_max(const float *row, size_t n)
{
    float max = row[0];
#pragma omp simd reduction(max : max)
    for (size_t i = 1; i < n; i++) {
        max = row[i] > max ? row[i] : max;
    }
    return max;
}

/* row = exp(row - max); returns the sum. */
static float exponentials(float *row, size_t n, float max)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        row[i] = tw_exp(row[i] - max);
        sum += row[i];
    }
    return sum;
}

static void multiply_row(float *row, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        row[i] *= factor;
    }
}

void tw_softmax_row(float *row, size_t n)
{
    multiply_row(row, n, 1.0f / exponentials(row, n, row_max(row, n)));
}

double tw_cross_entropy_row(float *logits, size_t v, size_t target, float scale)
{
    float max = row_max(logits, v);
    double of_target = (double)logits[target] - (double)max;
    float sum = exponentials(logits, v, max);
    multiply_row(logits, v, scale / sum);
    logits[target] -= scale;
    return log((double)sum) - of_target;
}
