/* The cost model's arithmetic and its description as text. */
#include "collectives/model/model.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int encoder_index(const tw_quant_codec_t *codec)
{
    return (codec->bits == 4) + 2 * !!codec->hadamard + 4 * (codec->round == TW_QUANT_ROUND_STOCHASTIC);
}

static int decoder_index(const tw_quant_codec_t *codec)
{
    return (codec->bits == 4) + 2 * !!codec->hadamard;
}

double tw_coll_model_encode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec)
{
    return model->encode_sec[encoder_index(codec)];
}

double tw_coll_model_decode_sec(const tw_coll_model_t *model, const tw_quant_codec_t *codec)
{
    return model->decode_sec[decoder_index(codec)];
}

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/** Rounds of one tier: the more messages a round has, the better they hide the turn. */
static double rounds_sec(const tw_coll_tier_t *tier, int rounds, double messages, double bytes)
{
    if (rounds == 0) {
        return 0;
    }
    double per_round = max2(1, messages / rounds);
    double share = messages > 0 ? bytes / messages / (double)TW_COLL_TURN_BYTES : 0;
    return rounds * (tier->alpha_sec + tier->turn_sec * (share < 1 ? share : 1) / per_round);
}

double tw_coll_model_time(const tw_coll_model_t *model, const tw_coll_cost_t *cost)
{
    const tw_coll_tier_t *inter = &model->inter, *node = &model->node;
    double crowd = cost->crowded ? TW_COLL_CROWD : 1;
    double inter_sec =
        cost->inter_bytes * inter->beta_sec * crowd + cost->inter_messages * inter->message_sec;
    double node_sec = cost->node_bytes * node->beta_sec + cost->node_messages * node->message_sec;
    double busy_sec = cost->cpu_sec + inter_sec * inter->busy + node_sec * node->busy;
    double turns_sec = rounds_sec(inter, cost->inter_rounds, cost->inter_messages, cost->inter_bytes) +
                       rounds_sec(node, cost->node_rounds, cost->node_messages, cost->node_bytes);

    return turns_sec + max2(busy_sec, max2(inter_sec, node_sec)) + cost->fill_sec;
}

static void slow_tier(tw_coll_tier_t *tier)
{
    double factor = 1 + tier->noise;

    tier->alpha_sec *= factor;
    tier->beta_sec *= factor;
    tier->message_sec *= factor;
    tier->turn_sec *= factor;
}

void tw_coll_model_typical(const tw_coll_model_t *model, tw_coll_model_t *typical)
{
    double factor = 1 + model->cpu_noise;

    *typical = *model;
    slow_tier(&typical->inter);
    slow_tier(&typical->node);
    typical->copy_sec *= factor;
    typical->reduce_sec *= factor;
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        typical->encode_sec[i] *= factor;
    }
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        typical->decode_sec[i] *= factor;
    }
}

void tw_coll_model_quiet(const tw_coll_model_t *model, tw_coll_model_t *quiet)
{
    double most_sec = TW_COLL_QUIET_COPIES * model->copy_sec;

    *quiet = *model;
    quiet->node.beta_sec = model->node.beta_sec < most_sec ? model->node.beta_sec : most_sec;
}

void tw_coll_model_default(tw_coll_model_t *model)
{
    *model = (tw_coll_model_t){
        .inter =
            {.alpha_sec = 50e-6, .beta_sec = 8 / 1e9, .message_sec = 5e-6, .turn_sec = 100e-6, .busy = 0.1},
        .node = {.alpha_sec = 5e-6, .beta_sec = 1 / 8e9, .message_sec = 1e-6, .turn_sec = 5e-6, .busy = 1},
        .copy_sec = 1 / 8e9,
        .reduce_sec = 1 / 4e9,
    };
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        model->encode_sec[i] = 1 / 3e9;
    }
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        model->decode_sec[i] = 1 / 3e9;
    }
}

/* ---- text ------------------------------------------------------------------------------------------------ */

typedef enum unit { UNIT_TIME, UNIT_LINK, UNIT_SPEED, UNIT_SHARE, UNIT_NOISE } unit_t;

/** One value of the text; a codec's speed fills `count` doubles, `stride` apart. */
typedef struct value {
    const char *section, *key;
    unit_t unit;
    size_t offset;
    int count, stride;
    int shown; /**< part of the formatted text */
} value_t;

#define AT(field) offsetof(tw_coll_model_t, field)

static const value_t values[] = {
    {"inter", "alpha", UNIT_TIME, AT(inter.alpha_sec), 1, 1, 1},
    {"inter", "beta", UNIT_LINK, AT(inter.beta_sec), 1, 1, 1},
    {"inter", "message", UNIT_TIME, AT(inter.message_sec), 1, 1, 1},
    {"inter", "turn", UNIT_TIME, AT(inter.turn_sec), 1, 1, 1},
    {"inter", "busy", UNIT_SHARE, AT(inter.busy), 1, 1, 1},
    {"inter", "noise", UNIT_NOISE, AT(inter.noise), 1, 1, 1},
    {"node", "alpha", UNIT_TIME, AT(node.alpha_sec), 1, 1, 1},
    {"node", "beta", UNIT_LINK, AT(node.beta_sec), 1, 1, 1},
    {"node", "message", UNIT_TIME, AT(node.message_sec), 1, 1, 1},
    {"node", "turn", UNIT_TIME, AT(node.turn_sec), 1, 1, 1},
    {"node", "busy", UNIT_SHARE, AT(node.busy), 1, 1, 1},
    {"node", "noise", UNIT_NOISE, AT(node.noise), 1, 1, 1},
    {"cpu", "copy", UNIT_SPEED, AT(copy_sec), 1, 1, 1},
    {"cpu", "reduce", UNIT_SPEED, AT(reduce_sec), 1, 1, 1},
    {"cpu", "noise", UNIT_NOISE, AT(cpu_noise), 1, 1, 1},
    {"codec", "encode", UNIT_SPEED, AT(encode_sec), TW_COLL_MODEL_ENCODERS, 1, 0},
    {"codec", "decode", UNIT_SPEED, AT(decode_sec), TW_COLL_MODEL_DECODERS, 1, 0},
    {"int8", "encode", UNIT_SPEED, AT(encode_sec[0]), TW_COLL_MODEL_ENCODERS / 2, 2, 1},
    {"int8", "decode", UNIT_SPEED, AT(decode_sec[0]), TW_COLL_MODEL_DECODERS / 2, 2, 1},
    {"int4", "encode", UNIT_SPEED, AT(encode_sec[1]), TW_COLL_MODEL_ENCODERS / 2, 2, 1},
    {"int4", "decode", UNIT_SPEED, AT(decode_sec[1]), TW_COLL_MODEL_DECODERS / 2, 2, 1},
};

#define N_VALUES (sizeof(values) / sizeof(values[0]))

static const value_t *find_value(const char *section, const char *key)
{
    for (size_t i = 0; i < N_VALUES; i++) {
        if (strcmp(values[i].section, section) == 0 && strcmp(values[i].key, key) == 0) {
            return &values[i];
        }
    }
    return NULL;
}

static tw_status_t parse_number(unit_t unit, const char *text, double *out)
{
    double number = 0;
    size_t bytes = 0;
    char *end;
    tw_status_t status = TW_OK;

    switch (unit) {
    case UNIT_TIME:
        status = tw_parse_time(text, out);
        return status == TW_OK && *out >= 0 ? TW_OK : TW_ERR_INVALID;
    case UNIT_LINK:
        status = tw_parse_rate(text, &number);
        number /= 8;
        break;
    case UNIT_SPEED:
        status = tw_parse_bytes(text, &bytes);
        number = (double)bytes;
        break;
    case UNIT_SHARE:
    case UNIT_NOISE:
        *out = strtod(text, &end);
        return end != text && *end == '\0' && *out >= 0 &&
                       *out <= (unit == UNIT_SHARE ? 1 : TW_COLL_NOISE_MAX)
                   ? TW_OK
                   : TW_ERR_INVALID;
    }
    if (status != TW_OK || !(number > 0)) {
        return TW_ERR_INVALID;
    }
    *out = 1 / number;
    return TW_OK;
}

static tw_status_t unknown_name(const char *section, const char *key)
{
    char names[N_VALUES][32], asked[96];
    const char *candidates[N_VALUES];

    for (size_t i = 0; i < N_VALUES; i++) {
        snprintf(names[i], sizeof(names[i]), "%s:%s", values[i].section, values[i].key);
        candidates[i] = names[i];
    }
    snprintf(asked, sizeof(asked), "%s:%s", section, key);
    const char *nearest = tw_nearest_name(asked, candidates, N_VALUES);
    tw_error("TW_COLL_MODEL: unknown value %s%s%s", asked, nearest ? ", did you mean " : "",
             nearest ? nearest : "");
    return TW_ERR_CONFIG;
}

static tw_status_t set_value(tw_coll_model_t *model, const char *section, const char *key, const char *text)
{
    const value_t *value = find_value(section, key);
    double number = 0;

    if (value == NULL) {
        return unknown_name(section, key);
    }
    if (parse_number(value->unit, text, &number) != TW_OK) {
        static const char *const expected[] = {"a time such as 50us", "a rate such as 1gbit",
                                               "bytes per second such as 4G", "a share from 0 to 1",
                                               "a share from 0 to 1000"};
        tw_error("TW_COLL_MODEL: %s:%s=%s is not %s", section, key, text, expected[value->unit]);
        return TW_ERR_CONFIG;
    }
    for (int i = 0; i < value->count; i++) {
        *(double *)((char *)model + value->offset + (size_t)(i * value->stride) * sizeof(double)) = number;
    }
    return TW_OK;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text)) {
        text++;
    }
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) {
        *--end = '\0';
    }
    return text;
}

/** One "name:key=value,key=value". */
static tw_status_t parse_section(char *text, tw_coll_model_t *model)
{
    char *colon = strchr(text, ':'), *rest = NULL;

    if (colon == NULL) {
        tw_error("TW_COLL_MODEL: '%s' is not of the form name:key=value,key=value", text);
        return TW_ERR_CONFIG;
    }
    *colon = '\0';
    const char *section = trim(text);
    for (char *pair = strtok_r(colon + 1, ",", &rest); pair != NULL; pair = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(pair, '=');
        if (equals == NULL) {
            tw_error("TW_COLL_MODEL: %s: '%s' is not of the form key=value", section, pair);
            return TW_ERR_CONFIG;
        }
        *equals = '\0';
        tw_status_t status = set_value(model, section, trim(pair), trim(equals + 1));
        if (status != TW_OK) {
            return status;
        }
    }
    return TW_OK;
}

tw_status_t tw_coll_model_parse(const char *text, tw_coll_model_t *model)
{
    tw_coll_model_t parsed;
    tw_status_t status = TW_OK;
    char *rest = NULL, *copy = strdup(text);

    if (copy == NULL) {
        tw_error("out of memory for the cost model's description");
        return TW_ERR_NO_MEMORY;
    }
    tw_coll_model_default(&parsed);
    for (char *section = strtok_r(copy, ";", &rest); section != NULL && status == TW_OK;
         section = strtok_r(NULL, ";", &rest)) {
        section = trim(section);
        if (*section != '\0') {
            status = parse_section(section, &parsed);
        }
    }
    free(copy);
    if (status == TW_OK) {
        *model = parsed;
    }
    return status;
}

static int format_number(const value_t *value, double number, char *buf, size_t buf_bytes)
{
    switch (value->unit) {
    case UNIT_TIME:
        return snprintf(buf, buf_bytes, "%s=%.4gus", value->key, number * 1e6);
    case UNIT_LINK:
        return snprintf(buf, buf_bytes, "%s=%.5gmbit", value->key, 8e-6 / number);
    case UNIT_SPEED:
        return snprintf(buf, buf_bytes, "%s=%.0fM", value->key, 1 / number / (1 << 20));
    case UNIT_SHARE:
    case UNIT_NOISE:
        break;
    }
    return snprintf(buf, buf_bytes, "%s=%.2g", value->key, number);
}

const char *tw_coll_model_format(const tw_coll_model_t *model, char *buf, size_t buf_bytes)
{
    const char *section = NULL;
    size_t used = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < N_VALUES && used < buf_bytes; i++) {
        const value_t *value = &values[i];
        if (!value->shown) {
            continue;
        }
        if (section == NULL || strcmp(section, value->section) != 0) {
            used +=
                (size_t)snprintf(buf + used, buf_bytes - used, "%s%s:", section ? ";" : "", value->section);
            section = value->section;
        } else {
            used += (size_t)snprintf(buf + used, buf_bytes - used, ",");
        }
        if (used < buf_bytes) {
            used += (size_t)format_number(value, *(const double *)((const char *)model + value->offset),
                                          buf + used, buf_bytes - used);
        }
    }
    return buf;
}
