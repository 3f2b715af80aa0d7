/* bench/quant: error of one round trip, on made-up data and on real weights. */
#include "bench/codecs/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors/safetensors.h"

#define SYNTHETIC_ELEMS ((size_t)1 << 22)
/* Of the logarithm of each value's scale. */
#define HEAVY_SIGMA 1.3
#define PI 3.14159265358979323846

/* Sums over segments. */
typedef struct sums {
    double err2, ref2;
} sums_t;

static double uniform(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(2 * PI * uniform(state));
}

/** Encode and decode n values as a segment of their own; `work` holds n floats and the encoded bytes after
 *  them. */
static tw_status_t add_segment(tw_quant_t *quant, const float *x, size_t n, float *work, sums_t *sums)
{
    const tw_quant_args_t args = {.type = TW_TYPE_FP32, .seed = 1};
    tw_quant_segment_t encode = {.src = x, .dst = work + n, .n_elems = n};
    tw_quant_segment_t decode = {.src = work + n, .dst = work, .n_elems = n};
    TW_TRY(tw_quant_encode(quant, &args, &encode, 1));
    TW_TRY(tw_quant_decode(quant, &args, &decode, 1));
    for (size_t i = 0; i < n; i++) {
        double error = (double)work[i] - (double)x[i];
        sums->err2 += error * error;
        sums->ref2 += (double)x[i] * (double)x[i];
    }
    return TW_OK;
}

static tw_status_t make_context(const qb_options_t *options, const tw_quant_codec_t *codec,
                                tw_quant_t **quant)
{
    const tw_quant_params_t params = {.codec = *codec, .mem = TW_MEM_HOST, .backend = options->backend};
    return tw_quant_create(&params, quant);
}

/** n floats, n decoded ones, and room for their encoding. */
static float *allocate(const tw_quant_codec_t *codec, size_t n)
{
    float *x = tw_buffer_alloc(2 * n * sizeof(float) + tw_quant_encoded_bytes(codec, n));
    if (!x) {
        tw_error("bench: out of memory");
    }
    return x;
}

tw_status_t qb_error_synthetic(const qb_options_t *options, const tw_quant_codec_t *codec, int heavy_tailed,
                               double *rel_rmse)
{
    size_t n = SYNTHETIC_ELEMS;
    uint64_t state = 1;
    sums_t sums = {0, 0};
    tw_quant_t *quant;
    TW_TRY(make_context(options, codec, &quant));
    float *x = allocate(codec, n);
    tw_status_t status = x ? TW_OK : TW_ERR_NO_MEMORY;
    if (x) {
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)(normal(&state) * (heavy_tailed ? exp(HEAVY_SIGMA * normal(&state)) : 1));
        }
        status = add_segment(quant, x, n, x + n, &sums);
    }
    *rel_rmse = sqrt(sums.err2 / sums.ref2);
    tw_buffer_free(x);
    tw_quant_destroy(quant);
    return status;
}

/** The file's data may lie at any address. */
static tw_status_t add_tensor(tw_quant_t *quant, const tw_safetensors_tensor_t *tensor, sums_t *sums)
{
    float *x = allocate(tw_quant_codec_get(quant), tensor->n_elems);
    void *aligned = tw_buffer_alloc(tensor->bytes);
    tw_status_t status = x && aligned ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        memcpy(aligned, tensor->data, tensor->bytes);
        tw_convert_to_fp32(tensor->type, aligned, x, tensor->n_elems);
        status = add_segment(quant, x, tensor->n_elems, x + tensor->n_elems, sums);
    }
    tw_buffer_free(aligned);
    tw_buffer_free(x);
    return status;
}

tw_status_t qb_error_tensors(const qb_options_t *options, const tw_quant_codec_t *codec, double *rel_rmse)
{
    sums_t sums = {0, 0};
    tw_safetensors_t *file;
    TW_TRY(tw_safetensors_open(options->tensors, &file));
    tw_quant_t *quant = NULL;
    tw_status_t status = make_context(options, codec, &quant);
    for (size_t i = 0; status == TW_OK && i < tw_safetensors_count(file); i++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file, i);
        if (tensor->type != TW_TYPE_BYTE && tensor->n_elems > 0) {
            status = add_tensor(quant, tensor, &sums);
        }
    }
    if (status == TW_OK && sums.ref2 == 0) {
        tw_error("%s: no tensor of floats that are not all zero", options->tensors);
        status = TW_ERR_INVALID;
    }
    *rel_rmse = sqrt(sums.err2 / sums.ref2);
    tw_quant_destroy(quant);
    tw_safetensors_close(file);
    return status;
}
