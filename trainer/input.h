/** Private to trainer: files that a key names and every rank reads. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Open a file to be read; fclose(*file). TW_ERR_INVALID: not a regular file: a FIFO has its bytes for one
 *  reader only, and may have none. TW_ERR_NOT_FOUND and the like; logged. */
tw_status_t tw_input_open(const char *path, FILE **file);

/** "PATH: cannot WHAT: ...", logged, from errno, whose status is returned. */
tw_status_t tw_input_failed(const char *path, const char *what);
/** This process's control group of version 2, "/a/b", as PROC/self/cgroup names it. Returns 0: it has none,
 *  and the group is "". */
int tw_input_group(const char *proc, char *group, size_t n);

TW_C_END
