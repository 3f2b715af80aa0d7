/* bench/delta: the command line. */
#include "bench/delta/delta.h"

#include <string.h>

#include "flags/flags.h"

#define DEFAULT_ELEMS ((size_t)4 << 20)

enum {
    KEY_SEED = 256,
    KEY_LR,
    KEY_BACKEND,
    KEY_CONTEXTS,
    KEY_SECONDS,
    KEY_OLD,
    KEY_NEW,
    KEY_OLDER,
    KEY_JSON
};

static const struct argp_option option_list[] = {
    {"elems", 'n', "N", 0, "Weights to make (default: 4194304)", 1},
    {"seed", KEY_SEED, "S", 0, "Seed of the weights (default: 1)", 1},
    {"lr", KEY_LR, "RATE", 0, "Learning rate of the made steps (default: 6e-4)", 1},
    {"old", KEY_OLD, "FILE", 0, "Weights before the step instead, raw bf16; needs --new", 2},
    {"new", KEY_NEW, "FILE", 0, "Weights after the step", 2},
    {"older", KEY_OLDER, "FILE", 0, "Weights one step before --old: for the second context", 2},
    {"backend", KEY_BACKEND, "NAME", 0, "ref, avx2 or avx512 (default: all that this machine has)", 3},
    {"contexts", KEY_CONTEXTS, "N", 0, "1: exponent; 2: previous change too (default: both)", 3},
    {"seconds", KEY_SECONDS, "S", 0, "Time to measure each line for (default: 0.5)", 3},
    {"json", KEY_JSON, "FILE", 0, "Write each line as a JSON object (default: do not)", 3},
    {0},
};

static const char doc[] =
    "Measures the exact delta of bf16 weights: bits a parameter beside the entropy, and speed of one thread "
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

static void check_files(struct argp_state *state, const delta_options_t *options)
{
    if (!options->old_file != !options->new_file || (options->older_file && !options->old_file)) {
        argp_error(state, "--old and --new need each other, and --older needs them");
    }
    if (options->old_file && !options->older_file && options->contexts == 2) {
        argp_error(state, "--contexts 2 needs --older");
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    delta_options_t *options = state->input;
    switch (key) {
    case 'n':
        options->elems = (size_t)tw_flag_int(state, "elems", text, 1, 1 << 30);
        break;
    case KEY_SEED:
        options->seed = (uint64_t)tw_flag_int(state, "seed", text, 0, INT64_MAX);
        break;
    case KEY_LR:
        options->lr = tw_flag_number(state, "lr", text, 0, 1);
        break;
    case KEY_SECONDS:
        options->seconds = tw_flag_number(state, "seconds", text, 0, 3600);
        break;
    case KEY_CONTEXTS:
        options->contexts = (int)tw_flag_int(state, "contexts", text, 1, 2);
        break;
    case KEY_BACKEND:
        options->backend = strcmp(text, "auto") == 0 ? NULL : text;
        break;
    case KEY_OLD:
        options->old_file = text;
        break;
    case KEY_NEW:
        options->new_file = text;
        break;
    case KEY_OLDER:
        options->older_file = text;
        break;
    case KEY_JSON:
        options->json = text;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': no arguments are expected", text);
        break;
    case ARGP_KEY_END:
        check_files(state, options);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void delta_options_parse(int argc, char **argv, delta_options_t *options)
{
    static const struct argp argp = {.options = option_list, .parser = parse_option, .doc = doc};
    *options = (delta_options_t){.elems = DEFAULT_ELEMS, .seed = 1, .lr = 6e-4, .seconds = 0.5};
    tw_flags_parse(&argp, argc, argv, 0, options);
}
