/** trainer/device: a model on a device, behind the calls of trainer/model/model.h. All but computing comes
 *  from the model of the same config on this processor: units, tensors, initial values.
 *
 *  Memory is arranged as in ZeRO-Offload (arXiv 2101.06840): weights, gradients and what is sent stay in host
 *  memory; the device has two slots for a block's weights and gradients, one for the root's, and the
 *  activations. So the ZeRO stages need not know of the device. But the optimizer may be on the device, too
 *  (optimizer.h), and replicas (replicas.h), and so may a caller's weights.
 *    weights    a call copies the unit's in, while the device still computes the unit before, and returns
 *               once they are in: the caller may then gather the next ones over them;
 *    gradients  begin as zeros on the device, sums of fp32; when a unit's backward pass ends they are copied
 *               out to pinned host memory, rounded to bf16 where that is wanted, and tw_model_finish adds
 *               them to the caller's, or writes them there. The root's stay on the device between head and
 *               embed_backward.
 *  Activations, weights and products' factors are bf16, or fp32 where the config has fp32_weights; sums and
 *  statistics are fp32; logits are made some rows at a time.
 *  Three streams: computing, copies in, copies out; events order them. Kernels and products have the same
 *  bits on every device of a kind, whatever the timing, so losses of all stages are as equal as on CPUs.
 *
 *  table.h: the device's operations; gpu.h: a rank's GPU; optimizer.h: AdamW on the device; replicas.h:
 *  replicas there, from which units are gathered. Private: state.h. */
#pragma once

#include "trainer/device/table.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Make a model on a device, which is borrowed for the model's life. Models may share a device if one thread
 *  makes all calls, and tw_model_finish of one comes before a call of another: products use scratch memory of
 *  the device. Errors as of tw_model_create, TW_ERR_INVALID for heads of more than TW_CUDA_HEAD_WIDTH_MAX
 *  channels as well, and TW_ERR_CUDA. The config's `products` is ignored. */
tw_status_t tw_device_model_create(const tw_model_config_t *config, tw_device_t *device, tw_model_t **out);

/** Make a model on a GPU that need not exist, for the planner: only its tables and sizes can be asked. Errors
 *  as above, without TW_ERR_CUDA. */
tw_status_t tw_device_model_create_planned(const tw_model_config_t *config, tw_model_t **out);

TW_C_END
