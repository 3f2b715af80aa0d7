/** Private to trainer: samples text from the model, as thinwire's sample_ keys say. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_sampling {
    const tw_train_options_t *options;
    const tw_data_t *data;
    const tw_trainer_params_t *params; /**< its on_sample gets the text */
    int is_first;                      /**< 1: this is rank 0 */
    int32_t *tokens;           /**< the prompt, and room for the sampled tokens; NULL: nothing is sampled */
    size_t n_prompt, n_hidden; /**< tokens of the prompt; how many at its start are no text of it */
} tw_sampling_t;

/** Read the prompt; options, data and params are set. TW_ERR_CONFIG (logged): the prompt cannot be encoded
 *  here, or has a token beyond vocab_size; TW_ERR_FORMAT (logged): it is not UTF-8; TW_ERR_NO_MEMORY. */
tw_status_t tw_sampling_init(tw_sampling_t *sampling, size_t vocab_size);
void tw_sampling_cleanup(tw_sampling_t *sampling);
/** Sample, and give the text to rank 0's on_sample. Collective. Errors of tw_engine_sample. */
tw_status_t tw_sampling_run(tw_sampling_t *sampling, tw_engine_t *engine);

TW_C_END
