/** trainer/device: a model on a device, behind the calls of trainer/model/model.h. Everything but computing
 *  is that of the model of the same config on this processor: units, tensors, initial values.
 *
 *  What lies where is ZeRO-Offload's arrangement (arXiv 2101.06840), but for the optimizer, which may be on
 *  the device, too (optimizer.h), and replicas (replicas.h): weights, gradients and what travels stay in host
 *  memory; the device has two places for a block's weights and gradients, one for the root's, and the
 *  activations. So stages know nothing of it. A caller's weights may be in the device's memory.
 *    weights    a call copies the unit's in, while the device still computes the unit before, and returns
 *               once they are in: the caller may then gather the next ones over them;
 *    gradients  begin as zeros on the device, sums of fp32; when a unit's backward pass ends they are copied
 *               out to pinned host memory, rounded to bf16 where that is wanted, and tw_model_finish adds
 *               them to the caller's, or writes them there. The root's stay between head and
 *               embed_backward.
 *  Activations, weights and products' factors are bf16, or fp32 where the config has fp32_weights; sums and
 *  statistics are fp32; logits are made some rows at a time.
 *  Three streams: computing, copies in, copies out; events order them. Kernels and products have the same
 *  bits on every device of a kind, in an order that does not depend on time, so losses are as equal among
 *  stages as on CPUs.
 *
 *  table.h: what it asks of the device; gpu.h: a rank's GPU; optimizer.h: AdamW there; replicas.h: replicas
 *  there, which units then come from. Private: state.h. */
#pragma once

#include "trainer/device/table.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** The device is borrowed for the model's life. Models may share one whose calls are one thread's and do not
 *  overlap: between tw_model_finish of one and a call of another; products work in the device's own memory.
 *  Errors as of tw_model_create, TW_ERR_INVALID for heads of more than TW_CUDA_HEAD_WIDTH_MAX channels as
 *  well, and TW_ERR_CUDA. The config's `products` is not looked at. */
tw_status_t tw_device_model_create(const tw_model_config_t *config, tw_device_t *device, tw_model_t **out);

/** One on a GPU that need not be there, for who plans a run: its tables and sizes can be asked, nothing else.
 *  Errors as above, without TW_ERR_CUDA. */
tw_status_t tw_device_model_create_planned(const tw_model_config_t *config, tw_model_t **out);

TW_C_END
