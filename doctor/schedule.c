/* Plans which flows run in which slot: every pair of nodes, several streams between neighbours, all nodes at
 * once. All ranks make the same plan, but each stores only the flows of its own node: a few hundred with a
 * thousand nodes. */
#include <stdlib.h>

#include "doctor/state.h"

#define SLOT_MIN_SEC 0.3
#define SLOT_MAX_SEC 3.0
/* The time limit is later than the planned end by at least this many seconds. */
#define LATE_MIN_SEC 30.0

static void doctor_add(tw_doctor_schedule_t *s, const tw_doctor_flow_t *flow)
{
    if (flow->from != s->node && flow->to != s->node) {
        return;
    }
    if (!tw_grow(&s->flows, &s->room, (size_t)s->n + 1, sizeof(*s->flows))) {
        s->failed = 1;
        return;
    }
    s->flows[s->n++] = *flow;
}

/** Add a slot of flows that run at the same time: from each node of the group to the node `distance` further.
 *  If group_of is NULL, from all nodes. */
static void add_shift(tw_doctor_schedule_t *s, int n_nodes, int distance, tw_doctor_flow_t flow,
                      int (*group_of)(int node, int n_nodes), int group)
{
    const int senders[] = {s->node, (s->node - distance + n_nodes) % n_nodes};
    for (int i = 0; i < 2 && s->node >= 0; i++) {
        if (!group_of || group_of(senders[i], n_nodes) == group) {
            flow.from = senders[i];
            flow.to = (flow.from + distance) % n_nodes;
            flow.slot = s->n_slots;
            doctor_add(s, &flow);
        }
    }
    s->n_slots++;
}

/** Add a flow from every node to the node `distance` further. If `alone`, each flow gets a slot of its own,
 *  otherwise all are in one slot. */
static void add_pairs(tw_doctor_schedule_t *s, int n_nodes, int device, int distance, int alone)
{
    tw_doctor_flow_t flow = {.kind = TW_DOCTOR_PAIR, .device = device, .n_streams = 1};
    if (!alone) {
        add_shift(s, n_nodes, distance, flow, NULL, 0);
        return;
    }
    for (int from = 0; from < n_nodes; from++) {
        flow.from = from;
        flow.to = (from + distance) % n_nodes;
        flow.slot = s->n_slots++;
        doctor_add(s, &flow);
    }
}

/** The group of the flow from a node to its neighbour: even nodes, odd nodes, and the last node if their
 *  number is odd. So no node is in two flows of one group. */
static int group_of_neighbour(int node, int n_nodes)
{
    return n_nodes % 2 == 1 && node == n_nodes - 1 ? 2 : node % 2;
}

static void add_neighbours(tw_doctor_schedule_t *s, int n_nodes, int device, int n_streams)
{
    const tw_doctor_flow_t flow = {.kind = TW_DOCTOR_STREAMS, .device = device, .n_streams = n_streams};
    for (int group = 0; group < 2 + n_nodes % 2; group++) {
        add_shift(s, n_nodes, 1, flow, group_of_neighbour, group);
    }
}

/** Plan first the flows by which nodes are judged, which go to the next node; then pairs of nodes further
 *  apart. If the time is too short for all distances, plan as many as fit. */
tw_status_t tw_doctor_schedule_init(const tw_doctor_plan_t *plan, int n_nodes, int n_devices, int node,
                                    tw_doctor_schedule_t *s)
{
    const int64_t most = (int64_t)(plan->seconds / SLOT_MIN_SEC) / n_devices;
    const int alone = (int64_t)n_nodes * (n_nodes - 1) <= most || n_nodes < 4;
    const int n_rounds = alone || most >= n_nodes - 1 ? n_nodes - 1 : most < 1 ? 1 : (int)most;
    *s = (tw_doctor_schedule_t){.node = node};
    for (int device = 0; device < n_devices; device++) {
        const tw_doctor_flow_t all = {.kind = TW_DOCTOR_ALL, .device = device, .n_streams = plan->n_streams};
        add_pairs(s, n_nodes, device, 1, alone);
        add_neighbours(s, n_nodes, device, plan->n_streams);
        add_shift(s, n_nodes, 1, all, NULL, 0);
    }
    s->n_first = s->n_slots;
    for (int round = 1; round < n_rounds; round++) {
        for (int device = 0; device < n_devices; device++) {
            add_pairs(s, n_nodes, device, 1 + (int)((int64_t)round * (n_nodes - 1) / n_rounds), alone);
        }
    }
    /* one flow of a pair in each round, one to a neighbour, and one while all send */
    s->n_sent_most = n_devices * (n_rounds + 2);
    return s->failed ? TW_ERR_NO_MEMORY : TW_OK;
}

void tw_doctor_schedule_cleanup(tw_doctor_schedule_t *s)
{
    free(s->flows);
    *s = (tw_doctor_schedule_t){0};
}

double tw_doctor_slot_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *s)
{
    const double seconds = plan->seconds / s->n_slots;
    return seconds < SLOT_MIN_SEC ? SLOT_MIN_SEC : seconds > SLOT_MAX_SEC ? SLOT_MAX_SEC : seconds;
}

double tw_doctor_limit_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *s)
{
    const double seconds = tw_doctor_slot_seconds(plan, s) * s->n_slots;
    return seconds + (seconds > LATE_MIN_SEC ? seconds : LATE_MIN_SEC);
}
