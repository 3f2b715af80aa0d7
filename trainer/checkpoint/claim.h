/** Private to trainer/checkpoint: whose steps a folder of checkpoints holds. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The id of the run that goes on in a folder; 0: none was left there. Silent. */
uint64_t tw_checkpoint_claimed(const char *folder);
/** The id of a step's run; 0: not said. Silent. */
uint64_t tw_checkpoint_step_run(const char *folder, uint64_t step);

TW_C_END
