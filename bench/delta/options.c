/* bench/delta: the command line. */
#include "bench/delta/delta.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "flags/flags.h"

static const char doc[] =
    "Measures the lossless delta of bf16 weights: bits a parameter beside the entropy, and speed of one "
    "thread "
    "beside memcpy."
    "\v"
    "Weights are made by steps of AdamW with gradients that point the same way for a while, or read from "
    "files. \"floor\" is "
    "the empirical entropy of the changes under the old value's exponent, with 2 contexts also under the "
    "previous change "
    "(its sign and its size to three binary digits); it pays for no tables, so on few elements it is too "
    "low. GB/s are 10^9 "
    "bytes of weights a second of this thread's processor time; medians; memcpy of the same bytes takes "
    "turns with them.\n"
    "JSON keys: source (synthetic, or the name of --new), elems, lr (null for files), contexts, backend, "
    "message_bytes, "
    "bits and floor_bits (a parameter), encode_GBps, decode_GBps, memcpy_GBps, ok (every bit came back).";

static void check(struct argp_state *state, void *ctx)
{
    const delta_options_t *options = ctx;
    if (!options->old_file != !options->new_file || (options->older_file && !options->old_file)) {
        argp_error(state, "--old and --new need each other, and --older needs them");
    }
    if (options->old_file && !options->older_file && options->contexts == 2) {
        argp_error(state, "--contexts 2 needs --older");
    }
}

static void take_backend(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    (void)state, (void)flag;
    ((delta_options_t *)ctx)->backend = strcmp(text, "auto") == 0 ? NULL : text;
}

#define AT(member) offsetof(delta_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"elems", "4194304", "N", "Weights to make", TW_CONFIG_INT, AT(elems), 1, 1 << 30, NULL},
     .letter = 'n',
     .group = 1},
    {.field = {"seed", "1", "S", "Seed of the weights", TW_CONFIG_INT, AT(seed), 0, INFINITY, NULL},
     .group = 1},
    {.field = {"lr", "6e-4", "RATE", "Learning rate of the made steps", TW_CONFIG_DOUBLE, AT(lr), 0, 1, NULL},
     .group = 1},
    {.field = {"old", NULL, "FILE", "Weights before the step instead, raw bf16; needs --new",
               TW_CONFIG_STRING, AT(old_file), 0, 0, NULL},
     .group = 2},
    {.field = {"new", NULL, "FILE", "Weights after the step", TW_CONFIG_STRING, AT(new_file), 0, 0, NULL},
     .group = 2},
    {.field = {"older", NULL, "FILE", "Weights one step before --old: for the second context",
               TW_CONFIG_STRING, AT(older_file), 0, 0, NULL},
     .group = 2},
    {.field = {"backend", NULL, "NAME", "ref, avx2 or avx512 (default: all that this machine has)",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .group = 3,
     .take = take_backend},
    {.field = {"contexts", NULL, "N", "1: exponent; 2: previous change too (default: both)", TW_CONFIG_INT32,
               AT(contexts), 1, 2, NULL},
     .group = 3},
    {.field = {"seconds", "0.5", "S", "Time to measure each line for", TW_CONFIG_DOUBLE, AT(seconds), 0, 3600,
               NULL},
     .group = 3},
    {.field = {"json", NULL, "FILE", "Write each line as a JSON object (default: do not)", TW_CONFIG_STRING,
               AT(json), 0, 0, NULL},
     .group = 3},
};

void delta_options_parse(int argc, char **argv, delta_options_t *options)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc, .check = check};
    *options = (delta_options_t){0};
    tw_flags_read(&flags, argc, argv, options);
}
