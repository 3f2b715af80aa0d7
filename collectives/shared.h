/** The state that all communicators of one transport share: their ids, which make their tags different; the
 *  movers, which work when messages have come; and perhaps a progress thread. The thread owns the transport:
 *  it makes progress, sleeps when there is nothing to do, and runs calls of other threads. The state is made
 *  with the first communicator and freed with the last one. Private to collectives. */
#pragma once

#include <sys/queue.h>

#include "collectives/identity.h"
#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_progress tw_progress_t;

/* ---- shared.c ------------------------------------------------------------------------------------------ */

/** A mover: a function to call when messages have come or gone. Its owner provides the memory. */
typedef struct tw_shared_mover {
    void (*move)(void *arg, int *moved); /**< see tw_transport_hook_t */
    /** Called when the transport has failed, on its progress thread if there is one. NULL: nothing to do. */
    void (*failed)(void *arg, tw_status_t status);
    void *arg;
    int polls; /**< 1: the mover also waits for events that come without a message, so somebody must poll */
    LIST_ENTRY(tw_shared_mover) link;
} tw_shared_mover_t;

typedef struct tw_shared {
    tw_transport_t *transport;
    tw_transport_hook_t hook;
    LIST_HEAD(, tw_shared_mover) movers;
    tw_identity_ids_t ids;   /**< ids in use */
    tw_progress_t *progress; /**< NULL: the transport has no progress thread */
    int n_users;
} tw_shared_t;

/** Get the shared state of a transport, which the first call makes. TW_ERR_NO_MEMORY. */
tw_status_t tw_shared_get(tw_transport_t *transport, tw_shared_t **out);
/** Give back the shared state. The last user's call frees it. Accepts NULL. */
void tw_shared_put(tw_shared_t *shared);
/** Returns the shared state of a transport; NULL: no communicator uses the transport. */
tw_shared_t *tw_shared_find(const tw_transport_t *transport);

/** Add a mover. Not allowed in a mover's `move`, except in that of the progress thread (run_commands). */
void tw_shared_mover_add(tw_shared_t *shared, tw_shared_mover_t *mover);
/** Remove a mover. Does nothing if the mover is zeroed, because it was never added then. */
void tw_shared_mover_remove(tw_shared_mover_t *mover);

/* ---- progress.c ---------------------------------------------------------------------------------------- */

/** Start the transport's progress thread, or share the running one. No other thread may use the transport
 *  during the first get and the last put. */
tw_status_t tw_progress_get(tw_transport_t *transport, tw_progress_t **out);
/** The last put stops the thread. Accepts NULL. */
void tw_progress_put(tw_progress_t *progress);

/** Run fn(arg) on the progress thread, wait for it, and return its result. Runs it here if progress is NULL
 *  or this is the progress thread. */
typedef tw_status_t (*tw_progress_fn_t)(void *arg);
tw_status_t tw_progress_call(tw_progress_t *progress, tw_progress_fn_t fn, void *arg);

/** Lock the state that the progress thread shares with others. Does nothing if progress is NULL. */
void tw_progress_lock(tw_progress_t *progress);
void tw_progress_unlock(tw_progress_t *progress);
/** With the lock held: wake all waiting threads; wait until woken or until timeout_sec have passed. */
void tw_progress_notify(tw_progress_t *progress);
void tw_progress_wait(tw_progress_t *progress, double timeout_sec);

TW_C_END
