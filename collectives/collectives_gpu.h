/** Thinwire collectives on GPU memory: all-gather, reduce-scatter and all-reduce, exact or quantized, over NCCL or over a
 *  transport, on a CUDA stream. Results are bit for bit those of the collectives on the CPU (collectives.h) for the same
 *  arguments; only "native" exact operations, which are NCCL's own, add in NCCL's order.
 *
 *  An operation encodes, sends, adds and decodes chunk by chunk (TW_COLL_CHUNK), so that kernels and wire overlap.
 *  All ranks post the same operations in the same order with matching arguments. One thread at a time uses a
 *  communicator; the device that is current when it is created must be current in every call (over a transport, also in
 *  waits for other communicators of that transport, which move this one along). */
#ifndef TW_COLLECTIVES_COLLECTIVES_GPU_H
#define TW_COLLECTIVES_COLLECTIVES_GPU_H

#include "collectives/collectives.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_coll_gpu tw_coll_gpu_t;

typedef enum tw_coll_gpu_wire {
    /** NCCL moves the bytes: everything is enqueued when posted, nothing on the host has to wait or look. */
    TW_COLL_GPU_NCCL,
    /** The transport moves them: works without NCCL and with any network. Straight from and to GPU memory if it takes
     *  that (tw_transport_takes); else through pinned host memory that the kernels write and read
     *  (TW_COLL_GPU_WORKSPACE). The host moves things along in tw_coll_gpu_test and tw_coll_gpu_wait. */
    TW_COLL_GPU_TRANSPORT,
} tw_coll_gpu_wire_t;

struct ncclComm;

typedef struct tw_coll_gpu_params {
    tw_coll_gpu_wire_t wire;
    /** NCCL: a communicator to take the ranks from, as PyTorch has one: an own one is split off it, so that neither
     *  disturbs the other. Ranks are on one node if their TW_NODE_ID is the same, or else their NCCL_HOSTID, or else
     *  host name and boot. NULL: `over` is used. */
    struct ncclComm *comm;
    /** The ranks, and who is on which node. Over NCCL they only meet there; else it is the wire, must outlive the
     *  communicator, and `id` must differ from those of all other communicators of the transport. */
    tw_coll_params_t over;
} tw_coll_gpu_params_t;

/** Collective, blocks. TW_ERR_UNSUPPORTED (logged) where there is no GPU, this was built without CUDA or NCCL, or
 *  TW_COLL_GPU_WORKSPACE is device and the transport takes no GPU memory; TW_ERR_NCCL, TW_ERR_CUDA. */
tw_status_t tw_coll_gpu_create(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out);
/** Ends what is under way: waits for it, not longer than TW_COLL_TIMEOUT. Accepts NULL. */
void tw_coll_gpu_destroy(tw_coll_gpu_t *coll);
int tw_coll_gpu_rank(const tw_coll_gpu_t *coll);
int tw_coll_gpu_size(const tw_coll_gpu_t *coll);
int tw_coll_gpu_n_nodes(const tw_coll_gpu_t *coll);

/** Plan an operation and find its workspace, so that posting one of the same shape (all arguments but pointers, seed and
 *  step) neither plans nor allocates. Posting does it by itself where it was not done. */
tw_status_t tw_coll_gpu_prepare(tw_coll_gpu_t *coll, const tw_coll_args_t *args);
/** Bytes of workspace held now. */
size_t tw_coll_gpu_workspace_bytes(const tw_coll_gpu_t *coll);
/** 1 if it is in pinned host memory, 0 if in GPU memory. */
int tw_coll_gpu_workspace_pinned(const tw_coll_gpu_t *coll);

/** Start an operation: op all-gather, reduce-scatter or all-reduce; pointers in device memory, aligned to their elements;
 *  otherwise as tw_coll_post. It begins when `stream` gets there.
 *  Over NCCL: returns when all is enqueued; what is put on `stream` afterwards finds the result. Works under graph
 *  capture when the shape was prepared (and NCCL has run it once, as it connects on first use); graphs use the
 *  workspace, so they and other operations of this communicator must not run at the same time.
 *  Over a transport: the buffers are borrowed, and the result is not there, until tw_coll_gpu_test or _wait has said
 *  TW_OK; no graph capture.
 *  algo: NULL, "auto" or a name of tw_coll_gpu_algo_get. Quantizing is declined, unless force_codec, on a single node
 *  and for tiny tensors.
 *  TW_ERR_INVALID, TW_ERR_UNSUPPORTED (logged), or the error that has ended the communicator. Over a transport a post that
 *  fails counts as an operation: unless it fails on all ranks, all get an error (logged with the rank), and the job is given
 *  up; likewise if the arguments differ (TW_ERR_MISMATCH), or an operation fails on one rank. Over NCCL such ranks wait for
 *  TW_COLL_TIMEOUT. */
tw_status_t tw_coll_gpu_post(tw_coll_gpu_t *coll, const tw_coll_args_t *args, tw_stream_t stream);
/** Move everything along and look, without waiting. TW_OK: all that was posted (and not captured) has ended on the device;
 *  TW_IN_PROGRESS; or the error that has ended the communicator. Whoever waits for the stream by other means calls this
 *  now and then to hear of errors. */
tw_status_t tw_coll_gpu_test(tw_coll_gpu_t *coll);
/** The same until it is not TW_IN_PROGRESS. TW_ERR_TIMEOUT (logged) when that takes longer than TW_COLL_TIMEOUT: the
 *  communicator is then aborted, and its kernels end. */
tw_status_t tw_coll_gpu_wait(tw_coll_gpu_t *coll);
/** Give up: kernels that wait for other ranks end; all further calls fail. Over a transport, on all ranks. */
void tw_coll_gpu_abort(tw_coll_gpu_t *coll);

/** Rows of the table of algorithms, for each operation the best first; NULL past its end. */
const tw_coll_algo_info_t *tw_coll_gpu_algo_get(size_t index);
/** What the last posted operation became. model_sec is 0: nothing is measured here. */
void tw_coll_gpu_last_plan(const tw_coll_gpu_t *coll, tw_coll_plan_t *plan);
/** Bytes that this rank sends to other nodes in an operation, as planned. "native": as a ring of NCCL's sends them. */
tw_status_t tw_coll_gpu_planned_inter_node_bytes(tw_coll_gpu_t *coll, const tw_coll_args_t *args,
                                                 uint64_t *bytes);
/** NaN or Inf blocks met by this communicator's encoders. Synchronises with the device. */
uint64_t tw_coll_gpu_nonfinite_blocks(const tw_coll_gpu_t *coll);

#ifdef __cplusplus
}
#endif

#endif
