/** The numbers of requests, and how requests finish. */
#include <stdlib.h>

#include "transport/p2p/state.h"

#define NO_NUMBER UINT32_MAX

static int numbers_grow(tw_p2p_numbers_t *numbers)
{
    const uint32_t n_before = numbers->n_entries, n_after = n_before ? 2 * n_before : 64;
    struct tw_p2p_number *grown = realloc(numbers->entries, n_after * sizeof(*grown));
    if (!grown) {
        return 0;
    }
    for (uint32_t i = n_before; i < n_after; i++) {
        grown[i] = (struct tw_p2p_number){.generation = 1, .next_free = i + 1 < n_after ? i + 1 : NO_NUMBER};
    }
    *numbers = (tw_p2p_numbers_t){.entries = grown, .n_entries = n_after, .first_free = n_before};
    return 1;
}

tw_status_t tw_p2p_number_take(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request)
{
    if ((!numbers->n_entries || numbers->first_free == NO_NUMBER) && !numbers_grow(numbers)) {
        return TW_ERR_NO_MEMORY;
    }
    const uint32_t index = numbers->first_free;
    struct tw_p2p_number *entry = &numbers->entries[index];
    numbers->first_free = entry->next_free;
    entry->request = request;
    request->number = (uint64_t)entry->generation << 32 | index;
    return TW_OK;
}

tw_p2p_request_t *tw_p2p_number_find(const tw_p2p_numbers_t *numbers, uint64_t number)
{
    const uint32_t index = (uint32_t)number;
    const int known = index < numbers->n_entries && numbers->entries[index].generation == number >> 32;
    return known ? numbers->entries[index].request : NULL;
}

void tw_p2p_number_release(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request)
{
    const uint32_t index = (uint32_t)request->number;
    if (!request->number) {
        return;
    }
    struct tw_p2p_number *entry = &numbers->entries[index];
    entry->request = NULL;
    /* Skip generation 0: a request's number is never 0. */
    entry->generation += entry->generation == UINT32_MAX ? 2 : 1;
    entry->next_free = numbers->first_free;
    numbers->first_free = index;
    request->number = 0;
}

void tw_p2p_request_queue(tw_p2p_request_t *request, struct tw_p2p_request_list *queue)
{
    request->queue = queue;
    TAILQ_INSERT_TAIL(queue, request, queued);
}

void tw_p2p_request_unqueue(tw_p2p_request_t *request)
{
    if (request->queue) {
        TAILQ_REMOVE(request->queue, request, queued);
    }
    request->queue = NULL;
}

tw_p2p_request_t *tw_p2p_receive_find(const tw_p2p_peer_t *peer, uint64_t tag)
{
    tw_p2p_request_t *request = TAILQ_FIRST(&peer->receives);
    while (request && request->tag != tag) {
        request = TAILQ_NEXT(request, queued);
    }
    return request;
}

void tw_p2p_request_finish(tw_p2p_t *p2p, tw_p2p_request_t *request, tw_status_t status)
{
    if (request->stage == TW_P2P_STAGE_DONE) {
        return;
    }
    tw_p2p_request_unqueue(request);
    tw_p2p_number_release(&p2p->numbers, request);
    request->peer->n_pending--;
    request->stage = TW_P2P_STAGE_DONE;
    request->status = status;
    p2p->n_events++;
}

void tw_p2p_request_settle(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    if (request->stage == TW_P2P_STAGE_MOVING && !request->n_ops && !request->lost &&
        request->moved == request->bytes) {
        tw_p2p_request_finish(p2p, request, TW_OK);
    }
}
