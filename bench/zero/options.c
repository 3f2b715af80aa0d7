/* The command line. */
#include <inttypes.h>
#include <stddef.h>

#include "bench/zero/zero.h"
#include "cluster/cluster.h"
#include "flags/flags.h"

static const tw_trainer_set_t *find_set(struct argp_state *state, const tw_flag_t *flag, const char *name)
{
    const tw_trainer_set_t *set = tw_trainer_set_find(name);
    if (!set) {
        argp_error(state, "--%s: there is no '%s'; see --help", flag->field.name, name);
    }
    return set;
}

static void add_set(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *name)
{
    zero_options_t *options = ctx;
    if (options->n_sets == ZERO_MAX_SETS) {
        argp_error(state, "--sets: more than %d", ZERO_MAX_SETS);
    }
    options->sets[options->n_sets++] = find_set(state, flag, name);
}

static void take_sets(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    ((zero_options_t *)ctx)->n_sets = 0;
    tw_flag_each(state, flag, ctx, list, add_set);
}

static void take_child(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *name)
{
    ((zero_options_t *)ctx)->child = find_set(state, flag, name);
}

#define AT(member) offsetof(zero_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"sets", NULL, "LIST",
               "Of ddp, zero1, zero2, zero3, zero3-qwz, zero3-qgz, zero3-hpz, zeropp, delta8, delta4, "
               "delta2, delta, zero3-lossless, lossless, delta-g4, delta-ecdq-half, delta-ecdq (default: "
               "all); delta8, delta4 and delta2 with int4 gradients",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_sets},
    {.field = {"nodes", "2", "N", "Nodes", TW_CONFIG_INT32, AT(n_nodes), 1, TW_CLUSTER_MAX_NODES, NULL}},
    {.field = {"ranks-per-node", "2", "L", "Ranks on each node", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_CLUSTER_MAX_RANKS, NULL}},
    {.field = {"link", "100mbit", "RATE", "Of each node, each way; none: not shaped", TW_CONFIG_RATE,
               AT(link_bps), 0, 0, NULL},
     .take = tw_flag_take_link},
    {.field = {"steps", "200", "N", "Training steps of each run", TW_CONFIG_INT, AT(steps), 1, 1e6, NULL}},
    {.field = {"params", "1M", "N", "Parameters of the model, about: 1M, 124M", TW_CONFIG_COUNT, AT(params),
               1, 1e12, NULL}},
    {.field = {"tokens", "512", "N", "Of a step, over all ranks, about", TW_CONFIG_INT, AT(tokens), 1, 1e8,
               NULL}},
    {.field = {"lr", "6e-4", "X", "Peak learning rate", TW_CONFIG_DOUBLE, AT(lr), 0, 10, NULL}},
    {.field = {"warmup", "100", "N", "Steps of warm-up, before the cosine", TW_CONFIG_INT, AT(warmup), 0, 1e6,
               NULL}},
    {.field = {"seeds", "1", "N", "Runs of each set", TW_CONFIG_INT, AT(n_seeds), 1, 1000, NULL}},
    {.field = {"first-seed", "1", "N", "The first one's seed", TW_CONFIG_INT, AT(first_seed), 0, 1e6, NULL}},
    {.field = {"rounds", "1", "N",
               "Every set once in each round, and of each the round with the middle time: for a machine that "
               "is busy now and then",
               TW_CONFIG_INT, AT(n_rounds), 1, 1000, NULL}},
    {.field = {"data", NULL, "FILE", "Text, or .bin of uint16 tokens (default: the King James text)",
               TW_CONFIG_STRING, AT(data), 0, 0, NULL}},
    {.field = {"json", NULL, "FILE", "A JSON line for each run", TW_CONFIG_STRING, AT(json), 0, 0, NULL},
     .group = 2},
    {.field = {"metrics", NULL, "FILE", "A JSON line for each step of each run, of every round",
               TW_CONFIG_STRING, AT(metrics), 0, 0, NULL}},
    {.field = {"child", NULL, "SET", NULL, TW_CONFIG_STRING, 0, 0, 0, NULL}, .take = take_child},
    {.field = {"child-seed", NULL, "N", NULL, TW_CONFIG_INT, AT(child_seed), 0, 2e6, NULL}},
    {.field = {"child-round", NULL, "N", NULL, TW_CONFIG_INT, AT(child_round), 1, 1000, NULL}},
    {.field = {"child-out", NULL, "FILE", NULL, TW_CONFIG_STRING, AT(child_out), 0, 0, NULL}},
};

static void zero_check(struct argp_state *state, void *ctx)
{
    zero_options_t *options = ctx;
    if (options->tokens < (int64_t)options->n_nodes * options->ranks_per_node) {
        argp_error(state, "--tokens: %" PRId64 " is too small: at least %d, one for each rank",
                   options->tokens, options->n_nodes * options->ranks_per_node);
    }
    for (size_t i = 0; options->n_sets == i && i < ZERO_MAX_SETS && tw_trainer_set_get(i); i++) {
        options->sets[options->n_sets++] = tw_trainer_set_get(i);
    }
}

void zero_options_parse(int argc, char **argv, zero_options_t *options)
{
    static const tw_flags_t flags = {
        .flags = flag_list,
        .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
        .doc = "Trains the same GPT-2 with the trainer's feature sets, one after the other, in a cluster in "
               "a box.\v"
               "Every run has processes of its own. Exit code 1: a run failed, its bytes were not as "
               "planned, replicas differed or a loss was not finite.",
        .check = zero_check};
    *options = (zero_options_t){0};
    tw_flags_read(&flags, argc, argv, options);
}
