/** Inside the bench of the lossless codec: main.c reads the command line and reports, data.c has the tensors,
 *  train.c makes them, measure.c has the clock. */
#ifndef TW_BENCH_LOSSLESS_LOSSLESS_H
#define TW_BENCH_LOSSLESS_LOSSLESS_H

#include "quant/quant.h"

TW_C_BEGIN

typedef struct lossless_options {
    size_t steps, chunk_elems;
    double seconds;
    const char *file;
    const char *json;
} lossless_options_t;

typedef struct lossless_tensor {
    tw_type_t type;
    size_t n_elems, row_elems;
    void *values; /**< of `type`, owned */
} lossless_tensor_t;

/** Tensors of a kind, as a message has them. */
typedef struct lossless_set {
    const char *name;
    lossless_tensor_t *tensors;
    size_t n_tensors, n_elems;
} lossless_set_t;

/** One line. GB are 10^9 bytes of plain elements. */
typedef struct lossless_row {
    const char *source, *backend;
    size_t chunk_elems; /**< 0: one message */
    size_t n_elems, plain_bytes, message_bytes;
    double bits, tensor_bits, scales_bits; /**< an element */
    double encode_gbytes, decode_gbytes;   /**< a second */
    int ok;                                /**< every bit came back */
} lossless_row_t;

/** Room for n tensors. All that follow log their own errors. */
tw_status_t lossless_set_init(lossless_set_t *set, const char *name, size_t n);
/** Add one with uninitialised values. */
tw_status_t lossless_set_add(lossless_set_t *set, tw_type_t type, size_t n_elems, size_t row_elems);
void lossless_set_cleanup(lossless_set_t *set);
/** The tensors of floating-point numbers of a safetensors file. */
tw_status_t lossless_set_read(const char *path, lossless_set_t *set);
/** Bits an element that the exponents' entropy and everything else take: under nothing but the tensor, and
 *  under the scales of rows and columns, which cost nothing here. bf16 and fp32 only: otherwise NAN. */
void lossless_set_entropy(const lossless_set_t *set, double *by_tensor, double *by_scales);

#define LOSSLESS_SETS 7

/** Train a GPT-2 of 0.84 M parameters on the King James text: gradients and weights of the last step in
 *  bf16; gradients in fp32, then those that are bf16 numbers of one rank, and sums of two, four and eight
 *  ranks'. */
tw_status_t lossless_train(size_t steps, lossless_set_t sets[LOSSLESS_SETS]);

/** Measure with the row's backend, a message for each chunk_elems elements of a tensor: fill what these two
 *  and the set's entropy do not say. */
tw_status_t lossless_measure(const lossless_set_t *set, double seconds, lossless_row_t *row);

TW_C_END

#endif
