/** Private to tests/bench/simulate: events in the order of their time. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct sim_event {
    double at;
    uint64_t order; /**< of events at the same time, the smallest order comes first */
    double end;     /**< when the whole packet has passed the ports so far */
    uint32_t what;  /**< chunk of an operation, by its number */
    uint8_t kind;   /**< kind_t of net.c */
    uint8_t is_last;
} sim_event_t;

/** A heap of events. A zeroed one is empty. */
typedef struct sim_events {
    sim_event_t *heap;
    size_t n, max;
} sim_events_t;

void sim_events_cleanup(sim_events_t *events);
/** TW_ERR_NO_MEMORY (not logged). */
tw_status_t sim_events_push(sim_events_t *events, const sim_event_t *event);
/** Take the first event; there must be one. */
sim_event_t sim_events_pop(sim_events_t *events);

TW_C_END
