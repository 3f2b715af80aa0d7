/** The measurement of one size: input and modes (setup.c), iterations (measure.c), rows (rows.c). */
#pragma once

#include "bench/collectives/bench.h"

TW_C_BEGIN

/* One rank's measurements of a mode, which all ranks gather. */
typedef struct summary {
    uint64_t op_bytes, planned_bytes; /* bytes that an operation sends to other nodes, counted and planned */
    uint64_t spared_bytes; /* bytes by which an operation's lossless messages are smaller than planned */
    uint64_t hash;         /* hash of the first iteration's result */
    /* number of iterations whose bytes or result differ from the first iteration's */
    uint64_t n_unsteady;
    uint64_t nonfinite_blocks;
    /* bytes and messages of all iterations with their barriers; number of iterations */
    uint64_t loop_bytes, loop_messages, n_pauses;
    tw_netdev_counters_t device; /* counters of the node's interface over the same time, on its first rank */
    tw_bench_check_sums_t sums;
} summary_t;

typedef struct mode_run {
    tw_quant_codec_t codec, inner;
    tw_coll_args_t args;
    tw_coll_plan_t plan;
    char reason[TW_BENCH_REASON_BYTES];
    double *times_us; /* [iters * TW_BENCH_SMALL_MORE] */
    double warm_sec;
    summary_t summary;
} mode_run_t;

typedef struct run {
    tw_bench_rank_t *rank;
    size_t bytes;
    tw_bench_data_t *data;
    tw_coll_segment_t *segments;
    size_t n_segments, src_bytes, dst_bytes;
    size_t *recv_counts; /* [n_segments][world] elements that an all-to-all receives from each rank */
    char *src, *dst;
    size_t *next, *previous; /* [world] bytes to send to and receive from each rank in spend_bursts() */
    char *spent;             /* buffer for these bytes: first those to send; NULL: links have no bursts */
    mode_run_t modes[TW_QUANT_KINDS];
    int n_iters;
} run_t;

/** Make buffers, input and modes for tensors of `bytes` bytes together. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_bench_run_init(run_t *run, tw_bench_rank_t *rank, size_t bytes);
void tw_bench_run_cleanup(run_t *run);
/** Make a row of the table from all ranks' summaries of a mode. Leaves the speed-up out. Collective. */
tw_status_t tw_bench_make_row(run_t *run, mode_run_t *m, tw_bench_row_t *row);

TW_C_END
