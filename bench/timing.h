/** What the benches of one thread have in common: its clock, and a file of JSON lines. */
#ifndef TW_BENCH_TIMING_H
#define TW_BENCH_TIMING_H

#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

/** Seconds of this thread's processor time: other programs of a busy machine do not count. */
double bench_thread_sec(void);

/** Open `path` for lines; NULL: *json becomes NULL. TW_ERR_IO (logged). */
tw_status_t bench_json_open(const char *path, FILE **json);
/** Close it if it is open. Returns `status`, or TW_ERR_IO (logged) where lines are lost. */
tw_status_t bench_json_close(const char *path, FILE *json, tw_status_t status);

TW_C_END

#endif
