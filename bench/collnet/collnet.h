/** The NCCL collnet plugin as NCCL calls it, window after window, beside the library's own all-reduce of the
 *  same tensor, in turn. Read rank.c (a rank and its tensors), way.c (one way to do it, measured), report.c
 *  (the lines), main.c (the command line). */
#pragma once

#include <stdio.h>

#include "collectives/collectives.h"

TW_C_BEGIN

#define COLLNET_ITERS_MAX 1000
#define COLLNET_IN_FLIGHT_MAX 64
#define COLLNET_RANKS_MAX 16

typedef struct collnet_options {
    int n_nodes, iters, in_flight;
    double link_bps;
    size_t bytes, window_bytes;
    const char *json; /**< NULL: none */
} collnet_options_t;

/** One way to do the all-reduce, in one mode. */
typedef struct collnet_way {
    tw_quant_codec_t codec;
    void *context, *comm, *send_mhandle, *recv_mhandle; /**< made by the plugin; NULL: the library does it */
    double sec[COLLNET_ITERS_MAX];
    double rel_rmse;
    int identical;
} collnet_way_t;

typedef struct collnet_rank {
    const collnet_options_t *options;
    tw_coll_t *coll;
    int rank, world;
    size_t n_elems;
    uint16_t *input, *send, *recv;          /**< [n_elems] bf16 */
    float *sum;                             /**< [n_elems] what the result must be */
    collnet_way_t ways[2 * TW_QUANT_KINDS]; /**< the library's and the collnet's, of each codec that sums */
    size_t n_ways;
} collnet_rank_t;

/* ---- rank.c -------------------------------------------------------------------------------------------- */

/** Join the job and make the tensors. Collective; collnet_rank_cleanup ends it, also after an error.
 *  Errors are logged, here and below. */
tw_status_t collnet_rank_init(collnet_rank_t *rank, const collnet_options_t *options);
void collnet_rank_cleanup(collnet_rank_t *rank);

/* ---- way.c --------------------------------------------------------------------------------------------- */

/** Set all ways, and connect those that go through the plugin. Collective; collnet_ways_disconnect ends
 *  it, also after an error. */
tw_status_t collnet_ways_connect(collnet_rank_t *rank);
/** Collective: each waits for the others. */
void collnet_ways_disconnect(collnet_rank_t *rank);
/** Do it once and note the time; iter < 0: check what comes of it instead. Collective. */
tw_status_t collnet_way_measure(collnet_rank_t *rank, collnet_way_t *way, int iter);

/* ---- report.c ------------------------------------------------------------------------------------------ */

/** Print the table, and write its rows to `json`, if it is not NULL. Returns how many rows are not right. */
int collnet_print_lines(collnet_rank_t *rank, FILE *json);

TW_C_END
