/* Codecs as data: check, compare, parse, format, sizes, error bound. */
#include "quant/arithmetic/block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const scale_names[] = {"bf16", "fp32"};

tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec)
{
    if (codec->bits != 8 && codec->bits != 4) {
        tw_error("quant: bits is %d, must be 8 or 4", codec->bits);
        return TW_ERR_INVALID;
    }
    if (codec->block < TW_QUANT_BLOCK_MIN || codec->block > TW_QUANT_BLOCK_MAX ||
        codec->block % TW_QUANT_HADAMARD_ELEMS != 0) {
        tw_error("quant: block is %d, must be a multiple of %d from %d to %d", codec->block,
                 TW_QUANT_HADAMARD_ELEMS, TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MAX);
        return TW_ERR_INVALID;
    }
    if (codec->scale != TW_QUANT_SCALE_BF16 && codec->scale != TW_QUANT_SCALE_FP32) {
        tw_error("quant: scale is %d, must be %d (bf16) or %d (fp32)", (int)codec->scale, TW_QUANT_SCALE_BF16,
                 TW_QUANT_SCALE_FP32);
        return TW_ERR_INVALID;
    }
    if (codec->round != TW_QUANT_ROUND_NEAREST && codec->round != TW_QUANT_ROUND_STOCHASTIC) {
        tw_error("quant: round is %d, must be %d (nearest) or %d (stochastic)", (int)codec->round,
                 TW_QUANT_ROUND_NEAREST, TW_QUANT_ROUND_STOCHASTIC);
        return TW_ERR_INVALID;
    }
    if (codec->hadamard != 0 && codec->hadamard != 1) {
        tw_error("quant: hadamard is %d, must be 0 or 1", codec->hadamard);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

int tw_quant_codec_equal(const tw_quant_codec_t *a, const tw_quant_codec_t *b)
{
    return a->bits == b->bits && a->block == b->block && a->scale == b->scale && a->round == b->round &&
           a->hadamard == b->hadamard;
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

/* A piece of the text being parsed; not terminated. */
typedef struct {
    const char *text;
    size_t length;
} piece_t;

static int piece_is(piece_t piece, const char *word)
{
    return piece.length == strlen(word) && memcmp(piece.text, word, piece.length) == 0;
}

/* The piece after "key=", or an empty one. */
static piece_t piece_value(piece_t piece, const char *key)
{
    size_t length = strlen(key);
    if (piece.length <= length || memcmp(piece.text, key, length) != 0) {
        return (piece_t){NULL, 0};
    }
    return (piece_t){piece.text + length, piece.length - length};
}

static int parse_block(piece_t value, int *block)
{
    int number = 0;
    for (size_t i = 0; i < value.length; i++) {
        if (value.text[i] < '0' || value.text[i] > '9' || number > TW_QUANT_BLOCK_MAX) {
            return 0;
        }
        number = number * 10 + (value.text[i] - '0');
    }
    *block = number;
    return value.length > 0;
}

static int parse_scale(piece_t value, tw_quant_scale_t *scale)
{
    for (int i = 0; i < 2; i++) {
        if (piece_is(value, scale_names[i])) {
            *scale = (tw_quant_scale_t)i;
            return 1;
        }
    }
    return 0;
}

static int parse_option(piece_t option, tw_quant_codec_t *codec)
{
    if (piece_is(option, "hadamard")) {
        codec->hadamard = 1;
    } else if (piece_is(option, "stochastic")) {
        codec->round = TW_QUANT_ROUND_STOCHASTIC;
    } else if (piece_is(option, "nearest")) {
        codec->round = TW_QUANT_ROUND_NEAREST;
    } else if (piece_value(option, "block=").text) {
        return parse_block(piece_value(option, "block="), &codec->block);
    } else if (piece_value(option, "scale=").text) {
        return parse_scale(piece_value(option, "scale="), &codec->scale);
    } else {
        return 0;
    }
    return 1;
}

tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec)
{
    tw_quant_codec_t parsed = {0};
    piece_t name = {text, strcspn(text, ":")};
    if (piece_is(name, "int8")) {
        parsed.bits = 8;
        parsed.block = 2048;
    } else if (piece_is(name, "int4")) {
        parsed.bits = 4;
        parsed.block = 128;
    } else {
        tw_error("quant: codec '%s': must begin with int8 or int4", text);
        return TW_ERR_INVALID;
    }
    const char *at = text + name.length;
    while (*at) { /* at a ':' or ',' before an option */
        piece_t option = {at + 1, strcspn(at + 1, ",")};
        if (!parse_option(option, &parsed)) {
            tw_error("quant: codec '%s': option '%.*s' is not block=N, scale=bf16, scale=fp32, hadamard, "
                     "nearest or stochastic",
                     text, (int)option.length, option.text);
            return TW_ERR_INVALID;
        }
        at = option.text + option.length;
    }
    tw_status_t status = tw_quant_codec_check(&parsed);
    if (status == TW_OK) {
        *codec = parsed;
    }
    return status;
}

const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes)
{
    int fp32_scale = codec->scale == TW_QUANT_SCALE_FP32;
    snprintf(buf, buf_bytes, "int%d:block=%d%s%s%s", codec->bits, codec->block,
             codec->hadamard ? ",hadamard" : "",
             codec->round == TW_QUANT_ROUND_STOCHASTIC ? ",stochastic" : "", fp32_scale ? ",scale=fp32" : "");
    return buf;
}

/* ---- sizes and bounds ------------------------------------------------------------------------------------------ */

size_t tw_quant_frame_elems(const tw_quant_codec_t *codec)
{
    return tw_qb_frame_elems(codec);
}

size_t tw_quant_frame_bytes(const tw_quant_codec_t *codec)
{
    return tw_qb_frame_bytes(codec);
}

size_t tw_quant_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems)
{
    return tw_qb_encoded_bytes(codec, n_elems);
}

/* Half a step, and what fp32 adds: v = y * (1 / scale) is off by two roundings, 2^-23 of at most qmax steps, a scale
 * that was not rounded up clips by 2^-24 of them, q * scale is rounded once more. 2^-21 covers the sum. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax)
{
    int qmax = tw_qb_qmax(codec->bits);
    float scale = tw_qb_scale((float)amax, qmax, codec->scale);
    return fmax(scale, 0x1p-125) * (0.5 + qmax * 0x1p-21);
}
