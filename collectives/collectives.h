/** Thinwire collectives: plain and block-quantized collective operations between the ranks of a job, on
 *  tensors in host memory or in GPU memory, over a transport or over NCCL. One API for all of them.
 *
 *  A communicator is made for a kind of memory and a wire. An operation is posted, tested and waited for;
 *  several may be in flight. All ranks of a communicator post the same operations in the same order with
 *  matching arguments. Gathered data is bit-identical on all ranks. An algorithm that the caller names, and
 *  that is not declined with its codec (force_codec), gives the same bits for the same arguments whatever the
 *  timing ("native" is NCCL's own). Tensors in GPU memory get the bits that the algorithm of that name gives
 *  them on the host.
 *
 *  Without a name, the algorithm, and whether a codec is declined, depends on measurements made with the
 *  communicator and on size. So a sum may have other bits in another run or bucket. A deterministic
 *  communicator (tw_coll_params_t) measures nothing: only the arguments and the placement of the ranks decide
 *  the bits, neither sizes, nor the load, nor TW_COLL_MODEL. A tensor's result then is the same alone and in
 *  any bucket, and an all-reduce has the bits of the reduce-scatter (even split) followed by the all-gather.
 *  What the bits are: - A codec is used if there are several nodes. On one node it is declined for every
 *  operation alike, unless
 *    force_codec is set for all of them: no link is slow there.
 *  - Plain sums, also those of plain segments beside quantized ones, are made in fp32 in rank order. Where
 *    there are several nodes, and one of them has several ranks, they are made in each node in rank order,
 *    rounded to the tensor's type, then over the nodes in node order ("two_hop").
 *  - Quantized sums are made likewise: "two_hop" there, elsewhere "one_hop".
 *  All of this holds over NCCL too, which only carries the bytes then: kernels of ours add them up. "native",
 *  which adds in an order of NCCL's own, has to be asked for by name there.
 *  Quantized reduce-scatters of other splits have other blocks, hence other bits.
 *
 *  Words, here and in the sources:
 *  tensor   what the caller names by a number: a parameter, a gradient
 *  segment  a tensor, or a run of its elements, as one operation sees it
 *  shard    the run of a segment that belongs to one rank; W shards, perhaps empty ones, make the segment
 *  block    the elements that share a scale; never crosses a segment's nor a shard's boundary
 *  chunk    what is encoded and sent at a time: of one shard, perhaps of several segments
 *  message  what the transport carries: a chunk, as it is or encoded
 *
 *  Threads: a communicator and all others of its transport are used by one thread at a time. With a progress
 *  thread (tw_coll_params_t) every call here may be made from any thread at any time, but that nobody uses a
 *  communicator that is being destroyed, nor one request from two threads; the transport itself then belongs
 *  to the library. On GPU memory the device that is current when a communicator is made must be current in
 *  every call, in waits for other communicators of its transport too; a progress thread sees to that by
 *  itself. A forked process has neither the parent's threads nor connections of its own: every call there is
 *  TW_ERR_INVALID (logged), and the parent's job goes on.
 *
 *  Errors: what ends an operation ends its communicator, and all calls return that status from then on; over
 *  a transport it ends the job, so that no rank waits for one that has failed. TW_ERR_PEER: another rank has
 *  failed, and the log names it. */
#ifndef TW_COLLECTIVES_COLLECTIVES_H
#define TW_COLLECTIVES_COLLECTIVES_H

#include "collectives/setup.h"
#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef struct tw_coll_request tw_coll_request_t;

/** GPU memory: the first three, and over a transport the all-to-all. */
typedef enum tw_coll_op {
    TW_COLL_ALLGATHER,
    TW_COLL_REDUCE_SCATTER,
    TW_COLL_ALLREDUCE,
    TW_COLL_BROADCAST,
    TW_COLL_ALLTOALL,
    TW_COLL_BARRIER,
    TW_COLL_OP_COUNT
} tw_coll_op_t;

/** Plain sums are made in fp32 and rounded to the tensor's type k times on their way: once by "direct" and
 *  "exchange", on every node by "hierarchical", W - 1 times by "ring", log2(W) times, rounded up, by
 *  "halving". They are off by at most ((1 + u)^k - 1) * (|x_0| + ... + |x_(W-1)|), u = 2^-8 in bf16, 2^-11 in
 *  fp16, 2^-24 in fp32, besides fp32's own W * 2^-24. For a mean of fp16 partial means travel, at the cost of
 *  one rounding: they do not overflow where sums would, and with a factor of at most 1 no rounding, not even
 *  a codec's, makes them infinite. */
typedef enum tw_coll_reduction { TW_COLL_SUM, TW_COLL_MEAN } tw_coll_reduction_t;

/** One segment of an operation. W = communicator size; shard r of n_elems is counts[r] elements after those
 *  of the shards before it.
 *  all-gather      src: own shard            dst: whole segment [n_elems]
 *  reduce-scatter  src: whole segment        dst: own shard
 *  all-reduce      src: whole segment        dst: whole segment
 *  broadcast       src: unused               dst: whole segment, read on the root, written elsewhere
 *  all-to-all      src: counts[r] elements for each rank r, in order; dst: recv_counts[r] from each rank, in
 *                  order
 *  In place: src is NULL or points into dst, and the shard or segment is where it belongs there. For
 *  reduce-scatter, src is the whole segment and dst NULL: the shard is left in its place. Otherwise they must
 *  not overlap.
 *
 *  Rank-major buffers, where all that belongs to rank 0 comes first, then all that belongs to rank 1, as FSDP
 *  lays out a unit, are one segment per (rank, tensor): segment (r, t) has its elements of t all in shard r
 *  (counts[r] = n_elems, the other counts 0). Only rank r's src (all-gather) or dst (reduce-scatter) of it is
 *  read. */
typedef struct tw_coll_segment {
    const void *src;
    void *dst;
    size_t n_elems;
    const size_t *counts; /**< [W], sums to n_elems; NULL: the even split, tw_coll_shard_elems */
    /** [W], all-to-all only; NULL: counts[own rank] from each rank, which is right if all ranks have the same
     *  counts. Without counts either, n_elems must be a multiple of W. */
    const size_t *recv_counts;
    uint32_t tensor; /**< number of the tensor, for stochastic rounding */
    /** index in that tensor of the segment's first element, for stochastic rounding and row_elems */
    uint64_t first_elem;
    /** The segment's codec; NULL: the operation's, without which no segment may have its own. Copied. */
    const tw_quant_codec_t *codec;
    int unquantized; /**< 1: sent without loss, whatever the operation's codec (norms, biases) */
    /** elements in a row of the tensor, its last dimension, for which the lossless codec needs fewer bits; 0:
     *  not known */
    size_t row_elems;
} tw_coll_segment_t;

/** The even split: n / W elements each, and one more for the first n % W shards. */
size_t tw_coll_shard_elems(size_t n_elems, int world, int rank);
size_t tw_coll_shard_offset(size_t n_elems, int world, int rank);

typedef struct tw_coll_args {
    tw_coll_op_t op;
    tw_type_t type;                    /**< type of all segments; reductions need a float type */
    const tw_coll_segment_t *segments; /**< [n_segments], copied; counts are copied too */
    size_t n_segments;
    tw_coll_reduction_t reduction;
    float factor; /**< reductions: multiplies the sum or mean before it is rounded; 0 counts as 1 */
    int root;     /**< the rank that sends in a broadcast */
    /** Codec of the operation; NULL: plain. All-gather and all-to-all take any; reduce-scatter and all-
     *  reduce 4 or 8 bits, or lossless: a lossless algorithm has the bits of the plain one of its name
     *  ("one_hop" those of "direct"), and is refused over NCCL, which has to know lengths beforehand
     *  (TW_ERR_UNSUPPORTED). Where plain is as fast, the codec is declined in favour of any plain algorithm,
     *  which may add up in another order; in a deterministic communicator only if the bits stay the same.
     *  Copied. In an all-to-all only data for other nodes is encoded. It is planned, and its codec declined,
     *  as if 2^18 elements went to each rank, as ranks may send different amounts. */
    const tw_quant_codec_t *codec;
    /** two-hop reduce-scatter: codec of the hop inside the node; NULL: plain */
    const tw_quant_codec_t *inner_codec;
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    const char *algo;   /**< NULL or "auto", or a name of tw_coll_algo_get */
    int force_codec;    /**< 1: never decline the codec, even where plain is faster, or on one node */
    tw_stream_t stream; /**< GPU memory: the operation begins when this stream reaches it */
    /** Where to write how long the operation took from its post on, before its end can be seen; borrowed
     *  until then. Over NCCL that is the time until it was enqueued. NULL: nowhere. */
    double *elapsed_sec;
    /** 1: ranks may come to it as late as they like, as after writing a file or computing alone. While it is
     *  in flight, this communicator has no TW_ERR_TIMEOUT; when nothing has moved for TW_COLL_TIMEOUT, a
     *  warning says once what is awaited. A rank that dies is still an error. Ranks need not agree about
     *  it. */
    int patient;
} tw_coll_args_t;

/** Validate, plan and start an operation. The buffers are borrowed until the request is done. GPU memory over
 *  NCCL: returns when all is enqueued, and later work on the stream finds the result. Works under graph
 *  capture, where the shape was prepared and NCCL has run it once, as it connects on first use; the request
 *  is then done at once. Graphs use the workspace, so they and other operations of this communicator must not
 *  run at the same time. GPU memory over a transport: the host makes progress in test, wait and progress; no
 *  graph capture. request NULL: nobody waits for it; the library frees it, and an error ends the communicator
 *  and shows at the next call. TW_ERR_INVALID (logged: which argument), TW_ERR_UNSUPPORTED (logged: the
 *  algorithm, the operation or a capture is not for this communicator, the codec not for sums),
 *  TW_ERR_NO_MEMORY, or the error that has ended the communicator. A post that fails counts as an operation:
 *  unless it fails on all ranks, the others get an error (logged with the rank), and the job is given up.
 *  Over NCCL the others wait for TW_COLL_TIMEOUT instead. */
tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request);
/** Make progress, and test a request. TW_OK: done and freed; TW_IN_PROGRESS; an error (TW_ERR_PEER, ...):
 *  freed, too. */
tw_status_t tw_coll_test(tw_coll_request_t *request);
/** Make progress until the request is done, and free it; sleeps when nothing moves. All operations of all
 *  communicators of the transport progress meanwhile, so that ranks may wait for theirs in any order.
 *  TW_ERR_MISMATCH: the ranks' arguments differ (logged with the rank; the job is given up); TW_ERR_TIMEOUT:
 *  nothing has moved for TW_COLL_TIMEOUT (logged with what is awaited). */
tw_status_t tw_coll_wait(tw_coll_request_t *request);
/** Set a limit in seconds that overrides TW_COLL_TIMEOUT, also for operations under way; 0: no limit. Any
 *  thread. */
void tw_coll_timeout_set(tw_coll_t *coll, double timeout_sec);
double tw_coll_timeout(const tw_coll_t *coll);
/** Make all its operations patient from now on, also those under way (tw_coll_args_t). Any thread. */
void tw_coll_patient_set(tw_coll_t *coll);
/** Post, then wait. */
tw_status_t tw_coll_run(tw_coll_t *coll, const tw_coll_args_t *args);
/** Make progress on all operations in flight on the transport, of all its communicators. TW_OK, or the error
 *  that has ended this communicator. */
tw_status_t tw_coll_progress(tw_coll_t *coll);
/** Give up, over a transport on all ranks: what is in flight ends with TW_ERR_CANCELED, kernels that wait for
 *  other ranks end, all further calls fail. */
void tw_coll_abort(tw_coll_t *coll);
/** GPU memory: plan an operation and find its workspace, so that posting one of the same shape (all arguments
 *  but pointers, seed, step and stream) neither plans nor takes memory of the GPU. Otherwise posting does it.
 *  The arguments are checked as in a post, pointers too. On host memory TW_ERR_UNSUPPORTED (logged). */
tw_status_t tw_coll_prepare(tw_coll_t *coll, const tw_coll_args_t *args);

/* ---- what can be asked --------------------------------------------------------------------------------- */

/** The algorithm, chunk and codec that an operation runs with. */
typedef struct tw_coll_plan {
    const char *algo; /**< static storage */
    int quantized;    /**< 0: plain, perhaps because the codec was declined */
    double model_sec; /**< the cost model's estimate; 0 on GPU memory, where nothing is measured */
    size_t chunk_bytes;
    const char *reason; /**< why quantizing was declined, or ""; valid as long as the request */
} tw_coll_plan_t;
/** Tell what an operation runs with; valid from its post until test or wait has freed the request. */
void tw_coll_request_plan(const tw_coll_request_t *request, tw_coll_plan_t *plan);

/** Bytes that an operation is planned to send from this rank to other nodes: what the counters must show;
 *  with the lossless codec together with the spared bytes. "native": as a ring of NCCL's sends them. */
tw_status_t tw_coll_planned_inter_node_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

/** What this rank has sent in operations of this communicator: payload bytes and messages. Messages to the
 *  own rank count in neither tier. "native" operations count as planned, as no messages. */
typedef struct tw_coll_counters {
    uint64_t inter_node_bytes, inter_node_messages;
    uint64_t in_node_bytes, in_node_messages;
    uint64_t inter_node_spared_bytes; /**< by how much lossless messages were shorter than planned */
} tw_coll_counters_t;
void tw_coll_counters_get(tw_coll_t *coll, tw_coll_counters_t *out);

/** Blocks with NaN or Inf that this communicator's encoders have met. On GPU memory, synchronises with the
 *  device. */
uint64_t tw_coll_nonfinite_blocks(tw_coll_t *coll);
/** Bytes of workspace that the communicator holds now, for chunks on their way, and the kind of memory that
 *  has it: for GPU memory over a transport it may be pinned host memory. On host memory that is scratch
 *  memory, at most TW_COLL_SCRATCH. On GPU memory it is bounded too, whatever the tensors' size, but by more:
 *  a chunk to each rank makes a round, of 16 MB at most as it goes between nodes, and at most seven rounds
 *  are under way. A round is a few launches, whatever its size, and has to be long enough to hide what they
 *  cost. TW_COLL_CHUNK makes rounds, and the workspace, smaller. */
size_t tw_coll_workspace_bytes(tw_coll_t *coll);
tw_mem_t tw_coll_workspace_mem(const tw_coll_t *coll);
/** Give the workspace back to the system, except what operations in flight use; for a communicator that will
 *  rest, as otherwise the memory is kept for the next operation. GPU memory: only while nothing is in flight;
 *  over NCCL nothing is given back, since graphs may use it. */
void tw_coll_trim(tw_coll_t *coll);

/** Rows of the tables of algorithms. */
typedef struct tw_coll_algo_info {
    tw_coll_op_t op;
    const char *name;
    const char *doc;
    int quantized;     /**< 1: needs a codec; 0: plain */
    int lossless_only; /**< 1: needs a codec that loses nothing */
} tw_coll_algo_info_t;
/** Row `index` of the algorithms for such memory, static storage; NULL past the end. GPU memory: NCCL's
 *  own come first. */
const tw_coll_algo_info_t *tw_coll_algo_get(tw_mem_t mem, size_t index);
const char *tw_coll_op_name(tw_coll_op_t op);

extern const tw_config_table_t tw_coll_config_table;

TW_C_END

#endif
