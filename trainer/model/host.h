/** Private to trainer/model: models on this processor. */
#pragma once

#include "trainer/model/ops.h"

TW_C_BEGIN

/** Make a model on this processor. `bytes` is the size of the kind's struct, which begins with a tw_model_t.
 *  TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_host_create(const tw_model_config_t *config, const tw_model_ops_t *ops, size_t bytes,
                                 tw_model_t **out);
void tw_model_host_destroy(tw_model_t *model);
/** The entries of tw_model_ops_t that all kinds on this processor share. */
#define TW_MODEL_HOST_OPS                                                                     \
    .destroy = tw_model_host_destroy, .embed_forward = tw_root_embed_forward,                 \
    .embed_backward = tw_root_embed_backward, .head = tw_root_head, .losses = tw_root_losses, \
    .logits = tw_root_logits

TW_C_END
