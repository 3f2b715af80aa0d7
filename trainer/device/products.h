/** Private to trainer/device: products of row-major matrices on a device. Factors are bf16 or fp32, sums
 *  fp32. fp32 factors keep all bits; they are not rounded to TF32, which has 10 of their 23 mantissa bits.
 *  (N,I) is a matrix of N rows of I columns. Strides count elements. On one kind of device the same shapes
 *  give the same bits.
 *
 *  A model needs y = x w, dw = x' dy, dx = dy w' for GPT-2's weights (in,out), and y = x w', dw = dy' x,
 *  dx = dy w for the Llama family's (out,in). All are a (rows, inner) times b (inner, cols), and either
 *  factor may be stored transposed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A factor, in device memory. */
typedef struct tw_device_factor {
    const void *at;
    size_t stride;  /**< from a row of the stored matrix to the next */
    int transposed; /**< 1: the factor is stored as its transpose */
} tw_device_factor_t;

/** A product: d (rows, cols) = scale * a (rows, inner) * b (inner, cols) + c_scale * c + bias, rounded once.
 *  c and bias may be NULL. Operations: 2 * rows * cols * inner. */
typedef struct tw_device_product {
    tw_device_factor_t a, b;
    tw_type_t factors;    /**< type of a, b and bias: bf16 or fp32. With fp32, d is fp32, too */
    float scale, c_scale; /**< 0 means 1 */
    const void *c;        /**< shape, type and stride of d; may be d; or NULL */
    void *d;
    tw_type_t type;   /**< type of c and d: fp32 or bf16 */
    size_t stride;    /**< stride of c and d */
    const void *bias; /**< [cols], added to each row, or NULL; it must have d's type */
    size_t rows, cols, inner;
} tw_device_product_t;

/** Workspace of cuBLASLt, in bytes of device memory: NVIDIA's advice for Hopper and newer GPUs. */
#define TW_DEVICE_PRODUCTS_BYTES ((size_t)32 << 20)

typedef struct tw_device_products tw_device_products_t;
struct tw_device_products {
    /** Enqueue a product; errors are logged. TW_ERR_INVALID: bias and d have different types, or factors are
     *  fp32 and d is bf16; TW_ERR_CUDA; TW_ERR_UNSUPPORTED: cuBLASLt has no algorithm for it. */
    tw_status_t (*run)(tw_device_products_t *products, const tw_device_product_t *product,
                       tw_stream_t stream);
    void (*destroy)(tw_device_products_t *products);
    size_t memory_bytes; /**< device memory of the workspace */
};

/** Open cuBLASLt on the current GPU. TW_ERR_UNSUPPORTED (logged): this was built without CUDA or without
 *  cublasLt.h, or the library is not installed; TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_device_products_create(tw_device_products_t **out);
/** Check a product's types, with the errors of `run`. TW_ERR_INVALID, logged. */
static inline tw_status_t tw_device_product_check(const tw_device_product_t *product)
{
    TW_FAIL_IF(product->bias && product->type != product->factors, TW_ERR_INVALID,
               "device: a product with a bias is of the bias's type");
    TW_FAIL_IF(product->factors == TW_TYPE_FP32 && product->type != TW_TYPE_FP32, TW_ERR_INVALID,
               "device: a product of fp32 factors is fp32");
    return TW_OK;
}
static inline float tw_device_scale_of(float scale)
{
    return scale == 0.0f ? 1.0f : scale;
}

TW_C_END
