/** Private to config: reads the shape of a Llama model from its config.json. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** Read the shape from `json`, the contents of the file at `path`. model.family must be set already.
 *  TW_ERR_CONFIG, logged: the user has set a key to another value, or this kind of model is not supported. */
tw_status_t tw_train_pretrained_llama(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
