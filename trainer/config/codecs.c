/* Resolves the codecs of weights and gradients from thinwire.weights and thinwire.gradients, or from the
 * older keys that these replace, and refuses keys that exclude a codec. No other file chooses codecs. */
#include <stdio.h>
#include <string.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"

#define TEXT_BYTES 160
#define N_OLDER 4 /* most older keys that one new key replaces */
#define WEIGHTS "thinwire.weights"
#define GRADIENTS "thinwire.gradients"
#define QWZ "zero_optimization.zero_quantized_weights"
#define QGZ "zero_optimization.zero_quantized_gradients"
#define DELTA "delta"
#define UNROTATED "hadamard=no"

/* ---- what is asked for --------------------------------------------------------------------------------- */

/** A key, and the text of the codec that it asks for. "": the key asks for no codec. */
typedef struct request {
    const char *key;
    char text[TEXT_BYTES];
} request_t;

static void ask_rounded(request_t *request, const char *name, int64_t bits, int64_t block, int is_rotated)
{
    char size[40] = "";
    if (block > 0) {
        snprintf(size, sizeof(size), "block=%lld,", (long long)block);
    }
    snprintf(request->text, TEXT_BYTES, "%s%lld:%s%s", name, (long long)bits, size,
             is_rotated ? "hadamard" : UNROTATED);
}

static void ask_weights(const tw_train_older_t *o, request_t older[N_OLDER])
{
    older[0].key = "thinwire.delta_bits";
    if (o->delta_bits > 0) {
        ask_rounded(&older[0], DELTA, o->delta_bits, o->delta_block, o->delta_hadamard && o->delta_bits < 8);
    }
    older[1] = (request_t){"thinwire.delta_lossless", ""};
    snprintf(older[1].text, TEXT_BYTES, "%s", o->delta_lossless ? DELTA : "");
    older[2].key = QWZ;
    if (o->quantized_weights) {
        ask_rounded(&older[2], "int", 8, o->weight_block, 0);
    }
    older[3].key = "thinwire.lossless_weights";
    snprintf(older[3].text, TEXT_BYTES, "%s", o->lossless_weights ? "lossless" : "");
}

static void ask_gradients(const tw_train_older_t *o, request_t older[N_OLDER])
{
    older[0].key = QGZ;
    if (o->quantized_gradients) {
        ask_rounded(&older[0], "int", o->gradient_bits, o->gradient_block, o->gradient_hadamard);
    }
    older[1].key = "thinwire.lossless_gradients";
    snprintf(older[1].text, TEXT_BYTES, "%s", o->lossless_gradients ? "lossless" : "");
}

/** Choose between the request of a new key, `own`, and the older keys' requests. If an older key asks for a
 *  codec, `own` becomes that request. TW_ERR_CONFIG, logged: two keys ask for a codec. */
static tw_status_t codecs_choose(const tw_train_config_t *config, const request_t older[N_OLDER],
                                 request_t *own)
{
    int is_said = tw_train_is_said(config, own->key), any_is_said = is_said;
    const char *of = strcmp(own->key, WEIGHTS) == 0 ? "weights" : "gradients";
    const request_t *asks = is_said ? own : NULL;
    for (size_t i = 0; i < N_OLDER && older[i].key; i++) {
        any_is_said |= tw_train_is_said(config, older[i].key);
        TW_FAIL_IF(*older[i].text && asks, TW_ERR_CONFIG,
                   "config: %s and %s exclude each other: both say how %s cross the network; leave one of "
                   "them out",
                   asks->key, older[i].key, of);
        asks = *older[i].text ? &older[i] : asks;
    }
    if (asks && asks != own) {
        *own = *asks;
    } else if (any_is_said && !is_said) {
        snprintf(own->text, TEXT_BYTES, "plain");
    }
    return TW_OK;
}

static tw_status_t codecs_ask(const tw_train_config_t *config, const char *key, const char *text,
                              request_t *request)
{
    request_t older[N_OLDER] = {{NULL, ""}};
    *request = (request_t){.key = key};
    TW_FAIL_IF((size_t)snprintf(request->text, TEXT_BYTES, "%s", text) >= TEXT_BYTES, TW_ERR_CONFIG,
               "config: %s is longer than %d bytes", key, TEXT_BYTES - 1);
    (strcmp(key, WEIGHTS) == 0 ? ask_weights : ask_gradients)(&config->options.older, older);
    return codecs_choose(config, older, request);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

/** Copy a codec's text without one of its options. Returns 1 if the text had the option. */
static int drop_option(const char *text, const char *option, char rest[TEXT_BYTES])
{
    size_t used = strcspn(text, ":"), length;
    const char *separator = ":";
    int is_there = 0;
    snprintf(rest, TEXT_BYTES, "%.*s", (int)used, text);
    for (const char *at = text + used; *at; at += length) {
        length = strcspn(++at, ",");
        if (length == strlen(option) && strncmp(at, option, length) == 0) {
            is_there = 1;
        } else {
            used += (size_t)snprintf(rest + used, TEXT_BYTES - used, "%s%.*s", separator, (int)length, at);
            separator = ",";
        }
    }
    return is_there;
}

/** Parse a codec. If `rotates` is 1, a codec that can rotate does so, unless the text says hadamard=no. */
static tw_status_t parse_codec(const request_t *request, const char *text, int rotates,
                               tw_quant_codec_t *codec)
{
    char rest[TEXT_BYTES];
    int is_unrotated = drop_option(text, UNROTATED, rest);
    if (strcmp(rest, "plain") == 0 || strcmp(rest, "exact") == 0) {
        *codec = (tw_quant_codec_t){0};
        return TW_OK;
    }
    TW_FAIL_IF(tw_quant_codec_parse(rest, codec) != TW_OK, TW_ERR_CONFIG,
               "config: %s: '%s' is refused: expected plain, lossless, delta, delta8, delta4 or delta2 (of "
               "weights), int8, int4 or ecdq (of gradients), with options such as int4:block=64 or "
               "ecdq:step=0.5",
               request->key, request->text);
    if (rotates && !is_unrotated && (tw_quant_row_get(codec->kind)->has & TW_QUANT_HAS_HADAMARD)) {
        codec->hadamard = 1;
    }
    return TW_OK;
}

/** Parse the codec of weights. delta8 is not rotated: its steps are so fine that few changes round to 0. */
static tw_status_t parse_weights(const request_t *request, tw_train_codecs_t *out)
{
    char rounded[TEXT_BYTES];
    const char *text = request->text;
    out->has_delta = strncmp(text, DELTA, strlen(DELTA)) == 0;
    if (!out->has_delta) {
        return parse_codec(request, text, 0, &out->weights);
    }
    if (strcmp(text, DELTA) == 0) {
        out->delta = (tw_quant_codec_t){.kind = TW_QUANT_DELTA};
        return TW_OK;
    }
    snprintf(rounded, sizeof(rounded), "int%s", text + strlen(DELTA));
    return parse_codec(request, rounded, strncmp(rounded, "int8", 4) != 0, &out->delta);
}

/** Write a codec's text with all its options, to be printed, and compared between ranks. */
static void format_codec(const tw_quant_codec_t *codec, int rotates, char text[TEXT_BYTES])
{
    snprintf(text, TEXT_BYTES, "plain");
    if (tw_train_codec(codec)) {
        tw_quant_codec_format(codec, text, TEXT_BYTES);
        size_t length = strlen(text);
        int may_rotate = (tw_quant_row_get(codec->kind)->has & TW_QUANT_HAS_HADAMARD) != 0;
        int is_unrotated = rotates && may_rotate && !codec->hadamard;
        snprintf(text + length, TEXT_BYTES - length, "%s", is_unrotated ? "," UNROTATED : "");
    }
}

static void format_weights(const tw_train_codecs_t *codecs, char text[TEXT_BYTES])
{
    char rounded[TEXT_BYTES];
    if (!codecs->has_delta) {
        format_codec(&codecs->weights, 0, text);
    } else if (tw_quant_form(&codecs->delta) == TW_QUANT_CHANGE) {
        snprintf(text, TEXT_BYTES, DELTA);
    } else {
        format_codec(&codecs->delta, tw_quant_row_get(codecs->delta.kind)->bits < 8, rounded);
        snprintf(text, TEXT_BYTES, DELTA "%.*s", TEXT_BYTES - 8, rounded + strlen("int"));
    }
}

static tw_status_t keep_text(tw_train_config_t *config, const char *key, char **member, const char *text)
{
    int was_said = tw_train_is_said(config, key), is_new = strcmp(*member, text) != 0;
    TW_TRY(tw_config_set(&tw_train_options_table, &config->options, key, text));
    if (is_new && !was_said) {
        tw_train_note_follows(config, member);
    }
    return TW_OK;
}

/* ---- what does not go together ------------------------------------------------------------------------- */

static tw_status_t check_together(const tw_train_options_t *o)
{
    const tw_train_codecs_t *codecs = &o->codecs;
    const tw_train_refusal_t refusals[] = {
        {codecs->has_delta && !o->bf16,
         "bf16.enabled is false, but thinwire.weights is delta, changes of bf16 weights: half of an fp32 "
         "weight's change is noise, which nothing shortens; leave one of them out"},
        {codecs->has_delta && o->stage != 3,
         "thinwire.weights is delta, but hpZ and delta are for zero_optimization.stage 3"},
        {tw_train_is_rounded(&codecs->weights) && o->stage != 3,
         "thinwire.weights loses something (zero_quantized_weights does), which is for "
         "zero_optimization.stage 3"},
        {tw_train_is_rounded(&codecs->gradients) && o->stage == 0,
         "thinwire.gradients loses something (zero_quantized_gradients does), which is for "
         "zero_optimization.stage 1 to 3"},
        {tw_quant_row_get(codecs->weights.kind)->unbiased,
         "thinwire.weights is a codec whose errors are as large as what it sends: it is for gradients, which "
         "are summed over ranks and steps"},
        {!tw_quant_row_get(codecs->gradients.kind)->sums,
         "thinwire.gradients is a codec that cannot sum: it is for changes of weights"},
        {o->gather == TW_TRAIN_GATHER_FP8 && !o->bf16,
         "bf16.enabled is false, but model.gather is fp8, which is for masters beside weights; leave one of "
         "them out"},
        {o->gather == TW_TRAIN_GATHER_FP8 && o->device == TW_TRAIN_DEVICE_CUDA,
         "model.gather is fp8, which is for thinwire.device cpu: GPUs have no part of it here"},
        {o->gather == TW_TRAIN_GATHER_FP8 &&
             (tw_train_is_rounded(&codecs->weights) || tw_train_is_rounded(&codecs->delta)),
         "model.gather is fp8, but thinwire.weights would round weights once more; with it are plain, "
         "lossless and delta"},
        {o->replicas == TW_TRAIN_REPLICAS_DEVICE && tw_train_is_rounded(&codecs->delta),
         "thinwire.replicas is device, but changes that are rounded are coded in the host's memory; "
         "thinwire.weights=delta codes them on the GPU"},
    };
    return tw_train_refuse_any(TW_TRAIN_LIST(refusals));
}

/** Return the codec of gradients inside a node: int8 if thinwire.gradient_inner says so, else plain. */
static tw_quant_codec_t inner_codec(const tw_train_options_t *o)
{
    int has = o->gradient_inner == 1 && tw_quant_form(&o->codecs.gradients) == TW_QUANT_BLOCKS;
    return has ? (tw_quant_codec_t){.kind = TW_QUANT_INT8, .block = o->codecs.gradients.block}
               : (tw_quant_codec_t){0};
}

/** Make a codec plain if all ranks are on one node: no bytes cross a network, so encoding would save nothing.
 *  The delta codec stays, since it updates the replicas. */
static void leave_plain(tw_train_config_t *config, tw_quant_codec_t *codec, const char *key)
{
    static const char rounded[] =
        "all ranks are on one node, nothing crosses a network and nothing is quantized";
    static const char packed[] = "all ranks are on one node, nothing crosses a network and nothing is packed";
    if (tw_train_codec(codec)) {
        tw_train_note_key(config, key, tw_train_is_rounded(codec) ? rounded : packed);
        *codec = (tw_quant_codec_t){0};
    }
}

tw_status_t tw_train_codecs_resolve(tw_train_config_t *config, int n_nodes)
{
    tw_train_options_t *o = &config->options;
    request_t weights, gradients;
    char text[TEXT_BYTES];
    o->codecs = (tw_train_codecs_t){0};
    if (!o->bf16 && !tw_train_is_said(config, WEIGHTS)) { /* a program's own default may be delta, of bf16 */
        TW_TRY(tw_config_set(&tw_train_options_table, o, WEIGHTS, "plain"));
    }
    TW_TRY(codecs_ask(config, WEIGHTS, o->weights, &weights));
    TW_TRY(parse_weights(&weights, &o->codecs));
    TW_TRY(codecs_ask(config, GRADIENTS, o->gradients, &gradients));
    TW_TRY(parse_codec(&gradients, gradients.text, 1, &o->codecs.gradients));
    TW_TRY(check_together(o));
    if (n_nodes == 1) {
        leave_plain(config, &o->codecs.weights, weights.key);
        leave_plain(config, &o->codecs.gradients, gradients.key);
    }
    o->codecs.inner = inner_codec(o);
    format_weights(&o->codecs, text);
    TW_TRY(keep_text(config, WEIGHTS, &o->weights, text));
    format_codec(&o->codecs.gradients, 1, text);
    return keep_text(config, GRADIENTS, &o->gradients, text);
}

/* ---- questions about codecs ---------------------------------------------------------------------------- */

const tw_quant_codec_t *tw_train_codec(const tw_quant_codec_t *codec)
{
    return tw_quant_form(codec) != TW_QUANT_AS_IS ? codec : NULL;
}

int tw_train_is_rounded(const tw_quant_codec_t *codec)
{
    return tw_quant_loses(codec) != TW_QUANT_LOSES_NOTHING;
}

int tw_train_loses_nothing(const tw_train_options_t *o)
{
    const tw_train_codecs_t *codecs = &o->codecs;
    return o->gather == TW_TRAIN_GATHER_BF16 && !tw_train_is_rounded(&codecs->weights) &&
           !tw_train_is_rounded(&codecs->gradients) && !tw_train_is_rounded(&codecs->delta);
}
