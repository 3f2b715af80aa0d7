/** Private to trainer: a trained model as transformers opens it. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** By one process, into `folder`: a checkpoint's weights, all but weights that lies in the folder of
 *  model.init_from, and the files of the tokenizer. checkpoints: a step's folder, or one of several with this
 *  step. Errors of tw_checkpoint_open and tw_weights_export;
 *  TW_ERR_IO, logged. */
tw_status_t tw_export_model(const tw_train_options_t *options, const tw_model_t *model,
                            const char *checkpoints, uint64_t step, const char *folder);

TW_C_END
