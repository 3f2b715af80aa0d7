#include "core/core.h"

#include <time.h>

uint64_t tw_time_ns(void)
{
    struct timespec now;
    /* This cannot fail: every Linux has the clock, and the pointer is ours. */
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double tw_thread_sec(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* this cannot fail either */
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
