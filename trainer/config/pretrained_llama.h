/** Private to config: the shape of a model of the Llama family, of its config.json. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** `json`: the file at `path`, model.family being taken from it already. TW_ERR_CONFIG, logged: keys that say
 *  otherwise, or a model that is not known here. */
tw_status_t tw_train_pretrained_llama(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
