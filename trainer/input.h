/** Private to trainer: input files, which a key names and every rank reads. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Open a file for reading. The caller closes it with fclose. TW_ERR_INVALID: not a regular file; a FIFO, for
 *  example, would give its bytes to one reader only. TW_ERR_NOT_FOUND and the like; logged. */
tw_status_t tw_input_open(const char *path, FILE **file);

/** Log "PATH: cannot WHAT: ..." with the text of errno. Returns the status that errno stands for. */
tw_status_t tw_input_failed(const char *path, const char *what);
/** Get the path of this process's cgroup (version 2), such as "/a/b", from PROC/self/cgroup. Returns 0, with
 *  group "", if it has none. */
int tw_input_group(const char *proc, char *group, size_t n);

TW_C_END
