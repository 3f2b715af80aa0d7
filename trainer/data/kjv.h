/** Private to trainer/data: the text that is there when none is given. */
#pragma once

#include "trainer/data/file.h"

TW_C_BEGIN

/** The path of the King James text, 4.4 MB, into `path` [TW_DATA_PATH_BYTES]; made in `folder` the first
 *  time. TW_ERR_NOT_FOUND: Debian's package bible-kjv is not installed; logged. */
tw_status_t tw_data_kjv(const char *folder, char *path);

TW_C_END
