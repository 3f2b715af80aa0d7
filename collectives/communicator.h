/** Inside of a communicator and its requests, and what differs between its kinds. Private to collectives.
 *
 *  What lives here, in the order in which an operation meets it (a quantized all-gather, for one):
 *  request.c      post, test, wait; moves what is in flight
 *  host.c         the engine for host memory: knows what was chosen before, and emits a program for the
 *                 chunks of all shards (shards.c); gpu/ has those for GPU memory
 *  arguments.c    checks and copies the caller's arguments
 *  choose.c       which algorithm (model/), with what chunks
 *  agreement.c    do the ranks agree?
 *  algorithms/    the table
 *  program/       flow.c says an algorithm; its cost (cost.c) and each rank's program (ops.c) are read
 *                 off that
 *  quantized/     chunks.c cuts it into chunks, operation.c emits what is computed on them
 *  schedule/      emit.c takes the tasks, run.c runs them over the transport
 *  create.c makes communicators, world.c for those who have no transport; topology.h says which rank is
 *  where. */
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

#define TW_COLL_ID_SHIFT 40 /**< tags: communicator, operation, message */
/** Where members meet that have no id yet: the last tags below those of id 1. */
#define TW_COLL_MEETING_TAG (((uint64_t)1 << TW_COLL_ID_SHIFT) - TW_BOOTSTRAP_TAGS)
#define TW_COLL_KNOWN 64
#define TW_COLL_ALGOS 40 /**< at most, in the table for host memory */
#define TW_COLL_REASON_BYTES 320

/** What a rank says about an operation to its neighbour in the ring; all members but `rank` must agree. */
typedef struct tw_coll_signature {
    uint32_t sequence;    /**< how many operations the communicator had before */
    uint16_t op, type;    /**< a failed post: op is TW_COLL_OP_COUNT, all but sequence 0 */
    uint32_t algo;        /**< row of the table */
    uint32_t chunk_bytes; /**< at most UINT32_MAX */
    uint64_t n_elems;
    uint64_t hash; /**< of everything else that must agree */
} tw_coll_signature_t;

/** What an operation became: the result of planning, the same on all ranks. */
typedef struct tw_coll_choice {
    size_t algo; /**< row of the engine's table */
    size_t chunk_bytes;
    double model_sec;
    /** all-to-all: what is shorter than so many bytes travels plain, though the operation is lossless. Both
     *  ends of a message know its length. */
    size_t least_packed_bytes;
    char reason[TW_COLL_REASON_BYTES]; /**< as in tw_coll_plan_t */
} tw_coll_choice_t;

/** A choice that was made before, found again by its key. */
typedef struct tw_coll_known {
    uint64_t key; /**< of the arguments that decide */
    tw_coll_choice_t choice;
} tw_coll_known_t;

struct tw_coll_request {
    TAILQ_ENTRY(tw_coll_request) link; /**< in tw_coll.active, then in tw_coll.ended */
    tw_coll_t *coll;
    tw_status_t status; /**< TW_IN_PROGRESS while running */
    uint64_t posted_ns;
    int is_detached; /**< nobody waits for it: freed when it ends */
    int is_failed;   /**< not an operation: tells the neighbours that this rank could not post one */
    int is_said;     /**< 1: the warning that this patient operation is late was logged */

    /* The caller's arguments, checked and copied; what is optional there is filled in here. */
    tw_coll_args_t args;
    tw_coll_segment_t *segments;      /**< of the memory that begins here is what follows, too */
    tw_grid_tensor_t *tensors;        /**< [n_segments] where they are */
    size_t *counts;                   /**< all the segments' */
    tw_quant_codec_t *segment_codecs; /**< [n_segments] those of segments that have their own */
    tw_quant_codec_t codec, inner_codec;

    int in_place;   /**< every segment lies where it belongs: nothing to copy */
    int aliased;    /**< some segment does: what is written may still have to be read */
    size_t n_elems; /**< the whole tensor: all segments, all shards; all-to-all: a size to plan with */
    tw_grid_t grid; /**< host memory: of what goes in its chunks */

    uint64_t shape; /**< a hash of the segments' sizes and of all codecs; the same on all ranks */
    tw_coll_choice_t choice;
    tw_coll_signature_t signature, neighbour_signature;
    tw_sched_t *sched;      /**< NULL: none, or ended */
    struct tw_gpu_run *run; /**< GPU memory; NULL: ended */
};

typedef TAILQ_HEAD(tw_coll_request_list, tw_coll_request) tw_coll_request_list_t;

/** What differs between host memory, GPU memory over a transport and GPU memory over NCCL. NULL: nothing is
 *  to be done, but where it says otherwise. Whoever finds an error logs it. */
typedef struct tw_coll_engine {
    /** The table that choices refer to. */
    const tw_coll_algo_info_t *(*algo_get)(size_t index);
    /** Check and copy the arguments, choose, plan; request->sched, if it has one, is sealed. */
    tw_status_t (*request_create)(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
    /** GPU memory: what is left to do for a request that has a run. */
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
    /** TW_OK, or an error that no request shows. */
    tw_status_t (*check)(tw_coll_t *coll);
    /** The communicator has failed: tell the other ranks. NULL: the transport is told. */
    void (*abort)(tw_coll_t *coll);
    size_t (*workspace_bytes)(const tw_coll_t *coll);
    /** See tw_coll_trim. */
    void (*trim)(tw_coll_t *coll);
    /** On a progress thread: make the communicator's device current. */
    void (*enter)(tw_coll_t *coll);
    int is_polled; /**< 1: requests wait for what no message announces */
    /** 1: both ends of a message know its length beforehand, so there is no lossless codec */
    int fixes_lengths;
    int drains; /**< 1: what is in flight cannot be canceled: destroying waits for it */
} tw_coll_engine_t;

struct tw_coll {
    const tw_coll_engine_t *engine;
    tw_coll_params_t params;   /**< that it was made with, but for the ranks */
    tw_transport_t *transport; /**< NULL: NCCL alone */
    int owns_transport;        /**< 1: destroyed with the communicator */
    tw_shared_t *shared;       /**< with the other communicators of the transport; NULL without one */
    tw_shared_mover_t mover;
    int id; /**< 0: none, without a transport or before it is agreed */
    int deterministic;
    tw_coll_options_t options;
    tw_topo_t topo;
    uint32_t sequence;             /**< operations so far */
    unsigned n_forks;              /**< tw_fork_count of the process that made it */
    tw_status_t status;            /**< TW_OK, or what has ended the communicator */
    tw_coll_request_list_t active; /**< in the order posted */
    tw_coll_request_list_t ended;  /**< nobody has asked for their status yet */
    tw_codecs_t codecs;
    tw_sched_sent_t *sent; /**< [world] to each rank */
    tw_mem_t workspace_mem;
    struct tw_progress *progress; /**< the thread that owns the transport; NULL: the caller's does */
    uint64_t limit_ns;            /**< how long the watchdog lets nothing move; 0: for ever */
    int is_patient;               /**< all its operations are */
    uint64_t moved_ns;            /**< when something last moved, for the watchdog */
    uint64_t looked_ns;           /**< when progress was last asked for */

    tw_scratch_t *scratch;

    /* host memory */
    tw_coll_model_t model;
    /** by row of the table, with an inner codec or without; NULL: not read yet */
    tw_traffic_t *traffic[TW_COLL_ALGOS][2];
    tw_kept_program_t programs[TW_COLL_ALGOS]; /**< by row of the engine's table */
    tw_coll_known_t known[TW_COLL_KNOWN];      /**< the last ones */
    size_t n_known;                            /**< so many there were */

    int device_index;   /**< GPU memory, with a progress thread: the device that it makes current */
    struct tw_gpu *gpu; /**< NULL: host memory */
    void (*detach)(tw_coll_t *coll); /**< frees it, also half made */
};

extern const tw_coll_engine_t tw_coll_host_engine;

/** The progress thread serves communicators on several GPUs. */
static inline void tw_coll_enter(tw_coll_t *coll)
{
    if (coll->progress && coll->engine->enter) {
        coll->engine->enter(coll);
    }
}

/** 1: each rank owns a part of every segment, which counts say. */
static inline int tw_coll_op_has_shards(tw_coll_op_t op)
{
    return op == TW_COLL_ALLGATHER || op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLTOALL;
}

/** The number that a request's sum is multiplied with. */
static inline float tw_coll_factor(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN ? 1.0f / (float)world * args->factor : args->factor;
}

/** What a rank's contribution to a sum that travels in the tensor's type is multiplied with before: the sums
 *  on the way to a mean of fp16 are means of what they have so far, since sums might overflow. */
static inline float tw_coll_scale(const tw_coll_args_t *args, int world)
{
    return args->reduction == TW_COLL_MEAN && args->type == TW_TYPE_FP16 ? 1.0f / (float)world : 1.0f;
}

/** No mean of finite numbers is larger than the largest of them, but a rounding on the way may lead there:
 *  what finite sums are held to, the largest number of fp16 in its means, else infinity. */
static inline float tw_coll_limit(const tw_coll_args_t *args)
{
    int is_within = args->reduction == TW_COLL_MEAN && fabsf(args->factor) <= 1.0f;
    return is_within && args->type == TW_TYPE_FP16 ? 65504.0f : INFINITY;
}

/** Whether the sums of a quantized all-reduce are rounded to the tensor's type before they are encoded again:
 *  for the bits of a reduce-scatter followed by an all-gather, and so that a sum beyond fp16 becomes
 *  infinite, which no codec may hide. */
static inline int tw_coll_rounds_sums(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    return coll->deterministic || args->type == TW_TYPE_FP16;
}

/* ---- arguments.c --------------------------------------------------------------------------------------- */

/** A request of which nothing is known yet; NULL: out of memory. */
tw_coll_request_t *tw_request_alloc(tw_coll_t *coll);
/** Check and copy the arguments. Errors are logged. */
tw_status_t tw_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
/** Hash all arguments that the choice of an algorithm reads. */
uint64_t tw_request_key(const tw_coll_request_t *request);
void tw_request_destroy(tw_coll_request_t *request);
/** In place, the side that is not given lies inside the other one. The segment's counts are never NULL but
 *  for an all-reduce. */
void tw_grid_place(const tw_coll_segment_t *segment, tw_coll_op_t op, int rank, size_t elem_bytes,
                   tw_grid_tensor_t *at);

/* ---- choose.c ------------------------------------------------------------------------------------------ */

/** Choose algorithm and chunk. TW_ERR_INVALID or TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_coll_choose(tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems,
                           tw_coll_choice_t *choice);
/** 1: an algorithm is asked for by name. */
static inline int tw_args_name_algo(const tw_coll_args_t *args)
{
    return args->algo && strcmp(args->algo, "auto") != 0;
}

/* ---- agreement.c --------------------------------------------------------------------------------------- */

/** A schedule for a request, which is the communicator's next operation: what the neighbours think of it is
 *  heard and compared. More may be emitted. */
tw_status_t tw_check_begin_sched(tw_coll_request_t *request);
/** Make a sealed schedule that only exchanges signatures. */
tw_status_t tw_check_create_sched(tw_coll_request_t *request);
/** Tag of its first message; the low TW_SCHED_NUMBER_BITS are 0. */
uint64_t tw_request_tag(const tw_coll_request_t *request);
/** 1 if signatures are exchanged. */
int tw_check_is_on(const tw_coll_t *coll);
/** Bytes that the request's sealed schedule sends to other nodes. */
uint64_t tw_check_inter_node_bytes(const tw_coll_request_t *request);

/* ---- request.c ----------------------------------------------------------------------------------------- */

/** TW_ERR_INVALID, logged, in a process that was forked from the one that made the communicator: it has
 *  neither that one's threads nor connections of its own. */
tw_status_t tw_coll_check_process(const tw_coll_t *coll);
/** A transport's mover of a communicator, its arg: messages of all its requests, and one computation. */
void tw_coll_move(void *arg, int *all_moved);
/** The transport has failed: on the progress thread. */
void tw_coll_failed(void *arg, tw_status_t status);
/** Until no operation is in flight, or an error. */
tw_status_t tw_coll_drain(tw_coll_t *coll);
/** Cancel and free all requests. */
void tw_coll_drop_requests(tw_coll_t *coll);

TW_C_END
