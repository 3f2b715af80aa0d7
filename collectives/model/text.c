/** The cost model as text, in the form of core's configuration tables. The text has the units that people
 *  use; the model has seconds and seconds per byte. */
#include "collectives/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ----------------------------------------------------------------------------------------- */

/** Speeds in bytes per second of plain data. */
typedef struct codec_text {
    size_t encode, decode;
} codec_text_t;

typedef struct model_text {
    tw_coll_tier_t inter, node; /**< as in the model, but beta_sec is in bits per second */
    size_t copy, reduce;        /**< bytes per second */
    double cpu_noise;
    codec_text_t codec;                  /**< speeds of each codec that does not have its own */
    codec_text_t codecs[TW_QUANT_KINDS]; /**< speeds of each kind */
    /** extra cost of a message of any codec of messages, as in the model */
    double encode_message_sec, decode_message_sec;
} model_text_t;

#define FIELD(name_, dflt_, doc_, type_, member_, min_, max_)                   \
    {                                                                           \
        .name = (name_), .dflt = (dflt_), .doc = (doc_), .type = (type_),       \
        .offset = offsetof(model_text_t, member_), .min = (min_), .max = (max_) \
    }
#define TIME(name, dflt, member, doc) FIELD(name, dflt, doc, TW_CONFIG_TIME, member, 0, INFINITY)
#define RATE(name, dflt, member, doc) FIELD(name, dflt, doc, TW_CONFIG_RATE, member, 1, INFINITY)
#define SPEED(name, dflt, member, min, doc) FIELD(name, dflt, doc, TW_CONFIG_BYTES, member, min, INFINITY)
#define CODEC(kind, name, dflt)                                                               \
    SPEED(#name ":encode", dflt, codecs[kind].encode, 0, "Encoding " #name "; 0: as codec."), \
        SPEED(#name ":decode", dflt, codecs[kind].decode, 0, "Decoding " #name "; 0: as codec."),
#define BLOCKS(kind, name) CODEC(kind, name, "0")
#define MESSAGES(kind, name) CODEC(kind, name, "1500M")
#define SHARE(name, dflt, member, max, doc) FIELD(name, dflt, doc, TW_CONFIG_DOUBLE, member, 0, max)

static const tw_config_field_t fields[] = {
    TIME("inter:alpha", "50us", inter.alpha_sec, "Latency between nodes."),
    RATE("inter:beta", "1gbit", inter.beta_sec, "A node's link."),
    TIME("inter:message", "5us", inter.message_sec, "One more message in a stream."),
    TIME("inter:turn", "100us", inter.turn_sec, "One message when none is under way before it."),
    SHARE("inter:busy", "0.1", inter.busy, 1, "Of a stream's time, the processor's share."),
    SHARE("inter:noise", "0", inter.noise, TW_COLL_NOISE_MAX, "How much slower it typically is."),
    TIME("node:alpha", "5us", node.alpha_sec, "Latency inside a node."),
    RATE("node:beta", "64gbit", node.beta_sec, "All of a node's memory traffic."),
    TIME("node:message", "1us", node.message_sec, "One more message in a stream."),
    TIME("node:turn", "5us", node.turn_sec, "One message when none is under way before it."),
    SHARE("node:busy", "1", node.busy, 1, "Of a stream's time, the processor's share."),
    SHARE("node:noise", "0", node.noise, TW_COLL_NOISE_MAX, "How much slower it typically is."),
    SPEED("cpu:copy", "8G", copy, 1, "Copying."),
    SPEED("cpu:reduce", "4G", reduce, 1, "The plain sum of two."),
    SHARE("cpu:noise", "0", cpu_noise, TW_COLL_NOISE_MAX, "How much slower it typically is."),
    SPEED("codec:encode", "3G", codec.encode, 1, "Encoding, every codec."),
    SPEED("codec:decode", "3G", codec.decode, 1, "Decoding, every codec."),
    TW_QUANT_BLOCK_CODECS(BLOCKS) TW_QUANT_MESSAGE_CODECS(MESSAGES)
        TIME("lossless:encode_message", "30us", encode_message_sec, "A message, beyond its bytes."),
    TIME("lossless:decode_message", "15us", decode_message_sec, "A message, beyond its bytes."),
};

static const tw_config_table_t table = TW_CONFIG_TABLE("collectives/model", fields, model_text_t);

/* ---- from text ----------------------------------------------------------------------------------------- */

/** Convert beta_sec from seconds per byte to bits per second, or back. */
static tw_coll_tier_t turn_beta(tw_coll_tier_t tier)
{
    tier.beta_sec = 8 / tier.beta_sec;
    return tier;
}

static double codec_sec(size_t own, size_t any)
{
    return 1 / (double)(own > 0 ? own : any);
}

static void read_model(const model_text_t *text, tw_coll_model_t *model)
{
    *model = (tw_coll_model_t){
        .inter = turn_beta(text->inter),
        .node = turn_beta(text->node),
        .copy_sec = 1 / (double)text->copy,
        .reduce_sec = 1 / (double)text->reduce,
        .encode_message_sec = text->encode_message_sec,
        .decode_message_sec = text->decode_message_sec,
        .cpu_noise = text->cpu_noise,
    };
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        model->encode_sec[i] = codec_sec(text->codecs[i / TW_COLL_MODEL_OPTIONS].encode, text->codec.encode);
        model->decode_sec[i] = codec_sec(text->codecs[i / TW_COLL_MODEL_OPTIONS].decode, text->codec.decode);
    }
}

void tw_coll_model_default(tw_coll_model_t *model)
{
    model_text_t text;
    /* cannot fail: the defaults are valid, and no variable has such a name */
    (void)tw_config_init(&table, &text);
    read_model(&text, model);
}

tw_status_t tw_coll_model_parse(const char *text, tw_coll_model_t *model)
{
    model_text_t read;
    TW_TRY(tw_config_init(&table, &read));
    TW_TRY(tw_config_set_list(&table, &read, "TW_COLL_MODEL", text));
    read_model(&read, model);
    return TW_OK;
}

/* ---- to text ------------------------------------------------------------------------------------------- */

static size_t speed(double sec_per_byte)
{
    return sec_per_byte > 0 ? (size_t)(1 / sec_per_byte) : 0;
}

/** Convert the model to the text's units. A codec's speeds are those of rounding to nearest, unrotated. */
static void write_model(const tw_coll_model_t *model, model_text_t *text)
{
    *text = (model_text_t){
        .inter = turn_beta(model->inter),
        .node = turn_beta(model->node),
        .copy = speed(model->copy_sec),
        .reduce = speed(model->reduce_sec),
        .cpu_noise = model->cpu_noise,
        .encode_message_sec = model->encode_message_sec,
        .decode_message_sec = model->decode_message_sec,
    };
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        text->codecs[kind] = (codec_text_t){.encode = speed(model->encode_sec[kind * TW_COLL_MODEL_OPTIONS]),
                                            .decode = speed(model->decode_sec[kind * TW_COLL_MODEL_OPTIONS])};
    }
}

static int format_value(const tw_config_field_t *field, const model_text_t *text, char *buf, size_t buf_bytes)
{
    const void *at = (const char *)text + field->offset;
    const char *key = strchr(field->name, ':') + 1;
    switch (field->type) {
    case TW_CONFIG_TIME:
        return snprintf(buf, buf_bytes, "%s=%.4gus", key, *(const double *)at * 1e6);
    case TW_CONFIG_RATE:
        return snprintf(buf, buf_bytes, "%s=%.5gmbit", key, *(const double *)at * 1e-6);
    case TW_CONFIG_BYTES:
        return snprintf(buf, buf_bytes, "%s=%.0fM", key, (double)*(const size_t *)at / (1 << 20));
    default:
        return snprintf(buf, buf_bytes, "%s=%.2g", key, *(const double *)at);
    }
}

const char *tw_coll_model_format(const tw_coll_model_t *model, char *buf, size_t buf_bytes)
{
    model_text_t text;
    const char *section = "";
    size_t used = 0;
    buf[0] = '\0';
    write_model(model, &text);
    for (size_t i = 0; i < table.n_fields && used < buf_bytes; i++) {
        const char *name = fields[i].name;
        int section_chars = (int)(strchr(name, ':') - name) + 1;
        if (strncmp(name, "codec:", 6) == 0) {
            continue;
        }
        if (strncmp(name, section, (size_t)section_chars) == 0) {
            used += (size_t)snprintf(buf + used, buf_bytes - used, ",");
        } else {
            used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%.*s", i > 0 ? ";" : "", section_chars,
                                     name);
            section = name;
        }
        if (used < buf_bytes) {
            used += (size_t)format_value(&fields[i], &text, buf + used, buf_bytes - used);
        }
    }
    return buf;
}
