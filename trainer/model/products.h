/** Private to trainer/model: products of row-major matrices, fp32 or bf16 with sums in fp32, by oneDNN.
 *  Notation: (N,I) is a matrix of N rows of I columns; X' its transpose. Strides count elements.
 *
 *  oneDNN generates code for each shape. A tw_products_t keeps that code; one thread at a time may use it. On
 *  one kind of processor the same shapes give the same bits. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A matrix in memory, or a part of one. */
typedef struct tw_matrix {
    const void *at;
    size_t stride; /* from a row of the stored matrix to the next */
    int transposed;
    tw_type_t type; /* fp32 or bf16 */
} tw_matrix_t;

/** A product: c (rows, cols) = alpha * a (rows, inner) * b (inner, cols) + beta * c. The sizes of a and b are
 *  those after transposition; both have one type. */
typedef struct tw_product {
    tw_matrix_t a, b;
    float *c;
    size_t c_stride;
    size_t rows, cols, inner;
    float alpha, beta;
} tw_product_t;

typedef struct tw_products tw_products_t;

/** Upper bound of a tw_products_t's scratch in bytes, without its code. */
#define TW_PRODUCTS_SCRATCH_BYTES ((size_t)1 << 20)

/** Make an empty cache of code. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL (oneDNN does not start); logged. */
tw_status_t tw_products_create(tw_products_t **out);
void tw_products_destroy(tw_products_t *products);
/** Compute a product. It cannot fail: if oneDNN cannot multiply bf16 on this processor, factors are converted
 *  to fp32; if oneDNN fails, plain C computes the product, which is logged once. */
void tw_product_run(tw_products_t *products, const tw_product_t *product);
/** Compute the product in plain C. This is slow, and adds the terms of a sum in order. */
void tw_product_plain(const tw_product_t *product);

/** Return 1 if this processor multiplies bf16 faster than fp32. */
int tw_products_have_bf16(void);
/** Return the library and its instruction set: "oneDNN 2.6.3, avx512_core_bf16". Static storage. */
const char *tw_products_name(void);

typedef void (*tw_product_run_t)(tw_products_t *products, const tw_product_t *product);
/** Compare `run` with plain C on products of all forms that models use, in fp32, and in bf16 if this
 *  processor has it. TW_ERR_INTERNAL: an error beyond rounding, logged with tw_products_name;
 *  TW_ERR_NO_MEMORY. It takes tens of milliseconds. */
tw_status_t tw_products_check(tw_product_run_t run);

TW_C_END
