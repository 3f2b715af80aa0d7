/** Private to trainer: text sampled from the model so often, as thinwire's sample_ keys say. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_sampling {
    const tw_train_options_t *options;
    const tw_data_t *data;
    const tw_trainer_params_t *params; /**< on_sample is told */
    int is_first;                      /**< rank 0? */
    int32_t *tokens;           /**< the prompt, and room for as many as are sampled; NULL: nothing is */
    size_t n_prompt, n_hidden; /**< the first ones of it are no text of the prompt */
} tw_sampling_t;

/** Options, data and params are there. TW_ERR_CONFIG (logged): the prompt cannot be tokens here, or has one
 *  that is none of vocab_size; TW_ERR_FORMAT (logged): it is not UTF-8; TW_ERR_NO_MEMORY. */
tw_status_t tw_sampling_init(tw_sampling_t *sampling, size_t vocab_size);
void tw_sampling_cleanup(tw_sampling_t *sampling);
/** Sample, and tell rank 0's on_sample. Collective. Errors of tw_engine_sample. */
tw_status_t tw_sampling_run(tw_sampling_t *sampling, tw_engine_t *engine);

TW_C_END
