#include "trainer/model/spread.h"

#include <string.h>

#include "quant/quant.h"

/* Arguments of a kernel; each kernel uses some of them. */
typedef struct call {
    const tw_kernel_set_t *kernels;
    const float *x, *x2;
    const uint16_t *x16;
    float *y, *y2;
    uint16_t *y16;
    size_t n, c, stride;
    int accumulate;
    const tw_model_norm_t *norm;         /* a norm. Forward also uses y; backward uses x (for dy) and `to` */
    const tw_model_norm_gradients_t *to; /* where a norm's gradients go */
} call_t;

/** by_elements, by_rows and by_columns divide a call's elements, rows or columns among the threads. */
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

/* ---- norms --------------------------------------------------------------------------------------------- */

static tw_model_norm_t norm_rows(const tw_model_norm_t *norm, size_t first, size_t n)
{
    tw_model_norm_t rows = *norm;
    rows.x += first * norm->c;
    rows.n = n;
    rows.stats.mean = norm->stats.mean ? norm->stats.mean + first : NULL;
    rows.stats.rstd += first;
    return rows;
}

static void spread_norm_forward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    const tw_model_norm_t rows = norm_rows(call->norm, first, n);
    (void)thread;
    call->kernels->norm_forward(&rows, call->y + first * call->c);
}

void tw_spread_norm_forward(const tw_compute_t *compute, const tw_model_norm_t *norm, float *y)
{
    call_t call = {.norm = norm, .n = norm->n, .c = norm->c, .y = y};
    by_rows(compute, &call, spread_norm_forward);
}

static void norm_apply(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    const tw_model_norm_t rows = norm_rows(call->norm, first, n);
    (void)thread;
    call->kernels->norm_apply(&rows, call->y + first * call->c);
}

void tw_spread_norm_apply(const tw_compute_t *compute, const tw_model_norm_t *norm, float *y)
{
    call_t call = {.norm = norm, .n = norm->n, .c = norm->c, .y = y};
    by_rows(compute, &call, norm_apply);
}

static void norm_vectors(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->norm_backward_vectors(call->norm, call->x, first, n, call->to);
}

static void norm_input(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    const tw_model_norm_t rows = norm_rows(call->norm, first, n);
    const tw_model_norm_gradients_t to = {.dx = call->to->dx + first * call->c,
                                          .accumulate = call->to->accumulate};
    (void)thread;
    call->kernels->norm_backward_input(&rows, call->x + first * call->c, &to);
}

void tw_spread_norm_backward(const tw_compute_t *compute, const tw_model_norm_t *norm, const float *dy,
                             const tw_model_norm_gradients_t *to)
{
    call_t call = {.norm = norm, .n = norm->n, .c = norm->c, .x = dy, .to = to};
    if (tw_pool_threads(compute->pool) == 1) { /* a single thread needs only one pass over the rows */
        compute->kernels->norm_backward(norm, dy, to);
        return;
    }
    by_columns(compute, &call, norm_vectors);
    by_rows(compute, &call, norm_input);
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

void tw_spread_bias_forward(const tw_compute_t *compute, const float *b, tw_rows_t rows, int accumulate,
                            float *y)
{
    call_t call = {.x = b, .n = rows.n, .c = rows.c, .stride = rows.stride, .accumulate = accumulate, .y = y};
    by_rows(compute, &call, spread_bias_forward);
}

static void spread_bias_backward(void *ctx, size_t first, size_t n, int thread)
{
    const call_t *call = ctx;
    (void)thread;
    call->kernels->bias_backward(call->x + first, call->n, n, call->stride, call->y + first);
}

void tw_spread_bias_backward(const tw_compute_t *compute, const float *dy, tw_rows_t rows, float *db)
{
    call_t call = {.x = dy, .n = rows.n, .c = rows.c, .stride = rows.stride, .y = db};
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
