/* Products as they are meant: what the tests hold cuBLASLt to, and what an emulated device multiplies by. */
#include <string.h>

#include "quant/quant.h"
#include "trainer/device/products.h"

static float element(tw_type_t type, const void *at, size_t index)
{
    float wide;
    tw_convert_to_fp32(type, (const char *)at + index * tw_type_bytes(type), &wide, 1);
    return wide;
}

/** Called most: a bf16 is the upper half of an fp32. */
static float factor_element(const tw_device_factor_t *factor, tw_type_t type, size_t row, size_t col)
{
    size_t index = factor->transposed ? col * factor->stride + row : row * factor->stride + col;
    if (type == TW_TYPE_FP32) {
        return ((const float *)factor->at)[index];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)factor->at)[index] << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

static float plain_sum_of(const tw_device_product_t *product, size_t row, size_t col)
{
    float sum = 0;
    for (size_t i = 0; i < product->inner; i++) {
        sum += factor_element(&product->a, product->factors, row, i) *
               factor_element(&product->b, product->factors, i, col);
    }
    return sum;
}

tw_status_t tw_device_product_check(const tw_device_product_t *product)
{
    if (product->bias && product->type != product->factors) {
        return tw_fail(TW_ERR_INVALID, "device: a product with a bias is of the bias's type");
    }
    if (product->factors == TW_TYPE_FP32 && product->type != TW_TYPE_FP32) {
        return tw_fail(TW_ERR_INVALID, "device: a product of fp32 factors is fp32");
    }
    return TW_OK;
}

void tw_device_product_plain(const tw_device_product_t *product)
{
    float scale = tw_device_scale_of(product->scale), c_scale = tw_device_scale_of(product->c_scale);
    for (size_t row = 0; row < product->rows; row++) {
        for (size_t col = 0; col < product->cols; col++) {
            size_t index = row * product->stride + col;
            float sum = scale * plain_sum_of(product, row, col);
            sum += product->c ? c_scale * element(product->type, product->c, index) : 0;
            sum += product->bias ? element(product->factors, product->bias, col) : 0;
            tw_convert_from_fp32(product->type, &sum, 1.0f,
                                 (char *)product->d + index * tw_type_bytes(product->type), 1);
        }
    }
}
