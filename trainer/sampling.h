/** Private to trainer: samples text from the model, as the keys thinwire.sample_* say. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/engine/engine.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_sampling {
    const tw_train_options_t *options;
    const tw_data_t *data;
    const tw_trainer_params_t *params; /**< its on_sample is called with the text */
    int is_first;                      /**< 1: this is rank 0 */
    int32_t *tokens;                   /**< the prompt, then place for sampled tokens; NULL: no sampling */
    size_t n_prompt, n_hidden; /**< tokens of the prompt; how many of its first tokens are not of its text */
} tw_sampling_t;

/** Read the prompt. The caller has set options, data and params. TW_ERR_CONFIG (logged): this data cannot
 *  encode text, or a token is not below vocab_size; TW_ERR_FORMAT (logged): not UTF-8; TW_ERR_NO_MEMORY. */
tw_status_t tw_sampling_init(tw_sampling_t *sampling, size_t vocab_size);
void tw_sampling_cleanup(tw_sampling_t *sampling);
/** Sample, and call on_sample on rank 0. Collective. Errors of tw_engine_sample. */
tw_status_t tw_sampling_run(tw_sampling_t *sampling, tw_engine_t *engine);

TW_C_END
