/** Private to trainer/device: products of row-major matrices on a device, of bf16 or of fp32, with sums in
 *  fp32. Factors of fp32 are multiplied whole: not as TF32, which has 10 of their 23 bits. (N,I) is a matrix
 *  of N rows of I columns. Strides count elements. The same shapes give the same bits, on one kind of device.
 *
 *  GPT-2's weights are (in,out), the Llama family's (out,in): y = x w, y = x w'; dw = x' dy, dw = dy' x;
 *  dx = dy w', dx = dy w. All of them are a (rows, inner) times b (inner, cols), each of which may lie
 *  transposed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A factor, in device memory. */
typedef struct tw_device_factor {
    const void *at;
    size_t stride;  /**< from a row of the stored matrix to the next */
    int transposed; /**< 1: the factor is stored as its transpose */
} tw_device_factor_t;

/** A product: d (rows, cols) = scale a (rows, inner) b (inner, cols) + c_scale c + bias, the last two if they
 *  are given; rounded once. Operations: 2 * rows * cols * inner. */
typedef struct tw_device_product {
    tw_device_factor_t a, b;
    tw_type_t factors;    /**< type of a, b and bias: bf16, or fp32: then d is fp32, too */
    float scale, c_scale; /**< 0 means 1 */
    const void *c;        /**< like d; may be d; NULL: none */
    void *d;
    tw_type_t type;   /**< type of c and d: fp32 or bf16 */
    size_t stride;    /**< stride of c and d */
    const void *bias; /**< [cols]; NULL: none; d is of its type */
    size_t rows, cols, inner;
} tw_device_product_t;

/** Device memory that cuBLASLt works in: as NVIDIA advises for GPUs from Hopper on; a multiple of 256. */
#define TW_DEVICE_PRODUCTS_BYTES ((size_t)32 << 20)

typedef struct tw_device_products tw_device_products_t;
struct tw_device_products {
    /** Enqueue a product; errors are logged. TW_ERR_INVALID: bias and d have different types, or factors are
     *  fp32 and d is bf16; TW_ERR_CUDA; TW_ERR_UNSUPPORTED: the library cannot do it. */
    tw_status_t (*run)(tw_device_products_t *products, const tw_device_product_t *product,
                       tw_stream_t stream);
    void (*destroy)(tw_device_products_t *products);
    size_t memory_bytes; /**< device memory that products work in */
};

/** Open cuBLASLt on the current GPU. TW_ERR_UNSUPPORTED (logged): this was built without CUDA or without
 *  cublasLt.h, or the library is not there; TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_device_products_create(tw_device_products_t **out);
/** Check that a product's types are as above. TW_ERR_INVALID, logged. */
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
