/** Private to trainer/model: spreads kernels and products over a model's threads. Whatever their number, the
 *  bits are the same: an element is computed by one thread; sums over rows, such as gradients of biases and
 *  of norms, are cut by columns and go from the first row to the last; products are cut into pieces by their
 *  shape alone. Names and shapes are the kernels' (kernels.h). */
#pragma once

#include "trainer/model/kernels.h"
#include "trainer/model/products.h"
#include "trainer/pool.h"

TW_C_BEGIN

/** Elements that are worth a thread. */
#define TW_SPREAD_LEAST ((size_t)1 << 14)
/** Columns in a cache line: threads that add to neighbours would wait for each other. */
#define TW_SPREAD_LINE 16

/** What a model computes with; it points into the model's scratch. */
typedef struct tw_compute {
    tw_products_t **products; /* [n_products], at least as many as threads: each thread has its own */
    size_t n_products;
    const tw_kernel_set_t *kernels;
    tw_pool_t *pool;       /* NULL: the caller's thread alone */
    tw_type_t type;        /* type of products' factors */
    tw_type_t weight_type; /* type in which weights are stored */
    float *wide;           /* room for one weight as fp32, if weights are bf16 and factors fp32; else NULL */
    /* room for a layer's input, and the gradient by its output, as bf16; NULL in fp32 */
    uint16_t *narrow, *narrow_d;
} tw_compute_t;

/** Compute a large product in pieces. */
void tw_spread_product(const tw_compute_t *compute, const tw_product_t *product);
/** How a product is cut: every piece has this many rows and columns, fewer at the ends. */
typedef struct tw_pieces {
    size_t rows, cols;     /* rows and columns of a piece */
    size_t n_rows, n_cols; /* rows and columns of pieces */
} tw_pieces_t;
tw_pieces_t tw_product_pieces(const tw_product_t *product);

void tw_spread_norm_forward(const tw_compute_t *compute, const tw_model_norm_t *norm, float *y);
void tw_spread_norm_apply(const tw_compute_t *compute, const tw_model_norm_t *norm, float *y);
/** Compute a norm's gradients; to->dx may be x, but not dy. */
void tw_spread_norm_backward(const tw_compute_t *compute, const tw_model_norm_t *norm, const float *dy,
                             const tw_model_norm_gradients_t *to);

void tw_spread_gelu_forward(const tw_compute_t *compute, const float *x, size_t n, float *y);
void tw_spread_gelu_backward(const tw_compute_t *compute, const float *x, size_t n, float *d);
void tw_spread_swiglu_forward(const tw_compute_t *compute, const float *gate, const float *up, size_t n,
                              float *y);
void tw_spread_swiglu_backward(const tw_compute_t *compute, const float *gate, const float *up, size_t n,
                               float *dy, float *d_gate);

/** A matrix of n rows of c elements, `stride` apart. */
typedef struct tw_rows {
    size_t n, c, stride;
} tw_rows_t;
void tw_spread_bias_forward(const tw_compute_t *compute, const float *b, tw_rows_t rows, int accumulate,
                            float *y);
void tw_spread_bias_backward(const tw_compute_t *compute, const float *dy, tw_rows_t rows, float *db);

void tw_spread_narrow(const tw_compute_t *compute, const float *x, size_t n, uint16_t *y);
/** Convert x [n], bf16, to fp32. */
void tw_spread_widen(const tw_compute_t *compute, const uint16_t *x, size_t n, float *y);
void tw_spread_copy(const tw_compute_t *compute, const float *x, size_t n, float *y);

TW_C_END
