/** trainer/device: a model that computes on a device (a GPU), behind the functions of trainer/model/model.h.
 *  A model of the same config on this processor, "the host's model", provides units, tensors, initial values.
 *
 *  Memory is placed as in ZeRO-Offload (arXiv 2101.06840). Weights, gradients and message buffers are in host
 *  memory. The device holds activations, two slots for blocks' weights and gradients, and one slot for the
 *  root's. So the ZeRO stages need not know of the device. Optionally the optimizer (optimizer.h), replicas
 *  (replicas.h) and the caller's weights are on the device, too.
 *    weights    A call copies the unit's weights to a slot while the device still computes the unit before.
 *               It returns after the copy, so that the next gather may overwrite the caller's weights.
 *    gradients  are summed in fp32 on the device, from zeros. At the end of a unit's backward pass they are
 *               copied to pinned host memory, rounded to bf16 if the caller asked for that. tw_model_finish
 *               adds (bf16: copies) them to the caller's. The root's stay on the device from head to
 *               embed_backward.
 *  Activations, weights and products' factors are bf16, or fp32 with fp32_weights in the config. Sums and
 *  statistics are fp32. Logits are computed for some rows at a time.
 *  Three streams (compute, copies in, copies out) are ordered by events. On one kind of device kernels and
 *  products give the same bits whatever the timing, so all stages have equal losses, as on CPUs.
 *
 *  table.h: the device's operations; gpu.h: a rank's GPU; optimizer.h: AdamW on the device; replicas.h:
 *  replicas on the device, from which units are gathered. Private: state.h. */
#pragma once

#include "trainer/device/table.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Make a model on a device, which is borrowed for the model's life. Models may share a device if one thread
 *  makes all calls, and calls tw_model_finish of one model before it calls another, as products use scratch
 *  memory of the device. config->products is ignored. Errors are those of tw_model_create, TW_ERR_INVALID
 *  also for heads of more than TW_CUDA_HEAD_WIDTH_MAX channels, and TW_ERR_CUDA. */
tw_status_t tw_device_model_create(const tw_model_config_t *config, tw_device_t *device, tw_model_t **out);

/** Make a model on an imaginary GPU, for the planner: it can only be asked for its tables and sizes. Errors
 *  are those of tw_device_model_create without TW_ERR_CUDA. */
tw_status_t tw_device_model_create_planned(const tw_model_config_t *config, tw_model_t **out);

TW_C_END
