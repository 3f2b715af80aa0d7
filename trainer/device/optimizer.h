/** trainer/device: AdamW on the device that a model computes on. The device holds masters, moments and
 *  reduced gradients of a rank's shards. Gradients are copied from the host, and new weights back to it.
 *
 *  A unit's shard is the rank's pieces of its tensors, one after the other. Its moments are in the same
 *  order, without frozen tensors. The bits are those of AdamW on the host.
 *
 *  Calls enqueue work behind the model's and return, unless their comment says that they wait. After an error
 *  of the optimizer or the model they do nothing and return that error. */
#pragma once

#include "quant/quant.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_device_optimizer tw_device_optimizer_t;

/** Elements and moments of a unit's shard. */
typedef struct tw_device_shard {
    size_t n_elems, n_moments;
} tw_device_shard_t;

typedef struct tw_device_optimizer_params {
    tw_model_t *model;              /**< on a device; borrowed for the optimizer's life */
    const tw_device_shard_t *units; /**< [n_units], copied */
    size_t n_units;
    tw_type_t grad_type; /**< bf16 or fp32 */
    int leaves_masters;  /**< 1: a step only makes masters, and needs no memory for new bf16 weights */
    /** Returns zeroed device memory, or NULL (logged), for masters and moments, gradients, norm bins, and new
     *  weights of two units. The caller owns it, and frees it after destroying the optimizer. */
    void *(*take)(void *ctx, size_t n_bytes);
    void *ctx;
} tw_device_optimizer_params_t;

/** Creates an optimizer. TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_device_optimizer_create(const tw_device_optimizer_params_t *params,
                                       tw_device_optimizer_t **out);
/** Waits for enqueued work, then frees the optimizer. */
void tw_device_optimizer_destroy(tw_device_optimizer_t *optimizer);

/** A unit's state in the host's memory: fp32, [n_elems], [n_moments] and [n_moments]. */
typedef struct tw_device_state_copy {
    float *master, *m, *v;
} tw_device_state_copy_t;
/** Copies a unit's state to the device, before the first step, and waits for the copy. */
tw_status_t tw_device_optimizer_load(tw_device_optimizer_t *optimizer, size_t unit,
                                     const tw_device_state_copy_t *from);
/** Copies a unit's state back to the host, and waits for the copy. */
tw_status_t tw_device_optimizer_store(tw_device_optimizer_t *optimizer, size_t unit,
                                      const tw_device_state_copy_t *to);

/** Return a unit's masters, [n_elems] in device memory. A step changes them. */
const float *tw_device_optimizer_masters(const tw_device_optimizer_t *optimizer, size_t unit);

/* ---- a step: gradients of all units, their norm, the update of all units in order ---------------------- */

/** Copy a unit's gradients to the device. `grads`, grad_type [n_elems] in host memory, must not change before
 *  tw_device_optimizer_bins, or tw_device_optimizer_wait for this unit, returns. */
tw_status_t tw_device_optimizer_gradients(tw_device_optimizer_t *optimizer, size_t unit, const void *grads);
/** Add the squares of elements first .. first + n - 1 of a unit's gradients to the bins of the norm. */
tw_status_t tw_device_optimizer_norm(tw_device_optimizer_t *optimizer, size_t unit, size_t first, size_t n);
/** Wait, write the bins to bins [2][TW_CUDA_NORM_BINS] (see tw_cuda_norm_bins), and reset them to zero. */
tw_status_t tw_device_optimizer_bins(tw_device_optimizer_t *optimizer, uint64_t *bins);

/** Begin the update, in which gradients are multiplied by grad_scale. */
tw_status_t tw_device_optimizer_begin(tw_device_optimizer_t *optimizer, float grad_scale);
/** A piece, and the parameters of its AdamW step. */
typedef struct tw_device_piece {
    size_t first, first_moment, n_elems; /**< offset in the unit's shard; in its moments; size */
    tw_quant_adamw_t adamw;              /**< grad_type and grad_scale are ignored */
} tw_device_piece_t;
/** Host memory that a unit's new weights are copied to; pinned memory is faster. NULL: not copied. */
typedef struct tw_device_news {
    uint16_t *weights; /**< bf16 [n_elems]; only the pieces are written */
    float *masters;    /**< fp32 [n_elems]; only the pieces are written */
} tw_device_news_t;
/** Run AdamW on a unit's pieces, then copy the new weights to the host. On the device the kernels wait for
 *  the copy of the unit two calls before, as two buffers are used in turn. The host does not wait. */
tw_status_t tw_device_optimizer_step(tw_device_optimizer_t *optimizer, size_t unit,
                                     const tw_device_piece_t *pieces, size_t n_pieces,
                                     const tw_device_news_t *news);
/** Wait until a unit's new weights are in host memory. It must be one of the last two units that stepped. */
tw_status_t tw_device_optimizer_wait(tw_device_optimizer_t *optimizer, size_t unit);

TW_C_END
