/** Private to trainer/checkpoint: which run a folder's steps belong to. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Return the id of the run that goes on in a folder; 0 if none was written there. Logs nothing. */
uint64_t tw_checkpoint_claimed(const char *folder);
/** Return the id of a step's run; 0 if it is unknown. Logs nothing. */
uint64_t tw_checkpoint_step_run(const char *folder, uint64_t step);

TW_C_END
