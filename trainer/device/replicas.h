/** trainer/device: memory of the device that a model computes on as what replicas lie in (hpz/memory.h): a
 *  node's gathers go from the device's memory to the device's, and lossless changes are coded there. Messages
 *  along the rail are the host's.
 *
 *  Two streams: one for coding and copies, which the host waits for; one on which gathers begin. Replicas
 *  that a gather reads have been waited for. After an error, of the model too, the calls do nothing and
 *  return it. */
#pragma once

#include "hpz/hpz.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_device_replicas tw_device_replicas_t;

typedef struct tw_device_replicas_params {
    tw_model_t *model; /**< on a device; borrowed for the replicas' life */
    /** Device memory for coding, zeroed, the caller's, who frees it after the replicas. NULL: there is none,
     *  logged. Of a sync's elements: about 6 bytes each, and 4 MB at most. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *ctx;
} tw_device_replicas_params_t;

/** Creates memory for replicas. TW_ERR_NO_MEMORY, TW_ERR_CUDA, TW_ERR_UNSUPPORTED; logged. */
tw_status_t tw_device_replicas_create(const tw_device_replicas_params_t *params, tw_device_replicas_t **out);
/** Call it after the hpz is destroyed. Waits for what is under way. Accepts NULL. */
void tw_device_replicas_destroy(tw_device_replicas_t *replicas);
/** Returns the operations for tw_hpz_create; borrowed. */
const tw_hpz_memory_t *tw_device_replicas_memory(const tw_device_replicas_t *replicas);
/** Pinned memory of the host that it takes. */
size_t tw_device_replicas_host_bytes(void);

TW_C_END
