/** Private to trainer/checkpoint: config.json beside a model's weights. */
#pragma once

#include "trainer/model/model.h"

TW_C_BEGIN

/** Write folder/config.json for transformers 4 and 5. `type` is the type of the weights; for `sources` see
 *  tw_weights_export. TW_ERR_IO, TW_ERR_INVALID (a path is too long); logged. */
tw_status_t tw_checkpoint_write_config(const char *folder, const tw_model_config_t *config, tw_type_t type,
                                       const char *const *sources);

TW_C_END
