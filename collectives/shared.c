#include "collectives/shared.h"

#include <stdlib.h>

static void move_all(void *arg, int *moved)
{
    const tw_shared_t *shared = arg;
    for (tw_shared_mover_t *mover = shared->movers; mover; mover = mover->next) {
        mover->move(mover->arg, moved);
    }
}

static int any_polls(void *arg)
{
    const tw_shared_t *shared = arg;
    const tw_shared_mover_t *mover = shared->movers;
    while (mover && !mover->polls) {
        mover = mover->next;
    }
    return mover != NULL;
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
    mover->next = shared->movers;
    shared->movers = mover;
}

void tw_shared_mover_remove(tw_shared_t *shared, tw_shared_mover_t *mover)
{
    tw_shared_mover_t **link = &shared->movers;
    while (*link && *link != mover) {
        link = &(*link)->next;
    }
    if (*link) {
        *link = mover->next;
    }
}
