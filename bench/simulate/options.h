/** The simulator's command line. Private to bench/simulate. */
#ifndef TW_BENCH_SIMULATE_OPTIONS_H
#define TW_BENCH_SIMULATE_OPTIONS_H

#include <stdio.h>

#include "bench/simulate/simulate.h"

TW_C_BEGIN

#define SIM_N_CODECS 4 /**< plain, lossless, int8, int4 */
/** A training step; before it the operations: all-gather, reduce-scatter, all-reduce. */
#define SIM_OP_STEP 3
#define SIM_OP_NONE 4 /**< none was asked for */

extern const char *const sim_op_names[SIM_OP_STEP + 1];
extern const char *const sim_codec_names[SIM_N_CODECS];

typedef struct sim_options {
    sim_cluster_t cluster;
    size_t op, codec, server, bytes, chunk;
    const char *algo, *model, *json;
    int64_t seed;
    int scale;
    double n_params, compute_sec;
    int n_layers, no_overlap;
    int check_box, n_times;
    FILE *out; /**< of --json; NULL: none */
} sim_options_t;

/** Ends the program where the command line is wrong. */
void sim_options_read(int argc, char **argv, sim_options_t *options);

TW_C_END

#endif
