/** Private to trainer: makes sure that all ranks agree, on settings and on whether they succeeded. */
#pragma once

#include "collectives/collectives.h"
#include "trainer/lines.h"

TW_C_BEGIN

/** Check that all ranks have the same lines. Collective: it sends 8 bytes a rank, and all lines if they
 *  differ. TW_ERR_MISMATCH on all ranks: they differ, and rank 0 logs name and both values of the first few
 *  lines, for each rank that differs. TW_ERR_NO_MEMORY, also if lines are missing; errors of tw_coll_run. */
tw_status_t tw_agree_on(tw_coll_t *coll, const tw_lines_t *lines);
/** Return, on all ranks, the status of the first rank that failed, or TW_OK. Collective. */
tw_status_t tw_agree_status(tw_coll_t *coll, tw_status_t status);
/** Allocate zeroed room for `n_bytes` of every rank; the caller frees it with free(). NULL (logged): out of
 *  memory; then the communicator is aborted, as the others wait for this rank. */
void *tw_agree_alloc(tw_coll_t *coll, size_t n_bytes);
/** Gathers `n_bytes` of every rank into `all`, in rank order. */
tw_status_t tw_agree_gather(tw_coll_t *coll, const void *own, size_t n_bytes, void *all);

/** Something that every rank does for itself, and may fail at. An error that all ranks have should be logged
 *  once, and a single rank's must not be lost. Which it is shows at the end: until then ranks but 0 hold
 *  errors back. */
typedef struct tw_attempt {
    tw_coll_t *coll;
    const char *what; /**< "begin", "resume": what a rank that fails cannot do */
    tw_log_held_t held;
} tw_attempt_t;

/** `what` is borrowed. Between begin and end there must be neither a collective call nor a return. */
void tw_attempt_begin(tw_attempt_t *attempt, tw_coll_t *coll, const char *what);
/** Collective. Return this rank's status, or, if that is TW_OK, that of the first rank that failed; rank 0
 *  logs which one, unless it failed itself. */
tw_status_t tw_attempt_end(tw_attempt_t *attempt, tw_status_t status);

TW_C_END
