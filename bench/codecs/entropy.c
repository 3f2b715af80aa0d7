/* A lower limit of the bits that tensors need: their empirical entropy, given the values that the decoder
 * already has. It is too low for few elements, because the bits of a code's tables are not counted. */
#include <math.h>
#include <stdlib.h>

#include "bench/codecs/codecs.h"

static int compare_keys(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/** Return the sum of count * log2(count) over runs of sorted keys that differ only in their low bits. */
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

/** Return the entropy of symbols (keys' lower 16 bits) given contexts (upper 16 bits). Sorts the keys. */
static double entropy_of(uint32_t *keys, size_t n)
{
    qsort(keys, n, sizeof(*keys), compare_keys);
    return sum_of_runs(keys, n, 16) - sum_of_runs(keys, n, 0);
}

/** Return the upper 16 bits of an element: sign, exponent and first bits of the mantissa. */
static uint32_t codecs_head_of(const cb_tensor_t *tensor, size_t i)
{
    return tensor->type == TW_TYPE_FP32 ? ((const uint32_t *)tensor->values)[i] >> 16
                                        : ((const uint16_t *)tensor->values)[i];
}

/** Return an element's magnitude in quarters of an octave: its exponent and two bits of its mantissa. */
static double magnitude(const cb_tensor_t *tensor, size_t i)
{
    return (codecs_head_of(tensor, i) & 0x7fff) >> 5;
}

/** Make the keys of a tensor for the lossless codec: sign, exponent and first bit of the mantissa, minus the
 *  exponent that the scales of row and column predict. Returns 0 if there is no memory. */
static int make_keys(const cb_tensor_t *tensor, size_t number, uint32_t *keys)
{
    size_t columns = tensor->row_elems ? tensor->row_elems : tensor->n_elems,
           rows = tensor->n_elems / columns;
    double *scales = calloc(rows + columns, sizeof(*scales)), *of_column = scales + rows;
    if (!scales) {
        return 0;
    }
    for (size_t i = 0; i < tensor->n_elems; i++) {
        scales[i / columns] += magnitude(tensor, i) / (double)columns;
    }
    for (size_t i = 0; i < tensor->n_elems && tensor->row_elems; i++) {
        of_column[i % columns] += (magnitude(tensor, i) - scales[i / columns]) / (double)rows;
    }
    for (size_t i = 0; i < tensor->n_elems; i++) {
        int expected = (int)lround(scales[i / columns]) + (int)lround(of_column[i % columns]);
        int symbol = (int)(codecs_head_of(tensor, i) >> 6 & 0x1ff) - 2 * (expected >> 2);
        keys[i] = (uint32_t)(number * 4 + (size_t)(expected & 3)) << 16 | (uint16_t)symbol;
    }
    free(scales);
    return 1;
}

/** Return the number of bits of an element that are not in its key. */
static double rest_bits(tw_type_t type)
{
    return type == TW_TYPE_FP16 ? NAN : 8.0 * (double)tw_type_bytes(type) - 9;
}

static double lossless_bits(const cb_set_t *set, uint32_t *keys)
{
    double bits = 0;
    size_t at = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        const cb_tensor_t *tensor = &set->tensors[t];
        bits += make_keys(tensor, t, keys + at) ? rest_bits(tensor->type) * (double)tensor->n_elems : NAN;
        at += tensor->n_elems;
    }
    return bits + entropy_of(keys, at);
}

/** Return the change of a bf16 value in units in the last place. */
static int16_t change(uint16_t from, uint16_t to)
{
    uint16_t a = from & 0x8000 ? from ^ 0x7fff : from, b = to & 0x8000 ? to ^ 0x7fff : to;
    return (int16_t)(b - a);
}

/** Return a code of a change's sign and of its size, rounded to three binary digits. */
static uint32_t coarse(int16_t x)
{
    uint32_t size = (uint32_t)(x < 0 ? -x : x), shift = 0;
    while (size >> shift > 7) {
        shift++;
    }
    return (shift << 3 | size >> shift) << 1 | (x < 0);
}

static double delta_bits(const cb_set_t *set, int contexts, uint32_t *keys)
{
    size_t n = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        const uint16_t *new = set->tensors[t].values, *old = set->tensors[t].old,
                       *older = set->tensors[t].older;
        for (size_t i = 0; i < set->tensors[t].n_elems; i++) {
            uint32_t context = old[i] >> 7 & 0xff;
            context |= contexts == 2 ? coarse(change(older[i], old[i])) << 8 : 0;
            keys[n++] = context << 16 | (uint16_t)change(old[i], new[i]);
        }
    }
    return entropy_of(keys, n);
}

double cb_floor_bits(const cb_set_t *set, const tw_quant_codec_t *codec, int contexts)
{
    tw_quant_form_t form = tw_quant_form(codec);
    int is_known = (form == TW_QUANT_MESSAGE || form == TW_QUANT_CHANGE) &&
                   tw_quant_loses(codec) == TW_QUANT_LOSES_NOTHING;
    uint32_t *keys = is_known ? tw_buffer_alloc(set->n_elems * sizeof(*keys)) : NULL;
    double bits = !keys                     ? NAN
                  : form == TW_QUANT_CHANGE ? delta_bits(set, contexts, keys)
                                            : lossless_bits(set, keys);
    tw_buffer_free(keys);
    return bits / (double)set->n_elems;
}
