/** Reads lines of files of /proc and /sys. Not installed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Read the first line of a file that begins with `begins` ("": any line), without its newline. Returns 0,
 *  and "" as the line, if there is no such line or file. */
int tw_line_read(const char *path, const char *begins, char *line, size_t n);

TW_C_END
