/* The gated unit of the Llama family. */
#include "trainer/model/exp.h"
#include "trainer/model/kernels.h"

void tw_swiglu_forward(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = gate[i] / (1.0f + tw_exp(-gate[i])) * up[i];
    }
}

/* silu = x s(x), s' = s (1 - s):  dsilu/dx = s (1 + x (1 - s)) */
void tw_swiglu_backward(const float *gate, const float *up, size_t n, float *dy, float *d_gate)
{
    for (size_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + tw_exp(-gate[i])), d = dy[i];
        d_gate[i] = d * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        dy[i] = d * gate[i] * s;
    }
}
