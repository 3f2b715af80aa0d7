#include "collectives/shared.h"

#include <stdlib.h>

static void move_all(void *arg, int *moved)
{
    const tw_shared_t *shared = arg;
    tw_shared_mover_t *mover;
    LIST_FOREACH(mover, &shared->movers, link)
    {
        mover->move(mover->arg, moved);
    }
}

static int any_polls(void *arg)
{
    const tw_shared_t *shared = arg;
    const tw_shared_mover_t *mover;
    int polls = 0;
    LIST_FOREACH(mover, &shared->movers, link)
    {
        polls |= mover->polls;
    }
    return polls;
}

tw_shared_t *tw_shared_find(const tw_transport_t *transport)
{
    const tw_transport_hook_t *hook = tw_transport_hook_get(transport);
    return hook && hook->move == move_all ? hook->arg : NULL;
}

tw_status_t tw_shared_get(tw_transport_t *transport, tw_shared_t **out)
{
    tw_shared_t *shared = tw_shared_find(transport);
    if (!shared) {
        shared = calloc(1, sizeof(*shared));
        if (!shared) {
            return TW_ERR_NO_MEMORY;
        }
        shared->transport = transport;
        shared->hook = (tw_transport_hook_t){.move = move_all, .polls = any_polls, .arg = shared};
        tw_transport_hook_set(transport, &shared->hook);
    }
    shared->n_users++;
    *out = shared;
    return TW_OK;
}

void tw_shared_put(tw_shared_t *shared)
{
    if (!shared || --shared->n_users > 0) {
        return;
    }
    tw_transport_hook_set(shared->transport, NULL);
    free(shared);
}

void tw_shared_mover_add(tw_shared_t *shared, tw_shared_mover_t *mover)
{
    LIST_INSERT_HEAD(&shared->movers, mover, link);
}

void tw_shared_mover_remove(tw_shared_mover_t *mover)
{
    if (mover->move) {
        LIST_REMOVE(mover, link);
    }
}
