/** Private to trainer/data: the text that is used if none is given. */
#pragma once

#include "trainer/data/file.h"

TW_C_BEGIN

/** Write the path of the King James text, 4.4 MB, to `path` [TW_DATA_PATH_BYTES]; the first time, make the
 *  file in `folder`. TW_ERR_NOT_FOUND: Debian's package bible-kjv is not installed; logged. */
tw_status_t tw_data_kjv(const char *folder, char *path);

TW_C_END
