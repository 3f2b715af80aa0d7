/** trainer/device: places hpZ's replicas in the memory of the device that a model computes on (hpz/memory.h).
 *  Gathers inside a node go from device memory to device memory. Lossless changes are encoded and decoded on
 *  the device. Messages between nodes are in host memory.
 *
 *  There are two streams: one for coding and copies, which the host waits for, and one on which gathers
 *  begin. The host waits for the coding of a replica before a gather reads it. After an error of the replicas
 *  or the model the calls do nothing and return that error. */
#pragma once

#include "hpz/hpz.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_device_replicas tw_device_replicas_t;

typedef struct tw_device_replicas_params {
    tw_model_t *model; /**< on a device; borrowed for the replicas' life */
    /** Returns zeroed device memory for coding, or NULL (logged): about 6 bytes an element of a slice, and at
     *  most 4 MB more. The caller owns it, and frees it after destroying the replicas. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *ctx;
} tw_device_replicas_params_t;

/** Make hpz's operations on device memory. TW_ERR_NO_MEMORY, TW_ERR_CUDA, TW_ERR_UNSUPPORTED; logged. */
tw_status_t tw_device_replicas_create(const tw_device_replicas_params_t *params, tw_device_replicas_t **out);
/** Wait for enqueued work, and free the operations. Call this after tw_hpz_destroy. Accepts NULL. */
void tw_device_replicas_destroy(tw_device_replicas_t *replicas);
/** Return the table of operations, to pass to tw_hpz_create; borrowed. */
const tw_hpz_memory_t *tw_device_replicas_memory(const tw_device_replicas_t *replicas);
/** Return how many bytes of pinned host memory the replicas take. */
size_t tw_device_replicas_host_bytes(void);

TW_C_END
