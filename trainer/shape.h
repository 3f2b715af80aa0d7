/** Private to trainer: the shape of a configuration's model, and whether a machine could hold it. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Get the shape of a configuration's model. vocab_size is the data's, used if the configuration has none.
 *  TW_ERR_NOT_FOUND: no such preset; logged. */
tw_status_t tw_trainer_shape(const tw_train_options_t *options, size_t vocab_size, tw_model_config_t *config);
/** Check the bytes of parameters, and of a micro-batch's activations, for resolved options. TW_ERR_CONFIG,
 *  logged with the keys: more than TW_MEMORY_BYTES_MAX. */
tw_status_t tw_trainer_check_sizes(const tw_train_options_t *options, const tw_model_t *model);

TW_C_END
