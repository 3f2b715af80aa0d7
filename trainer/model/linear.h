/** Private to trainer/model: linear layers. Their products have fp32 or bf16 factors, as the config says. */
#pragma once

#include "trainer/model/carve.h"
#include "trainer/model/spread.h"

TW_C_BEGIN

/** Carve scratch for factors that must be converted to the products' type. With fp32 products these are
 *  weights of at most weight_elems (0 if weights are fp32), with bf16 products activations of row_elems. */
void tw_factors_carve(tw_carver_t *carver, tw_type_t type, size_t weight_elems, size_t row_elems,
                      tw_compute_t *compute);
/** Return x [n_elems], with rows `stride` apart, as a factor: x itself, or rounded to bf16 in `room`. */
tw_matrix_t tw_factor(const tw_compute_t *compute, const float *x, size_t n_elems, size_t stride,
                      uint16_t *room);
/** Return a weight [n_elems] as a factor: itself, or fp32 in compute->wide, valid until the next call. */
tw_matrix_t tw_weight_factor(const tw_compute_t *compute, const void *weight, size_t n_elems, size_t stride);
/** Write n_elems elements of a weight from `first` on to y as fp32 (read), or add them to y (add). */
void tw_weight_read(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y);
void tw_weight_add(const tw_compute_t *compute, const void *weight, size_t first, size_t n_elems, float *y);
/** Return the factor that begins `first` elements later: at column `first`, or at row `first` / stride. */
tw_matrix_t tw_factor_from(tw_matrix_t factor, size_t first);
tw_matrix_t tw_transposed(tw_matrix_t factor);

/** The sizes of a linear layer: x (N,in), y (N,out) with rows y_stride apart. */
typedef struct tw_layer {
    size_t n, in, out, y_stride;
    int is_out_in; /* 1: the weight is (out,in), 0: (in,out) */
} tw_layer_t;

/** Compute y = x w + beta y, where w (in,out) may be stored transposed. */
void tw_layer_forward(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, const void *weight,
                      float beta, float *y);
/** Add the weight's gradient, computed from x and dy (N,out), to d_weight. */
void tw_layer_backward_weight(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t x, tw_matrix_t dy,
                              float *d_weight);
/** Compute dx (N,in) = dy w' + beta dx. */
void tw_layer_backward_input(const tw_compute_t *compute, tw_layer_t layer, tw_matrix_t dy,
                             const void *weight, float beta, float *dx);

TW_C_END
