/* Layer normalisation. */
#include "trainer/model/kernels.h"

#include <math.h>

static float row_mean(const float *x, size_t c)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < c; i++) {
        sum += x[i];
    }
    return sum / (float)c;
}

static float row_variance(const float *x, size_t c, float mean)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < c; i++) {
        float centred = x[i] - mean;
        sum += centred * centred;
    }
    return sum / (float)c;
}

static void normalise_row(const float *x, const float *gamma, const float *beta, size_t c, float mean,
                          float rstd, float *restrict y)
{
    for (size_t i = 0; i < c; i++) {
        y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    }
}

void tw_layernorm_forward(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                          double epsilon, tw_layernorm_stats_t stats, float *y)
{
    for (size_t row = 0; row < n; row++) {
        const float *x_row = x + row * c;
        float mean = row_mean(x_row, c);
        stats.mean[row] = mean;
        stats.rstd[row] = 1.0f / sqrtf(row_variance(x_row, c, mean) + (float)epsilon);
        normalise_row(x_row, gamma, beta, c, mean, stats.rstd[row], y + row * c);
    }
}

void tw_layernorm_apply(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                        tw_layernorm_stats_t stats, float *y)
{
    for (size_t row = 0; row < n; row++) {
        normalise_row(x + row * c, gamma, beta, c, stats.mean[row], stats.rstd[row], y + row * c);
    }
}

/* What the gradient needs of a row: the means of g and of g * x^, where x^ = (x - mean) * rstd and g = dy *
 * gamma. */
typedef struct row_means {
    float g, g_x;
} row_means_t;

static row_means_t backward_means(const float *dy, const float *x, const float *gamma, size_t c, float mean,
                                  float rstd)
{
    float sum_g = 0.0f, sum_g_x = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_g_x)
    for (size_t i = 0; i < c; i++) {
        float g = dy[i] * gamma[i];
        sum_g += g;
        sum_g_x += g * ((x[i] - mean) * rstd);
    }
    return (row_means_t){sum_g / (float)c, sum_g_x / (float)c};
}

void tw_layernorm_backward(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                           tw_layernorm_stats_t stats, int accumulate, float *dx, float *dgamma, float *dbeta)
{
    for (size_t row = 0; row < n; row++) {
        const float *dy_row = dy + row * c, *x_row = x + row * c;
        float *dx_row = dx + row * c;
        float mean = stats.mean[row], rstd = stats.rstd[row];
        row_means_t means = backward_means(dy_row, x_row, gamma, c, mean, rstd);
        for (size_t i = 0; i < c; i++) {
            float normed = (x_row[i] - mean) * rstd, d = dy_row[i];
            float gradient = (d * gamma[i] - means.g - normed * means.g_x) * rstd;
            dgamma[i] += d * normed;
            dbeta[i] += d;
            dx_row[i] = accumulate ? dx_row[i] + gradient : gradient;
        }
    }
}
