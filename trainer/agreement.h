/** Private to trainer: checks that all ranks have the same settings, and whether all of them succeeded. */
#pragma once

#include "collectives/collectives.h"
#include "trainer/lines.h"

TW_C_BEGIN

/** Check that all ranks have the same lines. Collective: sends 24 bytes a rank, and all lines if they differ.
 *  TW_ERR_MISMATCH on all ranks: rank 0 logs each rank's first few differing lines, with both values.
 *  TW_ERR_NO_MEMORY: memory ran out here, or when lines were added. Errors of tw_coll_run. */
tw_status_t tw_agree_on(tw_coll_t *coll, const tw_lines_t *lines);
/** Return, on all ranks, the status of the first rank that failed, or TW_OK. Collective. */
tw_status_t tw_agree_status(tw_coll_t *coll, tw_status_t status);
/** Allocate world * n_bytes zeroed bytes. The caller frees them with free(). If memory runs out, logs that,
 *  aborts the communicator, since other ranks wait for this one, and returns NULL. */
void *tw_agree_alloc(tw_coll_t *coll, size_t n_bytes);
/** Gather `n_bytes` bytes of every rank's `own` into `all` on all ranks, in rank order. Collective. */
tw_status_t tw_agree_gather(tw_coll_t *coll, const void *own, size_t n_bytes, void *all);

/** An action that each rank does alone, and that may fail. An error that all ranks have should be logged
 *  once, but an error of a single rank must be logged, too. So all ranks hold their errors back until the
 *  end. Then rank 0 logs its own, and another rank logs its own only if they differ from rank 0's. */
typedef struct tw_attempt {
    tw_coll_t *coll;
    const char *what; /**< the action as a verb for messages, such as "begin" or "resume" */
    tw_log_held_t held;
} tw_attempt_t;

/** Start to hold errors back; `what` is borrowed. Until tw_attempt_end there must be no collective call. */
void tw_attempt_begin(tw_attempt_t *attempt, tw_coll_t *coll, const char *what);
/** Collective. Return this rank's status. If that is TW_OK, return the status of the first rank that failed;
 *  rank 0 logs which rank that is, unless rank 0 itself failed. */
tw_status_t tw_attempt_end(tw_attempt_t *attempt, tw_status_t status);

TW_C_END
