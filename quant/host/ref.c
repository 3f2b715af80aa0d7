/* The reference: the specification at the top of block_codec.h, one element at a time. All other backends are
 * tested against it. The code is written to be read, not to be fast. */
#include "quant/arithmetic/block.h"
#include "quant/host/host.h"

/* The key of a segment's random words. */
typedef struct {
    uint64_t seed, first_elem;
    uint32_t step, tensor;
} ref_random_t;

static void rotate(float *y, size_t n)
{
    for (size_t i = 0; i + TW_QUANT_HADAMARD_ELEMS <= n; i += TW_QUANT_HADAMARD_ELEMS) {
        tw_block_hadamard32(y + i);
    }
}

static uint32_t amax_bits(const float *y, size_t n)
{
    uint32_t amax = 0;
    for (size_t i = 0; i < n; i++) {
        amax = tw_float_abs_bits(y[i]) > amax ? tw_float_abs_bits(y[i]) : amax;
    }
    return amax;
}

static int round_code(const tw_quant_codec_t *codec, const ref_random_t *random, uint64_t i, float v)
{
    if (codec->round == TW_QUANT_ROUND_NEAREST) {
        return tw_block_code_nearest(codec->kind, v);
    }
    uint32_t word = tw_philox_word(random->seed, random->step, random->tensor, random->first_elem + i);
    return tw_block_round_stochastic(v, tw_block_uniform(word), tw_block_qmax(codec->kind));
}

/** Write block b of a zeroed segment from its n values y, rotated if the codec rotates. Returns 1 if the
 *  block is non-finite, else 0. */
static uint64_t put_block(const tw_quant_codec_t *codec, const ref_random_t *random, uint8_t *segment,
                          size_t b, const float *y, size_t n)
{
    uint8_t *scale_at = segment + tw_layout_scale_offset(codec, b);
    uint8_t *codes = segment + tw_layout_codes_offset(codec, b);
    uint32_t amax = amax_bits(y, n);
    if (tw_block_amax_is_nonfinite(amax, codec->hadamard)) {
        tw_layout_scale_put(scale_at, codec->scale, tw_float_of_bits(TW_FLOAT_NAN_BITS));
        return 1;
    }
    float scale = tw_block_scale(tw_float_of_bits(amax), tw_block_reach(codec->kind), codec->scale);
    float inverse = tw_block_inverse(scale);
    tw_layout_scale_put(scale_at, codec->scale, scale);
    for (size_t i = 0; i < n; i++) {
        float v = tw_float_mul(y[i], inverse);
        tw_layout_code_put(codes, TW_CODE_BITS(codec->kind), i,
                           round_code(codec, random, b * (size_t)codec->block + i, v));
    }
    return 0;
}

/** Decode element e of a segment; the rotation is not undone. */
static float get_rotated(const tw_quant_codec_t *codec, const uint8_t *segment, size_t e)
{
    size_t b = e / (size_t)codec->block;
    float scale = tw_layout_scale_get(segment + tw_layout_scale_offset(codec, b), codec->scale);
    return tw_block_decode_code(segment + tw_layout_codes_offset(codec, b), codec->kind,
                                e % (size_t)codec->block, scale);
}

/** Decode block b of n elements to fp32. */
static void get_block(const tw_quant_codec_t *codec, const uint8_t *segment, size_t b, size_t n, float *y)
{
    float scale = tw_layout_scale_get(segment + tw_layout_scale_offset(codec, b), codec->scale);
    for (size_t i = 0; i < n; i++) {
        y[i] = get_rotated(codec, segment, b * (size_t)codec->block + i);
    }
    if (codec->hadamard && !tw_block_scale_is_nonfinite(scale)) {
        rotate(y, n);
    }
}

static uint64_t encode_segment(const tw_quant_codec_t *codec, const tw_quant_args_t *args,
                               const tw_quant_segment_t *segment, int delta)
{
    ref_random_t random = {args->seed, segment->first_elem, args->step, segment->tensor};
    float y[TW_QUANT_BLOCK_MAX];
    uint64_t nonfinite = 0;
    if (segment->n_elems == 0) {
        return 0; /* dst is NULL if there are no elements */
    }
    memset(segment->dst, 0, tw_layout_encoded_bytes(codec, segment->n_elems));
    for (size_t b = 0; b < tw_layout_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        for (size_t i = 0; i < n; i++) {
            if (delta) {
                y[i] = tw_float_sub(((const float *)segment->src)[first + i],
                                    tw_float_load(args->type, segment->base, first + i));
            } else {
                y[i] = tw_float_load(args->type, segment->src, first + i);
            }
        }
        if (codec->hadamard) {
            rotate(y, n);
        }
        nonfinite += put_block(codec, &random, segment->dst, b, y, n);
    }
    return nonfinite;
}

static void decode_segment(const tw_quant_codec_t *codec, tw_type_t type, const tw_quant_segment_t *segment,
                           int apply)
{
    float y[TW_QUANT_BLOCK_MAX];
    for (size_t b = 0; b < tw_layout_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        get_block(codec, segment->src, b, n, y);
        for (size_t i = 0; i < n; i++) {
            float old = apply ? tw_float_load(type, segment->dst, first + i) : 0.0f;
            tw_float_store_saturate(type, segment->dst, first + i, apply ? tw_float_add(old, y[i]) : y[i]);
        }
    }
}

/** Set y to factor * the sum of the inputs' elements first to first + n - 1; first is a multiple of 32. */
static void ref_sum_inputs(const tw_quant_codec_t *codec, const tw_quant_reduce_segment_t *segment,
                           size_t first, size_t n, int undo_rotation, float factor, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = get_rotated(codec, segment->srcs[0], first + i);
        for (size_t k = 1; k < segment->n_srcs; k++) {
            y[i] = tw_float_add(y[i], get_rotated(codec, segment->srcs[k], first + i));
        }
    }
    if (undo_rotation) {
        rotate(y, n);
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = tw_float_mul(y[i], factor);
    }
}

static uint64_t reduce_encode_segment(const tw_quant_codec_t *in, const tw_quant_codec_t *out,
                                      const tw_quant_args_t *args, const tw_quant_reduce_segment_t *segment)
{
    ref_random_t random = {args->seed, segment->first_elem, args->step, segment->tensor};
    float y[TW_QUANT_BLOCK_MAX];
    uint64_t nonfinite = 0;
    if (segment->n_elems == 0) {
        return 0;
    }
    memset(segment->dst, 0, tw_layout_encoded_bytes(out, segment->n_elems));
    for (size_t b = 0; b < tw_layout_block_count(out, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(out, segment->n_elems, b), first = b * (size_t)out->block;
        ref_sum_inputs(in, segment, first, n, in->hadamard && !out->hadamard, args->factor, y);
        if (out->hadamard && !in->hadamard) {
            rotate(y, n);
        }
        nonfinite += put_block(out, &random, segment->dst, b, y, n);
    }
    return nonfinite;
}

static void reduce_decode_segment(const tw_quant_codec_t *codec, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segment)
{
    float y[TW_QUANT_BLOCK_MAX];
    for (size_t b = 0; b < tw_layout_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_layout_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        ref_sum_inputs(codec, segment, first, n, codec->hadamard, args->factor, y);
        for (size_t i = 0; i < n; i++) {
            if (args->saturate) {
                tw_float_store_saturate(args->type, segment->dst, first + i, y[i]);
            } else {
                tw_float_store(args->type, segment->dst, first + i, y[i]);
            }
        }
    }
}

static int host_usable(void)
{
    return 1;
}

static const tw_quant_host_t operations = {
    .encode = encode_segment,
    .decode = decode_segment,
    .reduce_encode = reduce_encode_segment,
    .reduce_decode = reduce_decode_segment,
};

const tw_quant_backend_t tw_quant_backend_ref = {
    .is = {"ref", TW_MEM_HOST, host_usable},
    .host = &operations,
    TW_QUANT_HOST_OPERATIONS,
};
