/** A thread that owns a transport: it moves everything there, sleeps when there is nothing to do, and runs
 *  what other threads ask of it. All communicators of the transport that want one share it. Private to
 *  collectives. */
#ifndef TW_COLLECTIVES_PROGRESS_H
#define TW_COLLECTIVES_PROGRESS_H

#include "collectives/shared.h"

TW_C_BEGIN

typedef struct tw_progress tw_progress_t;

/** Start the transport's thread, or share it. The first get and the last put are not made while others use
 *  the transport. */
tw_status_t tw_progress_get(tw_transport_t *transport, tw_progress_t **out);
/** Accepts NULL. */
void tw_progress_put(tw_progress_t *progress);

/** Run fn(arg) on the thread, wait for it and return its result. progress NULL, or this is the thread: run it
 *  here. */
typedef tw_status_t (*tw_progress_fn_t)(void *arg);
tw_status_t tw_progress_call(tw_progress_t *progress, tw_progress_fn_t fn, void *arg);

/** Guards what the thread and others look at. progress NULL: nothing is done. */
void tw_progress_lock(tw_progress_t *progress);
void tw_progress_unlock(tw_progress_t *progress);
/** Locked: wake all who wait; wait for that, or so long. */
void tw_progress_notify(tw_progress_t *progress);
void tw_progress_wait(tw_progress_t *progress, double timeout_sec);

TW_C_END

#endif
