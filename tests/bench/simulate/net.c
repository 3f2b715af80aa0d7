/* Ports, processors, and messages on their way, on a virtual clock. Nothing is booked ahead: whoever is there
 * when a port or processor becomes free takes it. */
#include <math.h>
#include <stdlib.h>

#include "tests/bench/simulate/events.h"
#include "tests/bench/simulate/graph.h"

/* Most chunks of operations that are kept in memory, at about 6 bytes each. */
#define MOST_STATES ((size_t)64 << 20)
/* Most packets of a message: longer messages have longer packets. */
#define MOST_PACKETS 8
#define NONE UINT32_MAX
/* Events between two reports of progress: they take some hundredths of a second. */
#define EVENTS_WATCHED ((size_t)1 << 17)
/* waits[] of a message that waits only for those before it; and of one that may leave. */
#define IS_READY UINT16_MAX
#define MAY_LEAVE (UINT16_MAX - 1)

/* Kinds of events. Of those at the same time, the first kind here comes first. */
typedef enum kind {
    PASSED,  /* a packet is through the receiver's port */
    SAID,    /* its acknowledgement has left the receiver's port, behind what was in it */
    HEARD,   /* the acknowledgement has come through the sender's port, likewise */
    ARRIVED, /* a message has arrived */
    DONE,    /* a processor is done with a chunk of an operation */
    AT_DOWN, /* a packet comes to the other switch's downlink */
    AT_IN,   /* a packet comes to the receiver's port */
    READY,   /* a chunk of an operation has all that it waits for */
    LEAVING, /* a message has been announced, and may leave */
    AT_OUT   /* a packet leaves its sender's port */
} kind_t;

/* State of a connection from one rank to another. It sends in the order of the sender's program, so, as in
 * the library, a message that is ready waits for those before it. */
typedef struct lane {
    uint32_t first;     /* first message that has not left entirely */
    uint32_t next;      /* first message that has not been announced */
    uint16_t packets;   /* packets of `first` that have not left */
    uint16_t under_way; /* packets sent and not acknowledged */
    uint16_t waits;     /* 1: a packet waits in the port */
} lane_t;

/* A run of an operation. Its chunk c of operation i is number i * n_chunks + c. */
typedef struct run {
    const sim_cluster_t *cluster;
    const sim_graph_t *graph;
    /* [n_nodes + world] time from which each port is free: nodes' links, then ranks inside nodes */
    double *out, *in;
    double *up, *down; /* [n_nodes] the same of switches' links; there are no more switches than nodes */
    double *cpu;       /* [world] the same of ranks' processors */
    sim_events_t events;
    uint64_t random;
    tw_status_t status; /* TW_ERR_NO_MEMORY, once it has happened */
    size_t n_chunks;
    double chunk_bytes; /* plain bytes of a shard's chunk */
    /* [n_ops * n_chunks] how many others it waits for; of messages then IS_READY, MAY_LEAVE */
    uint16_t *waits;
    uint32_t *behind;   /* [n_ops * n_chunks] next message of the lane */
    lane_t *lanes;      /* [graph->n_lanes] */
    double *node_bytes; /* [2 * n_nodes] out, then in; behind it is the memory of all arrays of doubles */
    double *sent;       /* [world] messages sent */
    size_t n_complete;  /* chunks of operations that are done */
    size_t n_all;       /* chunks of operations in all */
    double now;
    sim_result_t *result;
} run_t;

/* ---- events -------------------------------------------------------------------------------------------- */

static const sim_op_t *op_of(const run_t *run, uint32_t what)
{
    return &run->graph->ops[what / run->n_chunks];
}

/** Return what orders events of one time: first the round, then the owner's turn in the rank's program, then
 *  the place in the flow. */
static uint64_t order_of(const run_t *run, uint32_t what)
{
    const sim_op_t *op = op_of(run, what);
    uint64_t round = sim_round(run->graph, op, what % run->n_chunks, run->n_chunks);
    return (round << 32) | ((uint64_t)op->turn << 16) | op->index;
}

static void sim_push(run_t *run, sim_event_t event)
{
    event.order |= (uint64_t)event.kind << 60;
    if (run->status == TW_OK) {
        run->status = sim_events_push(&run->events, &event);
    }
}

static void push_at(run_t *run, kind_t kind, uint32_t what, double at)
{
    sim_push(run, (sim_event_t){.at = at, .order = order_of(run, what), .what = what, .kind = (uint8_t)kind});
}

/* ---- ports and processors ------------------------------------------------------------------------------ */

/** Occupy, for `sec`, something that is free from *free_sec on, as soon as possible; return the end. */
static double sim_take(const run_t *run, double *free_sec, double sec)
{
    *free_sec = fmax(*free_sec, run->now) + sec;
    return *free_sec;
}

static double jitter(run_t *run)
{
    double mean = run->cluster->jitter_sec;
    if (mean <= 0.0) {
        return 0.0;
    }
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    return sim_ticks(-mean * log((double)((run->random >> 11) + 1) * 0x1p-53));
}

/** Return when a rank posts the operation. */
static double post_sec(const run_t *run, int rank)
{
    return run->cluster->post_sec ? run->cluster->post_sec[rank] : 0.0;
}

/** Let a rank's processor work for `sec`; return when it is done. */
static double work_for(run_t *run, int rank, double sec)
{
    const sim_cluster_t *c = run->cluster;
    double factor = rank == c->straggler ? c->straggler_factor : 1.0;
    return sec > 0.0 ? sim_take(run, &run->cpu[rank], sim_ticks(sec * factor)) : run->now;
}

static int node_of(const run_t *run, int rank)
{
    return rank / run->cluster->ranks_per_node;
}

/** Return the port of a rank to or from another one: its node's, or, inside the node, its own. */
static uint32_t port_of(const run_t *run, int rank, int other)
{
    int node = node_of(run, rank);
    return (uint32_t)(node != node_of(run, other) ? node : run->cluster->n_nodes + rank);
}

static double port_sec(const run_t *run, uint32_t port, double bytes)
{
    const sim_cluster_t *c = run->cluster;
    if (port >= (uint32_t)c->n_nodes) {
        return sim_ticks(bytes / c->in_node_Bps);
    }
    return sim_ticks(bytes * ((int)port == c->slow_node ? c->slow_factor : 1.0) / c->link_Bps);
}

static int switch_of(const run_t *run, int rank)
{
    int nodes = run->cluster->nodes_per_switch;
    return nodes > 0 ? node_of(run, rank) / nodes : 0;
}

/* ---- packets ------------------------------------------------------------------------------------------- */

static double message_bytes(const run_t *run, const sim_op_t *op)
{
    return op->times * run->chunk_bytes * run->cluster->ratio[op->form];
}

static uint16_t count_packets(const run_t *run, const sim_op_t *op)
{
    double packet = run->cluster->packet_bytes;
    double n = packet > 0.0 ? ceil(message_bytes(run, op) / packet) : 1.0;
    return (uint16_t)fmin(fmax(n, 1.0), MOST_PACKETS);
}

static double packet_bytes(const run_t *run, const sim_op_t *op)
{
    return message_bytes(run, op) / count_packets(run, op);
}

/** Count the lane's first message, which has left entirely, and go on to the next one. */
static void next_message(run_t *run, lane_t *lane)
{
    const sim_op_t *op = op_of(run, lane->first);
    int node = node_of(run, op->from), to = node_of(run, op->at);
    double crosses = node != to ? message_bytes(run, op) : 0.0;
    run->node_bytes[node] += crosses;
    run->node_bytes[run->cluster->n_nodes + to] += crosses;
    run->sent[op->from] += 1.0;
    lane->first = run->behind[lane->first];
    lane->packets = lane->first != NONE ? count_packets(run, op_of(run, lane->first)) : 0;
}

/** Move a packet from a port, which it leaves at `end`, to the next. It moves on before all of it is through:
 *  both ports may be busy with it at once. */
static void go_on(run_t *run, const sim_event_t *packet, kind_t where, double end, double sec)
{
    sim_event_t next = *packet;
    next.kind = (uint8_t)where;
    next.order = order_of(run, packet->what);
    next.end = fmax(packet->end, end);
    next.at = where == PASSED ? next.end : end - sec;
    sim_push(run, next);
}

/** Take a packet through a switch's uplink or downlink, whose rate is that of its nodes' links over the
 *  oversubscription. */
static void pass_switch(run_t *run, const sim_event_t *packet, int is_up)
{
    const sim_cluster_t *c = run->cluster;
    const sim_op_t *op = op_of(run, packet->what);
    double sec = sim_ticks(packet_bytes(run, op) * c->oversubscription / (c->link_Bps * c->nodes_per_switch));
    double *way = is_up ? &run->up[switch_of(run, op->from)] : &run->down[switch_of(run, op->at)];
    go_on(run, packet, is_up ? AT_DOWN : AT_IN, sim_take(run, way, sec), sec);
}

static void pass_in(run_t *run, const sim_event_t *packet)
{
    const sim_op_t *op = op_of(run, packet->what);
    uint32_t at = port_of(run, op->at, op->from);
    double sec = port_sec(run, at, packet_bytes(run, op));
    go_on(run, packet, PASSED, sim_take(run, &run->in[at], sec), sec);
}

/** Queue the connection's next packet in its sender's port. */
static void send_packet(run_t *run, lane_t *lane)
{
    uint32_t what = lane->first;
    const sim_op_t *op = op_of(run, what);
    uint32_t at = port_of(run, op->from, op->at);
    double sec = port_sec(run, at, packet_bytes(run, op));
    double end = sim_take(run, &run->out[at], sec);
    sim_event_t packet = {.what = what, .is_last = --lane->packets == 0};
    lane->under_way++;
    lane->waits = 1;
    if (packet.is_last) {
        next_message(run, lane);
        run->result->done[op->from] = fmax(run->result->done[op->from], end);
    }
    go_on(run, &packet, AT_OUT, end, sec);
}

/** Send the next packet, if the one before is leaving already: so connections take turns. */
static void send_next(run_t *run, lane_t *lane)
{
    if (lane->first != NONE && run->waits[lane->first] == MAY_LEAVE && lane->under_way < SIM_WINDOW_PACKETS &&
        !lane->waits) {
        send_packet(run, lane);
    }
}

/** Let a packet leave its sender's port. */
static void leave_port(run_t *run, const sim_event_t *packet)
{
    const sim_op_t *op = op_of(run, packet->what);
    lane_t *lane = &run->lanes[op->lane];
    lane->waits = 0;
    send_next(run, lane);
    if (switch_of(run, op->from) != switch_of(run, op->at)) {
        pass_switch(run, packet, 1);
    } else {
        pass_in(run, packet);
    }
}

static void sim_leave(run_t *run, uint32_t what)
{
    run->waits[what] = MAY_LEAVE;
    send_next(run, &run->lanes[op_of(run, what)->lane]);
}

static void sim_hear(run_t *run, uint32_t what)
{
    lane_t *lane = &run->lanes[op_of(run, what)->lane];
    lane->under_way--;
    send_next(run, lane);
}

/** Send a packet's acknowledgement on: it takes no room, but waits in the queues of both ports on its way. */
static void say(run_t *run, uint32_t what, kind_t next)
{
    const sim_op_t *op = op_of(run, what);
    double at =
        next == SAID ? run->out[port_of(run, op->at, op->from)] : run->in[port_of(run, op->from, op->at)];
    int crosses = node_of(run, op->from) != node_of(run, op->at);
    if (crosses && at > run->now) {
        push_at(run, next, what, at);
    } else if (crosses && next == SAID) {
        say(run, what, HEARD);
    } else {
        sim_hear(run, what);
    }
}

static void end_packet(run_t *run, const sim_event_t *packet)
{
    const sim_cluster_t *c = run->cluster;
    const sim_op_t *op = op_of(run, packet->what);
    int crosses = node_of(run, op->from) != node_of(run, op->at);
    if (packet->is_last) {
        double latency = sim_ticks(crosses ? c->latency_sec : c->in_node_latency_sec);
        double there = run->now + latency + jitter(run);
        push_at(run, ARRIVED, packet->what, fmax(there, post_sec(run, op->at)));
    }
    say(run, packet->what, SAID);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/** Mark a chunk of an operation as done; those that waited for it may be ready. */
static void sim_complete(run_t *run, uint32_t what)
{
    const sim_graph_t *g = run->graph;
    size_t op = what / run->n_chunks, chunk = what % run->n_chunks;
    double *done = &run->result->done[g->ops[op].at];
    *done = fmax(*done, run->now);
    run->n_complete++;
    for (size_t i = g->first_after[op]; i < g->first_after[op + 1]; i++) {
        uint32_t next = (uint32_t)(g->after[i] * run->n_chunks + chunk);
        if (--run->waits[next] == 0) {
            push_at(run, READY, next, run->now);
        }
    }
}

/** Mark it as done at a given time, when the processor is through with it. */
static void complete_at(run_t *run, uint32_t what, double at)
{
    if (at > run->now) {
        push_at(run, DONE, what, at);
    } else {
        sim_complete(run, what);
    }
}

static double work_sec(const run_t *run, const sim_op_t *op)
{
    const sim_cluster_t *c = run->cluster;
    double byte_sec = op->work == SIM_ADD      ? c->add_sec
                      : op->work == SIM_ENCODE ? c->encode_sec[op->form]
                                               : c->decode_sec[op->form];
    return op->times * run->chunk_bytes * byte_sec;
}

/** Announce a message: a long one leaves when the receiver's answer has come. */
static void announce(run_t *run, uint32_t what)
{
    const sim_cluster_t *c = run->cluster;
    const sim_op_t *op = op_of(run, what);
    int crosses = node_of(run, op->from) != node_of(run, op->at);
    double turn = sim_ticks(crosses ? c->turn_sec : c->in_node_turn_sec);
    double at = work_for(run, op->from, c->message_sec);
    at += message_bytes(run, op) >= TW_COLL_TURN_BYTES ? turn : 0.0;
    if (at > run->now) {
        push_at(run, LEAVING, what, at);
    } else {
        sim_leave(run, what);
    }
}

static void sim_start(run_t *run, uint32_t what)
{
    const sim_op_t *op = op_of(run, what);
    if (op->work != SIM_MOVE) {
        complete_at(run, what, work_for(run, op->at, work_sec(run, op)));
        return;
    }
    lane_t *lane = &run->lanes[op->lane];
    run->waits[what] = IS_READY;
    while (lane->next != NONE && run->waits[lane->next] == IS_READY) {
        const uint32_t next = lane->next;
        lane->next = run->behind[next];
        announce(run, next);
    }
}

/* ---- a run --------------------------------------------------------------------------------------------- */

/** Put chunk c of a message behind the one in its lane whose `behind` is given; return its own `behind`. */
static uint32_t *link_message(run_t *run, uint32_t *behind, uint32_t message, size_t c)
{
    *behind = (uint32_t)(message * run->n_chunks + c);
    return &run->behind[*behind];
}

/** Link a lane's messages round by round; each chunk of a message is one round behind the chunk before. */
static uint32_t *link_rounds(run_t *run, const uint32_t *sends, size_t n, uint32_t *behind)
{
    const sim_graph_t *g = run->graph;
    const size_t n_chunks = run->n_chunks;
    size_t first = 0, end = 0; /* messages [first, end) have a chunk in this round */
    uint64_t round = 0;
    while (first < n) {
        const uint64_t begins = sim_round(g, &g->ops[sends[first]], 0, n_chunks);
        round = first == end ? begins : round;
        while (end < n && sim_round(g, &g->ops[sends[end]], 0, n_chunks) <= round) {
            end++;
        }
        for (size_t i = first; i < end; i++) {
            behind =
                link_message(run, behind, sends[i], round - sim_round(g, &g->ops[sends[i]], 0, n_chunks));
        }
        round++;
        while (first < end && round >= sim_round(g, &g->ops[sends[first]], 0, n_chunks) + n_chunks) {
            first++;
        }
    }
    return behind;
}

static void link_lane(run_t *run, size_t index)
{
    const sim_graph_t *g = run->graph;
    const uint32_t *sends = g->sends + g->first_send[index];
    size_t n = g->first_send[index + 1] - g->first_send[index], n_rounds = n;
    lane_t *lane = &run->lanes[index];
    *lane = (lane_t){.first = NONE};
    uint32_t *behind = &lane->first;
    while (n_rounds > 0 && sim_is_by_chunk(g, &g->ops[sends[n_rounds - 1]])) {
        n_rounds--;
    }
    behind = link_rounds(run, sends, n_rounds, behind);
    for (size_t c = 0; c < run->n_chunks && n_rounds < n; c++) {
        for (size_t i = n_rounds; i < n; i++) {
            behind = link_message(run, behind, sends[i], c);
        }
    }
    *behind = NONE;
    lane->next = lane->first;
    lane->packets = lane->first != NONE ? count_packets(run, op_of(run, lane->first)) : 0;
}

static void sim_begin(run_t *run)
{
    const sim_graph_t *g = run->graph;
    for (size_t op = 0; op < g->n_ops; op++) {
        for (size_t c = 0; c < run->n_chunks; c++) {
            uint32_t what = (uint32_t)(op * run->n_chunks + c);
            run->waits[what] = (uint16_t)g->ops[op].n_inputs;
            if (g->ops[op].n_inputs == 0) {
                push_at(run, READY, what, post_sec(run, g->ops[op].from));
            }
        }
    }
    for (size_t l = 0; l < g->n_lanes; l++) {
        link_lane(run, l);
    }
    for (int r = 0; r < g->world; r++) {
        run->result->done[r] = post_sec(run, r);
    }
}

static void happen(run_t *run, const sim_event_t *event)
{
    const sim_op_t *op = op_of(run, event->what);
    switch ((kind_t)event->kind) {
    case PASSED:
        end_packet(run, event);
        break;
    case SAID:
        say(run, event->what, HEARD);
        break;
    case HEARD:
        sim_hear(run, event->what);
        break;
    case ARRIVED:
        complete_at(run, event->what, work_for(run, op->at, run->cluster->message_sec));
        break;
    case DONE:
        sim_complete(run, event->what);
        break;
    case AT_OUT:
        leave_port(run, event);
        break;
    case AT_DOWN:
        pass_switch(run, event, 0);
        break;
    case AT_IN:
        pass_in(run, event);
        break;
    case READY:
        sim_start(run, event->what);
        break;
    case LEAVING:
        sim_leave(run, event->what);
        break;
    }
}

static void loop(run_t *run)
{
    const sim_cluster_t *c = run->cluster;
    size_t n_events = 0;
    while (run->events.n > 0 && run->status == TW_OK) {
        sim_event_t event = sim_events_pop(&run->events);
        run->now = event.at;
        n_events++;
        happen(run, &event);
        if (c->watch && n_events % EVENTS_WATCHED == 0) {
            c->watch(c->watch_ctx, (double)run->n_complete / (double)run->n_all);
        }
    }
}

/** Count each rank's peers from the lanes, and keep the most. */
static tw_status_t count_peers(const sim_graph_t *g, int local, sim_result_t *result)
{
    size_t world = (size_t)g->world;
    uint8_t *met = calloc(world, world);
    if (!met) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < g->n_lanes; i++) {
        size_t a = (size_t)g->lanes[i].from, b = (size_t)g->lanes[i].to;
        met[a * world + b] = met[b * world + a] = 1;
    }
    for (size_t a = 0; a < world; a++) {
        int n = 0, remote = 0;
        for (size_t b = 0; b < world; b++) {
            n += met[a * world + b];
            remote += met[a * world + b] && a / (size_t)local != b / (size_t)local;
        }
        result->peers = n > result->peers ? n : result->peers;
        result->remote_peers = remote > result->remote_peers ? remote : result->remote_peers;
    }
    free(met);
    return TW_OK;
}

static tw_status_t sim_finish(run_t *run)
{
    sim_result_t *result = run->result;
    const sim_cluster_t *c = run->cluster;
    TW_FAIL_IF(run->n_complete != run->n_all, TW_ERR_INVALID,
               "simulate: only %zu of %zu steps of an operation came to their end: the others wait for one "
               "another",
               run->n_complete, run->n_all);
    for (int r = 0; r < run->graph->world; r++) {
        result->sec = fmax(result->sec, result->done[r]);
        result->messages = fmax(result->messages, run->sent[r]);
    }
    for (int n = 0; n < 2 * c->n_nodes; n++) {
        result->node_bytes = fmax(result->node_bytes, run->node_bytes[n]);
    }
    return count_peers(run->graph, c->ranks_per_node, result);
}

/** Return into how many chunks a shard is cut. */
static size_t count_chunks(const sim_graph_t *graph, double shard, double chunk_bytes)
{
    double n = fmax(1.0, ceil(shard / chunk_bytes));
    size_t most = MOST_STATES / (graph->n_ops + 1);
    most = most > 0 ? most : 1;
    return n > (double)most ? most : (size_t)n;
}

static tw_status_t sim_make_room(run_t *run)
{
    size_t n = run->n_all + 1, nodes = (size_t)run->cluster->n_nodes, world = (size_t)run->graph->world;
    run->waits = malloc(n * sizeof(*run->waits));
    run->behind = malloc(n * sizeof(*run->behind));
    run->lanes = malloc((run->graph->n_lanes + 1) * sizeof(*run->lanes));
    run->node_bytes = calloc(6 * nodes + 4 * world, sizeof(*run->node_bytes));
    if (!run->waits || !run->behind || !run->lanes || !run->node_bytes) {
        return TW_ERR_NO_MEMORY;
    }
    run->sent = run->node_bytes + 2 * nodes;
    run->out = run->sent + world;
    run->in = run->out + nodes + world;
    run->up = run->in + nodes + world;
    run->down = run->up + nodes;
    run->cpu = run->down + nodes;
    return TW_OK;
}

static tw_status_t run_graph(const sim_cluster_t *cluster, const sim_graph_t *graph, double bytes,
                             double chunk_bytes, sim_result_t *result)
{
    double shard = bytes / graph->n_shards;
    run_t run = {.cluster = cluster, .graph = graph, .result = result, .random = cluster->seed * 2 + 1};
    run.n_chunks = count_chunks(graph, shard, chunk_bytes);
    run.n_all = graph->n_ops * run.n_chunks;
    run.chunk_bytes = shard / (double)run.n_chunks;
    *result = (sim_result_t){.done = result->done, .chunk_bytes = run.chunk_bytes};
    tw_status_t status = sim_make_room(&run);
    if (status == TW_OK) {
        sim_begin(&run);
        loop(&run);
        status = run.status == TW_OK ? sim_finish(&run) : run.status;
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_error("simulate: out of memory");
    }
    sim_events_cleanup(&run.events);
    free(run.waits);
    free(run.behind);
    free(run.lanes);
    free(run.node_bytes);
    return status;
}

tw_status_t sim_run(const sim_cluster_t *cluster, const tw_algo_t *algo, double bytes, double chunk_bytes,
                    sim_result_t *result)
{
    sim_graph_t *graph;
    TW_TRY(sim_graph_create(cluster, algo, bytes, chunk_bytes, &graph));
    tw_status_t status = run_graph(cluster, graph, bytes, chunk_bytes, result);
    sim_graph_destroy(graph);
    return status;
}
