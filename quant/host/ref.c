/* The reference: the specification at the head of quant.h, one element at a time. Every other backend is tested
 * against it; it is written to be read, not to be fast. */
#include "quant/arithmetic/block.h"
#include "quant/backend.h"

/* Where the random words of a segment come from. */
typedef struct {
    uint64_t seed, first_elem;
    uint32_t step, tensor;
} ref_random_t;

static void rotate(float *y, size_t n)
{
    for (size_t i = 0; i + TW_QUANT_HADAMARD_ELEMS <= n; i += TW_QUANT_HADAMARD_ELEMS) {
        tw_qb_hadamard32(y + i);
    }
}

static uint32_t amax_bits(const float *y, size_t n)
{
    uint32_t amax = 0;
    for (size_t i = 0; i < n; i++) {
        amax = tw_qb_abs_bits(y[i]) > amax ? tw_qb_abs_bits(y[i]) : amax;
    }
    return amax;
}

static int round_code(const tw_quant_codec_t *codec, const ref_random_t *random, uint64_t i, float v)
{
    int qmax = tw_qb_qmax(codec->bits);
    if (codec->round == TW_QUANT_ROUND_NEAREST) {
        return tw_qb_round_nearest(v, qmax);
    }
    uint32_t word = tw_qb_random_word(random->seed, random->step, random->tensor, random->first_elem + i);
    return tw_qb_round_stochastic(v, tw_qb_uniform(word), qmax);
}

/* Write block b of a segment that was zeroed, from its n values (rotated if the codec says so). Returns how many
 * non-finite blocks that makes: 0 or 1. */
static uint64_t put_block(const tw_quant_codec_t *codec, const ref_random_t *random, uint8_t *segment,
                          size_t b, const float *y, size_t n)
{
    uint8_t *scale_at = segment + tw_qb_scale_offset(codec, b);
    uint8_t *codes = segment + tw_qb_codes_offset(codec, b);
    uint32_t amax = amax_bits(y, n);
    if (tw_qb_amax_is_nonfinite(amax, codec->hadamard)) {
        tw_qb_scale_put(scale_at, codec->scale, tw_qb_float(TW_QB_NAN_BITS));
        return 1;
    }
    float scale = tw_qb_scale(tw_qb_float(amax), tw_qb_qmax(codec->bits), codec->scale);
    float inverse = tw_qb_inverse(scale);
    tw_qb_scale_put(scale_at, codec->scale, scale);
    for (size_t i = 0; i < n; i++) {
        float v = tw_qb_mul(y[i], inverse);
        tw_qb_code_put(codes, codec->bits, i, round_code(codec, random, b * (size_t)codec->block + i, v));
    }
    return 0;
}

/* Element e of an encoded segment, still rotated. */
static float get_rotated(const tw_quant_codec_t *codec, const uint8_t *segment, size_t e)
{
    size_t b = e / (size_t)codec->block;
    float scale = tw_qb_scale_get(segment + tw_qb_scale_offset(codec, b), codec->scale);
    if (tw_qb_scale_is_nonfinite(scale)) {
        return tw_qb_float(TW_QB_NAN_BITS);
    }
    const uint8_t *codes = segment + tw_qb_codes_offset(codec, b);
    return tw_qb_dequantize(tw_qb_code_get(codes, codec->bits, e % (size_t)codec->block), scale);
}

/* Block b of n elements, decoded to fp32. */
static void get_block(const tw_quant_codec_t *codec, const uint8_t *segment, size_t b, size_t n, float *y)
{
    float scale = tw_qb_scale_get(segment + tw_qb_scale_offset(codec, b), codec->scale);
    for (size_t i = 0; i < n; i++) {
        y[i] = get_rotated(codec, segment, b * (size_t)codec->block + i);
    }
    if (codec->hadamard && !tw_qb_scale_is_nonfinite(scale)) {
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
        return 0; /* dst may be NULL */
    }
    memset(segment->dst, 0, tw_qb_encoded_bytes(codec, segment->n_elems));
    for (size_t b = 0; b < tw_qb_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_qb_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        for (size_t i = 0; i < n; i++) {
            if (delta) {
                y[i] = tw_qb_sub(((const float *)segment->src)[first + i],
                                 tw_qb_load(args->type, segment->base, first + i));
            } else {
                y[i] = tw_qb_load(args->type, segment->src, first + i);
            }
        }
        if (codec->hadamard) {
            rotate(y, n);
        }
        nonfinite += put_block(codec, &random, segment->dst, b, y, n);
    }
    return nonfinite;
}

static tw_status_t ref_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                              const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        tw_quant_count_nonfinite(quant, encode_segment(&quant->codec, args, &segments[s], 0));
    }
    return TW_OK;
}

static tw_status_t ref_delta_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                    const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        tw_quant_count_nonfinite(quant, encode_segment(&quant->codec, args, &segments[s], 1));
    }
    return TW_OK;
}

typedef enum { REF_STORE, REF_ADD, REF_APPLY } ref_sink_t;

static void sink_element(ref_sink_t sink, tw_type_t type, void *dst, size_t i, float y)
{
    if (sink == REF_ADD) {
        ((float *)dst)[i] = tw_qb_add(((const float *)dst)[i], y);
    } else if (sink == REF_APPLY) {
        tw_qb_store_saturate(type, dst, i, tw_qb_add(tw_qb_load(type, dst, i), y));
    } else {
        tw_qb_store_saturate(type, dst, i, y);
    }
}

static void decode_segment(const tw_quant_codec_t *codec, tw_type_t type, const tw_quant_segment_t *segment,
                           ref_sink_t sink)
{
    float y[TW_QUANT_BLOCK_MAX];
    for (size_t b = 0; b < tw_qb_block_count(codec, segment->n_elems); b++) {
        size_t n = tw_qb_block_elems(codec, segment->n_elems, b), first = b * (size_t)codec->block;
        get_block(codec, segment->src, b, n, y);
        for (size_t i = 0; i < n; i++) {
            sink_element(sink, type, segment->dst, first + i, y[i]);
        }
    }
}

static tw_status_t ref_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                              const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, args->type, &segments[s], REF_STORE);
    }
    return TW_OK;
}

static tw_status_t ref_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments)
{
    (void)args;
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, TW_TYPE_FP32, &segments[s], REF_ADD);
    }
    return TW_OK;
}

static tw_status_t ref_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                    const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, args->type, &segments[s], REF_APPLY);
    }
    return TW_OK;
}

/* factor * sum of the inputs' elements [first, first + n); `first` is a multiple of the Hadamard group. */
static void sum_inputs(const tw_quant_codec_t *codec, const tw_quant_reduce_segment_t *segment, size_t first,
                       size_t n, int undo_rotation, float factor, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = get_rotated(codec, segment->srcs[0], first + i);
        for (size_t k = 1; k < segment->n_srcs; k++) {
            y[i] = tw_qb_add(y[i], get_rotated(codec, segment->srcs[k], first + i));
        }
    }
    if (undo_rotation) {
        rotate(y, n);
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = tw_qb_mul(y[i], factor);
    }
}

static tw_status_t ref_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                     const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    const tw_quant_codec_t *in = &in_quant->codec, *out = &out_quant->codec;
    float y[TW_QUANT_BLOCK_MAX];
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_reduce_segment_t *segment = &segments[s];
        ref_random_t random = {args->seed, segment->first_elem, args->step, segment->tensor};
        if (segment->n_elems == 0) {
            continue;
        }
        memset(segment->dst, 0, tw_qb_encoded_bytes(out, segment->n_elems));
        for (size_t b = 0; b < tw_qb_block_count(out, segment->n_elems); b++) {
            size_t n = tw_qb_block_elems(out, segment->n_elems, b);
            sum_inputs(in, segment, b * (size_t)out->block, n, in->hadamard && !out->hadamard, args->factor,
                       y);
            if (out->hadamard && !in->hadamard) {
                rotate(y, n);
            }
            tw_quant_count_nonfinite(out_quant, put_block(out, &random, segment->dst, b, y, n));
        }
    }
    return TW_OK;
}

static tw_status_t ref_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                     const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    const tw_quant_codec_t *codec = &quant->codec;
    float y[TW_QUANT_BLOCK_MAX];
    for (size_t s = 0; s < n_segments; s++) {
        for (size_t b = 0; b < tw_qb_block_count(codec, segments[s].n_elems); b++) {
            size_t n = tw_qb_block_elems(codec, segments[s].n_elems, b), first = b * (size_t)codec->block;
            sum_inputs(codec, &segments[s], first, n, codec->hadamard, args->factor, y);
            for (size_t i = 0; i < n; i++) {
                tw_qb_store(args->type, segments[s].dst, first + i, y[i]);
            }
        }
    }
    return TW_OK;
}

static int ref_usable(void)
{
    return 1;
}

const tw_quant_backend_t tw_quant_backend_ref = {
    .name = "ref",
    .mem = TW_MEM_HOST,
    .usable = ref_usable,
    .encode = ref_encode,
    .decode = ref_decode,
    .decode_add = ref_decode_add,
    .delta_encode = ref_delta_encode,
    .decode_apply = ref_decode_apply,
    .reduce_encode = ref_reduce_encode,
    .reduce_decode = ref_reduce_decode,
};
