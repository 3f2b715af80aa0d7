/** A request's number on the wire, and how it comes to its end. */
#include <stdlib.h>

#include "transport/ucx/state.h"

/* ---- slots ------------------------------------------------------------------------------------------------- */

#define NO_SLOT UINT32_MAX

static int slots_grow(tw_ucx_slots_t *slots)
{
    const uint32_t n_before = slots->n_slots, n_after = n_before ? 2 * n_before : 64;
    struct tw_ucx_slot *grown = realloc(slots->slots, n_after * sizeof(*grown));
    if (!grown) {
        return 0;
    }
    for (uint32_t i = n_before; i < n_after; i++) {
        grown[i] = (struct tw_ucx_slot){.generation = 1, .next_free = i + 1 < n_after ? i + 1 : NO_SLOT};
    }
    *slots = (tw_ucx_slots_t){.slots = grown, .n_slots = n_after, .first_free = n_before};
    return 1;
}

tw_status_t tw_ucx_slot_take(tw_ucx_slots_t *slots, tw_ucx_request_t *request)
{
    if ((!slots->n_slots || slots->first_free == NO_SLOT) && !slots_grow(slots)) {
        return TW_ERR_NO_MEMORY;
    }
    const uint32_t index = slots->first_free;
    struct tw_ucx_slot *slot = &slots->slots[index];
    slots->first_free = slot->next_free;
    slot->request = request;
    request->slot = (uint64_t)slot->generation << 32 | index;
    return TW_OK;
}

tw_ucx_request_t *tw_ucx_slot_find(const tw_ucx_slots_t *slots, uint64_t slot)
{
    const uint32_t index = (uint32_t)slot;
    const int known = index < slots->n_slots && slots->slots[index].generation == slot >> 32;
    return known ? slots->slots[index].request : NULL;
}

void tw_ucx_slot_release(tw_ucx_slots_t *slots, tw_ucx_request_t *request)
{
    const uint32_t index = (uint32_t)request->slot;
    if (!request->slot) {
        return;
    }
    struct tw_ucx_slot *slot = &slots->slots[index];
    slot->request = NULL;
    slot->generation += slot->generation == UINT32_MAX ? 2 : 1; /* never 0: a slot's number is not 0 */
    slot->next_free = slots->first_free;
    slots->first_free = index;
    request->slot = 0;
}

/* ---- life of a request ------------------------------------------------------------------------------------- */

void tw_ucx_request_queue(tw_ucx_request_t *request, struct tw_ucx_request_list *queue)
{
    request->queue = queue;
    TAILQ_INSERT_TAIL(queue, request, queued);
}

void tw_ucx_request_unqueue(tw_ucx_request_t *request)
{
    if (request->queue) {
        TAILQ_REMOVE(request->queue, request, queued);
    }
    request->queue = NULL;
}

void tw_ucx_request_finish(tw_ucx_transport_t *ucx, tw_ucx_request_t *request, tw_status_t status)
{
    if (request->stage == TW_UCX_STAGE_DONE) {
        return;
    }
    tw_ucx_request_unqueue(request);
    tw_ucx_slot_release(&ucx->slots, request);
    request->stage = TW_UCX_STAGE_DONE;
    request->status = status;
    ucx->n_events++;
}

void tw_ucx_request_settle(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    if (request->stage == TW_UCX_STAGE_MOVING && !request->n_ops && !request->lost &&
        request->moved == request->bytes) {
        tw_ucx_request_finish(ucx, request, TW_OK);
    }
}
