/** The simulator's command line. Private to tests/bench/simulate. */
#pragma once

#include <stdio.h>

#include "tests/bench/simulate/simulate.h"

TW_C_BEGIN

#define SIM_OPS 3

/** Names of all-gather, reduce-scatter and all-reduce. */
extern const char *const sim_op_names[SIM_OPS];
extern const tw_coll_op_t sim_ops[SIM_OPS];

typedef struct sim_options {
    sim_cluster_t cluster;
    size_t op, bytes, chunk;
    tw_quant_codec_t codec;
    const char *codec_text, *algo, *json;
    int scale;
    FILE *out; /**< file of --json; NULL: none */
} sim_options_t;

/** Parse the command line; ends the program if it is wrong. */
void sim_options_read(int argc, char **argv, sim_options_t *options);

TW_C_END
