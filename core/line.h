/** Reads lines of files of /proc and /sys. Not installed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Read the first of a file's lines that begin with `begins` ("": any line), without its newline. Returns 1;
 *  or 0, and an empty line, if there is no such line or no file. */
int tw_line_read(const char *path, const char *begins, char *line, size_t n);

TW_C_END
