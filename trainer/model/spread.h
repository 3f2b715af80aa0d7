/** Private to trainer/model: spreads kernels and products over a model's threads. The bits do not depend on
 *  the number of threads. An element is computed by one thread. Sums over rows, such as gradients of biases,
 *  are divided by columns, and each adds the rows from first to last. Products are divided into pieces by
 *  shape alone. kernels.h explains the functions of the same names. */
#pragma once

#include "trainer/model/kernels.h"
#include "trainer/model/products.h"
#include "trainer/pool.h"

TW_C_BEGIN

/** Fewest elements that a thread is given. */
#define TW_SPREAD_LEAST ((size_t)1 << 14)
/** Floats in a cache line. Threads whose columns share a cache line would wait for each other. */
#define TW_SPREAD_LINE 16

/** Resources that a model computes with. The buffers are parts of the model's scratch. */
typedef struct tw_compute {
    tw_products_t **products; /* [n_products], at least as many as threads: each thread has its own */
    size_t n_products;
    const tw_kernel_set_t *kernels;
    tw_pool_t *pool;       /* NULL: only the caller's thread */
    tw_type_t type;        /* type of products' factors */
    tw_type_t weight_type; /* type in which weights are stored */
    float *wide;           /* buffer for a weight as fp32, if weights are bf16 and factors fp32; else NULL */
    /* buffers for a layer's input, and for the gradient of its output, as bf16; NULL in fp32 */
    uint16_t *narrow, *narrow_d;
} tw_compute_t;

/** Compute a product in pieces (pieces.c), each by one thread. */
void tw_spread_product(const tw_compute_t *compute, const tw_product_t *product);
/** How a product is divided into pieces. Pieces in the last row or column may be smaller. */
typedef struct tw_pieces {
    size_t rows, cols;     /* rows and columns of a piece */
    size_t n_rows, n_cols; /* how many pieces lie below each other, and side by side */
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
