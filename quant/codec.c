/* Codecs as data: check, compare, parse, format, sizes, error bound. */
#include "quant/arithmetic/block.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const scale_names[] = {"bf16", "fp32"};

static const tw_quant_codec_t lossless = {.lossless = 1};

tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec)
{
    if (codec->lossless) {
        if (!tw_quant_codec_equal(codec, &lossless)) {
            tw_error("quant: a lossless codec has neither bits nor options");
            return TW_ERR_INVALID;
        }
        return TW_OK;
    }
    if (codec->bits != 8 && codec->bits != 4 && codec->bits != 2) {
        tw_error("quant: bits is %d, must be 8, 4 or 2", codec->bits);
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
           a->hadamard == b->hadamard && a->lossless == b->lossless;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static int parse_block(const char *text, int *block)
{
    char *end;
    long number = strtol(text, &end, 10);
    *block = number < INT_MAX ? (int)number : INT_MAX;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

static int parse_scale(const char *text, tw_quant_scale_t *scale)
{
    *scale = strcmp(text, scale_names[1]) == 0 ? TW_QUANT_SCALE_FP32 : TW_QUANT_SCALE_BF16;
    return strcmp(text, scale_names[*scale]) == 0;
}

static int parse_option(const char *option, tw_quant_codec_t *codec)
{
    if (strcmp(option, "hadamard") == 0) {
        codec->hadamard = 1;
    } else if (strcmp(option, "stochastic") == 0) {
        codec->round = TW_QUANT_ROUND_STOCHASTIC;
    } else if (strcmp(option, "nearest") == 0) {
        codec->round = TW_QUANT_ROUND_NEAREST;
    } else if (strncmp(option, "block=", 6) == 0) {
        return parse_block(option + 6, &codec->block);
    } else if (strncmp(option, "scale=", 6) == 0) {
        return parse_scale(option + 6, &codec->scale);
    } else {
        return 0;
    }
    return 1;
}

/** Each option begins after a ':' or ','. */
static tw_status_t parse_options(const char *text, const char *at, tw_quant_codec_t *codec)
{
    char option[32];
    while (*at != '\0') {
        size_t length = strcspn(++at, ",");
        int fits = length < sizeof(option);
        snprintf(option, sizeof(option), "%.*s", fits ? (int)length : 0, at);
        if (!parse_option(option, codec)) {
            tw_error("quant: codec '%s': option '%.*s' is not block=N, scale=bf16, scale=fp32, hadamard, "
                     "nearest or stochastic",
                     text, (int)length, at);
            return TW_ERR_INVALID;
        }
        at += length;
    }
    return tw_quant_codec_check(codec);
}

tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec)
{
    tw_quant_codec_t parsed = {.bits = 8, .block = 2048};
    size_t length = strcspn(text, ":");
    if (strcmp(text, "lossless") == 0) {
        *codec = lossless;
        return TW_OK;
    }
    if (length == 4 && strncmp(text, "int4", 4) == 0) {
        parsed = (tw_quant_codec_t){.bits = 4, .block = 128};
    } else if (length == 4 && strncmp(text, "int2", 4) == 0) {
        parsed = (tw_quant_codec_t){.bits = 2, .block = 64};
    } else if (length != 4 || strncmp(text, "int8", 4) != 0) {
        tw_error("quant: codec '%s': must be lossless, or begin with int8, int4 or int2", text);
        return TW_ERR_INVALID;
    }
    tw_status_t status = parse_options(text, text + length, &parsed);
    if (status == TW_OK) {
        *codec = parsed;
    }
    return status;
}

const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes)
{
    int fp32_scale = codec->scale == TW_QUANT_SCALE_FP32;
    if (codec->lossless) {
        snprintf(buf, buf_bytes, "lossless");
        return buf;
    }
    snprintf(buf, buf_bytes, "int%d:block=%d%s%s%s", codec->bits, codec->block,
             codec->hadamard ? ",hadamard" : "",
             codec->round == TW_QUANT_ROUND_STOCHASTIC ? ",stochastic" : "", fp32_scale ? ",scale=fp32" : "");
    return buf;
}

/* ---- sizes and bounds ---------------------------------------------------------------------------------- */

size_t tw_quant_frame_elems(const tw_quant_codec_t *codec)
{
    return tw_layout_frame_elems(codec);
}

size_t tw_quant_frame_bytes(const tw_quant_codec_t *codec)
{
    return tw_layout_frame_bytes(codec);
}

size_t tw_quant_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems)
{
    return n_elems <= TW_MEMORY_BYTES_MAX ? tw_layout_encoded_bytes(codec, n_elems) : SIZE_MAX;
}

/** Half a step, or with 2 bits what clips: a whole one; and what fp32 adds: v = y * (1 / scale) is off by two
 *  roundings, 2^-23 of at most qmax steps, a scale that was not rounded up clips by 2^-24 of them, q * scale
 *  is rounded once more. 2^-21 covers the sum. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax)
{
    int qmax = tw_block_qmax(codec->bits);
    float scale = tw_block_scale((float)amax, tw_block_reach(codec->bits), codec->scale);
    return fmax(scale, 0x1p-125) * ((codec->bits == 2 ? 1 : 0.5) + qmax * 0x1p-21);
}
