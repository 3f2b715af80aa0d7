/** The benchmarks of the collectives: one program, built once for each of four operations.
 *
 *  Read in this order: options.c (the command line), main.c (a rank, and all sizes), run.h with setup.c,
 *  measure.c and rows.c (one size), data.h (the input), check.h (compares results with a reference), netdev.h
 *  and tcp.c (the system's counters and TCP), report.c (the table), gpu.c. */
#pragma once

#include "bench/collectives/check.h"
#include "bench/collectives/netdev.h"
#include "bench/exchange.h"
#include "cluster/cluster.h"
#include "collectives/collectives.h"
#include "transport/transport.h"

TW_C_BEGIN

#define TW_BENCH_MAX_SIZES 64
#define TW_BENCH_MAX_ITERS 10000
#define TW_BENCH_SMALL_MORE 10 /**< small operations run up to this many times --iters */
#define TW_BENCH_REASON_BYTES 160

/** How bytes travel between GPUs. The order is that of the words of --wire. */
typedef enum tw_bench_wire {
    TW_BENCH_WIRE_AUTO,
    TW_BENCH_WIRE_NCCL,
    TW_BENCH_WIRE_TRANSPORT
} tw_bench_wire_t;

/** The command line. */
typedef struct tw_bench_options {
    tw_coll_op_t op;
    int n_nodes, ranks_per_node;
    double link_bps;                  /**< rate of a node's link; 0: it is not shaped, or not known */
    int link_given;                   /**< 1: --link was given */
    size_t sizes[TW_BENCH_MAX_SIZES]; /**< bytes of all tensors together, not encoded */
    size_t n_sizes;
    tw_quant_kind_t modes[TW_QUANT_KINDS];
    size_t n_modes;
    const char *algo; /**< NULL: the cost model chooses */
    int block, hadamard;
    int inner_int8; /**< 1: a reduction in two hops encodes as int8 inside nodes, too */
    tw_type_t type;
    int iters;
    const char *tensors, *json; /**< paths; NULL: none */
    uint64_t seed;
    int force; /**< 1: quantize even if the cost model would not */
    int no_iperf;
    int cuda; /**< 1: tensors in GPU memory */
    tw_bench_wire_t wire;
} tw_bench_options_t;

/** Parse the command line; ends the program on --help and on errors. Strings point into argv. */
void tw_bench_options_parse(tw_bench_options_t *options, tw_coll_op_t op, int argc, char **argv);

/** Return algorithm number `index` for tensors in host memory, or on a GPU with --cuda; NULL past the end. */
const tw_coll_algo_info_t *tw_bench_algo_get(const tw_bench_options_t *options, size_t index);

/** One measured line: an operation at one size in one mode, as all ranks together saw it. */
typedef struct tw_bench_row {
    tw_quant_kind_t mode;
    size_t bytes;
    tw_coll_plan_t plan;                /**< its `reason` is empty: it was copied to the next member */
    char reason[TW_BENCH_REASON_BYTES]; /**< why the cost model did not quantize; "" if it did */
    int iters;
    double us_median, us_min, us_max;
    uint64_t inter_node_bytes; /**< bytes that all nodes send to other nodes in an operation */
    uint64_t busiest_bytes;    /**< bytes that the busiest node sends to other nodes in an operation */
    double speedup;            /**< plain's time divided by this mode's; NaN: plain was not measured */
    double rel_rmse, max_abs_err;
    int identical;     /**< 1: same result in all iterations, and on all ranks that get the same tensor */
    const char *fault; /**< static text that says what is wrong; NULL: nothing */
} tw_bench_row_t;

/** Data that are the same for all rows. */
typedef struct tw_bench_report {
    const struct tw_bench_rank *rank; /**< the rank that reports */
    double tcp_bps;                   /**< bit/s of one TCP stream through the link; 0: not measured */
    /** names of the congestion control of all ranks' connections to other nodes; "": none uses TCP */
    const char *congestion;
    const char *data; /**< description of the input */
    const char *wire; /**< says with which counters the counted bytes were compared */
    FILE *json;       /**< NULL: none */
} tw_bench_report_t;

void tw_bench_report_head(const tw_bench_report_t *report);
/** Write a line of the table and one of the JSON file. TW_ERR_IO: the file cannot be written. */
tw_status_t tw_bench_report_row(const tw_bench_report_t *report, const tw_bench_row_t *row);
/** Show text such as "64M int8 3/10" on a terminal, over the text shown before; NULL only removes that. */
void tw_bench_report_progress(const char *text);

/** The tensors of an operation: segments that point into the buffers src and dst. */
typedef struct tw_bench_tensors {
    char *src, *dst;
    size_t src_bytes, dst_bytes;
    tw_coll_segment_t *segments;
    size_t n_segments;
} tw_bench_tensors_t;

/** A GPU that holds a copy of the tensors. */
typedef struct tw_bench_gpu tw_bench_gpu_t;

/** This process as a rank of the job, with its communicators. */
typedef struct tw_bench_rank {
    const tw_bench_options_t *options;
    tw_job_t job;
    tw_transport_t *transport;
    tw_coll_t *coll;     /**< communicator on host memory, on which ranks exchange their measurements */
    tw_coll_t *measured; /**< communicator that is measured: `coll`, or one on GPU memory */
    tw_stream_t stream;  /**< stream that measured operations are enqueued on */
    tw_bench_gpu_t *gpu; /**< GPU that has the tensors; NULL: they are in host memory */
    int is_counted;      /**< 1: our transport sends and counts the measured bytes; 0: NCCL sends */
    char wire[256];      /**< text for people: what sends these bytes */
    int rank, world, n_nodes, ranks_per_node;
    int *node_of;  /**< [world] */
    int is_leader; /**< 1: the first rank of its node */
    tw_cluster_kind_t kind;
    const char *device; /**< network interface whose counters are compared with ours; NULL: none */
    double link_bps;    /**< rate of a node's link; 0: it is not shaped, or not known */
} tw_bench_rank_t;

/** Log that there is no memory for `bytes`. Returns TW_ERR_NO_MEMORY. */
tw_status_t tw_bench_no_memory(const tw_bench_rank_t *rank, size_t bytes);

/** Measure all modes at one size for about budget_sec: rows[n_modes] on every rank. Collective. */
tw_status_t tw_bench_measure(tw_bench_rank_t *rank, size_t bytes, double budget_sec, tw_bench_row_t *rows);
/** Return a text that describes the input of this size; the caller frees it. NULL: out of memory. */
char *tw_bench_describe_data(const tw_bench_rank_t *rank, size_t bytes);

/** Measure the rate of one TCP stream from node 0 to node 1 with iperf3, in bit/s, and tell all ranks. It is
 *  0 if iperf3 is not installed or there is no link. Collective. */
tw_status_t tw_bench_tcp_rate(tw_bench_rank_t *rank, double *bps);

/** List the names of the congestion control of all ranks' open TCP connections, like "cubic" or "bbr,cubic";
 *  "" if there are no connections. Collective. Errors are logged. */
tw_status_t tw_bench_congestion(tw_bench_rank_t *rank, char list[TW_BENCH_REASON_BYTES]);

/** Give each rank a GPU, which ranks share if there are too few. Set rank->gpu, measured, stream, wire and
 *  is_counted. Collective. TW_ERR_UNSUPPORTED (logged): there is no GPU. */
tw_status_t tw_bench_gpu_create(tw_bench_rank_t *rank);
/** Destroy a tw_bench_gpu_t. Must precede the destruction of rank->coll. Accepts NULL. */
void tw_bench_gpu_destroy(tw_bench_gpu_t *gpu);
/** Allocate GPU memory, and copy the input to it. `host` must exist until the next load. */
tw_status_t tw_bench_gpu_load(tw_bench_gpu_t *gpu, const tw_bench_tensors_t *host);
/** Return the tensors' segments in GPU memory, which exist until the next load. */
const tw_coll_segment_t *tw_bench_gpu_segments(const tw_bench_gpu_t *gpu);
/** Set every byte of the output to `byte`. */
tw_status_t tw_bench_gpu_poison(tw_bench_gpu_t *gpu, int byte);
/** Copy the output to the host. */
tw_status_t tw_bench_gpu_fetch(tw_bench_gpu_t *gpu);

TW_C_END
