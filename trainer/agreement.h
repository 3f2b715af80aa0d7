/** Private to trainer: what all ranks must have alike before it decides what they do together. */
#pragma once

#include "collectives/collectives.h"
#include "trainer/lines.h"

TW_C_BEGIN

/** Have all ranks the same lines? Collective: 8 bytes a rank, and all lines where they differ.
 *  TW_ERR_MISMATCH on all ranks: rank 0 logs, of each rank that differs, name and both values of the first
 *  few lines. TW_ERR_NO_MEMORY, also where the lines are not whole; errors of tw_coll_run. */
tw_status_t tw_agree_on(tw_coll_t *coll, const tw_lines_t *lines);
/** Makes a failure of one rank everybody's: returns the status of the first rank that failed. */
tw_status_t tw_agree_status(tw_coll_t *coll, tw_status_t status);
/** Room for `n_bytes` of every rank, zeroed; free() it. NULL (logged): out of memory; the job is given up, as
 *  the others wait for what this rank would say. */
void *tw_agree_alloc(tw_coll_t *coll, size_t n_bytes);
/** Gathers `n_bytes` of every rank into `all`, in rank order. */
tw_status_t tw_agree_gather(tw_coll_t *coll, const void *own, size_t n_bytes, void *all);

/** What every rank does for itself. An error that all ranks have is to be read once, and one that a single
 *  rank has must not be lost. Which it is shows once all have met: until then all but rank 0 keep their
 *  errors back. */
typedef struct tw_attempt {
    tw_coll_t *coll;
    const char *what; /**< "begin", "resume": what a rank cannot do where it fails */
    tw_log_held_t held;
} tw_attempt_t;

/** `what` stays the caller's. Between the two: no collective, and no return. */
void tw_attempt_begin(tw_attempt_t *attempt, tw_coll_t *coll, const char *what);
/** Collective. Returns the own status, or where that is TW_OK, that of the first rank that failed: rank 0
 *  logs which one, if it did not fail itself. */
tw_status_t tw_attempt_end(tw_attempt_t *attempt, tw_status_t status);

TW_C_END
