/** Inside of a communicator on GPU memory. Private to collectives.
 *
 *  What lives here, in the order to read it:
 *  plan.h              a program in ticks, as data
 *  shape.c             arguments of one shape, planned once
 *  run.c               an operation of a shape, with pointers
 *  over_transport.c    the engine that moves it with the host's help
 *  over_nccl.c         the engine that enqueues it at once; nccl.c is its wire, nccl_create.c and nccl_api.c
 *                      find it
 *  compute.c, sums.h   its kernels
 *  engine.c            the GPU's part of making a communicator; device.h, device_cuda.c the GPU */
#pragma once

#include "collectives/communicator.h"
#include "collectives/gpu/device.h"
#include "collectives/gpu/plan.h"
#include "collectives/quantized/operation.h"

TW_C_BEGIN

/** An operation's arguments without pointers, seed and step, and what they became: kept for the next time. */
typedef struct tw_gpu_shape {
    TAILQ_ENTRY(tw_gpu_shape) link;
    uint64_t key;               /**< a hash of all that decides about it */
    tw_coll_request_t *request; /**< the arguments, checked and copied, and what was chosen */
    int is_native;
    tw_gpu_plan_t plan;        /**< unless native */
    tw_quant_t *inner;         /**< of the hop inside the node; NULL: plain */
    size_t packing_bytes;      /**< workspace of codecs of messages */
    tw_grid_tensor_t *tensors; /**< [n_segments] NCCL: of the call that is being enqueued */
    uint64_t inter_node_bytes;
} tw_gpu_shape_t;

typedef TAILQ_HEAD(tw_gpu_shapes, tw_gpu_shape) tw_gpu_shapes_t;

/** A shape with pointers: what the computations see. */
typedef struct tw_gpu_call {
    tw_coll_t *coll;
    const tw_gpu_shape_t *shape;
    const tw_grid_tensor_t *tensors;
    char *workspace;
    char *packing; /**< workspace of codecs of messages */
    /** [2 * cells of the plan] how packing into each cell went, then how unpacking from it went */
    tw_quant_outcome_t *outcomes;
    size_t *lengths; /**< [cells of the plan] of packed chunks; NULL over NCCL */
    uint64_t seed;
    uint32_t step;
} tw_gpu_call_t;

/** A workspace. Memory that was outgrown stays until the end: graphs may still use it. */
typedef struct tw_gpu_memory {
    void **blocks;
    size_t n_blocks, max_blocks;
    size_t bytes; /**< of the last block, the one in use */
    int pinned;   /**< in host memory */
} tw_gpu_memory_t;

/** tw_coll.gpu */
typedef struct tw_gpu {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire;    /**< NCCL; NULL: the transport */
    tw_gpu_shapes_t shapes; /**< the shapes, the most recently used one first */
    size_t n_shapes;
    tw_gpu_memory_t memory;
    tw_gpu_memory_t packing;  /**< workspace of codecs of messages, which calls on a stream share */
    tw_gpu_memory_t outcomes; /**< what kernels tell the host of messages: pinned */
    const void **sources;     /**< [n_sources] inputs of sums, while a launch is put together */
    size_t n_sources;
    tw_stream_t wire_stream;                /**< NCCL: this and what follows */
    tw_gpu_event_t computed, arrived, done; /**< done: after the last operation */
    uint64_t capture;                       /**< of the last operation; 0: it was none */
} tw_gpu_t;

/** An operation under way: tw_coll_request.run. */
typedef struct tw_gpu_run {
    tw_gpu_call_t call;
    tw_stream_t stream;
    uint64_t capture;                  /**< NCCL: the graph that it is captured into; 0: none */
    size_t tick;                       /**< over a transport: this and what follows */
    int is_launched;                   /**< this tick's computations are enqueued */
    int is_posted;                     /**< its messages are under way */
    tw_transport_request_t **requests; /**< [messages of the largest tick]; NULL: ended */
    const tw_gpu_message_t **messages; /**< the plan's message of each request */
    size_t n_requests, n_open;
    uint64_t *next_tag; /**< [2 * world] of the next message to each rank, and from each rank */
    /** After the computations of even ticks, and of odd ones; over NCCL, [0] is after everything. */
    tw_gpu_event_t computed[2];
} tw_gpu_run_t;

/* ---- engine.c ------------------------------------------------------------------------------------------ */

/** Make a communicator that has all but an engine one on GPU memory. Takes `wire` (NULL: the transport), also
 *  when it fails; tw_coll.detach frees what is made. */
tw_status_t tw_gpu_attach(tw_coll_t *coll, const tw_gpu_device_t *device, tw_gpu_wire_t *wire);

/* ---- shape.c ------------------------------------------------------------------------------------------- */

const tw_coll_algo_info_t *tw_gpu_algo_get(size_t index);
/** An operation's arguments, checked and copied, and its shape, which is made if there is none yet. */
tw_status_t tw_gpu_shape_get(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request,
                             tw_gpu_shape_t **shape);
void tw_gpu_shapes_cleanup(tw_gpu_t *gpu);
/** As in tw_coll_engine_t. */
tw_status_t tw_gpu_planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes);

/* ---- run.c --------------------------------------------------------------------------------------------- */

/** As in tw_coll_engine_t. */
tw_status_t tw_gpu_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out);
tw_status_t tw_gpu_prepare(tw_coll_t *coll, const tw_coll_args_t *args);
void tw_gpu_release(tw_coll_request_t *request);
void tw_gpu_enter(tw_coll_t *coll);
size_t tw_gpu_workspace_bytes(const tw_coll_t *coll);
/** Free the workspace, on trim, and when the communicator ends. */
void tw_gpu_workspace_free(tw_coll_t *coll);
/** Let a call that is about to begin use the memory as it is now. */
void tw_gpu_take_workspace(tw_gpu_call_t *call);

/* ---- compute.c ----------------------------------------------------------------------------------------- */

/** Enqueue a tick's computations. */
tw_status_t tw_gpu_compute_tick(const tw_gpu_call_t *call, size_t tick, tw_stream_t stream);

/* ---- the engines --------------------------------------------------------------------------------------- */

extern const tw_coll_engine_t tw_gpu_nccl_engine;
extern const tw_coll_engine_t tw_gpu_transport_engine;

/* ---- making a communicator ----------------------------------------------------------------------------- */

/** What a communicator is made of, on any memory: as tw_coll_create finds it, or as tests make it up. */
typedef struct tw_coll_setup {
    const tw_coll_params_t *params;    /**< mem, wire: only whether all ask alike */
    const tw_coll_nccl_params_t *comm; /**< NULL: the ranks meet over the transport */
    const tw_gpu_device_t *device;     /**< NULL: host memory */
    tw_gpu_wire_t *nccl;               /**< NULL: the transport. Taken, also when creation fails */
    tw_progress_t *progress;           /**< the thread that this runs on; NULL: the caller is it */
    int device_index;                  /**< that is current where the communicator was asked for */
    int rank, world;                   /**< without a transport */
    uint64_t *node_ids; /**< [world] without a transport; equal for ranks of one node. Borrowed. */
} tw_coll_setup_t;

/** create.c */
tw_status_t tw_coll_create_with(const tw_coll_setup_t *setup, tw_coll_t **out);

/** nccl_create.c: meet the other ranks in NCCL, from a communicator of its own, or over a transport. Fills in
 *  nccl and, where there is no transport, rank, world and node_ids, which the caller frees. */
tw_status_t tw_nccl_join(tw_coll_setup_t *setup);

TW_C_END
