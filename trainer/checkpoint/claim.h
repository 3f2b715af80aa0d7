/** Private to trainer/checkpoint: the run to which a folder's steps belong. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Return the id of the run that was started or resumed last in a folder; 0 if none. Logs nothing. */
uint64_t tw_checkpoint_claimed(const char *folder);
/** Return the id of the run that wrote a step; 0 if it is unknown. Logs nothing. */
uint64_t tw_checkpoint_step_run(const char *folder, uint64_t step);

TW_C_END
