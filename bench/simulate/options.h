/** The simulator's command line. Private to bench/simulate. */
#pragma once

#include <stdio.h>

#include "bench/simulate/simulate.h"

TW_C_BEGIN

#define SIM_OPS 3

/** Names of all-gather, reduce-scatter and all-reduce. */
extern const char *const sim_op_names[SIM_OPS];
extern const tw_coll_op_t sim_ops[SIM_OPS];

typedef struct sim_options {
    sim_cluster_t cluster;
    size_t op, bytes, chunk;
    tw_quant_codec_t codec;
    const char *codec_text, *algo, *model, *json;
    int64_t seed;
    int scale;
    FILE *out; /**< file of --json; NULL: none */
} sim_options_t;

/** Take from a measured model everything but the rate of the nodes' links. */
void sim_apply_model(sim_cluster_t *cluster, const tw_coll_model_t *model);

/** Parse the command line; ends the program if it is wrong. */
void sim_options_read(int argc, char **argv, sim_options_t *options);

TW_C_END
