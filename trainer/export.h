/** Private to trainer: saves a trained model in the form that transformers opens. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Save into `folder` a checkpoint's weights, all other files from the folder of model.init_from, and those
 *  of the tokenizer. `checkpoints` is a step's folder, or a folder of checkpoints that has this step. One
 *  process calls it. Errors of tw_checkpoint_open and tw_weights_export; TW_ERR_IO, logged. */
tw_status_t tw_export_model(const tw_train_options_t *options, const tw_model_t *model,
                            const char *checkpoints, uint64_t step, const char *folder);

TW_C_END
