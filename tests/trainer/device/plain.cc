#include "tests/trainer/device/plain.h"

#include <cstring>

#include "quant/quant.h"

namespace
{

float element(tw_type_t type, const void *at, size_t index)
{
    float wide;
    tw_convert_to_fp32(type, static_cast<const char *>(at) + index * tw_type_bytes(type), &wide, 1);
    return wide;
}

/* Called most: a bf16 is the upper half of an fp32. */
float factor_element(const tw_device_factor_t *factor, tw_type_t type, size_t row, size_t col)
{
    size_t index = factor->transposed ? col * factor->stride + row : row * factor->stride + col;
    if (type == TW_TYPE_FP32) {
        return static_cast<const float *>(factor->at)[index];
    }
    uint32_t bits = uint32_t(static_cast<const uint16_t *>(factor->at)[index]) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

float plain_sum_of(const tw_device_product_t *product, size_t row, size_t col)
{
    float sum = 0;
    for (size_t i = 0; i < product->inner; i++) {
        sum += factor_element(&product->a, product->factors, row, i) *
               factor_element(&product->b, product->factors, i, col);
    }
    return sum;
}

} // namespace

void tw::product_plain(const tw_device_product_t *product)
{
    float scale = tw_device_scale_of(product->scale), c_scale = tw_device_scale_of(product->c_scale);
    for (size_t row = 0; row < product->rows; row++) {
        for (size_t col = 0; col < product->cols; col++) {
            size_t index = row * product->stride + col;
            float sum = scale * plain_sum_of(product, row, col);
            sum += product->c ? c_scale * element(product->type, product->c, index) : 0;
            sum += product->bias ? element(product->factors, product->bias, col) : 0;
            tw_convert_from_fp32(product->type, &sum, 1.0f,
                                 static_cast<char *>(product->d) + index * tw_type_bytes(product->type), 1);
        }
    }
}
