/** Private to trainer/data: the default text, for runs whose configuration names no data. */
#pragma once

#include "trainer/data/file.h"

TW_C_BEGIN

/** Write the path of the King James Bible, 4.4 MB, to `path` [TW_DATA_PATH_BYTES]. Makes the file in `folder`
 *  if it does not exist. TW_ERR_NOT_FOUND, logged: Debian's package bible-kjv is not installed. */
tw_status_t tw_data_kjv(const char *folder, char *path);

TW_C_END
