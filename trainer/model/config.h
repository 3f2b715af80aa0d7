/** Private to trainer/model: checks of a config. */
#pragma once

#include "trainer/model/model.h"

TW_C_BEGIN

/** Check a config. TW_ERR_INVALID, logged with the field. */
tw_status_t tw_model_config_check(const tw_model_config_t *config);

TW_C_END
