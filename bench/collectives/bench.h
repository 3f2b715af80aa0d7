/** The benchmarks of the collectives: one program, four operations.
 *
 *  To be read in this order: options.c (the command line), main.c (a rank and its table), setup.c, measure.c
 *  and rows.c (one size, around run.h), data.h and check.h (the input, and whether results are right),
 *  netdev.h and tcp.c (what the system counts), report.c, gpu.c. */
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
#define TW_BENCH_SMALL_MORE 10 /**< small operations run at most this many times the iterations asked for */
#define TW_BENCH_REASON_BYTES 160

/** How bytes travel between GPUs, in the order of --wire's words. */
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
    size_t sizes[TW_BENCH_MAX_SIZES]; /**< bytes of the whole tensor set in its source type */
    size_t n_sizes;
    tw_quant_kind_t modes[TW_QUANT_KINDS];
    size_t n_modes;
    const char *algo; /**< NULL: the cost model chooses */
    int block, hadamard;
    int inner_int8; /**< 1: eight bits inside the nodes too, where a reduction has two hops */
    tw_type_t type;
    int iters;
    const char *tensors, *json; /**< paths; NULL: none */
    uint64_t seed;
    int force; /**< 1: quantize even where the cost model would not */
    int no_iperf;
    int cuda; /**< 1: tensors in GPU memory */
    tw_bench_wire_t wire;
} tw_bench_options_t;

/** Fills `options` for `op`; prints and exits on --help and on mistakes. Strings point into argv. */
void tw_bench_options_parse(tw_bench_options_t *options, tw_coll_op_t op, int argc, char **argv);

/** Return algorithm `index` of those for the tensors' memory (host or GPU); NULL past the end. */
const tw_coll_algo_info_t *tw_bench_algo_get(const tw_bench_options_t *options, size_t index);

/** One measured line: an operation at one size in one mode, as all ranks together saw it. */
typedef struct tw_bench_row {
    tw_quant_kind_t mode;
    size_t bytes;
    tw_coll_plan_t plan;                /**< the plan; its reason is not used, but the one below: */
    char reason[TW_BENCH_REASON_BYTES]; /**< why the cost model did not quantize; "": it did */
    int iters;
    double us_median, us_min, us_max;
    uint64_t inter_node_bytes; /**< per operation, over all nodes */
    uint64_t busiest_bytes;    /**< per operation, of the node that sends most */
    double speedup;            /**< plain's time over this one's; NaN: plain was not measured */
    double rel_rmse, max_abs_err;
    int identical;
    const char *fault; /**< NULL: ok; else what is wrong, static storage */
} tw_bench_row_t;

/** What is the same for all rows. */
typedef struct tw_bench_report {
    const struct tw_bench_rank *rank; /**< rank that reports */
    double tcp_bps;                   /**< one TCP stream through the link; 0: not measured */
    /** Congestion control of all ranks' connections to other nodes; "": none of them is TCP. */
    const char *congestion;
    const char *data; /**< description of the input */
    const char *wire; /**< how the counted bytes are cross-checked */
    FILE *json;       /**< NULL: none */
} tw_bench_report_t;

void tw_bench_report_head(const tw_bench_report_t *report);
/** Write a line of the table and one of the JSON file. TW_ERR_IO: the file cannot be written. */
tw_status_t tw_bench_report_row(const tw_bench_report_t *report, const tw_bench_row_t *row);
/** Show text such as "64M int8 3/10" on a terminal, over the text shown before; NULL wipes that. */
void tw_bench_report_progress(const char *text);

/** The tensors of an operation, whose segments lie in src and dst. */
typedef struct tw_bench_tensors {
    char *src, *dst;
    size_t src_bytes, dst_bytes;
    tw_coll_segment_t *segments;
    size_t n_segments;
} tw_bench_tensors_t;

/** A GPU that holds a copy of the tensors. */
typedef struct tw_bench_gpu tw_bench_gpu_t;

/** This process's place in the job. */
typedef struct tw_bench_rank {
    const tw_bench_options_t *options;
    tw_job_t job;
    tw_transport_t *transport;
    tw_coll_t *coll;     /**< communicator on host memory, by which ranks exchange what they measured */
    tw_coll_t *measured; /**< communicator that is measured: `coll`, or one on GPU memory */
    tw_stream_t stream;  /**< stream that measured operations are enqueued on */
    tw_bench_gpu_t *gpu; /**< GPU that has the tensors; NULL: the host has them */
    int is_counted;      /**< 1: the transport carries, and counts, the bytes of measured operations */
    char wire[256];      /**< what carries those bytes, as text for people */
    int rank, world, n_nodes, ranks_per_node;
    int *node_of;  /**< [world] */
    int is_leader; /**< 1: the first rank of its node */
    tw_cluster_kind_t kind;
    const char *device; /**< interface whose counters are compared; NULL: none */
    double link_bps;    /**< rate of a node's link; 0: it is not shaped, or not known */
} tw_bench_rank_t;

/** Logs that there is no memory for `bytes`; returns TW_ERR_NO_MEMORY. */
tw_status_t tw_bench_no_memory(const tw_bench_rank_t *rank, size_t bytes);

/** Measure all modes at one size: rows[n_modes] on every rank. */
tw_status_t tw_bench_measure(tw_bench_rank_t *rank, size_t bytes, double budget_sec, tw_bench_row_t *rows);
/** Describe the input of this size as text, which the caller frees. NULL: out of memory. */
char *tw_bench_describe_data(const tw_bench_rank_t *rank, size_t bytes);

/** Measure the rate of one TCP stream from node 0 to node 1 with iperf3; every rank gets it. 0: not measured,
 *  because iperf3 is not installed or there is no link. Collective. */
tw_status_t tw_bench_tcp_rate(tw_bench_rank_t *rank, double *bps);

/** List the congestion control of all ranks' open TCP connections, as "cubic" or "bbr,cubic"; "" if there are
 *  none. Collective; logs its own errors. */
tw_status_t tw_bench_congestion(tw_bench_rank_t *rank, char list[TW_BENCH_REASON_BYTES]);

/** Give each rank a GPU, shared if there are too few; set rank->gpu, measured, stream, wire and is_counted.
 *  Collective. TW_ERR_UNSUPPORTED (logged) where there is none. */
tw_status_t tw_bench_gpu_create(tw_bench_rank_t *rank);
/** Call it before the communicator is destroyed. Accepts NULL. */
void tw_bench_gpu_destroy(tw_bench_gpu_t *gpu);
/** Make room for the tensors and copy the input from the host. `host` is borrowed until the next load. */
tw_status_t tw_bench_gpu_load(tw_bench_gpu_t *gpu, const tw_bench_tensors_t *host);
/** The tensors' segments in GPU memory; they live until the next load. */
const tw_coll_segment_t *tw_bench_gpu_segments(const tw_bench_gpu_t *gpu);
/** Overwrite the output with this byte. */
tw_status_t tw_bench_gpu_poison(tw_bench_gpu_t *gpu, int byte);
/** Copy the output to the host. */
tw_status_t tw_bench_gpu_fetch(tw_bench_gpu_t *gpu);

TW_C_END
