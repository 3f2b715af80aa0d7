/* bench/lossless: tensors, and their entropy. */
#include "bench/lossless/lossless.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors/safetensors.h"

#define CODED 1024 /* numbers of 9 bits, less an octave's, biased */

tw_status_t lossless_set_init(lossless_set_t *set, const char *name, size_t n)
{
    *set = (lossless_set_t){.name = name, .tensors = calloc(n ? n : 1, sizeof(*set->tensors))};
    if (!set->tensors) {
        tw_error("bench: no memory for %zu tensors", n);
    }
    return set->tensors ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t lossless_set_add(lossless_set_t *set, tw_type_t type, size_t n_elems, size_t row_elems)
{
    void *values = tw_buffer_alloc(n_elems * tw_type_bytes(type));
    if (!values) {
        tw_error("bench: no memory for a tensor of %zu elements", n_elems);
        return TW_ERR_NO_MEMORY;
    }
    set->tensors[set->n_tensors++] = (lossless_tensor_t){type, n_elems, row_elems, values};
    set->n_elems += n_elems;
    return TW_OK;
}

void lossless_set_cleanup(lossless_set_t *set)
{
    for (size_t t = 0; t < set->n_tensors; t++) {
        tw_buffer_free(set->tensors[t].values);
    }
    free(set->tensors);
}

tw_status_t lossless_set_read(const char *path, lossless_set_t *set)
{
    tw_safetensors_t *file;
    TW_TRY(tw_safetensors_open(path, &file));
    tw_status_t status = lossless_set_init(set, path, tw_safetensors_count(file));
    for (size_t i = 0; i < tw_safetensors_count(file) && status == TW_OK; i++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file, i);
        if (tensor->type == TW_TYPE_BYTE || !tensor->n_elems) {
            continue;
        }
        size_t row_elems = tensor->n_dims > 1 ? tensor->dims[tensor->n_dims - 1] : 0;
        status = lossless_set_add(set, tensor->type, tensor->n_elems, row_elems);
        if (status == TW_OK) {
            memcpy(set->tensors[set->n_tensors - 1].values, tensor->data, tensor->bytes);
        }
    }
    tw_safetensors_close(file);
    if (status == TW_OK && !set->n_elems) {
        tw_error("bench: %s: has no floating-point numbers", path);
        status = TW_ERR_INVALID;
    }
    return status;
}

/* ---- entropy ------------------------------------------------------------------------------------------- */

static uint16_t head_of(const lossless_tensor_t *tensor, size_t i)
{
    uint16_t head;
    size_t bytes = tw_type_bytes(tensor->type);
    memcpy(&head, (const uint8_t *)tensor->values + i * bytes + bytes - sizeof(head), sizeof(head));
    return head;
}

/** In quarters of an octave. */
static double magnitude(const lossless_tensor_t *tensor, size_t i)
{
    return (head_of(tensor, i) & 0x7fff) >> 5;
}

/** The sum over counts of -count * log2(count / all). */
static double entropy_of(const double *counts, size_t n)
{
    double all = 0, bits = 0;
    for (size_t i = 0; i < n; i++) {
        all += counts[i];
    }
    for (size_t i = 0; i < n; i++) {
        bits -= counts[i] ? counts[i] * log2(counts[i] / all) : 0;
    }
    return bits;
}

static double tensor_bits(const lossless_tensor_t *tensor)
{
    double counts[512] = {0};
    for (size_t i = 0; i < tensor->n_elems; i++) {
        counts[head_of(tensor, i) >> 6 & 0x1ff]++;
    }
    return entropy_of(counts, 512);
}

/** scales: room for rows and columns. */
static double scales_bits(const lossless_tensor_t *tensor, double *scales)
{
    size_t columns = tensor->row_elems ? tensor->row_elems : tensor->n_elems,
           rows = tensor->n_elems / columns;
    double *of_column = scales + rows, (*counts)[CODED] = calloc(4, sizeof(*counts)), bits = 0;
    memset(scales, 0, (rows + columns) * sizeof(*scales));
    for (size_t i = 0; i < tensor->n_elems; i++) {
        scales[i / columns] += magnitude(tensor, i) / (double)columns;
    }
    for (size_t i = 0; i < tensor->n_elems && tensor->row_elems; i++) {
        of_column[i % columns] += (magnitude(tensor, i) - scales[i / columns]) / (double)rows;
    }
    for (size_t i = 0; i < tensor->n_elems && counts; i++) {
        int expected = (int)lround(scales[i / columns]) + (int)lround(of_column[i % columns]);
        int coded = (head_of(tensor, i) >> 6 & 0x1ff) - 2 * (expected >> 2) + CODED / 2;
        counts[expected & 3][coded < 0 ? 0 : coded < CODED ? coded : CODED - 1]++;
    }
    for (size_t phase = 0; phase < 4 && counts; phase++) {
        bits += entropy_of(counts[phase], CODED);
    }
    free(counts);
    return bits;
}

void lossless_set_entropy(const lossless_set_t *set, double *by_tensor, double *by_scales)
{
    *by_tensor = *by_scales = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        const lossless_tensor_t *tensor = &set->tensors[t];
        double others = tensor->type == TW_TYPE_FP16 ? NAN : 8.0 * (double)tw_type_bytes(tensor->type) - 9;
        double *scales = malloc((2 * tensor->n_elems + 1) * sizeof(*scales));
        *by_tensor += tensor_bits(tensor) + others * (double)tensor->n_elems;
        *by_scales += scales ? scales_bits(tensor, scales) + others * (double)tensor->n_elems : NAN;
        free(scales);
    }
    *by_tensor /= (double)set->n_elems;
    *by_scales /= (double)set->n_elems;
}
