/** What a collective needs of a GPU and of NCCL, as two tables of functions. Tests replace the tables by
 *  simulations, so the code that uses them also runs without a GPU. Every function logs its errors. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/gpu/sums.h"

TW_C_BEGIN

typedef void *tw_gpu_event_t;

/** Enqueues kernels on `stream`. `arg` is the argument that `enqueue` was given. */
typedef tw_status_t (*tw_gpu_kernels_fn_t)(const void *arg, tw_stream_t stream);

/** The current GPU. Streams and events behave as in CUDA: a wait is for the last record of an event, and
 *  does nothing if the event was never recorded. */
typedef struct tw_gpu_device tw_gpu_device_t;
struct tw_gpu_device {
    tw_mem_t mem; /**< memory of tensors and codecs */
    /** kind of memory that a transport is told for a workspace that is not pinned; differs from `mem` only
     *  in simulations */
    tw_mem_t wire;
    /** Get the index of the current GPU; make another GPU current. */
    tw_status_t (*current)(const tw_gpu_device_t *device, int *index);
    tw_status_t (*use)(const tw_gpu_device_t *device, int index);
    /** Allocate a workspace, aligned to 256 bytes. pinned 1: in host memory that kernels can use. */
    tw_status_t (*alloc)(const tw_gpu_device_t *device, size_t bytes, int pinned, void **out);
    void (*free)(const tw_gpu_device_t *device, void *memory, int pinned);
    tw_status_t (*stream_create)(const tw_gpu_device_t *device, tw_stream_t *out);
    void (*stream_destroy)(const tw_gpu_device_t *device, tw_stream_t stream);
    tw_status_t (*stream_wait)(const tw_gpu_device_t *device, tw_stream_t stream, tw_gpu_event_t event);
    tw_status_t (*event_create)(const tw_gpu_device_t *device, tw_gpu_event_t *out);
    void (*event_destroy)(const tw_gpu_device_t *device, tw_gpu_event_t event);
    tw_status_t (*event_record)(const tw_gpu_device_t *device, tw_gpu_event_t event, tw_stream_t stream);
    /** Copy between this GPU's memory and the host's, in either direction. The host memory must not change
     *  until the stream has made the copy. */
    tw_status_t (*copy)(const tw_gpu_device_t *device, void *to, const void *from, size_t bytes,
                        tw_stream_t stream);
    /** Returns TW_OK if the event has passed or was never recorded, TW_IN_PROGRESS, or TW_ERR_CUDA. */
    tw_status_t (*event_query)(const tw_gpu_device_t *device, tw_gpu_event_t event);
    /** Make data that another device wrote to this GPU's memory visible to all kernels that are enqueued
     *  from now on. The host must know that the writes have ended. */
    tw_status_t (*fence)(const tw_gpu_device_t *device);
    /** Get the id of the graph capture that the stream is part of; 0: none. */
    tw_status_t (*capture_id)(const tw_gpu_device_t *device, tw_stream_t stream, uint64_t *id);
    /** Call fn(arg, stream), at once or (a simulation) when the stream gets there. Copies arg. */
    tw_status_t (*enqueue)(const tw_gpu_device_t *device, tw_gpu_kernels_fn_t fn, const void *arg,
                           size_t arg_bytes, tw_stream_t stream);
    tw_status_t (*sum)(const tw_gpu_device_t *device, const tw_gpu_sum_t *sum, tw_stream_t stream);
};

/** Returns the table of the current GPU; NULL (logged) if there is none or the build lacks CUDA. */
const tw_gpu_device_t *tw_gpu_device_cuda(void);

/** A call of one of NCCL's own collectives, on contiguous tensors. */
typedef struct tw_gpu_native {
    tw_coll_op_t op;
    tw_type_t type;
    tw_coll_reduction_t reduction;
    const void *src;
    void *dst;
    size_t n_elems; /**< elements of a shard; in an all-reduce, of the whole tensor */
} tw_gpu_native_t;

/** A communicator of NCCL. All sends and receives between begin and end run at the same time. */
typedef struct tw_gpu_wire tw_gpu_wire_t;
struct tw_gpu_wire {
    tw_status_t (*begin)(tw_gpu_wire_t *wire);
    tw_status_t (*send)(tw_gpu_wire_t *wire, int peer, const void *from, size_t bytes, tw_stream_t stream);
    tw_status_t (*recv)(tw_gpu_wire_t *wire, int peer, void *to, size_t bytes, tw_stream_t stream);
    tw_status_t (*native)(tw_gpu_wire_t *wire, const tw_gpu_native_t *native, tw_stream_t stream);
    /** End the group. The caller calls this after every begin, even after an error. */
    tw_status_t (*end)(tw_gpu_wire_t *wire);
    /** Returns TW_OK, or the error that ended the wire on the device or on another rank. */
    tw_status_t (*error)(tw_gpu_wire_t *wire);
    /** Break off what runs on the device. Afterwards the wire can only be destroyed. */
    void (*abort)(tw_gpu_wire_t *wire);
    void (*destroy)(tw_gpu_wire_t *wire);
};

TW_C_END
