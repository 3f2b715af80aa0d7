/** What the communicators of one transport share: their ids, so that their tags differ; whose work is done
 *  when messages have come; and perhaps a thread that owns the transport: it makes progress there, sleeps
 *  when there is nothing to do, and runs what other threads ask of it. Made with the first of them, it ends
 *  with the last. Private to collectives. */
#pragma once

#include <sys/queue.h>

#include "collectives/identity.h"
#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_progress tw_progress_t;

/* ---- shared.c ------------------------------------------------------------------------------------------ */

/** A mover: work to do when messages have come or gone. The owner keeps it in memory. */
typedef struct tw_shared_mover {
    void (*move)(void *arg, int *moved); /**< see tw_transport_hook_t */
    /** Called when the transport has failed, on its progress thread if it has one. NULL: nothing to do */
    void (*failed)(void *arg, tw_status_t status);
    void *arg;
    int polls; /**< 1: the mover also waits for events that no message announces */
    LIST_ENTRY(tw_shared_mover) link;
} tw_shared_mover_t;

typedef struct tw_shared {
    tw_transport_t *transport;
    tw_transport_hook_t hook;
    LIST_HEAD(, tw_shared_mover) movers;
    tw_identity_ids_t ids;   /**< ids in use */
    tw_progress_t *progress; /**< the thread that owns the transport; NULL: none */
    int n_users;
} tw_shared_t;

/** Get what the transport's communicators share, made if this is the first one. TW_ERR_NO_MEMORY. */
tw_status_t tw_shared_get(tw_transport_t *transport, tw_shared_t **out);
/** Give back what tw_shared_get returned; the last one ends it. Accepts NULL. */
void tw_shared_put(tw_shared_t *shared);
/** What the transport's communicators share; NULL: the transport has no communicator. */
tw_shared_t *tw_shared_find(const tw_transport_t *transport);

/** Add a mover. No mover's `move` may call this, except the progress thread's, which runs other threads'
 *  calls. */
void tw_shared_mover_add(tw_shared_t *shared, tw_shared_mover_t *mover);
/** Remove a mover. Nothing happens to a zeroed one, which was never added. */
void tw_shared_mover_remove(tw_shared_mover_t *mover);

/* ---- progress.c ---------------------------------------------------------------------------------------- */

/** Start the transport's thread, or share it. Others must not use the transport during the first get and the
 *  last put. */
tw_status_t tw_progress_get(tw_transport_t *transport, tw_progress_t **out);
/** Accepts NULL. */
void tw_progress_put(tw_progress_t *progress);

/** Run fn(arg) on the thread, wait for it and return its result. If progress is NULL, or this is the thread,
 *  run it here. */
typedef tw_status_t (*tw_progress_fn_t)(void *arg);
tw_status_t tw_progress_call(tw_progress_t *progress, tw_progress_fn_t fn, void *arg);

/** Lock what the thread and others read and write. Does nothing if progress is NULL. */
void tw_progress_lock(tw_progress_t *progress);
void tw_progress_unlock(tw_progress_t *progress);
/** With the lock held: wake all threads that wait; wait until woken, or until timeout_sec have passed. */
void tw_progress_notify(tw_progress_t *progress);
void tw_progress_wait(tw_progress_t *progress, double timeout_sec);

TW_C_END
