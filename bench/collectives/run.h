/** Inside the measuring loop: input and modes (setup.c), iterations (measure.c), rows (rows.c). */
#pragma once

#include "bench/collectives/bench.h"

TW_C_BEGIN

/* What one rank found out about a mode, for all the others. */
typedef struct summary {
    uint64_t op_bytes, planned_bytes; /* what an operation sends to other nodes, counted and planned */
    uint64_t spared_bytes; /* by how much lossless messages are smaller than planned, per operation */
    uint64_t hash;
    /* how many iterations sent a different number of bytes, or had another result, than the first */
    uint64_t n_unsteady;
    uint64_t nonfinite_blocks;
    /* bytes, messages and quiet moments that were counted around operations with their barriers */
    uint64_t loop_bytes, loop_messages, n_pauses;
    tw_netdev_counters_t device; /* what a node's interface counted meanwhile, noted by its first rank */
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
    size_t *recv_counts; /* [n_segments][world] of an all-to-all */
    char *src, *dst;
    size_t *next, *previous; /* [world] bytes to send and to receive when the links' bursts are spent */
    char *spent;             /* room for those bytes, out and in */
    mode_run_t modes[TW_QUANT_KINDS];
    int n_iters;
} run_t;

/** Make buffers, input and modes for tensors of `bytes`. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_bench_run_init(run_t *run, tw_bench_rank_t *rank, size_t bytes);
void tw_bench_run_cleanup(run_t *run);
/** Make a line of the table from what all ranks found out about a mode, but for its speed-up. Collective. */
tw_status_t tw_bench_make_row(run_t *run, mode_run_t *m, tw_bench_row_t *row);

TW_C_END
