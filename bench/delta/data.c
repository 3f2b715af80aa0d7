/* bench/delta: weights of three steps in a row, and their entropy. */
#include "bench/delta/delta.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 12 /* that the moments have time to settle in */
#define SIGMA 0.02f
#define BETA1 0.9f
#define BETA2 0.95f

/* ---- synthetic ----------------------------------------------------------------------------------------- */

/** A sum of uniforms: near enough to a normal distribution, and cheap. */
static float normal(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state;
    float sum = (float)(x >> 48) + (float)(x >> 32 & 0xffff) + (float)(x >> 16 & 0xffff);
    return (sum * 0x1p-16f - 1.5f) * 2.0f;
}

static uint16_t to_bf16(float x)
{
    uint16_t bits;
    tw_convert_from_fp32(TW_TYPE_BF16, &x, 1.0f, &bits, 1);
    return bits;
}

/** One weight through all steps. Its gradient is half a trend of its own, half noise. */
static void make_weight(const delta_data_t *data, size_t i, float lr, uint64_t *random)
{
    float weight = SIGMA * normal(random), trend = 0.5f * normal(random), m = 0, v = 0;
    float power1 = 1, power2 = 1;
    for (int step = 0; step < STEPS; step++) {
        data->older[i] = data->old[i];
        data->old[i] = data->new[i];
        float gradient = trend + normal(random);
        m = BETA1 * m + (1 - BETA1) * gradient;
        v = BETA2 * v + (1 - BETA2) * gradient * gradient;
        power1 *= BETA1;
        power2 *= BETA2;
        weight -= lr * (m / (1 - power1)) / (sqrtf(v / (1 - power2)) + 1e-8f);
        data->new[i] = to_bf16(weight);
    }
}

/* ---- files --------------------------------------------------------------------------------------------- */

static tw_status_t read_file(const char *name, uint16_t **values, size_t *n)
{
    FILE *file = fopen(name, "rb");
    long bytes = -1;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        bytes = ftell(file);
        rewind(file);
    }
    if (bytes < 0 || bytes % 2) {
        tw_error("bench: %s: %s", name, bytes < 0 ? strerror(errno) : "an odd number of bytes is no bf16");
        goto err_close;
    }
    *n = (size_t)bytes / 2;
    *values = tw_buffer_alloc((size_t)bytes);
    if (!*values || fread(*values, 2, *n, file) != *n) {
        tw_error("bench: %s: %s", name, *values ? "could not be read" : "no memory for it");
        goto err_close;
    }
    fclose(file);
    return TW_OK;

err_close:
    if (file) {
        fclose(file);
    }
    return TW_ERR_IO;
}

static tw_status_t read_files(const delta_options_t *options, delta_data_t *data)
{
    size_t n_new = 0, n_older = 0;
    tw_status_t status = read_file(options->old_file, &data->old, &data->n);
    if (status == TW_OK) {
        status = read_file(options->new_file, &data->new, &n_new);
    }
    if (status == TW_OK && options->older_file) {
        status = read_file(options->older_file, &data->older, &n_older);
    }
    if (status == TW_OK && (n_new != data->n || (options->older_file && n_older != data->n) || !data->n)) {
        tw_error("bench: the files have %zu, %zu and %zu weights: must be as many, and some", n_older,
                 data->n, n_new);
        status = TW_ERR_INVALID;
    }
    return status;
}

tw_status_t delta_data_create(const delta_options_t *options, delta_data_t *data)
{
    *data = (delta_data_t){.n = options->elems};
    if (options->old_file) {
        return read_files(options, data);
    }
    data->older = tw_buffer_alloc_zero(2 * data->n);
    data->old = tw_buffer_alloc_zero(2 * data->n);
    data->new = tw_buffer_alloc_zero(2 * data->n);
    if (!data->older || !data->old || !data->new) {
        tw_error("bench: no memory for %zu weights", data->n);
        return TW_ERR_NO_MEMORY;
    }
    uint64_t random = options->seed;
    for (size_t i = 0; i < data->n; i++) {
        make_weight(data, i, (float)options->lr, &random);
    }
    return TW_OK;
}

void delta_data_destroy(delta_data_t *data)
{
    tw_buffer_free(data->older);
    tw_buffer_free(data->old);
    tw_buffer_free(data->new);
}

/* ---- entropy ------------------------------------------------------------------------------------------- */

/** In units in the last place. */
static int16_t change(uint16_t from, uint16_t to)
{
    uint16_t a = from & 0x8000 ? from ^ 0x7fff : from, b = to & 0x8000 ? to ^ 0x7fff : to;
    return (int16_t)(b - a);
}

/** The sign, and the size to three binary digits. */
static uint32_t coarse(int16_t x)
{
    uint32_t size = (uint32_t)(x < 0 ? -x : x), shift = 0;
    while (size >> shift > 7) {
        shift++;
    }
    return (shift << 3 | size >> shift) << 1 | (x < 0);
}

/** The context in the upper half, the change in the lower. */
static uint32_t key_of(const delta_data_t *data, int contexts, size_t i)
{
    uint32_t context = data->old[i] >> 7 & 0xff;
    if (contexts == 2) {
        context |= coarse(change(data->older[i], data->old[i])) << 8;
    }
    return context << 16 | (uint16_t)change(data->old[i], data->new[i]);
}

static int compare_keys(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/** The sum of count * log2(count) over runs of keys that are equal but for their low bits. */
static double sum_of_runs(const uint32_t *keys, size_t n, int low_bits)
{
    double sum = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        count++;
        if (i + 1 == n || keys[i] >> low_bits != keys[i + 1] >> low_bits) {
            sum += count * log2(count);
            count = 0;
        }
    }
    return sum;
}

tw_status_t delta_data_entropy(const delta_data_t *data, int contexts, double *bits)
{
    uint32_t *keys = tw_buffer_alloc(data->n * sizeof(*keys));
    if (!keys) {
        tw_error("bench: no memory for the entropy of %zu weights", data->n);
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < data->n; i++) {
        keys[i] = key_of(data, contexts, i);
    }
    qsort(keys, data->n, sizeof(*keys), compare_keys);
    *bits = (sum_of_runs(keys, data->n, 16) - sum_of_runs(keys, data->n, 0)) / (double)data->n;
    tw_buffer_free(keys);
    return TW_OK;
}
