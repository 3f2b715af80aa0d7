/* The command line. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/zero/zero.h"
#include "cluster/cluster.h"
#include "flags/flags.h"

enum {
    KEY_SETS = 256,
    KEY_NODES,
    KEY_RANKS,
    KEY_LINK,
    KEY_STEPS,
    KEY_PARAMS,
    KEY_TOKENS,
    KEY_LR,
    KEY_WARMUP,
    KEY_SEEDS,
    KEY_FIRST_SEED,
    KEY_ROUNDS,
    KEY_DATA,
    KEY_JSON,
    KEY_METRICS,
    KEY_RESUME,
    KEY_CHILD,
    KEY_CHILD_SEED,
    KEY_CHILD_ROUND,
    KEY_CHILD_OUT
};

static const struct argp_option option_list[] = {
    {"sets", KEY_SETS, "LIST", 0,
     "Of ddp, zero1, zero2, zero3, zero3-qwz, zero3-qgz, zero3-hpz, zeropp, delta8, delta4, delta2, "
     "delta-exact, zero3-lossless, lossless, delta-exact-g4 (default: all); deltas but delta-exact and "
     "lossless "
     "with int4 gradients",
     1},
    {"nodes", KEY_NODES, "N", 0, "Nodes (default: 2)", 1},
    {"ranks-per-node", KEY_RANKS, "L", 0, "Ranks on each node (default: 2)", 1},
    {"link", KEY_LINK, "RATE", 0, "Of each node, each way; none: not shaped (default: 100mbit)", 1},
    {"steps", KEY_STEPS, "N", 0, "Training steps of each run (default: 200)", 1},
    {"params", KEY_PARAMS, "N", 0, "Parameters of the model, about: 1M, 124M (default: 1M)", 1},
    {"tokens", KEY_TOKENS, "N", 0, "Of a step, over all ranks, about (default: 512)", 1},
    {"lr", KEY_LR, "X", 0, "Peak learning rate (default: 6e-4)", 1},
    {"warmup", KEY_WARMUP, "N", 0, "Steps of warm-up, before the cosine (default: 100)", 1},
    {"seeds", KEY_SEEDS, "N", 0, "Runs of each set (default: 1)", 1},
    {"first-seed", KEY_FIRST_SEED, "N", 0, "The first one's seed (default: 1)", 1},
    {"rounds", KEY_ROUNDS, "N", 0,
     "Every set once in each round, and of each the round with the middle time: for a machine that is busy "
     "now and then (default: 1)",
     1},
    {"data", KEY_DATA, "FILE", 0, "Text, or .bin of uint16 tokens (default: the King James text)", 1},
    {"json", KEY_JSON, "FILE", 0, "A JSON line for each run", 2},
    {"metrics", KEY_METRICS, "FILE", 0, "A JSON line for each step of each run, of every round", 2},
    {"resume", KEY_RESUME, NULL, 0, "Keep the rows of --json, and run only what is missing there", 2},
    {"child", KEY_CHILD, "SET", OPTION_HIDDEN, NULL, 3},
    {"child-seed", KEY_CHILD_SEED, "N", OPTION_HIDDEN, NULL, 3},
    {"child-round", KEY_CHILD_ROUND, "N", OPTION_HIDDEN, NULL, 3},
    {"child-out", KEY_CHILD_OUT, "FILE", OPTION_HIDDEN, NULL, 3},
    {NULL, 0, NULL, 0, NULL, 0}};

static const tw_trainer_set_t *find_set(struct argp_state *state, const char *name)
{
    const tw_trainer_set_t *set = tw_trainer_set_find(name);
    if (set == NULL) {
        argp_error(state, "--sets: there is no '%s'; see --help", name);
    }
    return set;
}

static void add_set(struct argp_state *state, void *ctx, const char *name)
{
    zero_options_t *options = ctx;
    if (options->n_sets == ZERO_MAX_SETS) {
        argp_error(state, "--sets: more than %d", ZERO_MAX_SETS);
    }
    options->sets[options->n_sets++] = find_set(state, name);
}

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
    zero_options_t *options = state->input;
    switch (key) {
    case KEY_STEPS:
        options->steps = tw_flag_int(state, "steps", arg, 1, 1000000);
        return 0;
    case KEY_PARAMS:
        options->params = tw_flag_count(state, "params", arg, 1e12);
        return 0;
    case KEY_TOKENS:
        options->tokens = tw_flag_int(state, "tokens", arg, 1, 100000000);
        return 0;
    case KEY_LR:
        options->lr = tw_flag_number(state, "lr", arg, 0, 10);
        return 0;
    case KEY_WARMUP:
        options->warmup = tw_flag_int(state, "warmup", arg, 0, 1000000);
        return 0;
    case KEY_SEEDS:
        options->n_seeds = tw_flag_int(state, "seeds", arg, 1, 1000);
        return 0;
    case KEY_FIRST_SEED:
        options->first_seed = tw_flag_int(state, "first-seed", arg, 0, 1000000);
        return 0;
    case KEY_ROUNDS:
        options->n_rounds = tw_flag_int(state, "rounds", arg, 1, 1000);
        return 0;
    case KEY_DATA:
        options->data = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_child(int key, char *arg, struct argp_state *state)
{
    zero_options_t *options = state->input;
    switch (key) {
    case KEY_CHILD:
        options->child = find_set(state, arg);
        return 0;
    case KEY_CHILD_SEED:
        options->child_seed = tw_flag_int(state, "child-seed", arg, 0, 2000000);
        return 0;
    case KEY_CHILD_ROUND:
        options->child_round = tw_flag_int(state, "child-round", arg, 1, 1000);
        return 0;
    case KEY_CHILD_OUT:
        options->child_out = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is '%s'?", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (options->tokens < (int64_t)options->n_nodes * options->ranks_per_node) {
            argp_error(state, "--tokens: %" PRId64 " is too small: at least %d, one for each rank",
                       options->tokens, options->n_nodes * options->ranks_per_node);
        }
        return 0;
    default:
        return parse_run(key, arg, state);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    zero_options_t *options = state->input;
    switch (key) {
    case KEY_SETS:
        options->n_sets = 0;
        tw_flag_list(state, arg, add_set);
        return 0;
    case KEY_NODES:
        options->n_nodes = (int)tw_flag_int(state, "nodes", arg, 1, TW_CLUSTER_MAX_NODES);
        return 0;
    case KEY_RANKS:
        options->ranks_per_node = (int)tw_flag_int(state, "ranks-per-node", arg, 1, TW_CLUSTER_MAX_RANKS);
        return 0;
    case KEY_LINK:
        options->link_bps = tw_flag_link(state, "link", arg);
        return 0;
    case KEY_JSON:
        options->json = arg;
        return 0;
    case KEY_METRICS:
        options->metrics = arg;
        return 0;
    case KEY_RESUME:
        options->resume = 1;
        return 0;
    default:
        return parse_child(key, arg, state);
    }
}

void zero_options_parse(int argc, char **argv, zero_options_t *options)
{
    static const struct argp argp = {
        option_list,
        parse_option,
        NULL,
        "Trains the same GPT-2 with the trainer's feature sets, one after the other, in a cluster in a box.\v"
        "Every run has processes of its own. Exit code 1: a run failed, its bytes were not as planned, "
        "replicas differed or a loss was not finite.",
        NULL,
        NULL,
        NULL};
    *options = (zero_options_t){.n_nodes = 2,
                                .ranks_per_node = 2,
                                .link_bps = 100e6,
                                .steps = 200,
                                .params = 1e6,
                                .tokens = 512,
                                .lr = 6e-4,
                                .warmup = 100,
                                .n_seeds = 1,
                                .first_seed = 1,
                                .n_rounds = 1};
    tw_flags_parse(&argp, argc, argv, 0, options);
    for (size_t i = 0; options->n_sets == i && tw_trainer_set_get(i) != NULL; i++) {
        options->sets[options->n_sets++] = tw_trainer_set_get(i);
    }
}
