/** Private to trainer: files that a key names and every rank reads. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Open a file for reading; the caller closes it with fclose. TW_ERR_INVALID: it is no regular file: a FIFO
 *  gives its bytes to one reader only, and may have none. TW_ERR_NOT_FOUND and the like; logged. */
tw_status_t tw_input_open(const char *path, FILE **file);

/** Log "PATH: cannot WHAT: ..." with the reason in errno; return errno's status. */
tw_status_t tw_input_failed(const char *path, const char *what);
/** Get this process's control group of version 2, "/a/b", from PROC/self/cgroup. Returns 0 if it has none;
 *  the group is "" then. */
int tw_input_group(const char *proc, char *group, size_t n);

TW_C_END
