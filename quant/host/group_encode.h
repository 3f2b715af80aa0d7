/** Encoding over groups: see group.h.
 *
 *  Blocks are encoded in batches of up to 8, which fit in the first-level cache and are in one frame: first
 *  the largest magnitude of each block, then all scales at once (so that divisions overlap), then codes. */
#pragma once

#include "quant/host/group.h"

#define BATCH_ELEMS 2048

/** Scratch: values and random words of a batch, and codes of a block. */
typedef struct {
    float y[TW_QUANT_BLOCK_MAX] __attribute__((aligned(64)));
    uint32_t words[TW_QUANT_BLOCK_MAX + 8 * RANDOM_QUADS] __attribute__((aligned(64)));
    uint8_t codes[TW_QUANT_BLOCK_MAX] __attribute__((aligned(64)));
} scratch_t;

/** The destination of a segment's blocks, and the key of its random words. */
typedef struct {
    const tw_quant_codec_t *codec;
    uint8_t *dst;
    size_t n_elems;
    uint64_t seed, first_elem;
    uint32_t step, tensor;
} encoder_t;

/** A batch of up to 8 blocks from block b on. Block j's values begin at src[first + j * block], or in the
 *  scratch. */
typedef struct {
    size_t b, n_blocks, first, n_elems;
    uint32_t amax[TW_QUANT_FRAME_BLOCKS]; /**< bits of the blocks' largest magnitudes; 0 past n_blocks */
    /** NULL: all values are in the scratch; else only those of a block that ends within a group */
    const void *src;
    tw_type_t type; /**< type of src */
} batch_t;

/* ---- batches ------------------------------------------------------------------------------------------- */

static size_t batch_blocks(const tw_quant_codec_t *codec)
{
    size_t n = TW_QUANT_FRAME_BLOCKS;
    while (n > 1 && n * (size_t)codec->block > BATCH_ELEMS) {
        n /= 2;
    }
    return n;
}

/** Make the batch from block b on. */
static batch_t batch_at(const encoder_t *encoder, size_t b, size_t max_blocks)
{
    size_t block = (size_t)encoder->codec->block, first = b * block, left = encoder->n_elems - first;
    size_t n = left < max_blocks * block ? left : max_blocks * block;
    return (batch_t){.b = b, .n_blocks = (n + block - 1) / block, .first = first, .n_elems = n};
}

INLINE size_t elems_of_block(const batch_t *batch, size_t j, size_t block)
{
    size_t left = batch->n_elems - j * block;
    return left < block ? left : block;
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/** Quantize directly from the source, and prefetch the next batch. */
INLINE int quantize_groups(tw_type_t type, tw_quant_kind_t kind, const void *src, size_t first, size_t n,
                           float inverse, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += GROUP) {
        group_fetch(type, src, first + i + AHEAD_ELEMS);
        group_quantize(kind, group_load(type, src, first + i), inverse, codes + i * TW_CODE_BITS(kind) / 8);
    }
    return 0;
}

INLINE int quantize_fp32(tw_quant_kind_t kind, const float *y, size_t n, float inverse, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += GROUP) {
        group_quantize(kind, group_load(TW_TYPE_FP32, y, i), inverse, codes + i * TW_CODE_BITS(kind) / 8);
    }
    return 0;
}

INLINE int quantize_type(tw_quant_kind_t kind, tw_type_t type, const void *src, size_t first, size_t n,
                         float inverse, uint8_t *codes)
{
    return FOR_TYPE(type, quantize_groups, kind, src, first, n, inverse, codes);
}

INLINE int quantize_stochastic_groups(tw_quant_kind_t kind, const float *y, size_t n, float inverse,
                                      const uint32_t *words, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += GROUP) {
        group_t g = group_load(TW_TYPE_FP32, y, i);
        group_quantize_stochastic(kind, g, inverse, words + i, codes + i * TW_CODE_BITS(kind) / 8);
    }
    return 0;
}

/** Make the random words of n elements from `elem` on, in `words`. Returns the address of the first one. */
static const uint32_t *random_words(const encoder_t *encoder, uint64_t elem, size_t n, uint32_t *words)
{
    size_t skip = elem % 4;
    for (size_t i = 0; i < skip + n; i += 4 * RANDOM_QUADS) {
        random_quads(encoder->seed, encoder->step, encoder->tensor, (elem + i) / 4, words + i);
    }
    return words + skip;
}

/** Make the codes of the batch's block j. `words`: random words of the batch; NULL to round to nearest. */
INLINE void quantize_block(const tw_quant_codec_t *codec, const batch_t *batch, size_t j, float inverse,
                           const uint32_t *words, scratch_t *scratch, uint8_t *codes)
{
    size_t block = (size_t)codec->block, n = elems_of_block(batch, j, block);
    size_t padded = whole_groups(n + GROUP - 1);
    if (inverse == 0.0f) { /* the block is all zeros or non-finite */
        memset(codes, 0, tw_layout_code_bytes(TW_CODE_BITS(codec->kind), n));
        return;
    }
    uint8_t *at = padded == n ? codes : scratch->codes;
    const float *y = scratch->y + j * block;
    if (words) {
        TW_CODE_FOR(codec->kind, quantize_stochastic_groups, y, padded, inverse, words + j * block, at);
    } else if (batch->src && padded == n) {
        TW_CODE_FOR(codec->kind, quantize_type, batch->type, batch->src, batch->first + j * block, n, inverse,
                    at);
    } else {
        TW_CODE_FOR(codec->kind, quantize_fp32, y, padded, inverse, at);
    }
    if (padded != n) {
        memcpy(codes, scratch->codes, tw_layout_code_bytes(TW_CODE_BITS(codec->kind), n));
    }
}

/** Encode a batch whose largest magnitudes are known. Returns the number of non-finite blocks. */
static uint64_t encode_batch(const encoder_t *encoder, const batch_t *batch, scratch_t *scratch)
{
    const tw_quant_codec_t *codec = encoder->codec;
    uint8_t *frame = encoder->dst + batch->b / TW_QUANT_FRAME_BLOCKS * tw_layout_frame_bytes(codec);
    size_t in_frame = batch->b % TW_QUANT_FRAME_BLOCKS, scale_bytes = tw_layout_scale_bytes(codec->scale);
    size_t block_bytes = tw_layout_code_bytes(TW_CODE_BITS(codec->kind), (size_t)codec->block);
    uint8_t *codes = frame + tw_layout_frame_scales_bytes(codec) + in_frame * block_bytes;
    uint32_t scale[TW_QUANT_FRAME_BLOCKS],
        limit = codec->hadamard ? TW_BLOCK_LIMIT_ROTATED : TW_FLOAT_MAX_BITS;
    float inverse[TW_QUANT_FRAME_BLOCKS];
    const uint32_t *words = NULL;
    uint64_t nonfinite = 0;
    scales8(batch->amax, limit, tw_block_reach(codec->kind), codec->scale, scale, inverse);
    if (codec->round == TW_QUANT_ROUND_STOCHASTIC) {
        words =
            random_words(encoder, encoder->first_elem + batch->first, batch->n_elems + GROUP, scratch->words);
    }
    for (size_t j = 0; j < batch->n_blocks; j++) {
        /* These machines are little-endian, so a bf16 scale is the last two bytes of the fp32. */
        memcpy(frame + (in_frame + j) * scale_bytes, (const uint8_t *)&scale[j] + 4 - scale_bytes,
               scale_bytes);
        nonfinite += scale[j] == TW_FLOAT_NAN_BITS;
        quantize_block(codec, batch, j, inverse[j], words, scratch, codes + j * block_bytes);
    }
    return nonfinite;
}

/* ---- magnitudes ---------------------------------------------------------------------------------------- */

INLINE uint32_t amax_groups(tw_type_t type, const void *src, size_t first, size_t n)
{
    if (type != TW_TYPE_FP32) {
        uint16_t half = amax_of_halves((const uint16_t *)src + first, n);
        return tw_float_bits(tw_float_load(type, &half, 0));
    }
    amax_t amax = amax_zero();
    for (size_t i = 0; i < n; i += GROUP) {
        amax = amax_of_group(amax, group_load(type, src, first + i));
    }
    return amax_bits(amax);
}

/** Fill y with the source, or if delta is 1 with source - base; rotate it if rotate is 1; add zeros up to a
 *  whole group. Returns the bits of the largest magnitude. */
INLINE uint32_t load_groups(tw_type_t type, int delta, int rotate, const tw_quant_segment_t *segment,
                            size_t first, size_t n, float *y)
{
    amax_t amax = amax_zero();
    size_t i = 0;
    for (; i < whole_groups(n); i += GROUP) {
        group_fetch(delta ? TW_TYPE_FP32 : type, segment->src, first + i + AHEAD_ELEMS);
        if (delta) {
            group_fetch(type, segment->base, first + i + AHEAD_ELEMS);
        }
        group_t g = delta ? group_sub(group_load(TW_TYPE_FP32, segment->src, first + i),
                                      group_load(type, segment->base, first + i))
                          : group_load(type, segment->src, first + i);
        if (rotate) {
            g = group_rotate(g);
        }
        amax = amax_of_group(amax, g);
        group_store(TW_TYPE_FP32, y, i, g);
    }
    if (i == n) {
        return amax_bits(amax);
    }
    for (; i < n; i++) {
        float x = tw_float_load(delta ? TW_TYPE_FP32 : type, segment->src, first + i);
        y[i] = delta ? tw_float_sub(x, tw_float_load(type, segment->base, first + i)) : x;
    }
    for (; i % GROUP; i++) {
        y[i] = 0.0f;
    }
    return amax_bits(amax_of_group(amax, group_load(TW_TYPE_FP32, y, i - GROUP)));
}

INLINE uint32_t load_plain(tw_type_t type, int rotate, const tw_quant_segment_t *segment, size_t first,
                           size_t n, float *y)
{
    return rotate ? load_groups(type, 0, 1, segment, first, n, y)
                  : load_groups(type, 0, 0, segment, first, n, y);
}

INLINE uint32_t load_delta(tw_type_t type, int rotate, const tw_quant_segment_t *segment, size_t first,
                           size_t n, float *y)
{
    return rotate ? load_groups(type, 1, 1, segment, first, n, y)
                  : load_groups(type, 1, 0, segment, first, n, y);
}

/** The bits of the largest magnitude of n elements. They are copied to y unless batch->src has them. */
INLINE uint32_t load_block(const batch_t *batch, int delta, int rotate, const tw_quant_segment_t *segment,
                           size_t first, size_t n, float *y)
{
    if (batch->src && n % GROUP == 0) {
        return FOR_TYPE(batch->type, amax_groups, batch->src, first, n);
    }
    return delta ? FOR_TYPE(batch->type, load_delta, rotate, segment, first, n, y)
                 : FOR_TYPE(batch->type, load_plain, rotate, segment, first, n, y);
}

/* ---- segments ------------------------------------------------------------------------------------------ */

/** Write zeros where no block writes: the last frame's unused scales, and the segment's padding. */
static void pad_segment(const encoder_t *encoder)
{
    const tw_quant_codec_t *codec = encoder->codec;
    if (encoder->n_elems == 0) {
        return; /* dst is NULL if there are no elements */
    }
    size_t payload = tw_layout_payload_bytes(codec, encoder->n_elems);
    size_t blocks = tw_layout_block_count(codec, encoder->n_elems), used = blocks % TW_QUANT_FRAME_BLOCKS;
    memset(encoder->dst + payload, 0, tw_layout_encoded_bytes(codec, encoder->n_elems) - payload);
    if (used) {
        memset(encoder->dst + tw_layout_scale_offset(codec, blocks), 0,
               (TW_QUANT_FRAME_BLOCKS - used) * tw_layout_scale_bytes(codec->scale));
    }
}

static uint64_t encode_segment(const tw_quant_codec_t *codec, const tw_quant_args_t *args,
                               const tw_quant_segment_t *segment, int delta)
{
    encoder_t encoder = {codec,      segment->dst,   segment->n_elems, args->seed, segment->first_elem,
                         args->step, segment->tensor};
    scratch_t scratch;
    size_t block = (size_t)codec->block, blocks = tw_layout_block_count(codec, segment->n_elems);
    size_t step = batch_blocks(codec);
    uint64_t nonfinite = 0;
    int direct = !delta && !codec->hadamard && codec->round == TW_QUANT_ROUND_NEAREST;
    for (size_t b = 0; b < blocks; b += step) {
        batch_t batch = batch_at(&encoder, b, step);
        batch.type = args->type;
        batch.src = direct ? segment->src : NULL;
        for (size_t j = 0; j < batch.n_blocks; j++) {
            batch.amax[j] = load_block(&batch, delta, codec->hadamard, segment, batch.first + j * block,
                                       elems_of_block(&batch, j, block), scratch.y + j * block);
        }
        nonfinite += encode_batch(&encoder, &batch, &scratch);
    }
    pad_segment(&encoder);
    return nonfinite;
}
