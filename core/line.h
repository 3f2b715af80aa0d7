/** Reads lines of files of /proc and /sys. Not installed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Read the first line of a file that begins with `begins` ("": the first line), without its newline. If
 *  there is none, or no file, returns 0 and an empty line. */
int tw_line_read(const char *path, const char *begins, char *line, size_t n);

TW_C_END
