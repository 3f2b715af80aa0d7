/** Encoding over groups: see quant_group.h. */
#ifndef TW_QUANT_GROUP_ENCODE_H
#define TW_QUANT_GROUP_ENCODE_H

#include "quant/group_common.h"

/** One block's worth of fp32 and of random words (and what alignment to quads adds), cache lines aligned. */
typedef struct {
    float y[TW_QUANT_BLOCK_MAX] __attribute__((aligned(64)));
    uint32_t words[TW_QUANT_BLOCK_MAX + 8 * RANDOM_QUADS] __attribute__((aligned(64)));
    uint8_t codes[TW_QUANT_BLOCK_MAX] __attribute__((aligned(64)));
} scratch_t;

/** What the blocks of a segment are encoded into. */
typedef struct {
    const tw_quant_codec_t *codec;
    uint8_t *dst;
    size_t n_elems;
    uint64_t seed, first_elem;
    uint32_t step, tensor;
} encoder_t;

GROUP_FN int quantize_groups(tw_type_t type, int bits, const void *src, size_t first, size_t n, float inverse,
                             uint8_t *codes)
{
    for (size_t i = 0; i < n; i += GROUP)
        group_quantize(bits, group_load(type, src, first + i), inverse, codes + i * (size_t)bits / 8);
    return 0;
}

GROUP_FN int quantize_bits(int bits, tw_type_t type, const void *src, size_t first, size_t n, float inverse,
                           uint8_t *codes)
{
    return FOR_TYPE(type, quantize_groups, bits, src, first, n, inverse, codes);
}

/* n is a multiple of the group. */
static void quantize_plain(int bits, tw_type_t type, const void *src, size_t first, size_t n, float inverse,
                           uint8_t *codes)
{
    FOR_BITS(bits, quantize_bits, type, src, first, n, inverse, codes);
}

GROUP_FN int quantize_stochastic_groups(int bits, const float *y, size_t n, float inverse,
                                        const uint32_t *words, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += GROUP) {
        group_t g = group_load(TW_TYPE_FP32, y, i);
        group_quantize_stochastic(bits, g, inverse, words + i, codes + i * (size_t)bits / 8);
    }
    return 0;
}

/* Random words of n elements from `elem` on; returns where the first one is. */
static const uint32_t *random_words(const encoder_t *encoder, uint64_t elem, size_t n, uint32_t *words)
{
    size_t skip = elem % 4;
    for (size_t i = 0; i < skip + n; i += 4 * RANDOM_QUADS)
        random_quads(encoder->seed, encoder->step, encoder->tensor, (elem + i) / 4, words + i);
    return words + skip;
}

/* Codes of `padded` values at y, a multiple of the group. */
static void quantize_scratch(const encoder_t *encoder, scratch_t *scratch, size_t first, size_t padded,
                             float inverse, uint8_t *codes)
{
    int bits = encoder->codec->bits;
    if (encoder->codec->round == TW_QUANT_ROUND_NEAREST) {
        quantize_plain(bits, TW_TYPE_FP32, scratch->y, 0, padded, inverse, codes);
        return;
    }
    const uint32_t *words = random_words(encoder, encoder->first_elem + first, padded, scratch->words);
    FOR_BITS(bits, quantize_stochastic_groups, scratch->y, padded, inverse, words, codes);
}

/* Store block b's scale for its largest magnitude. Returns 1, with *inverse 0, for a non-finite block. */
static uint64_t put_scale(const encoder_t *encoder, size_t b, uint32_t amax, float *inverse)
{
    const tw_quant_codec_t *codec = encoder->codec;
    int nonfinite = tw_qb_amax_is_nonfinite(amax, codec->hadamard);
    float scale = nonfinite ? tw_qb_float(TW_QB_NAN_BITS)
                            : tw_qb_scale(tw_qb_float(amax), tw_qb_qmax(codec->bits), codec->scale);
    *inverse = nonfinite ? 0.0f : tw_qb_inverse(scale);
    tw_qb_scale_put(encoder->dst + tw_qb_scale_offset(codec, b), codec->scale, scale);
    return (uint64_t)nonfinite;
}

/* Encode block b, whose n values are in the scratch, zeros after them up to a whole group. */
static uint64_t encode_scratch(const encoder_t *encoder, scratch_t *scratch, size_t b, size_t n,
                               uint32_t amax)
{
    const tw_quant_codec_t *codec = encoder->codec;
    uint8_t *codes = encoder->dst + tw_qb_codes_offset(codec, b);
    size_t bytes = tw_qb_code_bytes(codec->bits, n), padded = whole_groups(n + GROUP - 1);
    float inverse;
    if (put_scale(encoder, b, amax, &inverse)) {
        memset(codes, 0, bytes);
        return 1;
    }
    quantize_scratch(encoder, scratch, b * (size_t)codec->block, padded, inverse,
                     padded == n ? codes : scratch->codes);
    if (padded != n)
        memcpy(codes, scratch->codes, bytes);
    return 0;
}

GROUP_FN uint32_t amax_groups(tw_type_t type, const void *src, size_t first, size_t n)
{
    if (type != TW_TYPE_FP32) {
        uint16_t half = amax_of_halves((const uint16_t *)src + first, n);
        return tw_qb_bits(tw_qb_load(type, &half, 0));
    }
    amax_t amax = amax_zero();
    for (size_t i = 0; i < n; i += GROUP)
        amax = amax_of_group(amax, group_load(type, src, first + i));
    return amax_bits(amax);
}

/* Fill y with the source, or its difference to the base, rotated or not, and zeros up to a whole group.
 * Returns the largest magnitude. */
GROUP_FN uint32_t load_groups(tw_type_t type, int delta, int rotate, const tw_quant_segment_t *segment,
                              size_t first, size_t n, float *y)
{
    amax_t amax = amax_zero();
    size_t i = 0;
    for (; i < whole_groups(n); i += GROUP) {
        group_t g = delta ? group_sub(group_load(TW_TYPE_FP32, segment->src, first + i),
                                      group_load(type, segment->base, first + i))
                          : group_load(type, segment->src, first + i);
        if (rotate)
            g = group_rotate(g);
        amax = amax_of_group(amax, g);
        group_store(TW_TYPE_FP32, y, i, g);
    }
    if (i == n)
        return amax_bits(amax);
    for (; i < n; i++) {
        float x = tw_qb_load(delta ? TW_TYPE_FP32 : type, segment->src, first + i);
        y[i] = delta ? tw_qb_sub(x, tw_qb_load(type, segment->base, first + i)) : x;
    }
    for (; i % GROUP; i++)
        y[i] = 0.0f;
    return amax_bits(amax_of_group(amax, group_load(TW_TYPE_FP32, y, i - GROUP)));
}

GROUP_FN uint32_t load_plain(tw_type_t type, int rotate, const tw_quant_segment_t *segment, size_t first,
                             size_t n, float *y)
{
    return rotate ? load_groups(type, 0, 1, segment, first, n, y)
                  : load_groups(type, 0, 0, segment, first, n, y);
}

GROUP_FN uint32_t load_delta(tw_type_t type, int rotate, const tw_quant_segment_t *segment, size_t first,
                             size_t n, float *y)
{
    return rotate ? load_groups(type, 1, 1, segment, first, n, y)
                  : load_groups(type, 1, 0, segment, first, n, y);
}

/* Make the bytes before block b zero that no block writes: the scales of a short last frame. */
static void start_frame(const encoder_t *encoder, size_t b)
{
    size_t frame_elems = tw_qb_frame_elems(encoder->codec);
    if (b % TW_QUANT_FRAME_BLOCKS == 0 && encoder->n_elems - b * (size_t)encoder->codec->block < frame_elems)
        memset(encoder->dst + tw_qb_scale_offset(encoder->codec, b), 0,
               tw_qb_frame_scales_bytes(encoder->codec));
}

static void pad_segment(const encoder_t *encoder)
{
    size_t payload = tw_qb_payload_bytes(encoder->codec, encoder->n_elems);
    memset(encoder->dst + payload, 0, tw_qb_encoded_bytes(encoder->codec, encoder->n_elems) - payload);
}

static uint64_t encode_segment(const tw_quant_codec_t *codec, const tw_quant_args_t *args,
                               const tw_quant_segment_t *segment, int delta)
{
    encoder_t encoder = {codec,      segment->dst,   segment->n_elems, args->seed, segment->first_elem,
                         args->step, segment->tensor};
    scratch_t scratch;
    uint64_t nonfinite = 0;
    int direct = !delta && !codec->hadamard && codec->round == TW_QUANT_ROUND_NEAREST;
    for (size_t b = 0; b < tw_qb_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_qb_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        start_frame(&encoder, b);
        if (direct && n % GROUP == 0) {
            uint8_t *codes = encoder.dst + tw_qb_codes_offset(codec, b);
            float inverse;
            nonfinite +=
                put_scale(&encoder, b, FOR_TYPE(args->type, amax_groups, segment->src, first, n), &inverse);
            if (inverse != 0.0f)
                quantize_plain(codec->bits, args->type, segment->src, first, n, inverse, codes);
            else
                memset(codes, 0, tw_qb_code_bytes(codec->bits, n));
            continue;
        }
        uint32_t amax = delta
                            ? FOR_TYPE(args->type, load_delta, codec->hadamard, segment, first, n, scratch.y)
                            : FOR_TYPE(args->type, load_plain, codec->hadamard, segment, first, n, scratch.y);
        nonfinite += encode_scratch(&encoder, &scratch, b, n, amax);
    }
    pad_segment(&encoder);
    return nonfinite;
}

#endif
