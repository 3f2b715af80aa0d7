#include "trainer/model/linear.h"

#include "quant/quant.h"

void tw_factors_carve(tw_carver_t *carver, tw_type_t type, size_t weight_elems, size_t row_elems,
                      tw_compute_t *compute)
{
    int is_bf16 = type == TW_TYPE_BF16;
    size_t row_bytes = tw_size_mul(row_elems, sizeof(uint16_t));
    compute->wide = is_bf16 ? NULL : tw_carve(carver, weight_elems);
    compute->narrow = is_bf16 ? tw_carve_bytes(carver, row_bytes) : NULL;
    compute->narrow_d = is_bf16 ? tw_carve_bytes(carver, row_bytes) : NULL;
}

tw_matrix_t tw_factor(const tw_compute_t *compute, const float *x, size_t n_elems, size_t stride,
                      uint16_t *room)
{
    if (compute->type == TW_TYPE_FP32) {
        return (tw_matrix_t){.at = x, .stride = stride, .type = TW_TYPE_FP32};
    }
    tw_spread_narrow(compute, x, n_elems, room);
    return (tw_matrix_t){.at = room, .stride = stride, .type = TW_TYPE_BF16};
}

tw_matrix_t tw_weight_factor(const tw_compute_t *compute, const void *weight, size_t n_elems, size_t stride)
{
    if (compute->type == compute->weight_type) {
        return (tw_matrix_t){.at = weight, .stride = stride, .type = compute->type};
    }
    tw_spread_widen(compute, weight, n_elems, compute->wide);
    return (tw_matrix_t){.at = compute->wide, .stride = stride, .type = TW_TYPE_FP32};
}

static const void *weight_at(const tw_compute_t *compute, const void *weight, size_t elem)
{
    return (const char *)weight + elem * tw_type_bytes(compute->weight_type);
}

void tw_weight_read(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y)
{
    tw_convert_to_fp32(compute->weight_type, weight_at(compute, weight, first), y, n_elems);
}

void tw_weight_add(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y)
{
    tw_convert_add_fp32(compute->weight_type, weight_at(compute, weight, first), y, n_elems);
}

tw_matrix_t tw_factor_from(tw_matrix_t factor, size_t first)
{
    factor.at = (const char *)factor.at + first * tw_type_bytes(factor.type);
    return factor;
}

tw_matrix_t tw_transposed(tw_matrix_t factor)
{
    factor.transposed = !factor.transposed;
    return factor;
}

/** Return the weight as a factor (in,out), transposed if it is stored as (out,in). */
static tw_matrix_t weight_of(const tw_compute_t *compute, tw_layer_t layer, const void *weight)
{
    tw_matrix_t w =
        tw_weight_factor(compute, weight, layer.in * layer.out, layer.is_out_in ? layer.in : layer.out);
    return layer.is_out_in ? tw_transposed(w) : w;
}

void tw_layer_forward(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, const void *weight,
                      float beta, float *y)
{
    tw_spread_product(compute, &(tw_product_t){.a = x,
                                               .b = weight_of(compute, layer, weight),
                                               .c = y,
                                               .c_stride = layer.y_stride,
                                               .rows = layer.n,
                                               .cols = layer.out,
                                               .inner = layer.in,
                                               .alpha = 1.0f,
                                               .beta = beta});
}

void tw_layer_backward_weight(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, tw_matrix_t dy,
                              float *d_weight)
{
    tw_product_t product = {.a = tw_transposed(layer.is_out_in ? dy : x),
                            .b = layer.is_out_in ? x : dy,
                            .c = d_weight,
                            .c_stride = layer.is_out_in ? layer.in : layer.out,
                            .rows = layer.is_out_in ? layer.out : layer.in,
                            .cols = layer.is_out_in ? layer.in : layer.out,
                            .inner = layer.n,
                            .alpha = 1.0f,
                            .beta = 1.0f};
    tw_spread_product(compute, &product);
}

void tw_layer_backward_input(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t dy,
                             const void *weight, float beta, float *dx)
{
    tw_spread_product(compute, &(tw_product_t){.a = dy,
                                               .b = tw_transposed(weight_of(compute, layer, weight)),
                                               .c = dx,
                                               .c_stride = layer.in,
                                               .rows = layer.n,
                                               .cols = layer.in,
                                               .inner = layer.out,
                                               .alpha = 1.0f,
                                               .beta = beta});
}
