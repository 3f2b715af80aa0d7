/** The simulator beside real processes: a rank of a cluster in a box runs the library's operations, and rank
 *  0 simulates the same. Private to bench/simulate. */
#pragma once

#include "bench/simulate/simulate.h"

TW_C_BEGIN

/** A real rank. */
typedef struct sim_box {
    tw_transport_t *transport;
    tw_coll_t *coll;
    int rank, world;
    tw_coll_model_t model; /**< as it was measured here */
} sim_box_t;

/** Run this program, with these arguments, as the ranks of a cluster in a box; its exit code. */
int sim_box_run(const sim_cluster_t *cluster, char **argv);

/** Meet the other ranks. Collective; logs its own errors. sim_box_cleanup ends it, also after an error. */
tw_status_t sim_box_init(sim_box_t *box);
void sim_box_cleanup(sim_box_t *box);

typedef struct sim_box_result {
    double sec; /**< the median of all times; each is the slowest rank's */
    double least_sec, most_sec;
    double chunk_bytes; /**< of its messages */
} sim_box_result_t;

/** Run an operation in bf16, plain. Collective; logs its own errors. */
tw_status_t sim_box_measure(sim_box_t *box, const tw_coll_algo_info_t *algo, size_t bytes, int n_times,
                            sim_box_result_t *result);

TW_C_END
