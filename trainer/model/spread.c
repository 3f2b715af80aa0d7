#include "trainer/model/spread.h"

#include <string.h>

#include "quant/quant.h"

/* A kernel's arguments; each has some of them. */
typedef struct call {
    const tw_kernel_set_t *kernels;
    const float *x, *x2, *gamma, *beta;
    const uint16_t *x16;
    float *y, *y2;
    uint16_t *y16;
    tw_layernorm_stats_t stats;
    size_t n, c, stride;
    double epsilon;
    int accumulate;
} call_t;

/** By elements, by rows of c, or by columns of n rows. */
static void by_elements(const tw_compute_t *compute, call_t *call, size_t n, tw_pool_range_t range)
{
    call->kernels = compute->kernels;
    tw_pool_ranges(compute->pool, n, 8 * TW_SPREAD_LINE, TW_SPREAD_LEAST, range, call);
}

static void by_rows(const tw_compute_t *compute, call_t *call, tw_pool_range_t range)
{
    call->kernels = compute->kernels;
    tw_pool_ranges(compute->pool, call->n, 1, TW_SPREAD_LEAST / call->c + 1, range, call);
}

static void by_columns(const tw_compute_t *compute, call_t *call, tw_pool_range_t range)
{
    call->kernels = compute->kernels;
    tw_pool_ranges(compute->pool, call->c, TW_SPREAD_LINE, TW_SPREAD_LEAST / call->n + 1, range, call);
}

static tw_layernorm_stats_t stats_from(tw_layernorm_stats_t stats, size_t row)
{
    return (tw_layernorm_stats_t){stats.mean + row, stats.rstd + row};
}

/* ---- layer norm ---------------------------------------------------------------------------------------- */

static void layernorm_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    size_t at = first * call->c;
    (void)thread;
    call->kernels->layernorm_forward(call->x + at, call->gamma, call->beta, n, call->c, call->epsilon,
                                     stats_from(call->stats, first), call->y + at);
}

void tw_spread_layernorm_forward(const tw_compute_t *compute, const float *x, const float *gamma,
                                 const float *beta, size_t n, size_t c, double epsilon,
                                 tw_layernorm_stats_t stats, float *y)
{
    call_t call = {
        .x = x, .gamma = gamma, .beta = beta, .n = n, .c = c, .epsilon = epsilon, .stats = stats, .y = y};
    by_rows(compute, &call, layernorm_forward);
}

static void layernorm_apply(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    size_t at = first * call->c;
    (void)thread;
    call->kernels->layernorm_apply(call->x + at, call->gamma, call->beta, n, call->c,
                                   stats_from(call->stats, first), call->y + at);
}

void tw_spread_layernorm_apply(const tw_compute_t *compute, const float *x, const float *gamma,
                               const float *beta, size_t n, size_t c, tw_layernorm_stats_t stats, float *y)
{
    call_t call = {.x = x, .gamma = gamma, .beta = beta, .n = n, .c = c, .stats = stats, .y = y};
    by_rows(compute, &call, layernorm_apply);
}

/** y, y2: the gradients of gamma and beta */
static void layernorm_vectors(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    for (size_t row = 0; row < call->n; row++) {
        size_t at = row * call->c + first;
        call->kernels->layernorm_row_vectors(call->x + at, call->x2 + at, call->stats.mean[row],
                                             call->stats.rstd[row], n, call->y + first, call->y2 + first);
    }
}

static void layernorm_backward_input(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    size_t at = first * call->c;
    (void)thread;
    call->kernels->layernorm_backward_input(call->x + at, call->x2 + at, call->gamma, n, call->c,
                                            stats_from(call->stats, first), call->accumulate, call->y + at);
}

void tw_spread_layernorm_backward(const tw_compute_t *compute, const float *dy, const float *x,
                                  const float *gamma, size_t n, size_t c, tw_layernorm_stats_t stats,
                                  const tw_layernorm_gradients_t *to)
{
    call_t vectors = {.x = dy, .x2 = x, .n = n, .c = c, .stats = stats, .y = to->dgamma, .y2 = to->dbeta};
    call_t input = {.x = dy,
                    .x2 = x,
                    .gamma = gamma,
                    .n = n,
                    .c = c,
                    .stats = stats,
                    .accumulate = to->accumulate,
                    .y = to->dx};
    if (tw_pool_threads(compute->pool) == 1) { /* in one pass over the rows */
        compute->kernels->layernorm_backward(dy, x, gamma, n, c, stats, to->accumulate, to->dx, to->dgamma,
                                             to->dbeta);
        return;
    }
    by_columns(compute, &vectors, layernorm_vectors);
    by_rows(compute, &input, layernorm_backward_input);
}

/* ---- root-mean-square norm: rstd is in stats ----------------------------------------------------------- */

static void rmsnorm_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    size_t at = first * call->c;
    (void)thread;
    call->kernels->rmsnorm_forward(call->x + at, call->gamma, n, call->c, call->epsilon,
                                   call->stats.rstd + first, call->y + at);
}

void tw_spread_rmsnorm_forward(const tw_compute_t *compute, const float *x, const float *gamma, size_t n,
                               size_t c, double epsilon, float *rstd, float *y)
{
    call_t call = {
        .x = x, .gamma = gamma, .n = n, .c = c, .epsilon = epsilon, .stats = {.rstd = rstd}, .y = y};
    by_rows(compute, &call, rmsnorm_forward);
}

/** x2: rstd */
static void rmsnorm_apply(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    size_t at = first * call->c;
    (void)thread;
    call->kernels->rmsnorm_apply(call->x + at, call->gamma, n, call->c, call->x2 + first, call->y + at);
}

void tw_spread_rmsnorm_apply(const tw_compute_t *compute, const float *x, const float *gamma, size_t n,
                             size_t c, const float *rstd, float *y)
{
    call_t call = {.x = x, .x2 = rstd, .gamma = gamma, .n = n, .c = c, .y = y};
    by_rows(compute, &call, rmsnorm_apply);
}

/** beta: rstd; y: the gradient of gamma */
static void rmsnorm_vector(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    for (size_t row = 0; row < call->n; row++) {
        size_t at = row * call->c + first;
        call->kernels->rmsnorm_row_vector(call->x + at, call->x2 + at, call->beta[row], n, call->y + first);
    }
}

static void rmsnorm_backward_input(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        size_t at = row * call->c;
        call->kernels->rmsnorm_row_backward_input(call->x + at, call->x2 + at, call->gamma, call->c,
                                                  call->beta[row], call->accumulate, call->y + at);
    }
}

void tw_spread_rmsnorm_backward(const tw_compute_t *compute, const float *dy, const float *x,
                                const float *gamma, size_t n, size_t c, const float *rstd, int accumulate,
                                float *dx, float *dgamma)
{
    call_t vector = {.x = dy, .x2 = x, .beta = rstd, .n = n, .c = c, .y = dgamma};
    call_t input = {
        .x = dy, .x2 = x, .gamma = gamma, .beta = rstd, .n = n, .c = c, .accumulate = accumulate, .y = dx};
    if (tw_pool_threads(compute->pool) == 1) {
        compute->kernels->rmsnorm_backward(dy, x, gamma, n, c, rstd, accumulate, dx, dgamma);
        return;
    }
    by_columns(compute, &vector, rmsnorm_vector);
    by_rows(compute, &input, rmsnorm_backward_input);
}

/* ---- GELU, SwiGLU -------------------------------------------------------------------------------------- */

static void gelu_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->gelu_forward(call->x + first, n, call->y + first);
}

void tw_spread_gelu_forward(const tw_compute_t *compute, const float *x, size_t n, float *y)
{
    by_elements(compute, &(call_t){.x = x, .y = y}, n, gelu_forward);
}

static void gelu_backward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->gelu_backward(call->x + first, n, call->y + first);
}

void tw_spread_gelu_backward(const tw_compute_t *compute, const float *x, size_t n, float *d)
{
    by_elements(compute, &(call_t){.x = x, .y = d}, n, gelu_backward);
}

static void swiglu_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->swiglu_forward(call->x + first, call->x2 + first, n, call->y + first);
}

void tw_spread_swiglu_forward(const tw_compute_t *compute, const float *gate, const float *up, size_t n,
                              float *y)
{
    by_elements(compute, &(call_t){.x = gate, .x2 = up, .y = y}, n, swiglu_forward);
}

static void swiglu_backward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->swiglu_backward(call->x + first, call->x2 + first, n, call->y + first, call->y2 + first);
}

void tw_spread_swiglu_backward(const tw_compute_t *compute, const float *gate, const float *up, size_t n,
                               float *dy, float *d_gate)
{
    by_elements(compute, &(call_t){.x = gate, .x2 = up, .y = dy, .y2 = d_gate}, n, swiglu_backward);
}

/* ---- biases -------------------------------------------------------------------------------------------- */

static void spread_bias_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->bias_forward(call->x, n, call->c, call->stride, call->accumulate,
                                call->y + first * call->stride);
}

void tw_spread_bias_forward(const tw_compute_t *compute, const float *b, size_t n, size_t c, size_t stride,
                            int accumulate, float *y)
{
    call_t call = {.x = b, .n = n, .c = c, .stride = stride, .accumulate = accumulate, .y = y};
    by_rows(compute, &call, spread_bias_forward);
}

static void spread_bias_backward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->bias_backward(call->x + first, call->n, n, call->stride, call->y + first);
}

void tw_spread_bias_backward(const tw_compute_t *compute, const float *dy, size_t n, size_t c, size_t stride,
                             float *db)
{
    call_t call = {.x = dy, .n = n, .c = c, .stride = stride, .y = db};
    by_columns(compute, &call, spread_bias_backward);
}

/* ---- elements ------------------------------------------------------------------------------------------ */

static void spread_narrow(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->narrow(call->x + first, n, call->y16 + first);
}

void tw_spread_narrow(const tw_compute_t *compute, const float *x, size_t n, uint16_t *y)
{
    by_elements(compute, &(call_t){.x = x, .y16 = y}, n, spread_narrow);
}

static void spread_widen(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    tw_convert_to_fp32(TW_TYPE_BF16, call->x16 + first, call->y + first, n);
}

void tw_spread_widen(const tw_compute_t *compute, const uint16_t *x, size_t n, float *y)
{
    by_elements(compute, &(call_t){.x16 = x, .y = y}, n, spread_widen);
}

static void spread_copy(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    memcpy(call->y + first, call->x + first, n * sizeof(*call->y));
}

void tw_spread_copy(const tw_compute_t *compute, const float *x, size_t n, float *y)
{
    by_elements(compute, &(call_t){.x = x, .y = y}, n, spread_copy);
}
