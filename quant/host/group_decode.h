/** Decoding over groups: see group.h. */
#pragma once

#include "quant/host/group.h"

/** Store a group in dst, or if apply is 1 add it to dst's elements. fp32 needs no saturation. */
INLINE void sink_group(tw_type_t type, int apply, void *dst, size_t i, group_t g)
{
    if (!apply) {
        group_store_decoded(type, dst, i, g);
        return;
    }
    g = group_add(group_load(type, dst, i), g);
    if (type == TW_TYPE_FP32 || group_is_below(g, tw_float_type_max(type))) {
        group_store_small(type, dst, i, g);
    } else {
        group_store(type, dst, i, group_saturate(g, tw_float_type_max(type)));
    }
}

/** Decode elements i (a multiple of 32) to n - 1 of a block one by one, to dst[first + i] and following. */
static void decode_scalar(const tw_quant_codec_t *codec, tw_type_t type, int apply, const uint8_t *codes,
                          float scale, void *dst, size_t first, size_t i, size_t n)
{
    float y[GROUP];
    for (; i < n; i += GROUP) {
        size_t in_group = n - i < GROUP ? n - i : GROUP;
        for (size_t j = 0; j < in_group; j++) {
            y[j] = tw_block_decode_code(codes, codec->kind, i + j, scale);
        }
        if (codec->hadamard && in_group == GROUP && !tw_block_scale_is_nonfinite(scale)) {
            tw_block_hadamard32(y);
        }
        for (size_t j = 0; j < in_group; j++) {
            float old = apply ? tw_float_load(type, dst, first + i + j) : 0.0f;
            tw_float_store_saturate(type, dst, first + i + j, apply ? tw_float_add(old, y[j]) : y[j]);
        }
    }
}

INLINE int decode_groups(tw_type_t type, tw_quant_kind_t kind, int hadamard, int apply, const uint8_t *codes,
                         float scale, void *dst, size_t first, size_t n)
{
    decoder_t decoder = decoder_for(kind, scale);
    for (size_t i = 0; i < n; i += GROUP) {
        if (apply) {
            group_fetch(type, dst, first + i + AHEAD_ELEMS);
        }
        group_t g = group_dequantize(kind, codes + i * TW_CODE_BITS(kind) / 8, decoder);
        sink_group(type, apply, dst, first + i, hadamard ? group_rotate(g) : g);
    }
    return 0;
}

INLINE int decode_apply(tw_type_t type, tw_quant_kind_t kind, int hadamard, int apply, const uint8_t *codes,
                        float scale, void *dst, size_t first, size_t n)
{
    return apply ? decode_groups(type, kind, hadamard, 1, codes, scale, dst, first, n)
                 : decode_groups(type, kind, hadamard, 0, codes, scale, dst, first, n);
}

INLINE int decode_kind(tw_quant_kind_t kind, tw_type_t type, int hadamard, int apply, const uint8_t *codes,
                       float scale, void *dst, size_t first, size_t n)
{
    if (hadamard) {
        return FOR_TYPE(type, decode_apply, kind, 1, apply, codes, scale, dst, first, n);
    }
    return FOR_TYPE(type, decode_apply, kind, 0, apply, codes, scale, dst, first, n);
}

/** Whether a block decodes fast: no result overflows, is NaN, or is too small for the bf16 instruction. */
INLINE int decodes_fast(const tw_quant_codec_t *codec, tw_type_t type, float scale)
{
    uint32_t magnitude = tw_float_abs_bits(scale);
    return !tw_block_may_overflow(scale, codec->kind, codec->hadamard, type) &&
           (magnitude == 0 || magnitude > GROUP_SCALE_TINY_BITS);
}

static void decode_segment(const tw_quant_codec_t *codec, tw_type_t type, const tw_quant_segment_t *segment,
                           int apply)
{
    const uint8_t *src = segment->src;
    for (size_t b = 0; b < tw_layout_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        const uint8_t *codes = src + tw_layout_codes_offset(codec, b);
        float scale = tw_layout_scale_get(src + tw_layout_scale_offset(codec, b), codec->scale);
        size_t in_groups = decodes_fast(codec, type, scale) ? whole_groups(n) : 0;
        TW_CODE_FOR(codec->kind, decode_kind, type, codec->hadamard, apply, codes, scale, segment->dst, first,
                    in_groups);
        decode_scalar(codec, type, apply, codes, scale, segment->dst, first, in_groups, n);
    }
}
