/** The clock of benches of one thread. */
#ifndef TW_BENCH_TIMING_H
#define TW_BENCH_TIMING_H

#include "core/core.h"

TW_C_BEGIN

/** Seconds of this thread's processor time: other programs of a busy machine do not count. */
double bench_thread_sec(void);

TW_C_END

#endif
