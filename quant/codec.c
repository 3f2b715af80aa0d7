/* The table of codecs; checks, compares, parses and formats codecs; sizes and error bounds. */
#include "quant/arithmetic/block.h"
#include "quant/message_ops.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the table ----------------------------------------------------------------------------------------- */

#define TYPES_OF_FLOATS (1u << TW_TYPE_FP32 | 1u << TW_TYPE_BF16 | 1u << TW_TYPE_FP16)
#define STEP_MOST 8 /* the step is 2^-2 to 2^2: at most 8 quarters of an octave either way */
#define HAS_ALL (TW_QUANT_HAS_BLOCK | TW_QUANT_HAS_HADAMARD | TW_QUANT_HAS_STOCHASTIC)

/* int2 and delta cannot be summed. They are for changes of weights; later ones correct int2's errors. */
static const tw_quant_row_t rows[TW_QUANT_KINDS] = {
    [TW_QUANT_PLAIN] = {.name = "plain", .form = TW_QUANT_AS_IS, .types = ~0u, .sums = 1},
    [TW_QUANT_INT8] = {.name = "int8",
                       .form = TW_QUANT_BLOCKS,
                       .has = HAS_ALL,
                       .types = TYPES_OF_FLOATS,
                       .bits = TW_CODE_BITS(TW_QUANT_INT8),
                       .block = 2048,
                       .loses_values = 1,
                       .sums = 1},
    [TW_QUANT_INT4] = {.name = "int4",
                       .form = TW_QUANT_BLOCKS,
                       .has = HAS_ALL,
                       .types = TYPES_OF_FLOATS,
                       .bits = TW_CODE_BITS(TW_QUANT_INT4),
                       .block = 128,
                       .loses_values = 1,
                       .sums = 1},
    [TW_QUANT_INT2] = {.name = "int2",
                       .form = TW_QUANT_BLOCKS,
                       .has = HAS_ALL,
                       .types = TYPES_OF_FLOATS,
                       .bits = TW_CODE_BITS(TW_QUANT_INT2),
                       .block = 64,
                       .loses_values = 1},
    [TW_QUANT_FP8] = {.name = "fp8",
                      .form = TW_QUANT_BLOCKS,
                      .has = TW_QUANT_HAS_BLOCK | TW_QUANT_HAS_HADAMARD,
                      .types = TYPES_OF_FLOATS,
                      .bits = TW_CODE_BITS(TW_QUANT_FP8),
                      .block = 128,
                      .loses_values = 1,
                      .sums = 1},
    [TW_QUANT_LOSSLESS] =
        {.name = "lossless",
         .form = TW_QUANT_MESSAGE,
         .types = TYPES_OF_FLOATS,
         .usual_bits = {[TW_TYPE_FP32] = 26.4, [TW_TYPE_BF16] = 10.4, [TW_TYPE_FP16] = 13.4},
         .sums = 1,
         .messages = &tw_quant_lossless_ops},
    [TW_QUANT_DELTA] = {.name = "delta",
                        .form = TW_QUANT_CHANGE,
                        .has = TW_QUANT_NEEDS_OLD,
                        .types = 1u << TW_TYPE_BF16,
                        .usual_bits = {[TW_TYPE_BF16] = 3}},
    [TW_QUANT_ECDQ] = {.name = "ecdq",
                       .form = TW_QUANT_MESSAGE,
                       .has = TW_QUANT_HAS_STEP,
                       .types = TYPES_OF_FLOATS,
                       .usual_bits = {[TW_TYPE_FP32] = 2.2, [TW_TYPE_BF16] = 2.2, [TW_TYPE_FP16] = 2.2},
                       .loses_values = 1,
                       .unbiased = 1,
                       .sums = 1,
                       .messages = &tw_quant_ecdq_ops},
};

const tw_quant_row_t *tw_quant_row_get(tw_quant_kind_t kind)
{
    return &rows[kind];
}

static int is_kind(tw_quant_kind_t kind)
{
    return (unsigned)kind < TW_QUANT_KINDS;
}

tw_quant_form_t tw_quant_form(const tw_quant_codec_t *codec)
{
    return codec && is_kind(codec->kind) ? rows[codec->kind].form : TW_QUANT_AS_IS;
}

tw_quant_loses_t tw_quant_loses(const tw_quant_codec_t *codec)
{
    if (!codec || !is_kind(codec->kind) || !rows[codec->kind].loses_values) {
        return TW_QUANT_LOSES_NOTHING;
    }
    int at_random = rows[codec->kind].unbiased || codec->round == TW_QUANT_ROUND_STOCHASTIC;
    return at_random ? TW_QUANT_LOSES_UNBIASED : TW_QUANT_LOSES_BOUNDED;
}

/* ---- data ---------------------------------------------------------------------------------------------- */

static tw_status_t check_block(int block)
{
    TW_FAIL_IF(block < TW_QUANT_BLOCK_MIN || block > TW_QUANT_BLOCK_MAX ||
                   block % TW_QUANT_HADAMARD_ELEMS != 0,
               TW_ERR_INVALID, "quant: block is %d, must be a multiple of %d from %d to %d", block,
               TW_QUANT_HADAMARD_ELEMS, TW_QUANT_BLOCK_MIN, TW_QUANT_BLOCK_MAX);
    return TW_OK;
}

/** Check a field that may be 0, or 1 if the row has option `has`. zero and one: the values' names for the
 *  log. */
static tw_status_t check_choice(const tw_quant_row_t *row, const char *field, int value, const char *zero,
                                const char *one, unsigned has)
{
    if (value == 0 || (value == 1 && (row->has & has))) {
        return TW_OK;
    }
    if (value == 1) {
        tw_error("quant: codec %s has no %s", row->name, one);
    } else {
        tw_error("quant: %s is %d, must be 0 (%s) or 1 (%s)", field, value, zero, one);
    }
    return TW_ERR_INVALID;
}

tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec)
{
    TW_FAIL_IF(!is_kind(codec->kind), TW_ERR_INVALID, "quant: there is no codec %d", (int)codec->kind);
    const tw_quant_row_t *row = &rows[codec->kind];
    const tw_quant_codec_t bare = {.kind = codec->kind, .step = codec->step};
    int most = row->has & TW_QUANT_HAS_STEP ? STEP_MOST : 0;
    TW_FAIL_IF(codec->step < -most || codec->step > most, TW_ERR_INVALID,
               "quant: codec %s: the step is %d quarters of an octave, must be from %d to %d", row->name,
               codec->step, -most, most);
    if (row->form != TW_QUANT_BLOCKS) {
        TW_FAIL_IF(!tw_quant_codec_equal(codec, &bare), TW_ERR_INVALID, "quant: codec %s has %s", row->name,
                   most > 0 ? "no option but step" : "neither blocks nor options");
        return TW_OK;
    }
    TW_TRY(check_block(codec->block));
    TW_TRY(check_choice(row, "scale", (int)codec->scale, "bf16", "fp32", TW_QUANT_HAS_BLOCK));
    TW_TRY(check_choice(row, "round", (int)codec->round, "nearest", "stochastic", TW_QUANT_HAS_STOCHASTIC));
    return check_choice(row, "hadamard", codec->hadamard, "off", "hadamard", TW_QUANT_HAS_HADAMARD);
}

int tw_quant_codec_equal(const tw_quant_codec_t *a, const tw_quant_codec_t *b)
{
    return a->kind == b->kind && a->block == b->block && a->scale == b->scale && a->round == b->round &&
           a->hadamard == b->hadamard && a->step == b->step;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static const char *const scale_names[] = {"bf16", "fp32"};

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

/** Parse a step, which must be 1, 1.25, 1.5 or 1.75 times a power of two, into quarters of an octave. Returns
 *  whether it is valid. */
static int parse_step(const char *text, int *step)
{
    char *end;
    float number = strtof(text, &end);
    uint32_t bits = tw_float_bits(number), one = tw_float_bits(1.0f);
    *step = ((int)bits - (int)one) / (1 << 21);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && number >= 0.25f && number <= 4.0f &&
           bits % (1u << 21) == 0;
}

static float step_of(int step)
{
    return tw_float_of_bits((uint32_t)((int)tw_float_bits(1.0f) + step * (1 << 21)));
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
    } else if (strncmp(option, "step=", 5) == 0 && rows[codec->kind].has & TW_QUANT_HAS_STEP) {
        return parse_step(option + 5, &codec->step);
    } else {
        return 0;
    }
    return 1;
}

/** Parse the options in `text` from `at` on, which is at the ':' before the first one. ',' separates them. */
static tw_status_t parse_options(const char *text, const char *at, tw_quant_codec_t *codec)
{
    char option[32];
    while (*at != '\0') {
        size_t length = strcspn(++at, ",");
        int fits = length < sizeof(option);
        snprintf(option, sizeof(option), "%.*s", fits ? (int)length : 0, at);
        TW_FAIL_IF(!parse_option(option, codec), TW_ERR_INVALID,
                   "quant: codec '%s': option '%.*s' is not block=N, scale=bf16, scale=fp32, hadamard, "
                   "nearest, stochastic or step=X (0.25 to 4: 1, 1.25, 1.5 or 1.75 by powers of two)",
                   text, (int)length, at);
        at += length;
    }
    return tw_quant_codec_check(codec);
}

/** Whether `text` (length characters) is the name of this row. If `any` is 0, only rows whose messages
 *  are self-contained count. */
static int is_named(const tw_quant_row_t *row, const char *text, size_t length, int any)
{
    int stands_alone = row->form == TW_QUANT_BLOCKS || row->form == TW_QUANT_MESSAGE;
    return (any || stands_alone) && strlen(row->name) == length && strncmp(row->name, text, length) == 0;
}

static tw_status_t log_no_codec(const char *text, int any)
{
    char names[128] = "";
    size_t used = 0;
    for (int k = 0; k < TW_QUANT_KINDS && used < sizeof(names); k++) {
        if (is_named(&rows[k], rows[k].name, strlen(rows[k].name), any)) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "",
                                     rows[k].name);
        }
    }
    return tw_fail(TW_ERR_INVALID, "quant: codec '%s': must begin with one of %s", text, names);
}

static tw_status_t parse(const char *text, int any, tw_quant_codec_t *codec)
{
    size_t length = strcspn(text, ":");
    int kind = 0;
    while (kind < TW_QUANT_KINDS && !is_named(&rows[kind], text, length, any)) {
        kind++;
    }
    if (kind == TW_QUANT_KINDS) {
        return log_no_codec(text, any);
    }
    tw_quant_codec_t parsed = {.kind = (tw_quant_kind_t)kind, .block = rows[kind].block};
    TW_TRY(parse_options(text, text + length, &parsed));
    *codec = parsed;
    return TW_OK;
}

tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec)
{
    return parse(text, 0, codec);
}

tw_status_t tw_quant_codec_parse_any(const char *text, tw_quant_codec_t *codec)
{
    return parse(text, 1, codec);
}

const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes)
{
    const tw_quant_row_t *row = &rows[codec->kind];
    if (row->form != TW_QUANT_BLOCKS) {
        int has_step = (row->has & TW_QUANT_HAS_STEP) != 0;
        snprintf(buf, buf_bytes, has_step ? "%s:step=%g" : "%s", row->name, (double)step_of(codec->step));
        return buf;
    }
    snprintf(buf, buf_bytes, "%s:block=%d%s%s%s", row->name, codec->block, codec->hadamard ? ",hadamard" : "",
             codec->round == TW_QUANT_ROUND_STOCHASTIC ? ",stochastic" : "",
             codec->scale == TW_QUANT_SCALE_FP32 ? ",scale=fp32" : "");
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

/** fp32 adds to the code's own rounding error: two roundings in v = y * (1 / scale), 2^-23 of at most qmax
 *  steps; clipping by 2^-24 of qmax steps, if the scale was not rounded up; one rounding of q * scale. 2^-21
 *  covers their sum. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax)
{
    float scale = tw_block_scale((float)amax, tw_block_reach(codec->kind), codec->scale);
    return fmax(scale, 0x1p-125) * (tw_block_error_steps(codec->kind) + tw_block_qmax(codec->kind) * 0x1p-21);
}

size_t tw_quant_bound_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    switch (tw_quant_form(codec)) {
    case TW_QUANT_BLOCKS:
        return tw_quant_encoded_bytes(codec, n_elems);
    case TW_QUANT_MESSAGE:
        return rows[codec->kind].messages->bound_bytes(type, n_elems);
    case TW_QUANT_CHANGE:
        return tw_quant_delta_bound_bytes(n_elems);
    default:
        return tw_size_mul(n_elems, tw_type_bytes(type));
    }
}

/** How many bits per element this step saves, compared with step 1: differences between entropies of a
 *  Gaussian that is quantized with dither. Quarters of an octave are interpolated. */
static double saved_by_step(int step)
{
    const double bits[] = {4.1, 3.1, 2.15, 1.4, 0.85}; /* for steps 1/4, 1/2, 1, 2, 4 */
    int octave = (step + STEP_MOST) / 4, rest = (step + STEP_MOST) % 4;
    return bits[2] - bits[octave] + (rest ? rest * (bits[octave] - bits[octave + 1]) / 4 : 0);
}

double tw_quant_usual_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    double bits = codec ? rows[codec->kind].usual_bits[type] : 0;
    bits -= bits > 0 ? saved_by_step(codec->step) : 0;
    return bits > 0 ? (double)n_elems * bits / 8 : (double)tw_quant_bound_bytes(codec, type, n_elems);
}

double tw_quant_usual_bits(const tw_quant_codec_t *codec, tw_type_t type)
{
    const size_t n_elems = 1 << 20;
    return 8 * tw_quant_usual_bytes(codec, type, n_elems) / (double)n_elems;
}
