/** Inside of a communicator and its requests, and what differs between its kinds. Private to collectives.
 *
 *  What lives here, in the order in which an operation meets it (a quantized all-gather, for one):
 *  request.c      post, test, wait; moves what is in flight
 *  host.c         the engine for host memory: knows what was chosen before, and emits a program for the
 *                 chunks of all shards (shards.c); gpu/ has those for GPU memory
 *  arguments.c    checks and copies the caller's arguments
 *  choose.c       which algorithm (model/), with what chunks
 *  agreement.c    checks that the ranks agree
 *  algorithms/    the table
 *  program/       flow.c states an algorithm; its cost (cost.c) and each rank's program (ops.c)
 *                 follow from it
 *  quantized/     chunks.c cuts it into chunks, operation.c emits what is computed on them
 *  schedule/      emit.c takes the tasks, run.c runs them over the transport
 *  create.c       makes communicators, world.c for callers without a transport
 *  topology.h     which rank is where */
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

#define TW_COLL_ID_SHIFT 40 /**< bits of a tag, from the top: communicator, operation, message */
/** Tag of messages between members that have no id yet: the last tags below those of id 1. */
#define TW_COLL_MEETING_TAG (((uint64_t)1 << TW_COLL_ID_SHIFT) - TW_BOOTSTRAP_TAGS)
#define TW_COLL_KNOWN 64
#define TW_COLL_ALGOS 40 /**< the most algorithms in the table for host memory */
#define TW_COLL_REASON_BYTES 320

/** What a rank says about an operation to its neighbour in the ring; all members but `rank` must agree. */
typedef struct tw_coll_signature {
    uint32_t sequence;    /**< number of operations before this one */
    uint16_t op, type;    /**< after a failed post op is TW_COLL_OP_COUNT, and all but sequence is 0 */
    uint32_t algo;        /**< row of the table */
    uint32_t chunk_bytes; /**< at most UINT32_MAX */
    uint64_t n_elems;
    uint64_t hash; /**< hash of everything else that must agree */
} tw_coll_signature_t;

/** What was chosen for an operation: the same on all ranks. */
typedef struct tw_coll_choice {
    size_t algo; /**< row of the engine's table */
    size_t chunk_bytes;
    double model_sec;
    /** all-to-all: shorter messages travel plain although the operation is lossless. Both ends of a message
     *  know its length. */
    size_t least_packed_bytes;
    char reason[TW_COLL_REASON_BYTES]; /**< see tw_coll_plan_t */
} tw_coll_choice_t;

/** A choice that was made before, found again by its key. */
typedef struct tw_coll_known {
    uint64_t key; /**< hash of the arguments on which the choice depends */
    tw_coll_choice_t choice;
} tw_coll_known_t;

struct tw_coll_request {
    TAILQ_ENTRY(tw_coll_request) link; /**< in tw_coll.active, later in tw_coll.ended */
    tw_coll_t *coll;
    tw_status_t status; /**< TW_IN_PROGRESS while running */
    uint64_t posted_ns;
    int is_detached; /**< nobody waits for the request: it is freed when it ends */
    /** 1: the request is no operation, but tells the neighbours that this rank could not post one */
    int is_failed;
    int is_said; /**< 1: a warning that this patient operation is late was logged */

    /* The caller's arguments, checked and copied; optional ones are filled in. */
    tw_coll_args_t args;
    tw_coll_segment_t *segments;      /**< begins the block of memory that has all arrays below, too */
    tw_grid_tensor_t *tensors;        /**< [n_segments], where the segments are */
    size_t *counts;                   /**< counts of all segments */
    tw_quant_codec_t *segment_codecs; /**< [n_segments], codecs of segments that have their own */
    tw_quant_codec_t codec, inner_codec;

    int in_place; /**< 1: every segment lies where it belongs, so nothing is copied */
    int aliased;  /**< 1: some segment lies where it belongs, so what is written may still have to be read */
    /** elements of the whole tensor: all segments, all shards; all-to-all: a size to plan with */
    size_t n_elems;
    tw_grid_t grid; /**< host memory: cuts coded data into chunks */

    uint64_t shape; /**< a hash of the segments' sizes and of all codecs; the same on all ranks */
    tw_coll_choice_t choice;
    tw_coll_signature_t signature, neighbour_signature;
    tw_sched_t *sched;      /**< NULL: there is none, or it has ended */
    struct tw_gpu_run *run; /**< GPU memory; NULL: it has ended */
};

typedef TAILQ_HEAD(tw_coll_request_list, tw_coll_request) tw_coll_request_list_t;

/** What differs between host memory, GPU memory over a transport and GPU memory over NCCL. A NULL function
 *  does nothing, unless its comment says otherwise. Each function logs its errors. */
typedef struct tw_coll_engine {
    /** The table that choices refer to. */
    const tw_coll_algo_info_t *(*algo_get)(size_t index);
    /** Check and copy the arguments, choose and plan; request->sched, if there is one, is sealed. */
    tw_status_t (*request_create)(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
    /** GPU memory: complete a request that has a run. */
    tw_status_t (*complete)(tw_coll_request_t *request);
    tw_status_t (*planned_bytes)(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);
    /** See tw_coll_prepare. NULL: unsupported. */
    tw_status_t (*prepare)(tw_coll_t *coll, const tw_coll_args_t *args);
    /** Set a request going. An error ends the communicator. */
    tw_status_t (*start)(tw_coll_request_t *request);
    /** Do what can be done for a request besides its schedule, without waiting. TW_OK: ended;
     *  TW_IN_PROGRESS. */
    tw_status_t (*step)(tw_coll_request_t *request, int *moved);
    /** Cancel and free what the engine has in a request. */
    void (*release)(tw_coll_request_t *request);
    /** Describe what request->run waits for, for a log line. */
    const char *(*describe)(const tw_coll_request_t *request, char *buf, size_t buf_bytes);
    /** Returns TW_OK, or an error that no request shows. */
    tw_status_t (*check)(tw_coll_t *coll);
    /** Tell the other ranks that the communicator has failed. NULL: the transport does. */
    void (*abort)(tw_coll_t *coll);
    size_t (*workspace_bytes)(const tw_coll_t *coll);
    /** See tw_coll_trim. */
    void (*trim)(tw_coll_t *coll);
    /** On a progress thread: make the communicator's device current. */
    void (*enter)(tw_coll_t *coll);
    int is_polled; /**< 1: requests also wait for events that no message announces */
    /** 1: both ends of a message must know its length beforehand, so there is no lossless codec */
    int fixes_lengths;
    int drains; /**< 1: what is in flight cannot be canceled: destroying waits for it */
} tw_coll_engine_t;

struct tw_coll {
    const tw_coll_engine_t *engine;
    tw_coll_params_t params;   /**< the caller's, without the ranks */
    tw_transport_t *transport; /**< NULL: only NCCL is used */
    int owns_transport;        /**< 1: destroyed with the communicator */
    tw_shared_t *shared; /**< what all communicators of the transport share; NULL: there is no transport */
    tw_shared_mover_t mover;
    int id; /**< 0: there is no transport, or the id is not agreed yet */
    int deterministic;
    tw_coll_options_t options;
    tw_topo_t topo;
    uint32_t sequence;             /**< number of operations so far */
    unsigned n_forks;              /**< tw_fork_count of the process that made the communicator */
    tw_status_t status;            /**< TW_OK, or the error that has ended the communicator */
    tw_coll_request_list_t active; /**< in the order posted */
    tw_coll_request_list_t ended;  /**< requests whose status nobody has asked for yet */
    tw_codecs_t codecs;
    tw_sched_sent_t *sent; /**< [world], what was sent to each rank */
    tw_mem_t workspace_mem;
    struct tw_progress *progress; /**< the thread that owns the transport; NULL: the caller's thread does */
    uint64_t limit_ns;  /**< how long nothing may move before the watchdog ends the wait; 0: for ever */
    int is_patient;     /**< 1: all operations of the communicator are patient */
    uint64_t moved_ns;  /**< when something last moved, for the watchdog */
    uint64_t looked_ns; /**< when somebody last asked for progress */

    tw_scratch_t *scratch;

    /* host memory */
    tw_coll_model_t model;
    /** by row of the table, without and with an inner codec; NULL: not read yet */
    tw_traffic_t *traffic[TW_COLL_ALGOS][2];
    tw_kept_program_t programs[TW_COLL_ALGOS]; /**< by row of the engine's table */
    tw_coll_known_t known[TW_COLL_KNOWN];      /**< the latest choices */
    size_t n_known;                            /**< how many choices there were */

    int device_index;   /**< GPU memory, with a progress thread: the device that the thread makes current */
    struct tw_gpu *gpu; /**< NULL: host memory */
    void (*detach)(tw_coll_t *coll); /**< frees `gpu`, even if that is only half made */
};

extern const tw_coll_engine_t tw_coll_host_engine;

/** Make the communicator's device current: a progress thread serves communicators on several GPUs. */
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

/** The number by which a request's sum is multiplied. */
static inline float tw_coll_factor(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN ? 1.0f / (float)world * args->factor : args->factor;
}

/** The factor of a rank's contribution to a sum that travels in the tensor's type: on the way to a mean of
 *  fp16 partial sums are means of what they include, since sums might overflow. */
static inline float tw_coll_scale(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN && args->type == TW_TYPE_FP16 ? 1.0f / (float)world : 1.0f;
}

/** Limit of finite sums: the largest fp16 number in means of fp16, else infinity. No mean of finite numbers
 *  is larger than the largest of them, but rounding on the way may make it so. */
static inline float tw_coll_limit(const tw_coll_args_t *args)
{
    int is_within = args->reduction == TW_COLL_MEAN && fabsf(args->factor) <= 1.0f;
    return is_within && args->type == TW_TYPE_FP16 ? 65504.0f : INFINITY;
}

/** Whether the sums of a quantized all-reduce are rounded to the tensor's type before they are encoded again:
 *  this gives the bits of a reduce-scatter followed by an all-gather, and makes a sum beyond fp16 infinite,
 *  which no codec may hide. */
static inline int tw_coll_rounds_sums(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    return coll->deterministic || args->type == TW_TYPE_FP16;
}

/* ---- arguments.c --------------------------------------------------------------------------------------- */

/** Make an empty request; NULL: out of memory. */
tw_coll_request_t *tw_request_alloc(tw_coll_t *coll);
/** Check and copy the arguments. Errors are logged. */
tw_status_t tw_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
/** Hash all arguments that the choice of an algorithm reads. */
uint64_t tw_request_key(const tw_coll_request_t *request);
void tw_request_destroy(tw_coll_request_t *request);
/** Note where a segment's two sides are: in place, the side that is not given lies inside the other one.
 *  counts is never NULL but for an all-reduce. */
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

/** Make a schedule for a request, which becomes the communicator's next operation; it exchanges signatures
 *  with the neighbours and compares them. More may be emitted. */
tw_status_t tw_check_begin_sched(tw_coll_request_t *request);
/** Make a sealed schedule that only exchanges signatures. */
tw_status_t tw_check_create_sched(tw_coll_request_t *request);
/** Tag of the request's first message; the low TW_SCHED_NUMBER_BITS are 0. */
uint64_t tw_request_tag(const tw_coll_request_t *request);
/** 1 if signatures are exchanged. */
int tw_check_is_on(const tw_coll_t *coll);
/** Bytes that the request's sealed schedule sends to other nodes. */
uint64_t tw_check_inter_node_bytes(const tw_coll_request_t *request);

/* ---- request.c ----------------------------------------------------------------------------------------- */

/** Refuse a process that was forked from the one that made the communicator: TW_ERR_INVALID, logged. A
 *  child has neither its parent's threads nor connections of its own. */
tw_status_t tw_coll_check_process(const tw_coll_t *coll);
/** The move function of a communicator, its arg: it moves messages of all its requests, and does one
 *  computation. */
void tw_coll_move(void *arg, int *all_moved);
/** Note that the transport has failed; called on the progress thread. */
void tw_coll_failed(void *arg, tw_status_t status);
/** Wait until no operation is in flight, or for an error. */
tw_status_t tw_coll_drain(tw_coll_t *coll);
/** Cancel and free all requests. */
void tw_coll_drop_requests(tw_coll_t *coll);

TW_C_END
