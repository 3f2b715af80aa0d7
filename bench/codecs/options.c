/* bench/quant: the command line. */
#include "bench/codecs/bench.h"

#include <stddef.h>
#include <string.h>

#include "flags/flags.h"

#define ALL_CODECS                                                                           \
    "int8,int8:hadamard,int8:stochastic,int8:scale=fp32,int4,int4:hadamard,int4:stochastic," \
    "int4:hadamard,stochastic,int4:block=2048,int4:block=32"

static const char doc[] = "Measures the block codecs: speed beside memcpy of the same bytes, and "
                          "error of one round trip.\v"
                          "GB/s are 10^9 bytes of the plain side per second: of what is encoded, of what is "
                          "decoded into, or of one summed "
                          "input. Times are medians. \"floor\" is what memcpy's speed would make of the "
                          "bytes that the operation must read and "
                          "write: more than memcpy, where there are fewer of them. It is given for cold data "
                          "only, and can be beaten: changing data "
                          "in place costs less than moving it.";

static void add_codec(struct argp_state *state, const tw_flag_t *flag, qb_options_t *options,
                      const char *text)
{
    if (options->n_codecs == QB_MAX_CODECS) {
        argp_error(state, "--%s: more than %d", flag->field.name, QB_MAX_CODECS);
    } else if (tw_quant_codec_parse(text, &options->codecs[options->n_codecs]) != TW_OK) {
        argp_error(state, "--%s: '%s' is no codec", flag->field.name, text);
    } else {
        options->n_codecs++;
    }
}

/** A comma parts codecs as well as a codec's options; no option begins like a codec. */
static void take_codecs(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    qb_options_t *options = ctx;
    char text[128];
    options->n_codecs = 0;
    while (*list) {
        const char *end = list;
        do {
            end += strcspn(end + 1, ",") + 1;
        } while (*end && strncmp(end, ",int", 4) != 0);
        snprintf(text, sizeof(text), "%.*s", (int)(end - list), list);
        add_codec(state, flag, options, text);
        list = *end ? end + 1 : end;
    }
}

static void add_type(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    qb_options_t *options = ctx;
    tw_type_t type;
    if (tw_type_parse(text, &type) != TW_OK || type == TW_TYPE_BYTE || options->n_types == QB_MAX_TYPES) {
        argp_error(state, "--%s: '%s' is not one of bf16, fp16, fp32, each once", flag->field.name, text);
    } else {
        options->types[options->n_types++] = type;
    }
}

static void take_types(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    ((qb_options_t *)ctx)->n_types = 0;
    tw_flag_each(state, flag, ctx, list, add_type);
}

static void take_all(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    (void)text;
    take_codecs(state, flag, ctx, ALL_CODECS);
    take_types(state, flag, ctx, "bf16,fp16,fp32");
}

static void add_op(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    const char *names[QB_OP_COUNT];
    for (int op = 0; op < QB_OP_COUNT; op++) {
        names[op] = qb_op_name((qb_op_t)op);
    }
    ((qb_options_t *)ctx)->ops[tw_flag_choice(state, flag, text, names, QB_OP_COUNT)] = 1;
}

static void take_ops(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    qb_options_t *options = ctx;
    memset(options->ops, 0, sizeof(options->ops));
    tw_flag_each(state, flag, options, list, add_op);
}

static void take_cache(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    static const char *const names[] = {"cold", "warm", "both"};
    qb_options_t *options = ctx;
    size_t choice = tw_flag_choice(state, flag, text, names, 3);
    options->cold = choice != 1;
    options->warm = choice != 0;
}

static void take_table(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    static const char *const names[] = {"speed", "error", "both"};
    qb_options_t *options = ctx;
    size_t choice = tw_flag_choice(state, flag, text, names, 3);
    options->speed = choice != 1;
    options->error = choice != 0;
}

#define AT(member) offsetof(qb_options_t, member)

static const char *const devices[] = {"host", "cuda", NULL};

static const tw_flag_t flag_list[] = {
    {.field = {"codecs", "int8,int4,int4:hadamard", "LIST",
               "Codecs, each int8, int4 or int2 with options: int4:block=64,hadamard,stochastic,scale=fp32",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'c',
     .group = 1,
     .take = take_codecs},
    {.field = {"types", "bf16", "LIST", "Source types, of bf16, fp16, fp32", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 't',
     .group = 1,
     .take = take_types},
    {.field = {"ops", NULL, "LIST",
               "Operations, of encode, decode, decode_add, encode_delta, decode_apply, reduce_encode, "
               "reduce_decode "
               "(default: all)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'o',
     .group = 1,
     .take = take_ops},
    {.field = {"device", "host", "NAME",
               "host, or cuda: the current GPU, on 1 MB and on --bytes, beside a device-to-device copy",
               TW_CONFIG_ENUM, AT(cuda), 0, 0, devices},
     .group = 1},
    {.field = {"all", NULL, NULL, "All types, and codecs with every option; takes minutes", TW_CONFIG_BOOL, 0,
               0, 0, NULL},
     .group = 1,
     .take = take_all},
    {.field = {"backend", NULL, "NAME", "ref, avx2, avx512 (default: auto, the best there is)",
               TW_CONFIG_STRING, AT(backend), 0, 0, NULL},
     .group = 1},
    {.field = {"inputs", "4", "K", "Inputs of reduce_encode and reduce_decode", TW_CONFIG_INT, AT(n_inputs),
               1, 1024, NULL},
     .group = 1},
    {.field = {"threads", NULL, "N", "Threads (default: one, then as many as there are cores)",
               TW_CONFIG_INT32, AT(threads), 1, 4096, NULL},
     .group = 2},
    {.field = {"cache", "both", "STATE", "cold: data larger than cache; warm: data in each core's own; both",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .group = 2,
     .take = take_cache},
    {.field = {"bytes", "128M", "SIZE", "Source bytes when cold; well above the last-level cache",
               TW_CONFIG_BYTES, AT(bytes), 4096, 0x1p36, NULL},
     .letter = 'b',
     .group = 2},
    {.field = {"warm-bytes", "64K", "SIZE", "Source bytes per thread when warm", TW_CONFIG_BYTES,
               AT(warm_bytes), 4096, 0x1p36, NULL},
     .group = 2},
    {.field = {"seconds", "0.15", "S", "Time to measure each line for", TW_CONFIG_DOUBLE, AT(seconds), 0.001,
               3600, NULL},
     .group = 2},
    {.field = {"table", "both", "NAME", "speed, error, or both", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .group = 3,
     .take = take_table},
    {.field = {"tensors", NULL, "FILE", "Also the error on the weights of a safetensors file (default: none)",
               TW_CONFIG_STRING, AT(tensors), 0, 0, NULL},
     .group = 3},
    {.field = {"json", NULL, "FILE", "Write each line as a JSON object (default: do not)", TW_CONFIG_STRING,
               AT(json), 0, 0, NULL},
     .group = 3},
};

void qb_options_parse(int argc, char **argv, qb_options_t *options)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    *options = (qb_options_t){0};
    for (int op = 0; op < QB_OP_COUNT; op++) {
        options->ops[op] = 1;
    }
    tw_flags_read(&flags, argc, argv, options);
}
