/** Decoding over groups: see quant_group.h. */
#ifndef TW_QUANT_HOST_GROUP_DECODE_H
#define TW_QUANT_HOST_GROUP_DECODE_H

#include "quant/host/group_common.h"

typedef enum { SINK_STORE, SINK_ADD, SINK_APPLY } sink_t;

GROUP_FN void sink_group(tw_type_t type, sink_t sink, void *dst, size_t i, group_t g)
{
    if (sink == SINK_STORE) {
        group_store_decoded(type, dst, i, g);
        return;
    }
    g = group_add(group_load(type, dst, i), g);
    if (sink == SINK_ADD || group_is_below(g, tw_qb_type_max(type))) {
        group_store_small(type, dst, i, g);
    } else {
        group_store(type, dst, i, group_saturate(g, tw_qb_type_max(type)));
    }
}

static void sink_element(tw_type_t type, sink_t sink, void *dst, size_t i, float y)
{
    if (sink == SINK_ADD) {
        ((float *)dst)[i] = tw_qb_add(((const float *)dst)[i], y);
    } else if (sink == SINK_APPLY) {
        tw_qb_store_saturate(type, dst, i, tw_qb_add(tw_qb_load(type, dst, i), y));
    } else {
        tw_qb_store_saturate(type, dst, i, y);
    }
}

/* Elements [i, n) of a block, one by one: `i` is at a whole group. */
static void decode_scalar(const tw_quant_codec_t *codec, tw_type_t type, sink_t sink, const uint8_t *codes,
                          float scale, void *dst, size_t first, size_t i, size_t n)
{
    float y[GROUP];
    for (; i < n; i += GROUP) {
        size_t in_group = n - i < GROUP ? n - i : GROUP;
        for (size_t j = 0; j < in_group; j++) {
            y[j] = tw_qb_scale_is_nonfinite(scale)
                       ? tw_qb_float(TW_QB_NAN_BITS)
                       : tw_qb_dequantize(tw_qb_code_get(codes, codec->bits, i + j), scale);
        }
        if (codec->hadamard && in_group == GROUP && !tw_qb_scale_is_nonfinite(scale)) {
            tw_qb_hadamard32(y);
        }
        for (size_t j = 0; j < in_group; j++) {
            sink_element(type, sink, dst, first + i + j, y[j]);
        }
    }
}

GROUP_FN int decode_groups(tw_type_t type, int bits, int hadamard, sink_t sink, const uint8_t *codes,
                           float scale, void *dst, size_t first, size_t n)
{
    decoder_t decoder = decoder_for(bits, scale);
    for (size_t i = 0; i < n; i += GROUP) {
        if (sink != SINK_STORE) {
            group_fetch(type, dst, first + i + AHEAD_ELEMS);
        }
        group_t g = group_dequantize(bits, codes + i * (size_t)bits / 8, decoder);
        sink_group(type, sink, dst, first + i, hadamard ? group_rotate(g) : g);
    }
    return 0;
}

GROUP_FN int decode_sink(tw_type_t type, int bits, int hadamard, sink_t sink, const uint8_t *codes,
                         float scale, void *dst, size_t first, size_t n)
{
    if (type == TW_TYPE_FP32 && sink == SINK_ADD) { /* has no other type */
        return decode_groups(type, bits, hadamard, SINK_ADD, codes, scale, dst, first, n);
    }
    if (sink == SINK_APPLY) {
        return decode_groups(type, bits, hadamard, SINK_APPLY, codes, scale, dst, first, n);
    }
    return decode_groups(type, bits, hadamard, SINK_STORE, codes, scale, dst, first, n);
}

GROUP_FN int decode_bits(int bits, tw_type_t type, int hadamard, sink_t sink, const uint8_t *codes,
                         float scale, void *dst, size_t first, size_t n)
{
    if (hadamard) {
        return FOR_TYPE(type, decode_sink, bits, 1, sink, codes, scale, dst, first, n);
    }
    return FOR_TYPE(type, decode_sink, bits, 0, sink, codes, scale, dst, first, n);
}

/* No result overflows or is a NaN, nor too small for the instructions. */
GROUP_FN int decodes_fast(const tw_quant_codec_t *codec, tw_type_t type, float scale)
{
    uint32_t magnitude = tw_qb_abs_bits(scale);
    return !tw_qb_may_overflow(scale, codec->bits, codec->hadamard, type) &&
           (magnitude == 0 || magnitude > GROUP_SCALE_TINY_BITS);
}

static void decode_segment(const tw_quant_codec_t *codec, tw_type_t type, const tw_quant_segment_t *segment,
                           sink_t sink)
{
    const uint8_t *src = segment->src;
    for (size_t b = 0; b < tw_qb_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_qb_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        const uint8_t *codes = src + tw_qb_codes_offset(codec, b);
        float scale = tw_qb_scale_get(src + tw_qb_scale_offset(codec, b), codec->scale);
        size_t in_groups = decodes_fast(codec, type, scale) ? whole_groups(n) : 0;
        FOR_BITS(codec->bits, decode_bits, type, codec->hadamard, sink, codes, scale, segment->dst, first,
                 in_groups);
        decode_scalar(codec, type, sink, codes, scale, segment->dst, first, in_groups, n);
    }
}

#endif
