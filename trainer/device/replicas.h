/** trainer/device: lets replicas lie in the memory of the device that a model computes on (hpz/memory.h). A
 *  node's gathers go from device memory to device memory, and lossless changes are coded there. Messages
 *  along the rail are in host memory.
 *
 *  It has two streams: one for coding and copies, which the host waits for, and one on which gathers begin.
 *  Before a gather reads replicas, the host has waited for them. After an error, of the model too, the calls
 *  do nothing and return it. */
#pragma once

#include "hpz/hpz.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_device_replicas tw_device_replicas_t;

typedef struct tw_device_replicas_params {
    tw_model_t *model; /**< on a device; borrowed for the replicas' life */
    /** Returns zeroed device memory for coding, NULL (logged) if there is none: about 6 bytes for each
     *  element of a sync, and 4 MB at most. It is the caller's, who frees it after the replicas. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *ctx;
} tw_device_replicas_params_t;

/** Make the operations of memory for replicas. TW_ERR_NO_MEMORY, TW_ERR_CUDA, TW_ERR_UNSUPPORTED; logged. */
tw_status_t tw_device_replicas_create(const tw_device_replicas_params_t *params, tw_device_replicas_t **out);
/** Call it after the hpz is destroyed. Waits for what is under way. Accepts NULL. */
void tw_device_replicas_destroy(tw_device_replicas_t *replicas);
/** Return the operations for tw_hpz_create; borrowed. */
const tw_hpz_memory_t *tw_device_replicas_memory(const tw_device_replicas_t *replicas);
/** Return the bytes of pinned host memory that the replicas take. */
size_t tw_device_replicas_host_bytes(void);

TW_C_END
