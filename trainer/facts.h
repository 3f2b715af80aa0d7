/** Private to trainer: the settings and data of a run as lines of text. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/lines.h"

TW_C_BEGIN

/** Add lines that identify the data, such as "data.train_tokens=...". Errors of tw_data_fingerprint_get. */
tw_status_t tw_facts_of_data(const tw_data_t *data, tw_lines_t *lines);
/** Add the lines that a checkpoint stores: the keys that change the result of training, and the data. Errors
 *  of tw_data_fingerprint_get; TW_ERR_NO_MEMORY. */
tw_status_t tw_facts_of_run(const tw_train_config_t *config, const tw_data_t *data, tw_lines_t *lines);
/** Warn of lines that have changed since a checkpoint was saved. `source` is the checkpoint's name. */
void tw_facts_say_differences(const char *source, const char *before, const char *now);

TW_C_END
