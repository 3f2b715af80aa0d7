/** Input of the benchmarks: tensors shaped like a transformer's, made from a seed or read from a file. Every
 *  rank can make any part of any other rank's input, to compute a reference. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** One tensor of the set. */
typedef struct tw_bench_tensor {
    size_t n_elems;
    size_t row_elems; /**< length of a row; 0: the tensor has no rows */
    /** index of the first element in the buffer of the whole set; its address there is a multiple of 64 */
    size_t offset;
} tw_bench_tensor_t;

typedef struct tw_bench_data tw_bench_data_t;

typedef struct tw_bench_data_params {
    tw_type_t type; /**< type of the values: a float type */
    size_t n_elems; /**< elements of all tensors together */
    uint64_t seed;
    /** path of a safetensors file, whose tensors are repeated and cut to n_elems; NULL: made from the seed */
    const char *tensors;
} tw_bench_data_params_t;

/** Make the input. TW_ERR_INVALID (logged): no float type, or no float tensor in the file. Other errors as
 *  tw_safetensors_open. */
tw_status_t tw_bench_data_create(const tw_bench_data_params_t *params, tw_bench_data_t **out);
/** Accepts NULL. */
void tw_bench_data_destroy(tw_bench_data_t *data);

size_t tw_bench_data_count(const tw_bench_data_t *data);
const tw_bench_tensor_t *tw_bench_data_tensor(const tw_bench_data_t *data, size_t index);
/** Return the number of elements of a buffer for the whole set, with gaps for alignment. */
size_t tw_bench_data_buffer_elems(const tw_bench_data_t *data);
/** Describe the set for people: "105 tensors of FILE, ...". The text lives as long as data. */
const char *tw_bench_data_describe(const tw_bench_data_t *data);

/** Write elements [first, first + n) of a version of a tensor to dst, in params' type. Version r is the input
 *  of rank r; in an all-gather all ranks use version 0. A file's version v is the tensor rotated by v times a
 *  fixed length, so that its values are those of the file. */
void tw_bench_data_fill(const tw_bench_data_t *data, size_t tensor, int version, size_t first, size_t n,
                        void *dst);

TW_C_END
