/* The command line. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "bench/codecs/codecs.h"
#include "flags/flags.h"

static const char doc[] =
    "Measures codecs on tensors of several sources: bits, error and speed, and of block codecs every "
    "operation."
    "\v"
    "Of a source's tensors all codecs that can have them make messages and read them again, in one thread "
    "of which the processor time counts. Sources: gaussian, heavy-tailed (normal numbers with a lognormal "
    "scale each); training (a GPT-2 of 0.84 M parameters on the King James text: its last gradients and "
    "its weights, in bf16, and gradients in fp32: as they are, those of one rank that had them in bf16, "
    "and sums of 2, 4 and 8 such ranks); steps (weights of three steps of AdamW, whose changes the delta "
    "codes); file. blocks: every operation of block codecs on made-up values, on the host or on a GPU.\n"
    "\"floor\" bits are the empirical entropy under what a code can know: the scales of row and column, "
    "which cost nothing here, and with the delta the old value's exponent, with 2 contexts the previous "
    "change, too (its sign and its size to three binary digits). Bits of mantissas count as they are. It "
    "pays for no tables, so on few elements it is too low. \"error\" is the relative RMSE. GB/s are 10^9 "
    "bytes of the plain side: of what is encoded, of what is decoded into, or of one summed input. Times "
    "are medians; memcpy of the same bytes takes turns with them. floor GB/s are what memcpy's speed would "
    "make of the bytes that the operation must read and write: more than memcpy, where there are fewer of "
    "them. They are for cold data only, and can be beaten: changing data in place costs less than moving "
    "it.\n"
    "JSON keys: source, op, codec, type, backend, contexts (of the delta), cache, chunk_elems (0: one "
    "message), elems, bytes, moved_bytes, message_bytes, bits and floor_bits (an element), rel_rmse, "
    "time_us_median, GBps, memcpy_GBps, floor_GBps, ok (what must come back bit for bit has).\n"
    "Called quant, lossless or delta, it measures what the programs of these names did.";

/* ---- lists --------------------------------------------------------------------------------------------- */

static void add_codec(struct argp_state *state, const tw_flag_t *flag, cb_options_t *options,
                      const char *text)
{
    if (options->n_codecs == CB_MAX_CODECS) {
        argp_error(state, "--%s: more than %d", flag->field.name, CB_MAX_CODECS);
    } else if (tw_quant_codec_parse_any(text, &options->codecs[options->n_codecs]) != TW_OK) {
        argp_error(state, "--%s: '%s' is no codec", flag->field.name, text);
    } else {
        options->n_codecs++;
    }
}

static int begins_codec(const char *text)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const char *name = tw_quant_row_get((tw_quant_kind_t)kind)->name;
        if (strncmp(text, name, strlen(name)) == 0) {
            return 1;
        }
    }
    return 0;
}

/** Parse a list of codecs. Commas separate codecs, and also the options of one codec. A part that begins with
 *  a codec's name starts the next codec, as no option begins so. */
static void take_codecs(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    cb_options_t *options = ctx;
    char text[128];
    options->n_codecs = 0;
    while (*list) {
        const char *end = list;
        do {
            end += strcspn(end + 1, ",") + 1;
        } while (*end && !begins_codec(end + 1));
        snprintf(text, sizeof(text), "%.*s", (int)(end - list), list);
        add_codec(state, flag, options, text);
        list = *end ? end + 1 : end;
    }
}

static void add_source(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    const char *names[16];
    size_t n = 0;
    for (; cb_sources[n].name; n++) {
        names[n] = cb_sources[n].name;
    }
    ((cb_options_t *)ctx)->sources |= 1u << tw_flag_choice(state, flag, text, names, n);
}

static void take_sources(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    ((cb_options_t *)ctx)->sources = 0;
    tw_flag_each(state, flag, ctx, list, add_source);
}

static void take_type(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    cb_options_t *options = ctx;
    tw_type_t type;
    if (tw_type_parse(text, &type) != TW_OK || type == TW_TYPE_BYTE) {
        argp_error(state, "--%s: '%s' is not one of bf16, fp16, fp32", flag->field.name, text);
    }
    options->types[options->n_types] = type;
}

static void codecs_add_op(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    const char *names[CB_OP_COUNT];
    for (int op = 0; op < CB_OP_COUNT; op++) {
        names[op] = cb_op_name(op);
    }
    ((cb_options_t *)ctx)->ops[tw_flag_choice(state, flag, text, names, CB_OP_COUNT)] = 1;
}

static void take_ops(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    cb_options_t *options = ctx;
    memset(options->ops, 0, sizeof(options->ops));
    tw_flag_each(state, flag, options, list, codecs_add_op);
}

static void take_cache(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    static const char *const names[] = {"cold", "warm", "both"};
    cb_options_t *options = ctx;
    size_t choice = tw_flag_choice(state, flag, text, names, 3);
    options->cold = choice != 1;
    options->warm = choice != 0;
}

/** Take --table, an older form of --sources. */
static void take_table(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    static const char *const names[] = {"speed", "error", "both"};
    static const char *const sources[] = {"blocks", "gaussian,heavy-tailed", "blocks,gaussian,heavy-tailed"};
    take_sources(state, flag, ctx, sources[tw_flag_choice(state, flag, text, names, 3)]);
}

static void take_backend(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    (void)state, (void)flag;
    ((cb_options_t *)ctx)->backend = strcmp(text, "auto") == 0 ? NULL : text;
}

static void take_file(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    cb_options_t *options = ctx;
    (void)state;
    options->file = text;
    options->sources = strcmp(flag->field.name, "file") == 0 ? 0 : options->sources;
}

/* ---- flags --------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(cb_options_t, member)

static const char *const devices[] = {"host", "cuda", NULL};

static const tw_flag_t flag_list[] = {
    {.field = {"codecs", NULL, "LIST",
               "Codecs, those of blocks with options: int4:block=64,hadamard,stochastic,scale=fp32 (default: "
               "all, and int4:hadamard)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'c',
     .group = 1,
     .take = take_codecs},
    {.field =
         {"sources", NULL, "LIST",
          "What they are measured on, of blocks, gaussian, heavy-tailed, training, steps, file (default: "
          "all but a file)",
          TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 's',
     .take = take_sources},
    {.field = {"backend", NULL, "NAME",
               "ref, avx2, avx512; auto: the best there is; all: each of them (default: auto)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_backend},
    {.field = {"elems", "4194304", "N", "Elements of tensors that are made up", TW_CONFIG_INT, AT(elems), 1,
               1 << 30, NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"seed", "1", "S", "Seed of these", TW_CONFIG_INT, AT(seed), 0, INFINITY, NULL}},
    {.field = {"lr", "6e-4", "RATE", "Learning rate of steps that are made up", TW_CONFIG_DOUBLE, AT(lr), 0,
               1, NULL}},
    {.field = {"steps", "100", "N", "Steps of training before", TW_CONFIG_INT, AT(steps), 1, 100000, NULL}},
    {.field = {"file", NULL, "FILE", "The tensors of this safetensors file instead", TW_CONFIG_STRING, 0, 0,
               0, NULL},
     .take = take_file},
    {.field = {"old", NULL, "FILE", "Weights before the step instead, raw bf16; needs --new",
               TW_CONFIG_STRING, AT(old_file), 0, 0, NULL}},
    {.field = {"new", NULL, "FILE", "Weights after the step", TW_CONFIG_STRING, AT(new_file), 0, 0, NULL}},
    {.field = {"older", NULL, "FILE", "Weights one step before --old: for the second context",
               TW_CONFIG_STRING, AT(older_file), 0, 0, NULL}},
    {.field = {"chunk", "65536", "ELEMS", "Elements of a tensor that go as messages of their own",
               TW_CONFIG_INT, AT(chunk_elems), 1, 1 << 29, NULL}},
    {.field = {"contexts", NULL, "N", "Of the delta, 1: exponent; 2: previous change too (default: both)",
               TW_CONFIG_INT32, AT(contexts), 1, 2, NULL}},
    {.field = {"types", "bf16", "LIST", "Types of blocks, of bf16, fp16, fp32", TW_CONFIG_STRING, AT(n_types),
               0, 0, NULL},
     .letter = 't',
     .group = 3,
     .take = take_type,
     .most_items = CB_MAX_TYPES},
    {.field = {"ops", NULL, "LIST",
               "Operations of blocks, of encode, decode, decode_add, encode_delta, decode_apply, "
               "reduce_encode, reduce_decode, adamw_encode_delta (default: all)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 'o',
     .take = take_ops},
    {.field = {"device", "host", "NAME",
               "Of blocks: host, or cuda: the current GPU, on 1 MB and on --bytes, beside a device-to-device "
               "copy",
               TW_CONFIG_ENUM, AT(cuda), 0, 0, devices}},
    {.field = {"inputs", "4", "K", "Inputs of reduce_encode and reduce_decode", TW_CONFIG_INT, AT(n_inputs),
               1, 1024, NULL}},
    {.field = {"cache", "both", "STATE", "cold: data larger than cache; warm: data in a core's own; both",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_cache},
    {.field = {"bytes", "128M", "SIZE", "Source bytes when cold; well above the last-level cache",
               TW_CONFIG_BYTES, AT(bytes), 4096, 0x1p36, NULL},
     .letter = 'b'},
    {.field = {"warm-bytes", "64K", "SIZE", "Source bytes when warm", TW_CONFIG_BYTES, AT(warm_bytes), 4096,
               0x1p36, NULL}},
    {.field = {"seconds", "0.2", "S", "Time to measure each line for", TW_CONFIG_DOUBLE, AT(seconds), 0, 3600,
               NULL},
     .group = 4},
    {.field = {"json", NULL, "FILE", "Write each line as a JSON object (default: do not)", TW_CONFIG_STRING,
               AT(json), 0, 0, NULL}},
    {.field = {"table", NULL, "NAME", NULL, TW_CONFIG_STRING, 0, 0, 0, NULL}, .take = take_table},
    {.field = {"tensors", NULL, "FILE", NULL, TW_CONFIG_STRING, 0, 0, 0, NULL}, .take = take_file},
};

static unsigned source_bit(const char *name)
{
    unsigned i = 0;
    while (strcmp(cb_sources[i].name, name) != 0) {
        i++;
    }
    return 1u << i;
}

static void codecs_check(struct argp_state *state, void *ctx)
{
    cb_options_t *options = ctx;
    if (!options->old_file != !options->new_file || (options->older_file && !options->old_file)) {
        argp_error(state, "--old and --new need each other, and --older needs them");
    } else if (options->old_file && !options->older_file && options->contexts == 2) {
        argp_error(state, "--contexts 2 needs --older");
    }
    options->sources = options->old_file ? source_bit("steps") : options->sources;
    options->sources |= options->file ? source_bit("file") : 0;
    if (!options->file && options->sources & source_bit("file")) {
        argp_error(state, "--sources: file needs --file");
    }
    options->sources = options->cuda ? source_bit("blocks") : options->sources;
}

/** Add every codec that encodes, and int4 with the rotation. */
static void add_all_codecs(cb_options_t *options)
{
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        if (row->form != TW_QUANT_AS_IS) {
            add_codec(NULL, &flag_list[0], options, row->name);
        }
    }
    add_codec(NULL, &flag_list[0], options, "int4:hadamard");
}

/** Set the defaults of the program with this name. */
static void preset(const char *name, cb_options_t *options)
{
    static const struct {
        const char *name, *codecs, *sources, *backend;
    } presets[] = {
        {"quant", "int8,int4,int4:hadamard", "blocks,gaussian,heavy-tailed", NULL},
        {"lossless", "lossless", "training", "all"},
        {"delta", "delta", "steps", "all"},
        {"", NULL, "blocks,gaussian,heavy-tailed,training,steps", NULL},
    };
    size_t i = 0;
    while (presets[i].name[0] && strcmp(presets[i].name, name) != 0) {
        i++;
    }
    *options = (cb_options_t){.backend = presets[i].backend};
    if (presets[i].codecs) {
        take_codecs(NULL, &flag_list[0], options, presets[i].codecs);
    } else {
        add_all_codecs(options);
    }
    take_sources(NULL, &flag_list[1], options, presets[i].sources);
    for (int op = 0; op < CB_OP_COUNT; op++) {
        options->ops[op] = 1;
    }
}

void cb_options_parse(const char *name, int argc, char **argv, cb_options_t *options)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = doc,
                                     .check = codecs_check};
    preset(name, options);
    tw_flags_read(&flags, argc, argv, options);
}
