/** Private to trainer: which model a configuration describes, and whether any machine could hold it. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** vocab_size: the data's, for where the configuration says nothing. TW_ERR_NOT_FOUND: no such preset;
 *  logged. */
tw_status_t tw_trainer_shape(const tw_train_options_t *options, size_t vocab_size, tw_model_config_t *config);
/** Sizes of resolved options with their model: parameters, and activations of a micro-batch. TW_ERR_CONFIG,
 *  logged with the keys: more than TW_MEMORY_BYTES_MAX. */
tw_status_t tw_trainer_check_sizes(const tw_train_options_t *options, const tw_model_t *model);

TW_C_END
