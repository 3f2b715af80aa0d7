/** The inside of a communicator and its requests, and what differs between its kinds. Private to
 *  collectives.
 *
 *  The files here, in the order in which an operation uses them (a quantized all-gather, for example):
 *  request.c      post, test, wait; makes progress on operations in flight
 *  host.c         the engine for host memory: reuses earlier choices, and emits a program for the chunks of
 *                 all shards (shards.c); the engines for GPU memory are in gpu/
 *  arguments.c    checks and copies the caller's arguments
 *  choose.c       chooses an algorithm (by the cost model in model/) and the length of its chunks
 *  agreement.c    checks that the ranks agree
 *  algorithms/    the table of algorithms
 *  program/       flow.c states an algorithm; its cost (cost.c) and each rank's program (ops.c) are
 *                 derived from the statement
 *  quantized/     chunks.c cuts the tensors into chunks, operation.c emits the computations on them
 *  schedule/      emit.c takes the tasks, run.c runs them over the transport
 *  create.c       makes communicators; world.c does so for callers without a transport
 *  topology.h     which rank is on which node */
#pragma once

#include <math.h>
#include <string.h>
#include <sys/queue.h>

#include "collectives/algorithms/algorithm.h"
#include "collectives/model/bootstrap.h"
#include "collectives/options.h"
#include "collectives/program/cost.h"
#include "collectives/program/ops.h"
#include "collectives/quantized/chunks.h"
#include "collectives/schedule/schedule.h"
#include "collectives/shared.h"
#include "transport/transport.h"

TW_C_BEGIN

#define TW_COLL_ID_SHIFT 40 /**< bits of a tag below the communicator's id: operation, then message */
/** First tag of the messages that are sent before the members agree on an id: the last tags below id 1's. */
#define TW_COLL_MEETING_TAG (((uint64_t)1 << TW_COLL_ID_SHIFT) - TW_BOOTSTRAP_TAGS)
#define TW_COLL_KNOWN 64
#define TW_COLL_ALGOS 40 /**< the most algorithms in the table for host memory */
#define TW_COLL_REASON_BYTES 320

/** What a rank tells its neighbour in the ring about an operation. All members must be equal on all ranks. */
typedef struct tw_coll_signature {
    uint32_t sequence;    /**< number of the communicator's operations before this one */
    uint16_t op, type;    /**< if the post failed, op is TW_COLL_OP_COUNT, and all but sequence is 0 */
    uint32_t algo;        /**< row of the table */
    uint32_t chunk_bytes; /**< at most UINT32_MAX */
    uint64_t n_elems;
    uint64_t hash; /**< hash of everything else that must agree */
} tw_coll_signature_t;

/** What was chosen for an operation. All ranks choose the same. */
typedef struct tw_coll_choice {
    size_t algo; /**< row of the engine's table */
    size_t chunk_bytes;
    double model_sec;
    /** all-to-all: shorter messages travel plain although the operation is lossless. Both ends of a message
     *  know its length, so they decide alike. */
    size_t least_packed_bytes;
    char reason[TW_COLL_REASON_BYTES]; /**< see tw_coll_plan_t */
} tw_coll_choice_t;

/** An earlier choice, which is found by its key. */
typedef struct tw_coll_known {
    uint64_t key; /**< hash of the arguments on which the choice depends */
    tw_coll_choice_t choice;
} tw_coll_known_t;

struct tw_coll_request {
    TAILQ_ENTRY(tw_coll_request) link; /**< in tw_coll.active until it ends, then in tw_coll.ended */
    tw_coll_t *coll;
    tw_status_t status; /**< TW_IN_PROGRESS while running */
    uint64_t posted_ns;
    int is_detached; /**< nobody waits for the request: it is freed when it ends */
    /** 1: the request only tells the neighbours that this rank could not post an operation */
    int is_failed;
    int is_said; /**< 1: the warning that this patient operation is late was logged */

    /* The caller's arguments, checked and copied, with optional ones filled in. */
    tw_coll_args_t args;
    tw_coll_segment_t *segments;      /**< start of one block of memory that also holds the arrays below */
    tw_grid_tensor_t *tensors;        /**< [n_segments], addresses of the segments */
    size_t *counts;                   /**< counts of all segments */
    tw_quant_codec_t *segment_codecs; /**< [n_segments], copies of codecs that belong to one segment */
    tw_quant_codec_t codec, inner_codec;

    int in_place; /**< 1: every segment's source is its target, so nothing is copied */
    /** 1: some segment's source is its target, so a task may overwrite what another must still read */
    int aliased;
    /** elements of all shards of all segments; in an all-to-all: the elements to plan with */
    size_t n_elems;
    tw_grid_t grid; /**< host memory: the chunks of encoded data */

    uint64_t shape; /**< hash of the segments' sizes and of all codecs; equal on all ranks */
    tw_coll_choice_t choice;
    tw_coll_signature_t signature, neighbour_signature;
    tw_sched_t *sched;      /**< NULL: the request has no schedule, or the schedule has ended */
    struct tw_gpu_run *run; /**< GPU memory; NULL: the run has ended */
};

typedef TAILQ_HEAD(tw_coll_request_list, tw_coll_request) tw_coll_request_list_t;

/** The functions that differ between host memory, GPU memory over a transport and GPU memory over NCCL.
 *  NULL: nothing to do, unless the function's comment says otherwise. Each function logs its errors. */
typedef struct tw_coll_engine {
    /** The table of algorithms; choices hold indices of its rows. */
    const tw_coll_algo_info_t *(*algo_get)(size_t index);
    /** Check and copy the arguments, choose, and plan. If the request gets a schedule, it is sealed. */
    tw_status_t (*request_create)(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
    /** GPU memory: complete a request that has a run. Its schedule has none of the operation's messages. */
    tw_status_t (*complete)(tw_coll_request_t *request);
    tw_status_t (*planned_bytes)(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);
    /** See tw_coll_prepare. NULL: unsupported. */
    tw_status_t (*prepare)(tw_coll_t *coll, const tw_coll_args_t *args);
    /** Start a request. An error ends the communicator. */
    tw_status_t (*start)(tw_coll_request_t *request);
    /** Make progress on the parts of a request that are not in its schedule, without waiting. Returns TW_OK
     *  if they have ended, or TW_IN_PROGRESS. */
    tw_status_t (*step)(tw_coll_request_t *request, int *moved);
    /** Cancel and free the engine's part of a request. */
    void (*release)(tw_coll_request_t *request);
    /** Describe what request->run waits for, for a log line. */
    const char *(*describe)(const tw_coll_request_t *request, char *buf, size_t buf_bytes);
    /** Returns TW_OK, or an error of the communicator that no request reports. */
    tw_status_t (*check)(tw_coll_t *coll);
    /** Tell the other ranks that the communicator has failed. NULL: the transport tells them. */
    void (*abort)(tw_coll_t *coll);
    size_t (*workspace_bytes)(const tw_coll_t *coll);
    /** See tw_coll_trim. */
    void (*trim)(tw_coll_t *coll);
    /** On a progress thread: make the communicator's device current. */
    void (*enter)(tw_coll_t *coll);
    int is_polled; /**< 1: requests also wait for events that come without a message, so somebody must poll */
    /** 1: both ends must know a message's length beforehand, so lossless codecs are refused */
    int fixes_lengths;
    int drains; /**< 1: operations in flight cannot be canceled, so destroying waits for them */
} tw_coll_engine_t;

struct tw_coll {
    const tw_coll_engine_t *engine;
    tw_coll_params_t params;   /**< the caller's, without the ranks */
    tw_transport_t *transport; /**< NULL: only NCCL is used */
    int owns_transport;        /**< 1: destroyed with the communicator */
    tw_shared_t *shared;       /**< state that all communicators of the transport share; NULL: no transport */
    tw_shared_mover_t mover;
    int id; /**< 0: there is no transport, or the members have not agreed on an id yet */
    int deterministic;
    tw_coll_options_t options;
    tw_topo_t topo;
    uint32_t sequence;             /**< number of operations so far */
    unsigned n_forks;              /**< tw_fork_count of the process that made the communicator */
    tw_status_t status;            /**< TW_OK, or the error that ended the communicator */
    tw_coll_request_list_t active; /**< in the order posted */
    /** requests that have ended; their owners have not asked for the status yet */
    tw_coll_request_list_t ended;
    tw_codecs_t codecs;
    tw_sched_sent_t *sent; /**< [world], counts of what was sent to each rank */
    tw_mem_t workspace_mem;
    /** the thread that owns the transport; NULL: the caller's threads make progress */
    struct tw_progress *progress;
    /** longest time without progress before the watchdog ends the communicator; 0: no limit */
    uint64_t limit_ns;
    int is_patient;     /**< 1: all operations of the communicator are patient */
    uint64_t moved_ns;  /**< time of the last progress, for the watchdog */
    uint64_t looked_ns; /**< time at which a caller last asked for progress */

    tw_scratch_t *scratch;

    /* host memory */
    tw_coll_model_t model;
    /** by row of the table, without and with an inner codec; NULL: not computed yet */
    tw_traffic_t *traffic[TW_COLL_ALGOS][2];
    tw_kept_program_t programs[TW_COLL_ALGOS]; /**< by row of the engine's table */
    tw_coll_known_t known[TW_COLL_KNOWN];      /**< the latest choices */
    size_t n_known;                            /**< number of choices so far, forgotten ones included */

    /** GPU memory with a progress thread: the device that the thread makes current for this communicator */
    int device_index;
    struct tw_gpu *gpu;              /**< NULL: host memory */
    void (*detach)(tw_coll_t *coll); /**< frees `gpu`, even if it is only half made */
};

extern const tw_coll_engine_t tw_coll_host_engine;

/** On a progress thread, which serves communicators on several GPUs, make this one's device current. */
static inline void tw_coll_enter(tw_coll_t *coll)
{
    if (coll->progress && coll->engine->enter) {
        coll->engine->enter(coll);
    }
}

/** Returns 1 if each rank owns a part of every segment, as its counts say. */
static inline int tw_coll_op_has_shards(tw_coll_op_t op)
{
    return op == TW_COLL_ALLGATHER || op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLTOALL;
}

/** Returns the factor by which a request's sum is multiplied. */
static inline float tw_coll_factor(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN ? 1.0f / (float)world * args->factor : args->factor;
}

/** Returns the factor of one rank's contribution to a sum that travels in the tensor's type. It is 1 / W in
 *  a mean of fp16, as partial sums might overflow where partial means do not. Otherwise it is 1. */
static inline float tw_coll_scale(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN && args->type == TW_TYPE_FP16 ? 1.0f / (float)world : 1.0f;
}

/** Returns the limit to which finite sums are clipped: the largest fp16 number in a mean of fp16, else
 *  infinity. A mean of finite numbers is finite, but rounding on the way may make it infinite. */
static inline float tw_coll_limit(const tw_coll_args_t *args)
{
    int is_within = args->reduction == TW_COLL_MEAN && fabsf(args->factor) <= 1.0f;
    return is_within && args->type == TW_TYPE_FP16 ? 65504.0f : INFINITY;
}

/** Whether the sums of a quantized all-reduce are rounded to the tensor's type before they are encoded
 *  again. The rounding gives the bits of a reduce-scatter followed by an all-gather. It also makes a sum
 *  infinite if fp16 cannot hold it; a codec alone would hide such an overflow. */
static inline int tw_coll_rounds_sums(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    return coll->deterministic || args->type == TW_TYPE_FP16;
}

/* ---- arguments.c --------------------------------------------------------------------------------------- */

/** Make an empty request; NULL: out of memory. */
tw_coll_request_t *tw_request_alloc(tw_coll_t *coll);
/** Check and copy the arguments. Errors are logged. */
tw_status_t tw_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
/** Hash all arguments on which the choice of an algorithm depends. */
uint64_t tw_request_key(const tw_coll_request_t *request);
void tw_request_destroy(tw_coll_request_t *request);
/** Note where a segment's source and target are. In place, the pointer that is not given points into the
 *  segment of the other one. segment->counts may be NULL only in an all-reduce. */
void tw_grid_place(const tw_coll_segment_t *segment, tw_coll_op_t op, int rank, size_t elem_bytes,
                   tw_grid_tensor_t *at);

/* ---- choose.c ------------------------------------------------------------------------------------------ */

/** Choose algorithm and chunk. TW_ERR_INVALID or TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_coll_choose(tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems,
                           tw_coll_choice_t *choice);
/** Returns 1 if the caller names an algorithm. */
static inline int tw_args_name_algo(const tw_coll_args_t *args)
{
    return args->algo && strcmp(args->algo, "auto") != 0;
}

/* ---- agreement.c --------------------------------------------------------------------------------------- */

/** Make a schedule for a request, with the tags of the communicator's next operation. The schedule exchanges
 *  signatures with the neighbours and compares them; the caller may emit more tasks. */
tw_status_t tw_check_begin_sched(tw_coll_request_t *request);
/** Make a sealed schedule that only exchanges and compares signatures. */
tw_status_t tw_check_create_sched(tw_coll_request_t *request);
/** Returns the tag of the request's first message; its low TW_SCHED_NUMBER_BITS are 0. */
uint64_t tw_request_tag(const tw_coll_request_t *request);
/** Returns 1 if the ranks of the communicator exchange signatures (TW_COLL_CHECK). */
int tw_check_is_on(const tw_coll_t *coll);
/** Returns the bytes that the request's sealed schedule sends to other nodes. */
uint64_t tw_check_inter_node_bytes(const tw_coll_request_t *request);

/* ---- request.c ----------------------------------------------------------------------------------------- */

/** Returns TW_ERR_INVALID (logged) in a process that was forked from the one that made the communicator.
 *  Such a process has neither the threads nor the connections of its parent. */
tw_status_t tw_coll_check_process(const tw_coll_t *coll);
/** The mover of a communicator (`arg`): move the messages of all its requests, then do one computation. */
void tw_coll_move(void *arg, int *all_moved);
/** Called on the progress thread when the transport has failed: end the communicator (`arg`). */
void tw_coll_failed(void *arg, tw_status_t status);
/** Wait until no operation is in flight, or for an error. */
tw_status_t tw_coll_drain(tw_coll_t *coll);
/** Cancel and free all requests. */
void tw_coll_drop_requests(tw_coll_t *coll);

TW_C_END
