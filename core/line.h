/** Lines of files in which the system says something: those of /proc and /sys. Not installed. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** The first line of a file that begins so, without its newline; "" (any line) finds the first. 0: there is
 *  none, or no such file, and the line is "". */
int tw_line_read(const char *path, const char *begins, char *line, size_t n);

TW_C_END
