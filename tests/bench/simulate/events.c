/* Events in a binary heap. */
#include "tests/bench/simulate/events.h"

#include <stdlib.h>

static int is_before(const sim_event_t *a, const sim_event_t *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_events_cleanup(sim_events_t *events)
{
    free(events->heap);
}

tw_status_t sim_events_push(sim_events_t *events, const sim_event_t *event)
{
    if (!tw_grow(&events->heap, &events->max, events->n + 1, sizeof(*events->heap))) {
        return TW_ERR_NO_MEMORY;
    }
    sim_event_t *heap = events->heap;
    size_t i = events->n++;
    for (; i > 0 && is_before(event, &heap[(i - 1) / 2]); i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
    }
    heap[i] = *event;
    return TW_OK;
}

sim_event_t sim_events_pop(sim_events_t *events)
{
    sim_event_t *heap = events->heap;
    const sim_event_t first = heap[0], last = heap[--events->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= events->n) {
            break;
        }
        child += child + 1 < events->n && is_before(&heap[child + 1], &heap[child]);
        if (!is_before(&heap[child], &last)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}
