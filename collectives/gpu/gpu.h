/** Inside of a communicator on a GPU. Private to collectives. */
#ifndef TW_COLLECTIVES_GPU_GPU_H
#define TW_COLLECTIVES_GPU_GPU_H

#include <sys/queue.h>

#include "collectives/collectives_gpu.h"
#include "collectives/communicator.h"
#include "collectives/gpu/device.h"
#include "collectives/gpu/plan.h"
#include "collectives/quantized/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_GPU_ALGO_BYTES 32

/** An operation's arguments without pointers, seed and step, and what they became: kept for the next time. */
typedef struct tw_gpu_shape {
    LIST_ENTRY(tw_gpu_shape) link;
    tw_coll_request_t *request; /**< the arguments, checked and copied */
    char algo_asked[TW_GPU_ALGO_BYTES];
    int is_native;
    tw_coll_plan_t plan_info;
    tw_gpu_plan_t plan;       /**< unless native */
    tw_quant_t *inner;        /**< of the hop inside the node; NULL: exact */
    tw_qop_tensor_t *tensors; /**< [n_segments] of the call that is being enqueued */
    uint64_t inter_node_bytes;
} tw_gpu_shape_t;

typedef LIST_HEAD(tw_gpu_shapes, tw_gpu_shape) tw_gpu_shapes_t;

/** A shape with pointers: what the computations see. */
typedef struct tw_gpu_call {
    struct tw_coll_gpu *coll;
    const tw_gpu_shape_t *shape;
    const tw_qop_tensor_t *tensors;
    char *workspace;
    uint64_t seed;
    uint32_t step;
} tw_gpu_call_t;

/** Memory that was outgrown stays until the end: graphs may still use it. */
typedef struct tw_gpu_memory {
    void **blocks;
    size_t n_blocks, max_blocks;
    size_t bytes; /**< of the last block, the one in use */
    int pinned;   /**< in host memory */
} tw_gpu_memory_t;

struct tw_gpu_run;
typedef TAILQ_HEAD(tw_gpu_runs, tw_gpu_run) tw_gpu_runs_t;

struct tw_coll_gpu {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire; /**< NCCL; NULL: base.transport */
    tw_transport_mover_t mover;
    tw_coll_t base; /**< topology, options, id; its requests check arguments. No operation is posted on it */
    tw_topo_t flat; /**< every rank a node */
    tw_codecs_t codecs;
    tw_gpu_shapes_t shapes;
    size_t n_shapes;
    tw_gpu_memory_t memory;
    tw_stream_t wire_stream; /**< NCCL */
    tw_gpu_event_t computed, arrived, done;
    uint64_t capture;     /**< of the last operation; 0: it was none */
    const void **sources; /**< [n_sources] inputs of sums, while a launch is put together */
    size_t n_sources;
    tw_gpu_runs_t runs; /**< transport: operations under way, the first one moves */
    uint64_t moved_ns;
    tw_coll_plan_t last_plan;
    tw_status_t status; /**< TW_OK, or what has ended the communicator */
};

/** The workspace in use; NULL: none yet. */
static inline char *tw_gpu_workspace(const tw_coll_gpu_t *coll)
{
    return coll->memory.n_blocks > 0 ? (char *)coll->memory.blocks[coll->memory.n_blocks - 1] : NULL;
}

/** What a communicator is made of. */
typedef struct tw_gpu_parts {
    const tw_gpu_device_t *device;
    tw_gpu_wire_t *wire;       /**< NULL: the transport */
    tw_transport_t *transport; /**< says who is on which node; NULL: node_ids do */
    int id;
    const int *ranks; /**< [world] of the transport; NULL: all */
    int rank;         /**< own, without a transport */
    int world;
    const uint64_t *node_ids; /**< [world] equal for ranks of one node */
} tw_gpu_parts_t;

/** Takes `wire`, also when it fails. */
tw_status_t tw_gpu_create_of_parts(const tw_gpu_parts_t *parts, tw_coll_gpu_t **out);

/** Find or make the shape of an operation. */
tw_status_t tw_gpu_shape_get(tw_coll_gpu_t *coll, const tw_coll_args_t *args, tw_gpu_shape_t **out);
void tw_gpu_shapes_cleanup(tw_coll_gpu_t *coll);
/** Where the tensors of a call are; tensors: [n_segments]. TW_ERR_INVALID (logged): a pointer is missing. */
tw_status_t tw_gpu_place_tensors(const tw_coll_gpu_t *coll, const tw_coll_args_t *args,
                                 const tw_gpu_shape_t *shape, tw_qop_tensor_t *tensors);
/** At least so many bytes. */
tw_status_t tw_gpu_memory_reserve(tw_coll_gpu_t *coll, size_t bytes);

/** Enqueue a tick's computations. */
tw_status_t tw_gpu_compute_tick(const tw_gpu_call_t *call, size_t tick, tw_stream_t stream);

/** Over NCCL: enqueue all of a call. */
tw_status_t tw_gpu_stream_run(const tw_gpu_call_t *call, tw_stream_t stream);
/** One of NCCL's own. */
tw_status_t tw_gpu_native_run(const tw_gpu_call_t *call, const tw_coll_args_t *args, tw_stream_t stream);

/** Over a transport: start a call; its tensors are copied. */
tw_status_t tw_gpu_host_post(const tw_gpu_call_t *call, tw_stream_t stream);
/** Move everything along as far as messages have come. TW_OK: all calls have ended; TW_IN_PROGRESS; an error: the caller
 *  cancels all. */
tw_status_t tw_gpu_host_move(tw_coll_gpu_t *coll, int *moved);
void tw_gpu_host_cancel(tw_coll_gpu_t *coll);

/** Over NCCL, between the ranks of a communicator of its own or of a transport. */
tw_status_t tw_gpu_create_nccl(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out);

#ifdef __cplusplus
}
#endif

#endif
