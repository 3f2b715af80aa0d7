/* bench/quant: the command line. */
#include "bench/codecs/bench.h"

#include <errno.h>
#include <string.h>

#include "flags/flags.h"

#define DEFAULT_COLD_BYTES ((size_t)128 << 20)
#define DEFAULT_WARM_BYTES ((size_t)64 << 10)
#define DEFAULT_CODECS "int8,int4,int4:hadamard"
#define ALL_CODECS                                                                           \
    "int8,int8:hadamard,int8:stochastic,int8:scale=fp32,int4,int4:hadamard,int4:stochastic," \
    "int4:hadamard,stochastic,int4:block=2048,int4:block=32"

enum {
    KEY_ALL = 256,
    KEY_DEVICE,
    KEY_BACKEND,
    KEY_BYTES,
    KEY_WARM_BYTES,
    KEY_CACHE,
    KEY_THREADS,
    KEY_INPUTS,
    KEY_SECONDS,
    KEY_JSON,
    KEY_TENSORS,
    KEY_TABLE
};

static const struct argp_option option_list[] = {
    {.name = "codecs",
     .key = 'c',
     .arg = "LIST",
     .doc = "Codecs, each int8, int4 or int2 with options: int4:block=64,hadamard,stochastic,scale=fp32 "
            "(default: " DEFAULT_CODECS ")",
     .group = 1},
    {.name = "types",
     .key = 't',
     .arg = "LIST",
     .doc = "Source types, of bf16, fp16, fp32 (default: bf16)",
     .group = 1},
    {.name = "ops",
     .key = 'o',
     .arg = "LIST",
     .doc = "Operations, of encode, decode, decode_add, delta_encode, decode_apply, reduce_encode, "
            "reduce_decode "
            "(default: all)",
     .group = 1},
    {.name = "device",
     .key = KEY_DEVICE,
     .arg = "NAME",
     .doc = "host, or cuda: the current GPU, on 1 MB and on --bytes, beside a device-to-device copy "
            "(default: host)",
     .group = 1},
    {.name = "all",
     .key = KEY_ALL,
     .doc = "All types, and codecs with every option; takes minutes",
     .group = 1},
    {.name = "backend",
     .key = KEY_BACKEND,
     .arg = "NAME",
     .doc = "ref, avx2, avx512 (default: auto, the best there is)",
     .group = 1},
    {.name = "inputs",
     .key = KEY_INPUTS,
     .arg = "K",
     .doc = "Inputs of reduce_encode and reduce_decode (default: 4)",
     .group = 1},
    {.name = "threads",
     .key = KEY_THREADS,
     .arg = "N",
     .doc = "Threads (default: one, then as many as there are cores)",
     .group = 2},
    {.name = "cache",
     .key = KEY_CACHE,
     .arg = "STATE",
     .doc = "cold: data larger than cache; warm: data in each core's own; both (default: both)",
     .group = 2},
    {.name = "bytes",
     .key = 'b',
     .arg = "SIZE",
     .doc = "Source bytes when cold; well above the last-level cache (default: 128M)",
     .group = 2},
    {.name = "warm-bytes",
     .key = KEY_WARM_BYTES,
     .arg = "SIZE",
     .doc = "Source bytes per thread when warm (default: 64K)",
     .group = 2},
    {.name = "seconds",
     .key = KEY_SECONDS,
     .arg = "S",
     .doc = "Time to measure each line for (default: 0.15)",
     .group = 2},
    {.name = "table",
     .key = KEY_TABLE,
     .arg = "NAME",
     .doc = "speed, error, or both (default: both)",
     .group = 3},
    {.name = "tensors",
     .key = KEY_TENSORS,
     .arg = "FILE",
     .doc = "Also the error on the weights of a safetensors file (default: none)",
     .group = 3},
    {.name = "json",
     .key = KEY_JSON,
     .arg = "FILE",
     .doc = "Write each line as a JSON object (default: do not)",
     .group = 3},
    {0},
};

static const char doc[] = "Measures the block codecs: speed beside memcpy of the same bytes, and "
                          "error of one round trip.\v"
                          "GB/s are 10^9 bytes of the plain side per second: of what is encoded, of what is "
                          "decoded into, or of one summed "
                          "input. Times are medians. \"floor\" is what memcpy's speed would make of the "
                          "bytes that the operation must read and "
                          "write: more than memcpy, where there are fewer of them. It is given for cold data "
                          "only, and can be beaten: changing data "
                          "in place costs less than moving it.";

static void add_codec(struct argp_state *state, qb_options_t *options, const char *text)
{
    if (options->n_codecs == QB_MAX_CODECS) {
        argp_error(state, "--codecs: more than %d", QB_MAX_CODECS);
    } else if (tw_quant_codec_parse(text, &options->codecs[options->n_codecs]) != TW_OK) {
        argp_error(state, "--codecs: '%s' is no codec", text);
    } else {
        options->n_codecs++;
    }
}

/* A comma parts codecs as well as a codec's options; no option begins like a codec. */
static void parse_codecs(struct argp_state *state, qb_options_t *options, const char *list)
{
    char text[128];
    options->n_codecs = 0;
    while (*list) {
        const char *end = list;
        do {
            end += strcspn(end + 1, ",") + 1;
        } while (*end && strncmp(end, ",int", 4) != 0);
        snprintf(text, sizeof(text), "%.*s", (int)(end - list), list);
        add_codec(state, options, text);
        list = *end ? end + 1 : end;
    }
}

static void add_type(struct argp_state *state, void *input, const char *text)
{
    qb_options_t *options = input;
    tw_type_t type;
    if (tw_type_parse(text, &type) != TW_OK || type == TW_TYPE_BYTE || options->n_types == QB_MAX_TYPES) {
        argp_error(state, "--types: '%s' is not one of bf16, fp16, fp32, each once", text);
    } else {
        options->types[options->n_types++] = type;
    }
}

static void add_op(struct argp_state *state, void *input, const char *text)
{
    qb_options_t *options = input;
    for (int op = 0; op < QB_OP_COUNT; op++) {
        if (strcmp(text, qb_op_name((qb_op_t)op)) == 0) {
            options->ops[op] = 1;
            return;
        }
    }
    argp_error(state, "--ops: unknown operation '%s'", text);
}

/* One of two words, or "both". */
static void parse_either(struct argp_state *state, const char *flag, const char *text, const char *first,
                         int *want_first, const char *second, int *want_second)
{
    int both = strcmp(text, "both") == 0;
    *want_first = both || strcmp(text, first) == 0;
    *want_second = both || strcmp(text, second) == 0;
    if (!*want_first && !*want_second) {
        argp_error(state, "--%s: '%s' is not %s, %s or both", flag, text, first, second);
    }
}

static void take_all(struct argp_state *state, qb_options_t *options)
{
    parse_codecs(state, options, ALL_CODECS);
    options->n_types = 0;
    tw_flag_list(state, "bf16,fp16,fp32", add_type);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    qb_options_t *options = state->input;
    switch (key) {
    case 'c':
        parse_codecs(state, options, arg);
        return 0;
    case 't':
        options->n_types = 0;
        tw_flag_list(state, arg, add_type);
        return 0;
    case 'o':
        memset(options->ops, 0, sizeof(options->ops));
        tw_flag_list(state, arg, add_op);
        return 0;
    case KEY_ALL:
        take_all(state, options);
        return 0;
    case KEY_DEVICE:
        options->cuda = strcmp(arg, "cuda") == 0;
        if (!options->cuda && strcmp(arg, "host") != 0) {
            argp_error(state, "--device: '%s' is not host or cuda", arg);
        }
        return 0;
    case KEY_BACKEND:
        options->backend = arg;
        return 0;
    case KEY_INPUTS:
        options->n_inputs = (size_t)tw_flag_int(state, "inputs", arg, 1, 1024);
        return 0;
    case KEY_THREADS:
        options->threads = (int)tw_flag_int(state, "threads", arg, 1, 4096);
        return 0;
    case KEY_CACHE:
        parse_either(state, "cache", arg, "cold", &options->cold, "warm", &options->warm);
        return 0;
    case 'b':
        options->bytes = tw_flag_bytes(state, "bytes", arg, 4096, (size_t)64 << 30);
        return 0;
    case KEY_WARM_BYTES:
        options->warm_bytes = tw_flag_bytes(state, "warm-bytes", arg, 4096, (size_t)64 << 30);
        return 0;
    case KEY_SECONDS:
        options->seconds = tw_flag_number(state, "seconds", arg, 0.001, 3600);
        return 0;
    case KEY_TABLE:
        parse_either(state, "table", arg, "speed", &options->speed, "error", &options->error);
        return 0;
    case KEY_TENSORS:
        options->tensors = arg;
        return 0;
    case KEY_JSON:
        options->json = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void qb_options_parse(int argc, char **argv, qb_options_t *options)
{
    static const struct argp parser = {.options = option_list, .parser = parse_option, .doc = doc};
    *options = (qb_options_t){
        .types = {TW_TYPE_BF16},
        .n_types = 1,
        .bytes = DEFAULT_COLD_BYTES,
        .warm_bytes = DEFAULT_WARM_BYTES,
        .cold = 1,
        .warm = 1,
        .n_inputs = 4,
        .seconds = 0.15,
        .speed = 1,
        .error = 1,
    };
    for (int op = 0; op < QB_OP_COUNT; op++) {
        options->ops[op] = 1;
    }
    parse_codecs(NULL, options, DEFAULT_CODECS);
    tw_flags_parse(&parser, argc, argv, 0, options);
}
