/** Private to trainer/model: layers of weights, on products of fp32 or of bf16 as the model's config says. */
#pragma once

#include "trainer/model/carve.h"
#include "trainer/model/spread.h"

TW_C_BEGIN

/** Carve the scratch of factors that must be converted to the products' type. With fp32: a weight of at most
 *  weight_elems (0: weights are fp32, too); with bf16: activations of row_elems in all. */
void tw_factors_carve(tw_carver_t *carver, tw_type_t type, size_t weight_elems, size_t row_elems,
                      tw_compute_t *compute);
/** Return x [n_elems], rows `stride` apart, as a factor: x itself, or as bf16 in `room`. */
tw_matrix_t tw_factor(const tw_compute_t *compute, const float *x, size_t n_elems, size_t stride,
                      uint16_t *room);
/** Return a weight [n_elems] likewise; it is valid until the next call. */
tw_matrix_t tw_weight_factor(const tw_compute_t *compute, const void *weight, size_t n_elems, size_t stride);
/** Read elements `first` .. of a weight as fp32 [n_elems] into y, or add them to y. */
void tw_weight_read(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y);
void tw_weight_add(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y);
/** Return the columns of a factor from `first` on. */
tw_matrix_t tw_factor_from(tw_matrix_t factor, size_t first);
tw_matrix_t tw_transposed(tw_matrix_t factor);

/** The sizes of a layer's product: x (N,in), y (N,out) with rows y_stride apart. */
typedef struct tw_layer {
    size_t n, in, out, y_stride;
    int is_out_in; /* 1: the weight is (out,in), 0: (in,out) */
} tw_layer_t;

/** Compute y = x w + beta y, where w (in,out) may be stored transposed. */
void tw_layer_forward(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, const void *weight,
                      float beta, float *y);
/** Add the gradient of the product by the weight, from dy (N,out). */
void tw_layer_backward_weight(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, tw_matrix_t dy,
                              float *d_weight);
/** Compute dx (N,in) = dy w' + beta dx. */
void tw_layer_backward_input(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t dy,
                             const void *weight, float beta, float *dx);

TW_C_END
