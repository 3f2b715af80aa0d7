/* Sources of tensors: random numbers, made-up training steps, and files. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench/codecs/codecs.h"
#include "safetensors/safetensors.h"

#define PI 3.14159265358979323846

/* ---- random numbers ------------------------------------------------------------------------------------ */

static double random_uniform(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double random_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(random_uniform(state)));
    return radius * cos(2 * PI * random_uniform(state));
}

/** Make a tensor of normal numbers, each multiplied by a random log-normal scale with this sigma. */
static tw_status_t make_random(const cb_options_t *options, const char *name, double sigma, cb_set_t *set)
{
    uint64_t state = options->seed;
    TW_TRY(cb_set_init(set, name, 1));
    TW_TRY(cb_set_add(set, TW_TYPE_FP32, options->elems, 0));
    float *values = set->tensors[0].values;
    for (size_t i = 0; i < options->elems; i++) {
        values[i] = (float)random_normal(&state);
        values[i] *= sigma > 0 ? (float)exp(sigma * random_normal(&state)) : 1;
    }
    return TW_OK;
}

static tw_status_t make_gaussian(const cb_options_t *options, cb_set_t *sets)
{
    return make_random(options, "gaussian", 0, sets);
}

static tw_status_t make_heavy_tailed(const cb_options_t *options, cb_set_t *sets)
{
    return make_random(options, "heavy-tailed", 1.3, sets);
}

/* ---- weights of three steps in a row ------------------------------------------------------------------- */

#define MADE_STEPS 12 /* enough steps for AdamW's moments to settle */
#define SIGMA 0.02f
#define BETA1 0.9f
#define BETA2 0.95f

/** Return a sum of uniform numbers, which is nearly a normal number, and cheap. */
static float random_cheap(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state;
    float sum = (float)(x >> 48) + (float)(x >> 32 & 0xffff) + (float)(x >> 16 & 0xffff);
    return (sum * 0x1p-16f - 1.5f) * 2.0f;
}

/** Train a weight with AdamW; return its last 3 values. Its gradient is half a constant trend, half noise. */
static void make_weight(float lr, uint64_t *random, float last[3])
{
    float weight = SIGMA * random_cheap(random), trend = 0.5f * random_cheap(random), m = 0, v = 0;
    float power1 = 1, power2 = 1;
    for (int step = 0; step < MADE_STEPS; step++) {
        float gradient = trend + random_cheap(random);
        m = BETA1 * m + (1 - BETA1) * gradient;
        v = BETA2 * v + (1 - BETA2) * gradient * gradient;
        power1 *= BETA1;
        power2 *= BETA2;
        weight -= lr * (m / (1 - power1)) / (sqrtf(v / (1 - power2)) + 1e-8f);
        last[0] = last[1];
        last[1] = last[2];
        last[2] = weight;
    }
}

/** Read a file of raw bf16 values. It must have *n values, unless *n is 0: then *n is set to their number. */
static tw_status_t read_raw(const char *path, void **values, size_t *n)
{
    FILE *file = fopen(path, "rbe");
    long bytes = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    tw_status_t status = TW_ERR_IO;
    if (bytes < 0) {
        tw_error("bench: %s: %s", path, strerror(errno));
    } else if (bytes == 0 || bytes % 2 || (*n && (size_t)bytes / 2 != *n)) {
        tw_error("bench: %s: %ld bytes are not as many bf16 weights as the others, and some", path, bytes);
        status = TW_ERR_INVALID;
    } else {
        *n = (size_t)bytes / 2;
        rewind(file);
        status = cb_alloc((size_t)bytes, values);
    }
    if (status == TW_OK && fread(*values, 2, *n, file) != *n) {
        status = tw_fail(TW_ERR_IO, "bench: %s: could not be read", path);
    }
    if (file) {
        fclose(file);
    }
    return status;
}

static tw_status_t read_steps(const cb_options_t *options, cb_set_t *set)
{
    cb_tensor_t *tensor = set->tensors;
    set->n_tensors = 1;
    TW_TRY(read_raw(options->new_file, &tensor->values, &tensor->n_elems));
    TW_TRY(read_raw(options->old_file, &tensor->old, &tensor->n_elems));
    if (options->older_file) {
        TW_TRY(read_raw(options->older_file, &tensor->older, &tensor->n_elems));
    }
    set->n_elems = tensor->n_elems;
    set->bytes = 2 * tensor->n_elems;
    return TW_OK;
}

static tw_status_t make_up_steps(const cb_options_t *options, cb_set_t *set)
{
    uint64_t random = options->seed;
    TW_TRY(cb_set_add(set, TW_TYPE_BF16, options->elems, 0));
    cb_tensor_t *tensor = set->tensors;
    TW_TRY(cb_alloc(set->bytes, &tensor->old));
    TW_TRY(cb_alloc(set->bytes, &tensor->older));
    uint16_t *const places[3] = {tensor->older, tensor->old, tensor->values};
    for (size_t i = 0; i < options->elems; i++) {
        float last[3] = {0};
        make_weight((float)options->lr, &random, last);
        for (int k = 0; k < 3; k++) {
            tw_convert_from_fp32(TW_TYPE_BF16, &last[k], 1.0f, places[k] + i, 1);
        }
    }
    return TW_OK;
}

static tw_status_t make_steps(const cb_options_t *options, cb_set_t *sets)
{
    TW_TRY(cb_set_init(sets, options->new_file ? options->new_file : "synthetic", 1));
    TW_TRY(options->new_file ? read_steps(options, sets) : make_up_steps(options, sets));
    sets->tensors->type = TW_TYPE_BF16;
    sets->has_old = 1;
    sets->has_older = sets->tensors->older != NULL;
    return TW_OK;
}

/* ---- files --------------------------------------------------------------------------------------------- */

/** Copy the file's tensors of floating-point numbers, which may be unaligned in the file. */
static tw_status_t copy_tensors(const tw_safetensors_t *file, cb_set_t *set)
{
    for (size_t i = 0; i < tw_safetensors_count(file); i++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file, i);
        size_t row_elems = tensor->n_dims > 1 ? tensor->dims[tensor->n_dims - 1] : 0;
        if (tensor->type == TW_TYPE_BYTE || !tensor->n_elems) {
            continue;
        }
        TW_TRY(cb_set_add(set, tensor->type, tensor->n_elems, row_elems));
        memcpy(set->tensors[set->n_tensors - 1].values, tensor->data, tensor->bytes);
    }
    if (!set->n_elems) {
        tw_error("bench: %s: has no floating-point numbers", set->name);
    }
    return set->n_elems ? TW_OK : TW_ERR_INVALID;
}

static tw_status_t read_file(const cb_options_t *options, cb_set_t *sets)
{
    tw_safetensors_t *file;
    TW_TRY(tw_safetensors_open(options->file, &file));
    tw_status_t status = cb_set_init(sets, options->file, tw_safetensors_count(file));
    status = status == TW_OK ? copy_tensors(file, sets) : status;
    tw_safetensors_close(file);
    return status;
}

const cb_source_t cb_sources[] = {
    {"blocks", NULL},       {"gaussian", make_gaussian}, {"heavy-tailed", make_heavy_tailed},
    {"training", cb_train}, {"steps", make_steps},       {"file", read_file},
    {NULL, NULL},
};
