/* GELU in its tanh form, written with one exponential: 0.5 (1 + tanh u) = 1 / (1 + e^-2u). */
#include "trainer/model/kernels.h"

#include "trainer/model/exp.h"

#define TWO_ROOT_2_OVER_PI 1.5957691216f /* 2 sqrt(2 / pi) */
#define CUBE 0.044715f

void tw_gelu_forward(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        float two_u = TWO_ROOT_2_OVER_PI * (v + CUBE * v * v * v);
        y[i] = v / (1.0f + tw_exp(-two_u));
    }
}

/* y = x s(2u), s' = s (1 - s):  dy/dx = s + x s (1 - s) d(2u)/dx */
void tw_gelu_backward(const float *x, size_t n, float *d)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        float two_u = TWO_ROOT_2_OVER_PI * (v + CUBE * v * v * v);
        float slope = TWO_ROOT_2_OVER_PI * (1.0f + 3.0f * CUBE * v * v);
        float s = 1.0f / (1.0f + tw_exp(-two_u));
        d[i] *= s + v * s * (1.0f - s) * slope;
    }
}
