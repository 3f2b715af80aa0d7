/* Normalisation by the root of the mean square. */
#include <math.h>

#include "trainer/model/kernels.h"

float tw_rmsnorm_row(const float *x, const float *gamma, size_t c, double epsilon, float *y)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < c; i++) {
        sum += x[i] * x[i];
    }
    float rstd = 1.0f / sqrtf(sum / (float)c + (float)epsilon);
    for (size_t i = 0; i < c; i++) {
        y[i] = x[i] * rstd * gamma[i];
    }
    return rstd;
}

void tw_rmsnorm_row_backward(const float *dy, const float *x, const float *gamma, size_t c, float rstd,
                             int accumulate, float *dx, float *dgamma)
{
    float sum = 0.0f; /* of g * x^, where x^ = x * rstd and g = dy * gamma */
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < c; i++) {
        sum += dy[i] * gamma[i] * (x[i] * rstd);
    }
    float mean = sum / (float)c;
    for (size_t i = 0; i < c; i++) {
        float normed = x[i] * rstd, d = dy[i];
        float gradient = (d * gamma[i] - normed * mean) * rstd;
        dgamma[i] += d * normed;
        dx[i] = accumulate ? dx[i] + gradient : gradient;
    }
}

void tw_rmsnorm_forward(const float *x, const float *gamma, size_t n, size_t c, double epsilon, float *rstd,
                        float *y)
{
    for (size_t row = 0; row < n; row++) {
        rstd[row] = tw_rmsnorm_row(x + row * c, gamma, c, epsilon, y + row * c);
    }
}

void tw_rmsnorm_apply(const float *x, const float *gamma, size_t n, size_t c, const float *rstd, float *y)
{
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < c; i++) {
            y[row * c + i] = x[row * c + i] * rstd[row] * gamma[i];
        }
    }
}

void tw_rmsnorm_backward(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                         const float *rstd, int accumulate, float *dx, float *dgamma)
{
    for (size_t row = 0; row < n; row++) {
        tw_rmsnorm_row_backward(dy + row * c, x + row * c, gamma, c, rstd[row], accumulate, dx + row * c,
                                dgamma);
    }
}
