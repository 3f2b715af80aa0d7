/** trainer/device: AdamW in the memory of the device that a model computes on. Masters, moments and reduced
 *  gradients of a rank's shard lie there; gradients come from the host, new weights go back to it.
 *
 *  A unit's shard is the pieces of its tensors that belong to the rank, one after the other; likewise its
 *  moments, but only of pieces that are trained. The bits are those of AdamW on the host.
 *
 *  Calls enqueue behind the model's computing and return, except for those that say that they wait. After an
 *  error, of the model too, they do nothing and return it. */
#pragma once

#include "quant/quant.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_device_optimizer tw_device_optimizer_t;

/** Elements of a unit's shard. */
typedef struct tw_device_shard {
    size_t n_elems, n_moments;
} tw_device_shard_t;

typedef struct tw_device_optimizer_params {
    tw_model_t *model;              /**< on a device; borrowed for the optimizer's life */
    const tw_device_shard_t *units; /**< [n_units], copied */
    size_t n_units;
    tw_type_t grad_type; /**< bf16 or fp32 */
    int leaves_masters;  /**< 1: only masters are copied out: no new weights, and no memory for them */
    /** Returns zeroed device memory, NULL (logged) if there is none: for masters and moments, for the
     *  gradients, and for new weights of two units. It is the caller's, who frees it after the optimizer. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *ctx;
} tw_device_optimizer_params_t;

/** Creates an optimizer. TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_device_optimizer_create(const tw_device_optimizer_params_t *params,
                                       tw_device_optimizer_t **out);
/** Waits for what is under way. */
void tw_device_optimizer_destroy(tw_device_optimizer_t *optimizer);

/** A unit's state in the host's memory: fp32, [n_elems], [n_moments] and [n_moments]. */
typedef struct tw_device_state_copy {
    float *master, *m, *v;
} tw_device_state_copy_t;
/** Copies a unit's state to the device, before the first step. Wait for it. */
tw_status_t tw_device_optimizer_load(tw_device_optimizer_t *optimizer, size_t unit,
                                     const tw_device_state_copy_t *from);
/** Copies a unit's state back to the host. Wait for it. */
tw_status_t tw_device_optimizer_store(tw_device_optimizer_t *optimizer, size_t unit,
                                      const tw_device_state_copy_t *to);

/** Return a unit's masters, [n_elems] in device memory; valid from a step to the next. */
const float *tw_device_optimizer_masters(const tw_device_optimizer_t *optimizer, size_t unit);

/* ---- a step: gradients of all units, their norm, the update of all units in order ---------------------- */

/** Copy a unit's gradients in: `grads`, grad_type [n_elems] in host memory, must not change until
 *  tw_device_optimizer_bins, or tw_device_optimizer_wait for this unit. */
tw_status_t tw_device_optimizer_gradients(tw_device_optimizer_t *optimizer, size_t unit, const void *grads);
/** Add elements first .. first + n - 1 of the gradients to the norm. */
tw_status_t tw_device_optimizer_norm(tw_device_optimizer_t *optimizer, size_t unit, size_t first, size_t n);
/** Wait, and get what has been added so far: bins [2][TW_CUDA_NORM_BINS] as tw_cuda_norm_bins leaves them. */
tw_status_t tw_device_optimizer_bins(tw_device_optimizer_t *optimizer, uint64_t *bins);

/** Begin the update, in which gradients are multiplied by grad_scale. */
tw_status_t tw_device_optimizer_begin(tw_device_optimizer_t *optimizer, float grad_scale);
/** A piece, and its step of AdamW. */
typedef struct tw_device_piece {
    size_t first, first_moment, n_elems; /**< place in the unit's shard, and among its moments */
    tw_quant_adamw_t adamw;              /**< grad_type and grad_scale are ignored */
} tw_device_piece_t;
/** Where a unit's new weights are copied to, in host memory; pinned is faster. NULL: not wanted. */
typedef struct tw_device_news {
    uint16_t *weights; /**< bf16 [n_elems], of which the pieces are written */
    float *masters;    /**< fp32 [n_elems], likewise */
} tw_device_news_t;
/** Run AdamW on a unit's pieces, and begin to copy the new weights out. It waits until those of the unit
 *  before the last one have arrived. */
tw_status_t tw_device_optimizer_step(tw_device_optimizer_t *optimizer, size_t unit,
                                     const tw_device_piece_t *pieces, size_t n_pieces,
                                     const tw_device_news_t *news);
/** Wait for the new weights of a unit: the last one that stepped, or the one before it. */
tw_status_t tw_device_optimizer_wait(tw_device_optimizer_t *optimizer, size_t unit);

TW_C_END
