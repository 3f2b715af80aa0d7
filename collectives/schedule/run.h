/** Running a schedule. */
#ifndef TW_COLLECTIVES_SCHEDULE_RUN_H
#define TW_COLLECTIVES_SCHEDULE_RUN_H

#include "collectives/schedule/schedule.h"

TW_C_BEGIN

/** No more tasks. Returns the error that stuck, if any. */
tw_status_t tw_sched_seal(tw_sched_t *sched);
/** Look at the messages in flight and start what can start; does not progress the transport. TW_OK: all done;
 *  TW_IN_PROGRESS; or an error: what is in flight is canceled. *moved: set to 1 if anything started or
 *  ended. */
tw_status_t tw_sched_step(tw_sched_t *sched, int *moved);
/** Run one computation, if one is ready: *moved is set to 1. */
tw_status_t tw_sched_compute_one(tw_sched_t *sched, int *moved);
/** What the schedule waits for, for a log line; returns buf. */
const char *tw_sched_describe(const tw_sched_t *sched, char *buf, size_t buf_bytes);
/** Cancels what is in flight. Accepts NULL. */
void tw_sched_destroy(tw_sched_t *sched);

/** For computations: address of a span's memory. For a view: of its first element, and how many elements are
 *  contiguous from there (NULL: not asked); for a buffer: all of it is contiguous, counted in bytes. Valid
 *  while a task that uses it runs; NULL when out of memory. */
char *tw_sched_at(tw_sched_t *sched, tw_span_t span, size_t *contiguous);

TW_C_END

#endif
