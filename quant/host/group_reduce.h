/** Sums of encoded inputs over groups, and the table of all operations: see group.h. */
#pragma once

#include "quant/host/group_decode.h"
#include "quant/host/group_encode.h"

/* Inputs that are added in registers between two accesses of y. */
#define SUM_INPUTS 4

/** Codes and scales of one block, in up to SUM_INPUTS inputs. */
typedef struct {
    const uint8_t *codes[SUM_INPUTS];
    float scale[SUM_INPUTS];
} inputs_t;

/** Set y[0..n) to the sum of n_inputs inputs, or if add is 1 add the inputs to y, one after the other. */
INLINE void sum_groups(tw_quant_kind_t kind, int n_inputs, int add, const inputs_t *inputs, float *y,
                       size_t n)
{
    decoder_t decoder[SUM_INPUTS];
    UNROLL
    for (int k = 0; k < n_inputs; k++) {
        decoder[k] = decoder_for(kind, inputs->scale[k]);
    }
    for (size_t i = 0; i < n; i += GROUP) {
        size_t at = i * TW_CODE_BITS(kind) / 8;
        group_t g =
            add ? group_load(TW_TYPE_FP32, y, i) : group_dequantize(kind, inputs->codes[0] + at, decoder[0]);
        UNROLL
        for (int k = 0; k < n_inputs; k++) {
            __builtin_prefetch(inputs->codes[k] + at + AHEAD_ELEMS * TW_CODE_BITS(kind) / 8);
            if (add || k > 0) {
                g = group_add(g, group_dequantize(kind, inputs->codes[k] + at, decoder[k]));
            }
        }
        group_store(TW_TYPE_FP32, y, i, g);
    }
}

INLINE void group_sum_of(int n_inputs, tw_quant_kind_t kind, int add, const inputs_t *inputs, float *y,
                         size_t n)
{
    TW_CODE_FOR_SUMS(kind, sum_groups, n_inputs, add, inputs, y, n);
}

/** Decode elements i to n - 1 one by one into y, or if add is 1 add them to y. */
static void sum_elements(tw_quant_kind_t kind, int add, const uint8_t *codes, float scale, float *y, size_t i,
                         size_t n)
{
    for (; i < n; i++) {
        float z = tw_block_decode_code(codes, kind, i, scale);
        y[i] = add ? tw_float_add(y[i], z) : z;
    }
}

/** Sum one block's first inputs into y: SUM_INPUTS of them if none of their scales may overflow, else one.
 *  Returns their number. */
static size_t sum_some(tw_quant_kind_t kind, int add, const inputs_t *inputs, size_t n_inputs, float *y,
                       size_t n)
{
    size_t ordinary = 0;
    while (ordinary < n_inputs && !tw_block_may_overflow(inputs->scale[ordinary], kind, 0, TW_TYPE_FP32)) {
        ordinary++; /* a NaN scale is not counted */
    }
    size_t taken = ordinary == SUM_INPUTS ? SUM_INPUTS : 1, whole = ordinary > 0 ? whole_groups(n) : 0;
    if (taken == SUM_INPUTS) {
        add ? group_sum_of(SUM_INPUTS, kind, 1, inputs, y, whole)
            : group_sum_of(SUM_INPUTS, kind, 0, inputs, y, whole);
    } else {
        add ? group_sum_of(1, kind, 1, inputs, y, whole) : group_sum_of(1, kind, 0, inputs, y, whole);
    }
    for (size_t k = 0; k < taken; k++) {
        sum_elements(kind, add || k > 0, inputs->codes[k], inputs->scale[k], y, whole, n);
    }
    return taken;
}

/** Set y to the sum of the inputs' elements first to first + n - 1; first is a multiple of 32. */
static void group_sum_inputs(const tw_quant_codec_t *codec, const tw_quant_reduce_segment_t *segment,
                             size_t first, size_t n, float *y)
{
    size_t block = (size_t)codec->block;
    for (size_t at = 0; at < n;) {
        size_t b = (first + at) / block, in_block = (first + at) % block;
        size_t here = block - in_block < n - at ? block - in_block : n - at;
        size_t scale_offset = tw_layout_scale_offset(codec, b);
        size_t codes_offset =
            tw_layout_codes_offset(codec, b) + tw_layout_code_bytes(TW_CODE_BITS(codec->kind), in_block);
        for (size_t k = 0; k < segment->n_srcs;) {
            inputs_t inputs;
            size_t n_inputs = segment->n_srcs - k < SUM_INPUTS ? segment->n_srcs - k : SUM_INPUTS;
            for (size_t j = 0; j < n_inputs; j++) {
                const uint8_t *src = segment->srcs[k + j];
                inputs.codes[j] = src + codes_offset;
                inputs.scale[j] = tw_layout_scale_get(src + scale_offset, codec->scale);
            }
            k += sum_some(codec->kind, k > 0, &inputs, n_inputs, y + at, here);
        }
        at += here;
    }
}

INLINE uint32_t finish_groups(int rotate_before, int rotate_after, float factor, float *y, size_t n)
{
    amax_t amax = amax_zero();
    for (size_t i = 0; i < n; i += GROUP) {
        group_t g = group_load(TW_TYPE_FP32, y, i);
        if (rotate_before) {
            g = group_rotate(g);
        }
        g = group_mul(g, factor);
        if (rotate_after) {
            g = group_rotate(g);
        }
        amax = amax_of_group(amax, g);
        group_store(TW_TYPE_FP32, y, i, g);
    }
    return amax_bits(amax);
}

/** Finish a sum in y: undo the inputs' rotation, multiply by factor, rotate for the output, add zeros up to a
 *  whole group. If undo and redo are both 1, y stays rotated. Returns the bits of the largest magnitude. */
static uint32_t finish_sum(int undo, int redo, float factor, float *y, size_t n)
{
    size_t whole = whole_groups(n), padded = whole_groups(n + GROUP - 1);
    uint32_t amax = undo && !redo   ? finish_groups(1, 0, factor, y, whole)
                    : redo && !undo ? finish_groups(0, 1, factor, y, whole)
                                    : finish_groups(0, 0, factor, y, whole);
    for (size_t i = n; i < padded; i++) {
        y[i] = 0.0f;
    }
    if (padded != whole) {
        uint32_t tail = finish_groups(0, 0, factor, y + whole, GROUP);
        amax = tail > amax ? tail : amax;
    }
    return amax;
}

static uint64_t reduce_encode_segment(const tw_quant_codec_t *in, const tw_quant_codec_t *out,
                                      const tw_quant_args_t *args, const tw_quant_reduce_segment_t *segment)
{
    encoder_t encoder = {out,        segment->dst,   segment->n_elems, args->seed, segment->first_elem,
                         args->step, segment->tensor};
    scratch_t scratch;
    size_t block = (size_t)out->block, blocks = tw_layout_block_count(out, segment->n_elems);
    size_t step = batch_blocks(out);
    uint64_t nonfinite = 0;
    for (size_t b = 0; b < blocks; b += step) {
        batch_t batch = batch_at(&encoder, b, step);
        group_sum_inputs(in, segment, batch.first, batch.n_elems, scratch.y);
        for (size_t j = 0; j < batch.n_blocks; j++) {
            batch.amax[j] = finish_sum(in->hadamard, out->hadamard, args->factor, scratch.y + j * block,
                                       elems_of_block(&batch, j, block));
        }
        nonfinite += encode_batch(&encoder, &batch, &scratch);
    }
    pad_segment(&encoder);
    return nonfinite;
}

INLINE int store_groups(tw_type_t type, int saturate, const float *y, size_t n, void *dst, size_t first)
{
    size_t i = 0;
    for (; i < whole_groups(n); i += GROUP) {
        group_t g = group_load(TW_TYPE_FP32, y, i);
        group_store(type, dst, first + i, saturate ? group_saturate(g, tw_float_type_max(type)) : g);
    }
    for (; i < n; i++) {
        if (saturate) {
            tw_float_store_saturate(type, dst, first + i, y[i]);
        } else {
            tw_float_store(type, dst, first + i, y[i]);
        }
    }
    return 0;
}

static void reduce_decode_segment(const tw_quant_codec_t *codec, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segment)
{
    scratch_t scratch;
    for (size_t b = 0; b < tw_layout_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        group_sum_inputs(codec, segment, first, n, scratch.y);
        finish_sum(codec->hadamard, 0, args->factor, scratch.y, n);
        FOR_TYPE(args->type, store_groups, args->saturate, scratch.y, n, segment->dst, first);
    }
}

static const tw_quant_host_t group_operations = {
    .encode = encode_segment,
    .decode = decode_segment,
    .reduce_encode = reduce_encode_segment,
    .reduce_decode = reduce_decode_segment,
};
