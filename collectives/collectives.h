/** Thinwire collectives: plain and block-quantized collective operations between the ranks of a job. They
 *  work on tensors in host or GPU memory, over a transport or over NCCL, with one API.
 *
 *  A communicator is made for one kind of memory and one wire. An operation is posted, tested and waited
 *  for; several may be in flight. All ranks of a communicator post the same operations in the same order
 *  with matching arguments. Gathered data is bit-identical on all ranks. If the caller names an algorithm
 *  (other than "native", NCCL's own) and the codec is not declined (see force_codec), the same arguments
 *  give the same bits, whatever the timing. On GPU memory an algorithm gives the same bits as the algorithm
 *  of that name on the host.
 *
 *  If the caller names no algorithm, measurements made with the communicator and the operation's size decide
 *  which algorithm is used, and whether the codec is declined. So a sum may have other bits in another run
 *  or bucket.
 *
 *  A deterministic communicator (tw_coll_params_t) measures nothing. Only the arguments and the placement of
 *  the ranks decide the bits; sizes, load and TW_COLL_MODEL do not. A tensor's result is the same alone and
 *  in any bucket. An all-reduce has the bits of a reduce-scatter (even split) followed by an all-gather. The
 *  rules:
 *  - A codec is used if there are several nodes. On one node no link is slow, so the codec of every
 *    operation is declined, unless force_codec is set for all of them.
 *  - Plain sums are made in fp32 in rank order, also those of plain segments beside quantized ones. If there
 *    are several nodes, and one of them has several ranks, the sum is made in each node in rank order,
 *    rounded to the tensor's type, and then made over the nodes in node order ("two_hop").
 *  - Quantized sums use "two_hop" in that case, and "one_hop" otherwise.
 *  All of this holds over NCCL, too: NCCL then only carries bytes, and Thinwire's kernels add them up. The
 *  algorithm "native" adds in an order that NCCL chooses, so the caller must ask for it by name. A quantized
 *  reduce-scatter with another split than the even one has other blocks, hence other bits.
 *
 *  Words, here and in the sources:
 *  tensor   a parameter or a gradient; the caller gives it a number
 *  segment  a tensor, or consecutive elements of one: the unit that an operation gets from the caller
 *  shard    the consecutive elements of a segment that belong to one rank; a segment has W shards, some
 *           perhaps empty
 *  block    elements that share one scale; a block lies within one segment and one shard
 *  chunk    the part of one shard that is encoded and sent at a time, perhaps from several segments
 *  message  what the transport carries: one chunk, plain or encoded
 *
 *  Threads: only one thread at a time uses a communicator and all others of its transport. With a progress
 *  thread (tw_coll_params_t) any thread may make any call here at any time, with two exceptions: nobody uses
 *  a communicator that is being destroyed, and no two threads use the same request. The transport itself
 *  then belongs to the library. On GPU memory, the device that was current when a communicator was made must
 *  be current in every call, also in waits for other communicators of its transport. A progress thread makes
 *  the device current by itself. A forked process has neither the threads nor the connections of its parent:
 *  every call returns TW_ERR_INVALID there (logged), and the parent's job goes on.
 *
 *  Errors: an error that ends an operation ends its communicator, and all later calls return that error.
 *  Over a transport it also ends the job, so that no rank waits for one that has failed. TW_ERR_PEER means
 *  that another rank has failed; the log names the rank. */
#ifndef TW_COLLECTIVES_COLLECTIVES_H
#define TW_COLLECTIVES_COLLECTIVES_H

#include "collectives/setup.h"
#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef struct tw_coll_request tw_coll_request_t;

/** The operations. GPU memory supports the first three, and over a transport also the all-to-all. */
typedef enum tw_coll_op {
    TW_COLL_ALLGATHER,
    TW_COLL_REDUCE_SCATTER,
    TW_COLL_ALLREDUCE,
    TW_COLL_BROADCAST,
    TW_COLL_ALLTOALL,
    TW_COLL_BARRIER,
    TW_COLL_OP_COUNT
} tw_coll_op_t;

/** A plain sum is made in fp32 and rounded to the tensor's type k times on its way: once by "direct" and
 *  "exchange", at most twice by "two_hop", once per node by "hierarchical", W - 1 times by "ring", log2(W)
 *  times (rounded up) by "halving". Its error is at most ((1 + u)^k - 1) * (|x_0| + ... + |x_(W-1)|), with
 *  u = 2^-8 in bf16, 2^-11 in fp16, 2^-24 in fp32, plus fp32's own W * 2^-24. For a mean of fp16, ranks send
 *  partial means, not partial sums. That costs one more rounding, but means do not overflow where sums would:
 *  with a factor of at most 1 no rounding, not even a codec's, makes them infinite. */
typedef enum tw_coll_reduction { TW_COLL_SUM, TW_COLL_MEAN } tw_coll_reduction_t;

/** One segment of an operation. W is the number of ranks. Shard r has counts[r] elements, and follows the
 *  shards of the ranks before r.
 *  all-gather      src: own shard            dst: whole segment [n_elems]
 *  reduce-scatter  src: whole segment        dst: own shard
 *  all-reduce      src: whole segment        dst: whole segment
 *  broadcast       src: unused               dst: whole segment, read on the root, written elsewhere
 *  all-to-all      src: counts[r] elements for each rank r, in order; dst: recv_counts[r] from each rank, in
 *                  order
 *  An operation is in place if src is NULL, or points into dst at the place that the data has there. In a
 *  reduce-scatter in place, src is the whole segment and dst is NULL; the shard is left where it lies in
 *  src. Otherwise src and dst must not overlap.
 *
 *  In a rank-major buffer all data of rank 0 comes first, then all data of rank 1, as in a unit of FSDP. It
 *  is described by one segment per (rank, tensor). All elements of segment (r, t) are in shard r: counts[r]
 *  = n_elems, and the other counts are 0. Only rank r uses its src (all-gather) or dst (reduce-scatter). */
typedef struct tw_coll_segment {
    const void *src;
    void *dst;
    size_t n_elems;
    const size_t *counts; /**< [W], sums to n_elems; NULL: the even split (tw_coll_shard_elems) */
    /** [W], all-to-all only. NULL: counts[own rank] from each rank, which is right if all ranks have the
     *  same counts. If counts is NULL as well, n_elems must be a multiple of W. */
    const size_t *recv_counts;
    uint32_t tensor; /**< number of the tensor, for stochastic rounding */
    /** index in the tensor of the segment's first element, for stochastic rounding and row_elems */
    uint64_t first_elem;
    /** The segment's codec; NULL: the operation's. Must be NULL if the operation has no codec. Copied. */
    const tw_quant_codec_t *codec;
    int unquantized; /**< 1: sent without loss, whatever the operation's codec (norms, biases) */
    /** elements in the tensor's last dimension; 0: not known (the lossless codec then needs more bits) */
    size_t row_elems;
} tw_coll_segment_t;

/** The even split: n / W elements for each shard, and one more for each of the first n % W shards. */
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
    /** Codec of the operation; NULL: plain. Copied. All-gather and all-to-all take any codec but the delta.
     *  Reduce-scatter and all-reduce take int8, int4, fp8, lossless and ecdq. A lossless algorithm gives the
     *  bits of the plain algorithm of its name; lossless "one_hop" gives those of plain "direct". Over NCCL
     *  lossless and ecdq are refused (TW_ERR_UNSUPPORTED): NCCL must know lengths beforehand. If plain is as
     *  fast, the codec is declined in favour of any plain algorithm, even one that adds up in another order.
     *  On several nodes, a deterministic communicator declines it only if the bits stay the same. An
     *  all-to-all encodes only data for other nodes. Its ranks may send different amounts, so they choose
     *  algorithm and codec as if 2^18 elements went to each rank. */
    const tw_quant_codec_t *codec;
    /** two-hop reduce-scatter: codec of the hop inside the node; NULL: that hop is plain */
    const tw_quant_codec_t *inner_codec;
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    const char *algo;   /**< NULL or "auto", or a name of tw_coll_algo_get */
    int force_codec;    /**< 1: never decline the codec, even where plain is faster, or on one node */
    tw_stream_t stream; /**< GPU memory: the operation begins when this stream reaches it */
    /** Where to write the seconds from the operation's post to its end; NULL: nowhere. Written before the
     *  end can be seen, and borrowed until then. Over NCCL the time ends when the operation is enqueued. */
    double *elapsed_sec;
    /** 1: ranks may post the operation as late as they like, say after writing a file. While it is in
     *  flight, this communicator has no TW_ERR_TIMEOUT. If nothing has moved for TW_COLL_TIMEOUT, one
     *  warning says what the operation waits for. A rank that dies is still an error. Ranks need not set
     *  this alike. */
    int patient;
} tw_coll_args_t;

/** Validate, plan and start an operation. The buffers are borrowed until the request is done.
 *  - GPU memory over NCCL: the call returns when the whole operation is enqueued; later work on the stream
 *    finds the result. It works under graph capture if the shape was prepared and NCCL has run it once,
 *    because NCCL connects on first use; the request is then done at once. Graphs use the workspace, so a
 *    graph must not run at the same time as another graph or operation of this communicator.
 *  - GPU memory over a transport: the host makes progress in test, wait and progress; no graph capture.
 *  If request is NULL, nobody waits for the operation: the library frees it, and an error ends the
 *  communicator and shows at the next call. Returns TW_ERR_INVALID (logged: which argument),
 *  TW_ERR_UNSUPPORTED (logged: this communicator does not support the algorithm, the operation or the
 *  capture, or the codec supports no sums), TW_ERR_NO_MEMORY, or the error that has ended the communicator.
 *  A post that fails counts as an operation: unless it fails on all ranks, the other ranks get an error
 *  (logged with the rank), and the job ends. Over NCCL the other ranks wait for TW_COLL_TIMEOUT instead. */
tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request);
/** Make progress, and test a request. Returns TW_OK if it is done, TW_IN_PROGRESS, or an error (TW_ERR_PEER,
 *  ...). TW_OK and errors free the request. */
tw_status_t tw_coll_test(tw_coll_request_t *request);
/** Make progress until the request is done, and free it. Sleeps when nothing moves. Meanwhile all operations
 *  of all communicators of the transport make progress, so ranks may wait for their operations in any order.
 *  TW_ERR_MISMATCH: the ranks' arguments differ (logged with the rank); the job ends. TW_ERR_TIMEOUT:
 *  nothing has moved for TW_COLL_TIMEOUT (logged with what the operation waits for). */
tw_status_t tw_coll_wait(tw_coll_request_t *request);
/** Set a time limit in seconds in place of TW_COLL_TIMEOUT, also for operations in flight; 0: no limit. Any
 *  thread may call this. */
void tw_coll_timeout_set(tw_coll_t *coll, double timeout_sec);
double tw_coll_timeout(const tw_coll_t *coll);
/** Make all operations of `coll` patient (tw_coll_args_t), also those in flight. Any thread may call this. */
void tw_coll_patient_set(tw_coll_t *coll);
/** Post, then wait. */
tw_status_t tw_coll_run(tw_coll_t *coll, const tw_coll_args_t *args);
/** Make progress on all operations of all communicators of the transport. Returns TW_OK, or the error that
 *  has ended this communicator. */
tw_status_t tw_coll_progress(tw_coll_t *coll);
/** End the communicator, over a transport on all ranks. Operations in flight end with TW_ERR_CANCELED,
 *  kernels that wait for other ranks end, and all later calls fail. */
void tw_coll_abort(tw_coll_t *coll);
/** GPU memory: plan an operation and allocate its workspace, so that a later post of the same shape (all
 *  arguments but pointers, seed, step and stream) does neither. Without this call, the post does both.
 *  Checks the arguments like a post, pointers included. TW_ERR_UNSUPPORTED (logged) on host memory. */
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
/** Get how an operation runs. Allowed from its post until test or wait has freed the request. */
void tw_coll_request_plan(const tw_coll_request_t *request, tw_coll_plan_t *plan);

/** Get how many bytes this rank will send to other nodes in an operation. The counters grow by this number;
 *  with a lossless codec, inter_node_bytes and inter_node_spared_bytes do so together. For "native" it is
 *  what NCCL's rings send. */
tw_status_t tw_coll_planned_inter_node_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

/** What this rank has sent in operations of this communicator: payload bytes and messages. Messages to
 *  itself do not count. "native" operations count their planned bytes and no messages. */
typedef struct tw_coll_counters {
    uint64_t inter_node_bytes, inter_node_messages;
    uint64_t in_node_bytes, in_node_messages;
    uint64_t inter_node_spared_bytes; /**< by how many bytes lossless messages were shorter than planned */
} tw_coll_counters_t;
void tw_coll_counters_get(tw_coll_t *coll, tw_coll_counters_t *out);

/** Returns the number of blocks with NaN or Inf that this communicator's encoders have met. On GPU memory
 *  the call synchronises with the device. */
uint64_t tw_coll_nonfinite_blocks(tw_coll_t *coll);
/** Return the bytes of workspace that the communicator holds now for chunks on their way, and the kind of
 *  memory that the workspace is in. On host memory the workspace is scratch memory, at most TW_COLL_SCRATCH.
 *  For GPU memory over a transport it may be pinned host memory. For GPU memory, too, its size has a bound
 *  that does not depend on the tensors: at most seven rounds are in flight, and a round is one chunk to each
 *  rank, at most 16 MB as it goes between nodes. A round takes a few launches whatever its size, so it must
 *  be long enough to hide their cost. TW_COLL_CHUNK makes rounds, and the workspace, smaller. */
size_t tw_coll_workspace_bytes(tw_coll_t *coll);
tw_mem_t tw_coll_workspace_mem(const tw_coll_t *coll);
/** Give the workspace back to the system, except what operations in flight use. Otherwise it is kept for the
 *  next operation; call this for a communicator that will rest. On GPU memory it works only while nothing is
 *  in flight. Over NCCL it does nothing, since graphs may use the workspace. */
void tw_coll_trim(tw_coll_t *coll);

/** A row of the tables of algorithms. */
typedef struct tw_coll_algo_info {
    tw_coll_op_t op;
    const char *name;
    const char *doc;
    int quantized;     /**< 1: needs a codec; 0: plain */
    int lossless_only; /**< 1: needs a codec that loses nothing */
} tw_coll_algo_info_t;
/** Returns row `index` of the algorithms for this kind of memory, static storage; NULL past the end. For GPU
 *  memory, NCCL's own algorithms come first. */
const tw_coll_algo_info_t *tw_coll_algo_get(tw_mem_t mem, size_t index);
const char *tw_coll_op_name(tw_coll_op_t op);

extern const tw_config_table_t tw_coll_config_table;

TW_C_END

#endif
