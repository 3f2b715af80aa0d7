/** What the communicators of one transport share: their ids, so that their tags differ; the thread that moves
 *  them, if they have one; and who is moved when messages have come. It is made with the first of them, and
 *  ends with the last. Private to collectives. */
#ifndef TW_COLLECTIVES_SHARED_H
#define TW_COLLECTIVES_SHARED_H

#include <sys/queue.h>

#include "collectives/identity.h"
#include "transport/transport.h"

TW_C_BEGIN

/** Somebody with work to do when messages have come or gone. In its owner's memory. */
typedef struct tw_shared_mover {
    void (*move)(void *arg, int *moved); /**< as in tw_transport_hook_t */
    /** The transport has failed: called on its progress thread, if it has one. NULL: nothing to do */
    void (*failed)(void *arg, tw_status_t status);
    void *arg;
    int polls; /**< 1: it also waits for what no message announces */
    LIST_ENTRY(tw_shared_mover) link;
} tw_shared_mover_t;

typedef struct tw_shared {
    tw_transport_t *transport;
    tw_transport_hook_t hook;
    LIST_HEAD(, tw_shared_mover) movers;
    tw_identity_ids_t ids;        /**< in use */
    struct tw_progress *progress; /**< the thread that has the transport for itself; NULL: none */
    int n_users;
} tw_shared_t;

/** One more user. TW_ERR_NO_MEMORY. */
tw_status_t tw_shared_get(tw_transport_t *transport, tw_shared_t **out);
/** One user less. Accepts NULL. */
void tw_shared_put(tw_shared_t *shared);
/** NULL: nobody uses it. */
tw_shared_t *tw_shared_find(const tw_transport_t *transport);

/** Do not call from a `move`, except the progress thread's, which runs what other threads ask for. */
void tw_shared_mover_add(tw_shared_t *shared, tw_shared_mover_t *mover);
/** A zeroed mover was never added: nothing happens. */
void tw_shared_mover_remove(tw_shared_mover_t *mover);

TW_C_END

#endif
