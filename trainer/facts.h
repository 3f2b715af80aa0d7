/** Private to trainer: what a run trains with, as lines. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/lines.h"

TW_C_BEGIN

/** Add "data.train_tokens=..." and the like. Errors of tw_data_fingerprint_get. */
tw_status_t tw_facts_of_data(const tw_data_t *data, tw_lines_t *lines);
/** Add what a checkpoint keeps: the keys that affect what is learned, and the data. Errors of
 *  tw_data_fingerprint_get; TW_ERR_NO_MEMORY. */
tw_status_t tw_facts_of_run(const tw_train_config_t *config, const tw_data_t *data, tw_lines_t *lines);
/** Warn of facts that have changed since a checkpoint was saved; `source` names the checkpoint. */
void tw_facts_say_differences(const char *source, const char *before, const char *now);

TW_C_END
