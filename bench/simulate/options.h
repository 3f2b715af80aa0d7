/** The simulator's command line. Private to bench/simulate. */
#pragma once

#include <stdio.h>

#include "bench/simulate/simulate.h"

TW_C_BEGIN

#define SIM_OP_NONE 3 /**< none was asked for */

/** All-gather, reduce-scatter, all-reduce. */
extern const char *const sim_op_names[SIM_OP_NONE];

typedef struct sim_options {
    sim_cluster_t cluster;
    size_t op, bytes, chunk;
    tw_quant_codec_t codec;
    const char *codec_text, *algo, *model, *json;
    int64_t seed;
    int scale;
    int check_box, n_times;
    FILE *out; /**< of --json; NULL: none */
} sim_options_t;

/** Ends the program where the command line is wrong. */
void sim_options_read(int argc, char **argv, sim_options_t *options);

TW_C_END
