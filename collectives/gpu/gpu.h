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

/** An operation's arguments without pointers, seed and step, and the plan made of them: kept for the next
 *  operation. */
typedef struct tw_gpu_shape {
    TAILQ_ENTRY(tw_gpu_shape) link;
    uint64_t key;               /**< hash of everything that determines it */
    tw_coll_request_t *request; /**< arguments, checked and copied, and what was chosen */
    int is_native;
    tw_gpu_plan_t plan;        /**< unused if native */
    tw_quant_t *inner;         /**< codec of the hop inside the node; NULL: plain */
    size_t packing_bytes;      /**< workspace that codecs of messages need */
    tw_grid_tensor_t *tensors; /**< [n_segments], NCCL: those of the call that is being enqueued */
    uint64_t inter_node_bytes;
} tw_gpu_shape_t;

typedef TAILQ_HEAD(tw_gpu_shapes, tw_gpu_shape) tw_gpu_shapes_t;

/** A shape and pointers: what the computations use. */
typedef struct tw_gpu_call {
    tw_coll_t *coll;
    const tw_gpu_shape_t *shape;
    const tw_grid_tensor_t *tensors;
    char *workspace;
    char *packing; /**< workspace for codecs of messages */
    /** [2 * cells of the plan], results of packing into each cell, then of unpacking from it */
    tw_quant_outcome_t *outcomes;
    size_t *lengths; /**< [cells of the plan], lengths of packed chunks; NULL over NCCL */
    uint64_t seed;
    uint32_t step;
} tw_gpu_call_t;

/** A workspace. Memory that was too small is kept until the end: graphs may still use it. */
typedef struct tw_gpu_memory {
    void **blocks;
    size_t n_blocks, max_blocks;
    size_t bytes; /**< size of the last block, the one in use */
    int pinned;   /**< in host memory */
} tw_gpu_memory_t;

/** The type of tw_coll.gpu. */
typedef struct tw_gpu {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire;    /**< NCCL; NULL: the transport */
    tw_gpu_shapes_t shapes; /**< shapes, the most recently used one first */
    size_t n_shapes;
    tw_gpu_memory_t memory;
    tw_gpu_memory_t packing;  /**< workspace for codecs of messages, which all calls on a stream share */
    tw_gpu_memory_t outcomes; /**< pinned; here kernels tell the host about messages */
    const void **sources;     /**< [n_sources], inputs of sums, for the launch that is being put together */
    size_t n_sources;
    tw_stream_t wire_stream;                /**< this and all below: NCCL only */
    tw_gpu_event_t computed, arrived, done; /**< done: recorded after the last operation */
    uint64_t capture;                       /**< capture of the last operation; 0: it was not captured */
} tw_gpu_t;

/** An operation under way: tw_coll_request.run. */
typedef struct tw_gpu_run {
    tw_gpu_call_t call;
    tw_stream_t stream;
    uint64_t capture;                  /**< NCCL: the graph that captures it; 0: none */
    size_t tick;                       /**< this and all below: over a transport only */
    int is_launched;                   /**< 1: this tick's computations are enqueued */
    int is_posted;                     /**< 1: its messages are under way */
    tw_transport_request_t **requests; /**< [messages of the largest tick]; NULL: it has ended */
    const tw_gpu_message_t **messages; /**< the plan's message for each request */
    size_t n_requests, n_open;
    uint64_t *next_tag; /**< [2 * world], of the next message to each rank, and from each rank */
    /** Recorded after the computations of even ticks, and of odd ones; over NCCL, [0] after everything. */
    tw_gpu_event_t computed[2];
} tw_gpu_run_t;

/* ---- engine.c ------------------------------------------------------------------------------------------ */

/** Give a communicator that lacks only an engine one for GPU memory. It owns `wire` from now on (NULL: it has
 *  the transport), even if this fails; tw_coll.detach frees what was made. */
tw_status_t tw_gpu_attach(tw_coll_t *coll, const tw_gpu_device_t *device, tw_gpu_wire_t *wire);

/* ---- shape.c ------------------------------------------------------------------------------------------- */

const tw_coll_algo_info_t *tw_gpu_algo_get(size_t index);
/** Get a request with an operation's arguments, checked and copied, and its shape, made if there is none. */
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
/** Free the workspace, when it is trimmed and when the communicator ends. */
void tw_gpu_workspace_free(tw_coll_t *coll);
/** Let a call that is about to begin use the present workspace. */
void tw_gpu_take_workspace(tw_gpu_call_t *call);

/* ---- compute.c ----------------------------------------------------------------------------------------- */

/** Enqueue a tick's computations. */
tw_status_t tw_gpu_compute_tick(const tw_gpu_call_t *call, size_t tick, tw_stream_t stream);

/* ---- the engines --------------------------------------------------------------------------------------- */

extern const tw_coll_engine_t tw_gpu_nccl_engine;
extern const tw_coll_engine_t tw_gpu_transport_engine;

/* ---- making a communicator ----------------------------------------------------------------------------- */

/** What a communicator is made from, for any memory: tw_coll_create fills it in, or a test does. */
typedef struct tw_coll_setup {
    const tw_coll_params_t *params;    /**< mem and wire are only compared between ranks */
    const tw_coll_nccl_params_t *comm; /**< NULL: the ranks meet over the transport */
    const tw_gpu_device_t *device;     /**< NULL: host memory */
    tw_gpu_wire_t *nccl;     /**< NULL: the transport. The communicator owns it, also if creation fails */
    tw_progress_t *progress; /**< the thread on which this runs; NULL: the caller's */
    int device_index;        /**< the device that is current for the caller */
    int rank, world;         /**< without a transport only */
    uint64_t *node_ids;      /**< [world], without a transport; equal for ranks of one node. Borrowed. */
} tw_coll_setup_t;

/** See create.c. */
tw_status_t tw_coll_create_with(const tw_coll_setup_t *setup, tw_coll_t **out);

/** nccl_create.c: meet the other ranks in NCCL, from a communicator of its own, or over a transport. Fills in
 *  nccl and, where there is no transport, rank, world and node_ids, which the caller frees. */
tw_status_t tw_nccl_join(tw_coll_setup_t *setup);

TW_C_END
