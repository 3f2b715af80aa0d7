/** Private to trainer/model: products of row-major fp32 matrices, by OpenBLAS.
 *  Notation: (N,I) is a matrix of N rows of I columns; X' its transpose. Leading dimensions count floats. */
#ifndef TW_TRAINER_MODEL_BLAS_H
#define TW_TRAINER_MODEL_BLAS_H

#include "core/core.h"

TW_C_BEGIN

/** A matrix in memory, or a part of one. */
typedef struct tw_blas_view {
    const float *at;
    size_t stride; /* from a row to the next; of the matrix as it is stored */
    int transposed;
} tw_blas_view_t;

/** c (rows, cols) = alpha * a (rows, inner) * b (inner, cols) + beta * c; a and b are meant after their
 *  transposition. */
typedef struct tw_blas_product {
    tw_blas_view_t a, b;
    float *c;
    size_t c_stride;
    size_t rows, cols, inner;
    float alpha, beta;
} tw_blas_product_t;

typedef void (*tw_blas_multiply_t)(const tw_blas_product_t *product);

void tw_blas_multiply(const tw_blas_product_t *product);

/** Compare `multiply` with plain C on products of all the forms that the models use. TW_ERR_INTERNAL: it is
 *  wrong beyond rounding, logged with the processor that OpenBLAS takes this for; TW_ERR_NO_MEMORY. A few
 *  milliseconds. */
tw_status_t tw_blas_check(tw_blas_multiply_t multiply);
/** One thread, unless OPENBLAS_NUM_THREADS says otherwise; then tw_blas_check. */
tw_status_t tw_blas_prepare(void);

/* A layer of a network, w being [in, out]:  y (N,O) = x (N,I) w (I,O) + b (O) */

/** accumulate 1: y += x w + b. */
void tw_linear_forward(const float *x, const float *w, const float *b, size_t n, size_t in, size_t out,
                       int accumulate, float *y);
/** dw (I,O) += x' dy;  db (O) += sum of the rows of dy. */
void tw_linear_backward_weights(const float *x, const float *dy, size_t n, size_t in, size_t out, float *dw,
                                float *db);
/** dx (N,I) = dy w' */
void tw_linear_backward_input(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx);

TW_C_END

#endif
