/** The inside of a communicator on GPU memory. Private to collectives.
 *
 *  The files here, in the order to read them:
 *  plan.h              a program in ticks, as data
 *  shape.c             a shape: the plan for all operations with the same arguments
 *  run.c               an operation: a shape with pointers
 *  over_transport.c    the engine over a transport: the host moves the messages
 *  over_nccl.c         the engine over NCCL, which enqueues all of an operation; nccl.c is its wire,
 *                      nccl_create.c and nccl_api.c make the wire
 *  compute.c, sums.h   its kernels
 *  engine.c            makes the GPU's part of a communicator; device.h, device_cuda.c: the GPU */
#pragma once

#include "collectives/communicator.h"
#include "collectives/gpu/device.h"
#include "collectives/gpu/plan.h"
#include "collectives/quantized/operation.h"

TW_C_BEGIN

/** A plan, and the arguments that it is made from: an operation's, except pointers, seed and step. Kept for
 *  later operations with the same arguments. */
typedef struct tw_gpu_shape {
    TAILQ_ENTRY(tw_gpu_shape) link;
    uint64_t key;               /**< hash of everything that determines the shape */
    tw_coll_request_t *request; /**< the arguments, checked and copied, and the choice */
    int is_native;
    tw_gpu_plan_t plan;   /**< unused if native */
    tw_quant_t *inner;    /**< codec of the hop inside the node; NULL: plain */
    size_t packing_bytes; /**< bytes of workspace that the codecs of messages need */
    /** [n_segments], over NCCL only: tensors of the operation that is being enqueued */
    tw_grid_tensor_t *tensors;
    uint64_t inter_node_bytes;
} tw_gpu_shape_t;

typedef TAILQ_HEAD(tw_gpu_shapes, tw_gpu_shape) tw_gpu_shapes_t;

/** A shape with pointers: what the computations of one operation use. */
typedef struct tw_gpu_call {
    tw_coll_t *coll;
    const tw_gpu_shape_t *shape;
    const tw_grid_tensor_t *tensors;
    char *workspace;
    char *packing; /**< workspace for codecs of messages */
    /** [2 * cells of the plan], results of packing into each cell, then results of unpacking from each */
    tw_quant_outcome_t *outcomes;
    size_t *lengths; /**< [cells of the plan], lengths of packed chunks; NULL over NCCL */
    uint64_t seed;
    uint32_t step;
} tw_gpu_call_t;

/** A workspace. Blocks that became too small are kept until the end: graphs may use them. */
typedef struct tw_gpu_memory {
    void **blocks;
    size_t n_blocks, max_blocks;
    size_t bytes; /**< bytes of the last block, which is the one in use */
    int pinned;   /**< in host memory */
} tw_gpu_memory_t;

/** The type of tw_coll.gpu. */
typedef struct tw_gpu {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire;    /**< NCCL; NULL: messages go over the transport */
    tw_gpu_shapes_t shapes; /**< shapes, the most recently used one first */
    size_t n_shapes;
    tw_gpu_memory_t memory;
    tw_gpu_memory_t packing;  /**< workspace of the codecs of messages, shared by all calls on a stream */
    tw_gpu_memory_t outcomes; /**< pinned memory in which kernels tell the host the results of packing */
    const void **sources;     /**< [n_sources], inputs of the sums in the launch that is being prepared */
    size_t n_sources;
    tw_stream_t wire_stream; /**< this member and all below: over NCCL only */
    tw_gpu_event_t computed, arrived;
    tw_gpu_event_t done[2]; /**< recorded after the last operation: [0] not captured, [1] captured */
    uint64_t capture;       /**< id of the graph capture of the last captured operation; 0: there was none */
} tw_gpu_t;

/** An operation under way: tw_coll_request.run. */
typedef struct tw_gpu_run {
    tw_gpu_call_t call;
    tw_stream_t stream;
    uint64_t capture; /**< NCCL: id of the graph capture that the operation is part of; 0: none */
    size_t tick;      /**< this member and all below: over a transport only */
    int is_launched;  /**< 1: this tick's computations are enqueued */
    int is_posted;    /**< 1: this tick's messages are posted */
    tw_transport_request_t **requests; /**< [messages of the largest tick]; NULL: the message has ended */
    const tw_gpu_message_t **messages; /**< the plan's message for each request */
    size_t n_requests, n_open;
    uint64_t *next_tag; /**< [2 * world], tag of the next message to each rank, then from each rank */
    /** Recorded after the computations of even and of odd ticks. Over NCCL, [0] is recorded at the end. */
    tw_gpu_event_t computed[2];
} tw_gpu_run_t;

/* ---- engine.c ------------------------------------------------------------------------------------------ */

/** Give a communicator that lacks only its engine the engine for GPU memory. The communicator owns `wire`
 *  from now on, even if this fails; wire NULL: it uses the transport. tw_coll.detach frees what was made. */
tw_status_t tw_gpu_attach(tw_coll_t *coll, const tw_gpu_device_t *device, tw_gpu_wire_t *wire);

/* ---- shape.c ------------------------------------------------------------------------------------------- */

const tw_coll_algo_info_t *tw_gpu_algo_get(size_t index);
/** Get a request with an operation's arguments, checked and copied, and its shape (new, if there is none). */
tw_status_t tw_gpu_shape_get(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request,
                             tw_gpu_shape_t **shape);
void tw_gpu_shapes_cleanup(tw_gpu_t *gpu);
/** See tw_coll_engine_t. */
tw_status_t tw_gpu_planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

/* ---- run.c --------------------------------------------------------------------------------------------- */

/** See tw_coll_engine_t. */
tw_status_t tw_gpu_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
tw_status_t tw_gpu_prepare(tw_coll_t *coll, const tw_coll_args_t *args);
void tw_gpu_release(tw_coll_request_t *request);
void tw_gpu_enter(tw_coll_t *coll);
size_t tw_gpu_workspace_bytes(const tw_coll_t *coll);
/** Free the workspace, when the communicator is trimmed and when it ends. */
void tw_gpu_workspace_free(tw_coll_t *coll);
/** Let a call that is about to begin use the latest blocks of the workspace. */
void tw_gpu_take_workspace(tw_gpu_call_t *call);

/* ---- compute.c ----------------------------------------------------------------------------------------- */

/** Enqueue a tick's computations. */
tw_status_t tw_gpu_compute_tick(const tw_gpu_call_t *call, size_t tick, tw_stream_t stream);

/* ---- the engines --------------------------------------------------------------------------------------- */

extern const tw_coll_engine_t tw_gpu_nccl_engine;
extern const tw_coll_engine_t tw_gpu_transport_engine;

/* ---- making a communicator ----------------------------------------------------------------------------- */

/** What a communicator of any kind is made from. tw_coll_create fills it in, or a test does. */
typedef struct tw_coll_setup {
    const tw_coll_params_t *params;    /**< mem and wire are not used, except that the ranks compare them */
    const tw_coll_nccl_params_t *comm; /**< NULL: the ranks meet over the transport */
    const tw_gpu_device_t *device;     /**< NULL: host memory */
    tw_gpu_wire_t *nccl;               /**< NULL: no NCCL. The communicator owns it, also if creation fails */
    tw_progress_t *progress;           /**< the thread on which the creation runs; NULL: the caller's */
    int device_index;                  /**< the device that is current for the caller */
    int rank, world;                   /**< set only if there is no transport */
    uint64_t *node_ids; /**< [world], only without a transport; equal for ranks of one node. Borrowed. */
} tw_coll_setup_t;

/** See create.c. */
tw_status_t tw_coll_create_with(const tw_coll_setup_t *setup, tw_coll_t **out);

/** nccl_create.c: meet the other ranks in NCCL, by splitting NCCL's communicator or over a transport. Fills
 *  in nccl and, without a transport, rank, world and node_ids, which the caller frees. */
tw_status_t tw_nccl_join(tw_coll_setup_t *setup);

TW_C_END
