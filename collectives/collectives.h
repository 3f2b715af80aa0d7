/** Thinwire collectives: plain and block-quantized collective operations between the ranks of a job, on
 *  tensors in host memory or in GPU memory, over a transport or over NCCL. One API for all of them.
 *
 *  A communicator is made for a kind of memory and a wire. An operation is posted, tested and waited for;
 *  several may be in flight. All ranks of a communicator post the same operations in the same order with
 *  matching arguments. Whatever is gathered is bit-identical on all ranks, and an algorithm that is asked for
 *  by name gives the same bits for the same arguments whatever the timing ("native" is NCCL's own). Tensors
 *  in GPU memory get the bits that the algorithm of that name gives them on the host.
 *
 *  Without a name, the algorithm, and whether a codec is declined, is chosen by what was measured when the
 *  communicator was made and by size. So a sum may have other bits in another run, and another bucket. A
 *  deterministic communicator (tw_coll_params_t) measures nothing, and nothing but what is asked for and the
 *  place of the ranks decides about the bits: neither sizes, nor the load, nor TW_COLL_MODEL. A tensor's
 *  result then is the same alone and in any bucket, and an all-reduce has the bits of the reduce-scatter
 *  (even split) followed by the all-gather. What the bits are:
 *  - A codec is used if there are several nodes. On one node it is declined for every operation alike, unless
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
 *  itself.
 *
 *  Errors: what ends an operation ends its communicator, and all calls return that status from then on; over
 *  a transport it ends the job, so that no rank waits for one that has failed. TW_ERR_PEER: another rank has
 *  failed, and the log names it. */
#ifndef TW_COLLECTIVES_COLLECTIVES_H
#define TW_COLLECTIVES_COLLECTIVES_H

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_coll tw_coll_t;
typedef struct tw_coll_request tw_coll_request_t;
typedef struct tw_transport tw_transport_t; /* transport/transport.h */
struct ncclComm;

/* ---- communicators ------------------------------------------------------------------------------------- */

/** What carries the bytes. */
typedef enum tw_coll_wire {
    /** The transport. GPU memory: straight from and to it if the transport takes it, else through pinned host
     *  memory (TW_COLL_GPU_WORKSPACE). */
    TW_COLL_WIRE_TRANSPORT,
    /** NCCL, for GPU memory: all of an operation is enqueued when it is posted. */
    TW_COLL_WIRE_NCCL,
} tw_coll_wire_t;

/** Between the calls of NCCL that a communicator makes and whoever ends NCCL's. Zeroed: open. */
typedef struct tw_coll_gate {
    int state;
} tw_coll_gate_t;

/** What a communicator is made of; over a communicator of NCCL: tw_coll_nccl_params_t. Zeroed: all ranks of
 *  the transport, host memory. */
typedef struct tw_coll_params {
    /** Borrowed, must outlive the communicator. Over NCCL the ranks only meet there, and hear of failures. */
    tw_transport_t *transport;
    const int *ranks; /**< [n_ranks] transport ranks in communicator order; NULL: all */
    int n_ranks;
    int id; /**< 0: agreed, the lowest that is free on all members; else 1 to 255, the same on all members */
    tw_mem_t mem;        /**< of all tensors */
    tw_coll_wire_t wire; /**< NCCL: only with GPU memory */
    /** 1, or TW_COLL_DETERMINISTIC: results depend on the input, the codec and where the ranks are alone; see
     *  above. The same on all members. */
    int deterministic;
    /** 1: a thread of the library owns the transport from now on, until the last such communicator of the
     *  transport has been destroyed: it moves all that is in flight, sleeps when there is nothing to do, and
     *  is woken by a post. All communicators of a transport have it or none (else TW_ERR_INVALID), and are
     *  made in the same order on all ranks; the first is made and the last destroyed while no other call is
     *  under way. */
    int progress_thread;
    /** 1: once it is made, it waits for ranks that are alive for as long as they take: TW_COLL_TIMEOUT does
     *  not count. */
    int patient;
    /** Above 0: instead of TW_COLL_TIMEOUT; see also tw_coll_timeout_set. */
    double timeout_sec;
} tw_coll_params_t;

/** What a communicator over one of NCCL's is made of: for GPU memory, without a transport. */
typedef struct tw_coll_nccl_params {
    /** The ranks are its ranks, as PyTorch has them. They are on one node if their TW_NODE_ID is the same, or
     *  else their NCCL_HOSTID, or else host name and boot. */
    struct ncclComm *comm;
    /** 0: an own communicator of NCCL is split off `comm`, so that neither disturbs the other. 1: operations
     *  are enqueued on `comm` itself, in order with its other calls; it is neither ended nor aborted here,
     *  and outlives the communicator. Each rank is a process of its own: TW_ERR_UNSUPPORTED on all ranks (a
     *  warning is logged) where one has several, as a thread that has two ranks would wait for itself. */
    int shared;
    /** With `shared`: closed by whoever ends `comm` while another thread may be in a call of this
     *  communicator, or making it; outlives it. NULL: nobody does that. */
    tw_coll_gate_t *gate;
    /** What else must be the same on all ranks, a hash. TW_ERR_MISMATCH on all of them (logged with a rank)
     *  if it is not. */
    uint64_t terms;
    int deterministic;  /**< as in tw_coll_params_t */
    double timeout_sec; /**< as in tw_coll_params_t */
} tw_coll_nccl_params_t;

/** Collective over the ranks, blocks: measures the links unless TW_COLL_MODEL gives them or it is
 *  deterministic. Ranks that share communicators make them in the same order, one at a time. TW_ERR_INVALID
 *  (logged), also for an id that is in use on a member; TW_ERR_MISMATCH (logged with the rank): members ask
 *  for different ids or kinds, or list different ranks: then the job is given up; TW_ERR_TIMEOUT (logged with
 *  the rank): nothing has come from a member for TW_COLL_TIMEOUT; TW_ERR_UNSUPPORTED (logged) where there is
 *  no GPU, this was built without CUDA or NCCL, or TW_COLL_GPU_WORKSPACE is device and the transport takes no
 *  GPU memory; TW_ERR_CONFIG (logged with the variable); TW_ERR_NCCL, TW_ERR_CUDA, TW_ERR_PEER. */
tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out);
/** The same over a communicator of NCCL. Collective over its ranks, blocks. TW_ERR_INVALID (logged): there is
 *  none; else as tw_coll_create. */
tw_status_t tw_coll_nccl_create(const tw_coll_nccl_params_t *params, tw_coll_t **out);
/** The ranks of the whole job, as the launcher's environment has them (torchrun, Open MPI, PMI, Slurm;
 *  without any, a job of one rank), and a transport between them, which the communicator owns. params:
 *  memory, wire and the like, without transport and ranks; NULL: all zero. Collective, blocks until all ranks
 *  are there (TW_JOIN_TIMEOUT). Errors as of tw_coll_create, and TW_ERR_CONFIG, TW_ERR_TIMEOUT (logged with
 *  the variable, or the ranks that are missing). */
tw_status_t tw_coll_world_create(const tw_coll_params_t *params, tw_coll_t **out);
/** 1 if a launcher's variables are in the environment: this process is a rank of its job. */
int tw_coll_launched(void);
/** Some of a communicator's ranks: those of a node, of a rail, of a data-parallel group. ranks: [n_ranks]
 *  ranks of `parent`, in the order of the new ones, the same list on all of them, own rank among them.
 *  Collective over these ranks alone. Like the parent but for the ranks, and destroyed before a parent that
 *  owns the transport. TW_ERR_UNSUPPORTED (logged) if the parent was made by tw_coll_nccl_create;
 *  errors as of tw_coll_create. */
tw_status_t tw_coll_group_create(tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out);
/** On host memory, cancels what is in flight; on GPU memory, waits for it, not longer than TW_COLL_TIMEOUT.
 *  Frees all requests. Accepts NULL. */
void tw_coll_destroy(tw_coll_t *coll);

int tw_coll_rank(const tw_coll_t *coll);
int tw_coll_size(const tw_coll_t *coll);
int tw_coll_n_nodes(const tw_coll_t *coll);
/** The node of a rank, from 0 in the order of their lowest rank, and the rank's place on it in rank order.
 *  The ranks of equal local index, one per node, are a rail. */
int tw_coll_node_of(const tw_coll_t *coll, int rank);
int tw_coll_local_of(const tw_coll_t *coll, int rank);

/* ---- operations ---------------------------------------------------------------------------------------- */

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
 *  fp16, 2^-24 in fp32, besides fp32's own W * 2^-24. What travels to a mean of fp16 is a mean already, one
 *  rounding more: it does not overflow where sums would, and with a factor of at most 1 no rounding, a
 *  codec's neither, makes it infinite. */
typedef enum tw_coll_reduction { TW_COLL_SUM, TW_COLL_MEAN } tw_coll_reduction_t;

/** One segment of an operation. W = communicator size; shard r of n_elems is counts[r] elements after those
 *  of the shards before it.
 *  all-gather      src: own shard            dst: whole segment [n_elems]
 *  reduce-scatter  src: whole segment        dst: own shard
 *  all-reduce      src: whole segment        dst: whole segment
 *  broadcast       src: unused               dst: whole segment, read on the root, written elsewhere
 *  all-to-all      src: counts[r] elements for each rank r, in order; dst: recv_counts[r] from each rank, in
 *                  order
 *  In place: src NULL (the shard or segment is where it belongs inside dst; for reduce-scatter, src is the
 *  whole segment and dst NULL: the shard is left in its place), or src pointing there. Otherwise they must
 *  not overlap.
 *
 *  Rank-major buffers, where all that belongs to rank 0 comes first, then all that belongs to rank 1, as FSDP
 *  lays out a unit, are one segment per (rank, tensor): segment (r, t) has its elements of t all in shard r
 *  (counts[r] = n_elems, the other counts 0). Only rank r's src (all-gather) or dst (reduce-scatter) of it is
 *  looked at. */
typedef struct tw_coll_segment {
    const void *src;
    void *dst;
    size_t n_elems;
    const size_t *counts; /**< [W], sums to n_elems; NULL: the even split, tw_coll_shard_elems */
    /** [W], all-to-all only; NULL: counts[own rank] from each rank, as where all have the same counts.
     *  Without counts either, n_elems has to be a multiple of W. */
    const size_t *recv_counts;
    uint32_t tensor; /**< stochastic rounding: which tensor */
    /** where in that tensor the segment begins, if it is a part of one: stochastic rounding, row_elems */
    uint64_t first_elem;
    const tw_quant_codec_t *codec; /**< NULL: the operation's, without which there is none here. Copied. */
    int unquantized;               /**< 1: loses nothing, whatever the operation's codec (norms, biases) */
    /** the lossless codec, which takes fewer bits for a matrix that it knows: elements of a row of the
     *  tensor, its last dimension; 0: not known */
    size_t row_elems;
} tw_coll_segment_t;

/** The even split: n / W each, the first n % W shards one more. */
size_t tw_coll_shard_elems(size_t n_elems, int world, int rank);
size_t tw_coll_shard_offset(size_t n_elems, int world, int rank);

typedef struct tw_coll_args {
    tw_coll_op_t op;
    tw_type_t type;                    /**< of all segments; reductions need a float type */
    const tw_coll_segment_t *segments; /**< [n_segments], copied; counts are copied too */
    size_t n_segments;
    tw_coll_reduction_t reduction;
    float factor; /**< of a reduction: multiplies the sum or mean before it is rounded; 0: 1 */
    int root;     /**< broadcast */
    /** NULL: plain. All-gather and all-to-all; reduce-scatter and all-reduce with 4 or 8 bits, or lossless:
     *  that has the bits of the plain operation of that name, and is refused over NCCL, which has to know
     *  lengths beforehand (TW_ERR_UNSUPPORTED). It goes plain where that is as fast, in a deterministic
     *  communicator, too. Copied. In an all-to-all what goes to other nodes is encoded; what stays on a node,
     *  the own share too, goes as it is. It is planned, and its codec declined, as if 2^18 elements went to
     *  each rank, as ranks may send different amounts. */
    const tw_quant_codec_t *codec;
    /** two-hop reduce-scatter: codec inside the node; NULL: plain there */
    const tw_quant_codec_t *inner_codec;
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    const char *algo;   /**< NULL or "auto", or a name of tw_coll_algo_get */
    int force_codec;    /**< 1: never decline to plain, even where it is slower, or on one node */
    tw_stream_t stream; /**< GPU memory: the operation begins when this stream gets there */
    /** Where to write how long the operation took from its post on, before its end can be seen; borrowed
     *  until then. Over NCCL that is until it was enqueued. NULL: nowhere. */
    double *elapsed_sec;
} tw_coll_args_t;

/** Validates, plans and starts. The buffers are borrowed until the request is done.
 *  GPU memory over NCCL: returns when all is enqueued, and what is put on the stream afterwards finds the
 *  result. Works under graph capture, where the shape was prepared and NCCL has run it once, as it connects
 *  on first use; the request is then done at once. Graphs use the workspace, so they and other operations of
 *  this communicator must not run at the same time. GPU memory over a transport: the host moves things along
 *  in test, wait and progress; no graph capture. request: NULL: nobody will ask for it; the library frees it,
 *  and an error ends the communicator and shows at the next call. TW_ERR_INVALID (logged: which argument),
 *  TW_ERR_UNSUPPORTED (logged: the algorithm, the operation or a capture is not for this communicator, the
 *  codec not for sums), TW_ERR_NO_MEMORY, or the error that has ended the communicator. A post that fails
 *  counts as an operation: unless it fails on all ranks, the others get an error (logged with the rank), and
 *  the job is given up. Over NCCL the others wait for TW_COLL_TIMEOUT instead. */
tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request);
/** Progress and look. TW_OK: done, request freed; TW_IN_PROGRESS; an error (TW_ERR_PEER, ...): freed too. */
tw_status_t tw_coll_test(tw_coll_request_t *request);
/** Progress until done; sleeps when nothing moves. Frees the request. All operations of all communicators of
 *  the transport progress meanwhile, so that ranks may wait for theirs in any order. TW_ERR_MISMATCH: the
 *  ranks' arguments differ (logged with the rank; the job is given up); TW_ERR_TIMEOUT: nothing has moved for
 *  TW_COLL_TIMEOUT (logged with what is awaited). */
tw_status_t tw_coll_wait(tw_coll_request_t *request);
/** In seconds, instead of TW_COLL_TIMEOUT; 0: never. For what is under way, too. Any thread. */
void tw_coll_timeout_set(tw_coll_t *coll, double timeout_sec);
/** post and wait. */
tw_status_t tw_coll_run(tw_coll_t *coll, const tw_coll_args_t *args);
/** Progress all operations in flight on the transport, of all its communicators, without looking at one of
 *  them. TW_OK, or the error that has ended this communicator. */
tw_status_t tw_coll_progress(tw_coll_t *coll);
/** Give up: what is in flight ends with TW_ERR_CANCELED, kernels that wait for other ranks end, all further
 *  calls fail. Over a transport, on all ranks. */
void tw_coll_abort(tw_coll_t *coll);
/** The communicator of NCCL is about to be ended: from here on NCCL is not called for it; posts, and whoever
 *  waits in tw_coll_nccl_create, end with TW_ERR_CANCELED. Returns when no call of NCCL is under way, or
 *  after a second: such a call waits for other ranks, and ends when NCCL's communicator does. Any thread. */
void tw_coll_gate_close(tw_coll_gate_t *gate);
/** For the owner's own calls of NCCL in such a thread: they begin, unless it is closed (TW_ERR_CANCELED).
 *  NULL: it is open. */
tw_status_t tw_coll_gate_enter(tw_coll_gate_t *gate);
/** They have ended. */
void tw_coll_gate_leave(tw_coll_gate_t *gate);

/** GPU memory: plan an operation and find its workspace, so that posting one of the same shape (all arguments
 *  but pointers, seed, step and stream) neither plans nor takes memory of the GPU. Posting does it by itself
 *  where it was not done. On host memory TW_ERR_UNSUPPORTED (logged). */
tw_status_t tw_coll_prepare(tw_coll_t *coll, const tw_coll_args_t *args);

/* ---- what can be asked --------------------------------------------------------------------------------- */

/** What an operation has become. */
typedef struct tw_coll_plan {
    const char *algo; /**< static storage */
    int quantized;    /**< 0: plain, also when a codec was given but declined */
    double model_sec; /**< the cost model's estimate; 0 on GPU memory, where nothing is measured */
    size_t chunk_bytes;
    const char *reason; /**< why quantizing was declined, or ""; as long as the request */
} tw_coll_plan_t;
/** From the post until test or wait has freed the request. */
void tw_coll_request_plan(const tw_coll_request_t *request, tw_coll_plan_t *plan);

/** Bytes that this rank sends to other nodes in an operation, as planned: what the counters must show; with
 *  the lossless codec together with what they say was spared. "native": as a ring of NCCL's sends them. */
tw_status_t tw_coll_planned_inter_node_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

/** What this rank has sent with operations of this communicator: payload bytes and messages. Own rank counts
 *  in neither tier. "native" operations count as planned, as no messages. */
typedef struct tw_coll_counters {
    uint64_t inter_node_bytes, inter_node_messages;
    uint64_t in_node_bytes, in_node_messages;
    uint64_t inter_node_spared_bytes; /**< by which lossless messages were shorter than planned */
} tw_coll_counters_t;
void tw_coll_counters_get(tw_coll_t *coll, tw_coll_counters_t *out);

/** NaN or Inf blocks met by this communicator's encoders. On GPU memory, synchronises with the device. */
uint64_t tw_coll_nonfinite_blocks(tw_coll_t *coll);
/** Bytes of workspace that the communicator holds now, for chunks on their way, and the kind of memory that
 *  it is in: on GPU memory over a transport it may be host memory, which is pinned then. On host memory that
 *  is scratch memory, at most TW_COLL_SCRATCH. On GPU memory it is bounded too, whatever the tensors' size,
 *  but by more: a chunk to each rank makes a round, of 16 MB at most as it goes between nodes, and at most
 *  seven rounds are under way. A round is a few launches, whatever its size, and has to be long enough to
 *  hide what they cost. TW_COLL_CHUNK makes rounds, and the workspace, smaller. */
size_t tw_coll_workspace_bytes(tw_coll_t *coll);
tw_mem_t tw_coll_workspace_mem(const tw_coll_t *coll);
/** Give the workspace back to the system, but what operations in flight have of it: for a communicator that
 *  will rest, as its memory is kept for the next operation otherwise. GPU memory: only while nothing is in
 *  flight; over NCCL nothing is given back, since graphs may use it. */
void tw_coll_trim(tw_coll_t *coll);

/** Rows of the tables of algorithms. */
typedef struct tw_coll_algo_info {
    tw_coll_op_t op;
    const char *name;
    const char *doc;
    int quantized; /**< 1: needs a codec; 0: plain */
} tw_coll_algo_info_t;
/** Row `index` of the algorithms for such memory, static storage; NULL past the end. GPU memory: for each
 *  operation the best comes first. */
const tw_coll_algo_info_t *tw_coll_algo_get(tw_mem_t mem, size_t index);
const char *tw_coll_op_name(tw_coll_op_t op);

extern const tw_config_table_t tw_coll_config_table;

TW_C_END

#endif
