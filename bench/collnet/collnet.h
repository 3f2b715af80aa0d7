/** The NCCL collnet plugin as NCCL calls it, window after window, beside the library's own all-reduce of the
 *  same tensor, in turn. Read rank.c (a rank and its tensors), way.c (one way to do it, measured), report.c
 *  (the lines), main.c (the command line). */
#ifndef TW_BENCH_COLLNET_COLLNET_H
#define TW_BENCH_COLLNET_COLLNET_H

#include <stdio.h>

#include "collectives/collectives.h"

TW_C_BEGIN

#define COLLNET_ITERS_MAX 1000
#define COLLNET_IN_FLIGHT_MAX 64
#define COLLNET_RANKS_MAX 16
#define COLLNET_N_MODES 4 /**< plain, lossless, int8, int4 */

typedef struct collnet_options {
    int n_nodes, iters, in_flight;
    double link_bps;
    size_t bytes, window_bytes;
    const char *json; /**< NULL: none */
} collnet_options_t;

/** One way to do it in one mode. */
typedef struct collnet_way {
    const char *mode;
    tw_quant_codec_t codec;
    int is_plain;                                       /**< it has no codec */
    void *context, *comm, *send_mhandle, *recv_mhandle; /**< of the collnet; NULL: the library's own */
    double sec[COLLNET_ITERS_MAX];
    double rel_rmse;
    int identical;
} collnet_way_t;

typedef struct collnet_rank {
    const collnet_options_t *options;
    tw_coll_t *coll;
    int rank, world;
    size_t n_elems;
    uint16_t *input, *send, *recv;           /**< [n_elems] bf16 */
    float *sum;                              /**< [n_elems] what must come of it */
    collnet_way_t ways[2 * COLLNET_N_MODES]; /**< the library's and the collnet's, by mode */
} collnet_rank_t;

/* ---- rank.c -------------------------------------------------------------------------------------------- */

/** Join the job, make the tensors, and connect all ways. Collective; collnet_rank_cleanup ends it, also
 *  after an error. Errors are logged, here and below. */
tw_status_t collnet_rank_init(collnet_rank_t *rank, const collnet_options_t *options);
void collnet_rank_cleanup(collnet_rank_t *rank);
/** Gather `bytes` of every rank, over the library's communicator. */
tw_status_t collnet_gather(collnet_rank_t *rank, const void *own, size_t bytes, void *all);
tw_status_t collnet_barrier(collnet_rank_t *rank);

/* ---- way.c --------------------------------------------------------------------------------------------- */

/** Let the way go through the plugin. Collective. */
tw_status_t collnet_way_connect(collnet_rank_t *rank, collnet_way_t *way);
/** Collective: each waits for the others. Nothing to do for the library's own ways. */
void collnet_way_disconnect(collnet_way_t *way);
/** Do it once and note the time; iter < 0: check what comes of it instead. Collective. */
tw_status_t collnet_way_measure(collnet_rank_t *rank, collnet_way_t *way, int iter);

/* ---- report.c ------------------------------------------------------------------------------------------ */

/** Print the table, and write its rows to `json`, if it is not NULL. Returns how many rows are not right. */
int collnet_print_lines(collnet_rank_t *rank, FILE *json);

TW_C_END

#endif
