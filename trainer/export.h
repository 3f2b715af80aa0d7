/** Private to trainer: saves a trained model for transformers. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** Save a checkpoint's weights into `folder`, with the tokenizer's files, and all files of model.init_from's
 *  folder except weights and a trainer's state. `checkpoints` is a step's folder, or a folder of checkpoints
 *  with `step`. One process calls it. Errors of tw_checkpoint_open, tw_weights_export; TW_ERR_IO, logged. */
tw_status_t tw_export_model(const tw_train_options_t *options, const tw_model_t *model,
                            const char *checkpoints, uint64_t step, const char *folder);

TW_C_END
