/* Shapes and values of the input. */
#include "bench/collectives/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "safetensors/safetensors.h"

#define LAYERS_WANTED 4
#define HIDDEN_MULTIPLE 8
#define HIDDEN_MAX 8192
#define BATCH_ELEMS 1024
#define DESCRIPTION_BYTES 512

/* Version v of a file's tensor is rotated by v times this. It is near no row length: rows do not line up. */
#define ROTATION 7919u

/* 2^64 divided by the golden ratio: its multiples modulo 2^64 are spread evenly. */
#define GOLDEN 0x9e3779b97f4a7c15u

/* A kind of tensor in a layer: the distribution of its values, and its shape. */
typedef struct kind {
    float mean, sigma;
    int rows, columns; /* in multiples of the hidden size; rows 0: a vector */
} kind_t;

/* Tensors of a GPT-2 layer, in the order in which they are stored. */
static const kind_t layer[] = {
    {1.0f, 0.1f, 0, 1},   /* norm 1, weight */
    {0.0f, 0.05f, 0, 1},  /* norm 1, bias */
    {0.0f, 0.02f, 3, 1},  /* attention in */
    {0.0f, 0.01f, 0, 3},  /* its bias */
    {0.0f, 0.014f, 1, 1}, /* attention out */
    {0.0f, 0.01f, 0, 1},  /* its bias */
    {1.0f, 0.1f, 0, 1},   /* norm 2, weight */
    {0.0f, 0.05f, 0, 1},  /* norm 2, bias */
    {0.0f, 0.02f, 4, 1},  /* MLP in */
    {0.0f, 0.01f, 0, 4},  /* its bias */
    {0.0f, 0.014f, 1, 4}, /* MLP out */
    {0.0f, 0.01f, 0, 1},  /* its bias */
};
#define N_KINDS (sizeof(layer) / sizeof(layer[0]))

/* Where a tensor's values come from. */
typedef struct source {
    const kind_t *kind;                  /* kind of a made-up tensor; NULL: values are read from a file */
    size_t columns;                      /* length of a made-up tensor's row */
    const tw_safetensors_tensor_t *file; /* tensor of a file; NULL: values are made up */
} source_t;

struct tw_bench_data {
    tw_bench_data_params_t params;
    tw_safetensors_t *file;
    tw_bench_tensor_t *tensors;
    source_t *sources;
    size_t n_tensors, max_tensors, max_sources, buffer_elems;
    char description[DESCRIPTION_BYTES];
};

/* ---- shapes -------------------------------------------------------------------------------------------- */

/** Return the length of a tensor's row, or 0 if the tensor is a vector. */
static size_t row_elems(const source_t *source)
{
    const tw_safetensors_tensor_t *file = source->file;
    if (file) {
        return file->n_dims > 1 ? file->dims[file->n_dims - 1] : 0;
    }
    return source->kind->rows > 0 ? source->columns : 0;
}

static tw_status_t coll_add_tensor(tw_bench_data_t *data, size_t n_elems, source_t source)
{
    const size_t n = data->n_tensors + 1;
    TW_FAIL_IF(!tw_grow(&data->tensors, &data->max_tensors, n, sizeof(*data->tensors)) ||
                   !tw_grow(&data->sources, &data->max_sources, n, sizeof(*data->sources)),
               TW_ERR_NO_MEMORY, "benchmark data: out of memory for %zu tensors", n);
    size_t align = TW_CACHE_LINE_BYTES / tw_type_bytes(data->params.type);
    data->tensors[data->n_tensors] = (tw_bench_tensor_t){
        .n_elems = n_elems, .row_elems = row_elems(&source), .offset = data->buffer_elems};
    data->sources[data->n_tensors++] = source;
    data->buffer_elems += (n_elems + align - 1) / align * align;
    return TW_OK;
}

/** Return the hidden size h for which LAYERS_WANTED layers of 12 h^2 weights have about n_elems elements. */
static size_t choose_hidden(size_t n_elems)
{
    size_t hidden = (size_t)sqrt((double)n_elems / (12.0 * LAYERS_WANTED));
    hidden -= hidden % HIDDEN_MULTIPLE;
    if (hidden < HIDDEN_MULTIPLE) {
        hidden = HIDDEN_MULTIPLE;
    }
    return hidden < HIDDEN_MAX ? hidden : HIDDEN_MAX;
}

static tw_status_t make_shapes(tw_bench_data_t *data)
{
    size_t left = data->params.n_elems, hidden = choose_hidden(left);
    tw_status_t status = TW_OK;
    for (size_t i = 0; left > 0 && status == TW_OK; i = (i + 1) % N_KINDS) {
        size_t columns = hidden * (size_t)layer[i].columns;
        size_t n = columns * (layer[i].rows > 0 ? hidden * (size_t)layer[i].rows : 1);
        n = n < left ? n : left;
        status = coll_add_tensor(data, n, (source_t){.kind = &layer[i], .columns = columns});
        left -= n;
    }
    snprintf(
        data->description, DESCRIPTION_BYTES,
        "%zu made-up tensors shaped like a transformer of hidden size %zu, with outliers, from seed %llu",
        data->n_tensors, hidden, (unsigned long long)data->params.seed);
    return status;
}

static int is_float(tw_type_t type)
{
    return type == TW_TYPE_FP32 || type == TW_TYPE_BF16 || type == TW_TYPE_FP16;
}

static size_t count_float_elems(const tw_safetensors_t *file)
{
    size_t n = 0;
    for (size_t i = 0; i < tw_safetensors_count(file); i++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file, i);
        n += is_float(tensor->type) ? tensor->n_elems : 0;
    }
    return n;
}

static tw_status_t read_shapes(tw_bench_data_t *data)
{
    const char *path = data->params.tensors;
    tw_status_t status = TW_OK;
    TW_TRY(tw_safetensors_open(path, &data->file));
    size_t in_file = count_float_elems(data->file), left = data->params.n_elems;
    TW_FAIL_IF(in_file == 0, TW_ERR_INVALID, "%s: holds no tensor of type F32, BF16 or F16", path);
    size_t n_tensors = tw_safetensors_count(data->file);
    for (size_t i = 0; left > 0 && status == TW_OK; i = (i + 1) % n_tensors) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(data->file, i);
        if (!is_float(tensor->type) || tensor->n_elems == 0) {
            continue;
        }
        size_t n = tensor->n_elems < left ? tensor->n_elems : left;
        status = coll_add_tensor(data, n, (source_t){.file = tensor});
        left -= n;
    }
    snprintf(data->description, DESCRIPTION_BYTES, "%zu tensors of %s (%.2f times its %zu weights)",
             data->n_tensors, path, (double)data->params.n_elems / (double)in_file, in_file);
    return status;
}

tw_status_t tw_bench_data_create(const tw_bench_data_params_t *params, tw_bench_data_t **out)
{
    TW_FAIL_IF(!is_float(params->type), TW_ERR_INVALID, "benchmark data: type %s is no float type",
               tw_type_name(params->type));
    tw_bench_data_t *data = calloc(1, sizeof(*data));
    TW_FAIL_IF(!data, TW_ERR_NO_MEMORY, "benchmark data: out of memory");
    data->params = *params;
    tw_status_t status = params->tensors ? read_shapes(data) : make_shapes(data);
    if (status != TW_OK) {
        tw_bench_data_destroy(data);
        return status;
    }
    *out = data;
    return TW_OK;
}

void tw_bench_data_destroy(tw_bench_data_t *data)
{
    if (!data) {
        return;
    }
    tw_safetensors_close(data->file);
    free(data->tensors);
    free(data->sources);
    free(data);
}

size_t tw_bench_data_count(const tw_bench_data_t *data)
{
    return data->n_tensors;
}

const tw_bench_tensor_t *tw_bench_data_tensor(const tw_bench_data_t *data, size_t index)
{
    return &data->tensors[index];
}

size_t tw_bench_data_buffer_elems(const tw_bench_data_t *data)
{
    return data->buffer_elems;
}

const char *tw_bench_data_describe(const tw_bench_data_t *data)
{
    return data->description;
}

/* ---- values -------------------------------------------------------------------------------------------- */

/** Mix 64 bits: the finalizer of splitmix64, which makes a random number of a counter. */
static uint64_t coll_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/** Return a nearly normal number of variance 1: the scaled sum of four uniform 16-bit numbers in `bits`. */
static float normal(uint64_t bits)
{
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return (float)(sum - 2 * 0xffff) * (1.7320508f / 65536);
}

/** Make values like the weights of trained models. Rows differ in scale by a factor of up to 4. One element
 *  in 2048 is an outlier: its scale is 8 to 23 times that of its row. */
static void make_values(const tw_bench_data_t *data, size_t tensor, int version, size_t first, size_t n,
                        float *out)
{
    const source_t *source = &data->sources[tensor];
    uint64_t key = coll_mix(data->params.seed + GOLDEN * (uint64_t)(tensor + 1));
    uint64_t stream = coll_mix(key ^ (uint64_t)version << 48);
    size_t row = first / source->columns, left = source->columns - first % source->columns;
    float row_scale = 0;
    for (size_t i = 0; i < n; i++, left--) {
        if (left == 0) {
            row++;
            left = source->columns;
        }
        if (i == 0 || left == source->columns) {
            row_scale = source->kind->sigma *
                        (float)(0.5 + 1.5 * (double)(coll_mix(key + ~(uint64_t)row) & 0xff) / 256.0);
        }
        uint64_t bits = coll_mix(stream + GOLDEN * (uint64_t)(first + i)), lot = bits * GOLDEN >> 48;
        float scale = (lot & 2047) == 0 ? row_scale * (float)(8 + (lot >> 12)) : row_scale;
        out[i] = source->kind->mean + scale * normal(bits);
    }
}

/** Convert n elements of a file's tensor to fp32. They are copied first, as they may be unaligned there. */
static void read_values(const tw_safetensors_tensor_t *tensor, size_t first, size_t n, float *out)
{
    uint32_t copy[BATCH_ELEMS];
    size_t elem_bytes = tw_type_bytes(tensor->type);
    memcpy(copy, (const char *)tensor->data + first * elem_bytes, n * elem_bytes);
    tw_convert_to_fp32(tensor->type, copy, out, n);
}

static void rotate_values(const source_t *source, size_t n_elems, int version, size_t first, size_t n,
                          float *out)
{
    size_t at = (first + ROTATION * (size_t)version) % n_elems;
    for (size_t done = 0; done < n;) {
        size_t run = n - done < n_elems - at ? n - done : n_elems - at;
        read_values(source->file, at, run, out + done);
        done += run;
        at = 0;
    }
}

void tw_bench_data_fill(const tw_bench_data_t *data, size_t tensor, int version, size_t first, size_t n,
                        void *dst)
{
    const source_t *source = &data->sources[tensor];
    size_t elem_bytes = tw_type_bytes(data->params.type);
    float batch[BATCH_ELEMS];
    for (size_t done = 0; done < n;) {
        size_t take = n - done < BATCH_ELEMS ? n - done : BATCH_ELEMS;
        if (source->file) {
            rotate_values(source, data->tensors[tensor].n_elems, version, first + done, take, batch);
        } else {
            make_values(data, tensor, version, first + done, take, batch);
        }
        tw_convert_from_fp32(data->params.type, batch, 1.0f, (char *)dst + done * elem_bytes, take);
        done += take;
    }
}
