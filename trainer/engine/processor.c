/* Measures processor time, which other load on the machine hardly changes. */
#include <math.h>
#include <time.h>

#include "trainer/engine/calls.h"

static double clock_sec(clockid_t clock)
{
    struct timespec time;
    return clock_gettime(clock, &time) == 0 ? (double)time.tv_sec + 1e-9 * (double)time.tv_nsec : 0.0;
}

tw_engine_processor_t tw_engine_processor_get(const tw_pool_t *pool)
{
    double compute = clock_sec(CLOCK_THREAD_CPUTIME_ID) + tw_pool_processor_sec(pool);
    return (tw_engine_processor_t){.compute_sec = compute,
                                   .progress_sec = clock_sec(CLOCK_PROCESS_CPUTIME_ID) - compute};
}

/** A short difference may be some ns below 0, hence fmax: the clocks are read one after the other, and the
 *  kernel adds the time of threads on other cores to the process's time only at its ticks. */
tw_engine_processor_t tw_engine_processor_since(const tw_pool_t *pool, const tw_engine_processor_t *begin)
{
    tw_engine_processor_t now = tw_engine_processor_get(pool);
    return (tw_engine_processor_t){.compute_sec = now.compute_sec - begin->compute_sec,
                                   .progress_sec = fmax(now.progress_sec - begin->progress_sec, 0.0)};
}
