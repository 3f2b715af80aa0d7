/** Private to config: takes the shape of a Llama model from its config.json. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** Take the shape from `json`, the file at `path`; model.family has been set from it already. TW_ERR_CONFIG,
 *  logged: the user has set keys to other values, or the model is not known here. */
tw_status_t tw_train_pretrained_llama(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
