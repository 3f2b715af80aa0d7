/* Ports, a clock, and events in its order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/simulate/graph.h"

/* Chunks of operations that memory may hold: some 12 bytes each. */
#define MOST_STATES ((size_t)64 << 20)

typedef struct event {
    double at;
    uint64_t order; /* of those at the same moment */
    uint32_t op, chunk;
    uint32_t departs; /* 1: a message that has its sender's port; 0: what it waits for is there */
} event_t;

struct sim_net {
    const sim_cluster_t *cluster;
    int world, n_switches;
    double *link_out, *link_in; /* [n_nodes] when each is free */
    double *up, *down;          /* [n_switches] */
    double *rank_out, *rank_in; /* [world] inside nodes */
    double *cpu;                /* [world] */
    double *memory;             /* of all those */
    event_t *heap;
    size_t n_heap, max_heap;
    uint64_t random;
    tw_status_t status; /* TW_ERR_NO_MEMORY sticks */
};

/* A run of an operation. */
typedef struct run {
    sim_net_t *net;
    const sim_graph_t *graph;
    const double *start;
    size_t n_chunks;
    double chunk_bytes; /* of a shard */
    double *ready;      /* [n_ops][n_chunks] when what it waits for is there */
    uint16_t *waits;    /* [n_ops][n_chunks] for how many */
    double *node_bytes; /* [2 * n_nodes] out, then in */
    double *sent;       /* [world] messages */
    sim_result_t *result;
} run_t;

/* ---- events -------------------------------------------------------------------------------------------- */

static int is_before(const event_t *a, const event_t *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(sim_net_t *net, event_t event)
{
    if (net->n_heap == net->max_heap) {
        size_t max = 2 * net->max_heap + 1024;
        event_t *larger = realloc(net->heap, max * sizeof(*larger));
        if (!larger) {
            net->status = TW_ERR_NO_MEMORY;
            return;
        }
        net->heap = larger;
        net->max_heap = max;
    }
    size_t i = net->n_heap++;
    for (; i > 0 && is_before(&event, &net->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        net->heap[i] = net->heap[(i - 1) / 2];
    }
    net->heap[i] = event;
}

static event_t pop(sim_net_t *net)
{
    event_t first = net->heap[0], last = net->heap[--net->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= net->n_heap) {
            break;
        }
        child += child + 1 < net->n_heap && is_before(&net->heap[child + 1], &net->heap[child]);
        if (!is_before(&net->heap[child], &last)) {
            break;
        }
        net->heap[i] = net->heap[child];
        i = child;
    }
    net->heap[i] = last;
    return first;
}

/* Chunk c of a hop is in round c + TW_HOP_ROUNDS * hop, as in a program; in a round, a rank sends what
 * belongs to those after it first, and its own last; else in the flow's order. */
static uint64_t order_of(const run_t *run, uint32_t op, size_t chunk)
{
    const sim_op_t *o = &run->graph->ops[op];
    int world = run->graph->world;
    uint64_t round = chunk + (uint64_t)TW_HOP_ROUNDS * (uint64_t)o->hop;
    uint64_t owner = (uint64_t)((o->owner - o->from - 1 + world) % world);
    return (round << 32) | (owner << 16) | o->index;
}

static void push_ready(run_t *run, uint32_t op, size_t chunk, double at)
{
    push(run->net,
         (event_t){.at = at, .order = order_of(run, op, chunk), .op = op, .chunk = (uint32_t)chunk});
}

/* ---- ports and processors ------------------------------------------------------------------------------ */

/* Take a port for so long, from a moment on; returns when it begins. */
static double take(double *port, double from, double sec)
{
    double begin = fmax(*port, from);
    *port = begin + sec;
    return begin;
}

static double jitter(sim_net_t *net)
{
    double mean = net->cluster->jitter_sec;
    if (mean <= 0.0) {
        return 0.0;
    }
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return -mean * log((double)((net->random >> 11) + 1) * 0x1p-53);
}

static double work_for(sim_net_t *net, int rank, double from, double sec)
{
    if (sec <= 0.0) {
        return from;
    }
    double factor = rank == net->cluster->straggler ? net->cluster->straggler_factor : 1.0;
    (void)take(&net->cpu[rank], from, sec * factor);
    return net->cpu[rank];
}

static double node_sec(const sim_net_t *net, int node, double bytes)
{
    double factor = node == net->cluster->slow_node ? net->cluster->slow_factor : 1.0;
    return bytes * factor / net->cluster->link_Bps;
}

/* From one switch to another: up and down, each at the rate of its nodes' links over the oversubscription. */
static double pass_switches(sim_net_t *net, int a, int b, double from, double bytes, double *end)
{
    const sim_cluster_t *c = net->cluster;
    if (c->nodes_per_switch <= 0 || a / c->nodes_per_switch == b / c->nodes_per_switch) {
        return from;
    }
    double sec = bytes * c->oversubscription / (c->link_Bps * c->nodes_per_switch);
    from = take(&net->up[a / c->nodes_per_switch], from, sec);
    *end = fmax(*end, from + sec);
    from = take(&net->down[b / c->nodes_per_switch], from, sec);
    *end = fmax(*end, from + sec);
    return from;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static double bytes_of(const run_t *run, const sim_op_t *op)
{
    return op->times * run->chunk_bytes * run->net->cluster->ratio[op->form];
}

/* A message asks for its sender's port. */
static void depart(run_t *run, const event_t *event)
{
    sim_net_t *net = run->net;
    const sim_op_t *op = &run->graph->ops[event->op];
    int node = op->from / net->cluster->ranks_per_node;
    int crosses = node != op->at / net->cluster->ranks_per_node;
    double bytes = bytes_of(run, op), from = work_for(net, op->from, event->at, net->cluster->message_sec);
    event_t next = *event;
    next.departs = 1;
    next.at = crosses ? take(&net->link_out[node], from, node_sec(net, node, bytes))
                      : take(&net->rank_out[op->from], from, bytes / net->cluster->in_node_Bps);
    run->node_bytes[node] += crosses ? bytes : 0.0;
    run->node_bytes[net->cluster->n_nodes + op->at / net->cluster->ranks_per_node] += crosses ? bytes : 0.0;
    run->sent[op->from]++;
    push(net, next);
}

/* ... has it, and passes to the receiver. Returns when it is there. */
static double arrive(run_t *run, const event_t *event)
{
    sim_net_t *net = run->net;
    const sim_cluster_t *c = net->cluster;
    const sim_op_t *op = &run->graph->ops[event->op];
    int a = op->from / c->ranks_per_node, b = op->at / c->ranks_per_node;
    double bytes = bytes_of(run, op), end, latency;
    if (a == b) {
        double sec = bytes / c->in_node_Bps;
        end = take(&net->rank_in[op->at], event->at, sec) + sec;
        latency = c->in_node_latency_sec;
    } else {
        double sec = node_sec(net, b, bytes), from;
        end = event->at + node_sec(net, a, bytes);
        from = pass_switches(net, a, b, event->at, bytes, &end);
        end = fmax(end, take(&net->link_in[b], from, sec) + sec);
        latency = c->latency_sec;
    }
    run->result->done[op->from] = fmax(run->result->done[op->from], end);
    end += latency + jitter(net);
    return work_for(net, op->at, fmax(end, run->start ? run->start[op->at] : 0.0), c->message_sec);
}

static double work(run_t *run, const event_t *event)
{
    const sim_cluster_t *c = run->net->cluster;
    const sim_op_t *op = &run->graph->ops[event->op];
    double byte_sec = op->work == SIM_ADD      ? c->add_sec
                      : op->work == SIM_ENCODE ? c->encode_sec[op->form]
                                               : c->decode_sec[op->form];
    return work_for(run->net, op->at, event->at, op->times * run->chunk_bytes * byte_sec);
}

/* What waited for it may be ready. */
static void complete(run_t *run, const event_t *event, double at)
{
    const sim_graph_t *g = run->graph;
    int rank = g->ops[event->op].at;
    run->result->done[rank] = fmax(run->result->done[rank], at);
    for (size_t i = g->first_after[event->op]; i < g->first_after[event->op + 1]; i++) {
        size_t state = g->after[i] * run->n_chunks + event->chunk;
        run->ready[state] = fmax(run->ready[state], at);
        if (--run->waits[state] == 0) {
            push_ready(run, g->after[i], event->chunk, run->ready[state]);
        }
    }
}

/* ---- a run --------------------------------------------------------------------------------------------- */

static void begin(run_t *run)
{
    const sim_graph_t *g = run->graph;
    for (size_t op = 0; op < g->n_ops; op++) {
        double start = run->start ? run->start[g->ops[op].from] : 0.0;
        for (size_t c = 0; c < run->n_chunks; c++) {
            run->ready[op * run->n_chunks + c] = start;
            run->waits[op * run->n_chunks + c] = (uint16_t)g->ops[op].n_inputs;
            if (g->ops[op].n_inputs == 0) {
                push_ready(run, (uint32_t)op, c, start);
            }
        }
    }
    for (int r = 0; r < g->world; r++) {
        run->result->done[r] = run->start ? run->start[r] : 0.0;
    }
}

static void loop(run_t *run)
{
    sim_net_t *net = run->net;
    while (net->n_heap > 0 && net->status == TW_OK) {
        event_t event = pop(net);
        run->result->n_events++;
        if (run->graph->ops[event.op].work != SIM_MOVE) {
            complete(run, &event, work(run, &event));
        } else if (event.departs) {
            complete(run, &event, arrive(run, &event));
        } else {
            depart(run, &event);
        }
    }
}

/* Ranks that each rank has to do with, from who sends to whom. */
static tw_status_t count_peers(const sim_graph_t *g, int local, sim_result_t *result)
{
    size_t world = (size_t)g->world;
    uint8_t *met = calloc(world, world);
    if (!met) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        size_t a = (size_t)g->ops[i].from, b = (size_t)g->ops[i].at;
        met[a * world + b] = met[b * world + a] = 1;
    }
    for (size_t a = 0; a < world; a++) {
        int n = 0, remote = 0;
        for (size_t b = 0; b < world; b++) {
            n += met[a * world + b] && a != b;
            remote += met[a * world + b] && a / (size_t)local != b / (size_t)local;
        }
        result->peers = n > result->peers ? n : result->peers;
        result->remote_peers = remote > result->remote_peers ? remote : result->remote_peers;
    }
    free(met);
    return TW_OK;
}

static tw_status_t finish(run_t *run)
{
    sim_result_t *result = run->result;
    const sim_cluster_t *c = run->net->cluster;
    for (int r = 0; r < run->graph->world; r++) {
        result->sec = fmax(result->sec, result->done[r]);
        result->messages = fmax(result->messages, run->sent[r]);
    }
    for (int n = 0; n < 2 * c->n_nodes; n++) {
        result->node_bytes = fmax(result->node_bytes, run->node_bytes[n]);
    }
    return count_peers(run->graph, c->ranks_per_node, result);
}

/* Chunks of a shard; rows of several go in one piece. */
static size_t count_chunks(const sim_graph_t *graph, double shard, double chunk_bytes)
{
    double n = graph->flows->merges ? 1.0 : fmax(1.0, ceil(shard / chunk_bytes));
    size_t most = MOST_STATES / (graph->n_ops + 1);
    most = most > 0 ? most : 1;
    return n > (double)most ? most : (size_t)n;
}

tw_status_t sim_run(sim_net_t *net, const sim_graph_t *graph, double bytes, double chunk_bytes,
                    const double *start, sim_result_t *result)
{
    double shard = bytes / graph->n_shards;
    run_t run = {.net = net, .graph = graph, .start = start, .result = result};
    run.n_chunks = count_chunks(graph, shard, chunk_bytes);
    run.chunk_bytes = shard / (double)run.n_chunks;
    *result = (sim_result_t){.done = result->done, .chunk_bytes = run.chunk_bytes};
    size_t n_states = graph->n_ops * run.n_chunks + 1;
    run.ready = malloc(n_states * sizeof(*run.ready));
    run.waits = malloc(n_states * sizeof(*run.waits));
    run.node_bytes = calloc(2 * (size_t)net->cluster->n_nodes, sizeof(*run.node_bytes));
    run.sent = calloc((size_t)graph->world, sizeof(*run.sent));
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (run.ready && run.waits && run.node_bytes && run.sent) {
        begin(&run);
        loop(&run);
        status = net->status == TW_OK ? finish(&run) : net->status;
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_error("simulate: out of memory");
    }
    free(run.ready);
    free(run.waits);
    free(run.node_bytes);
    free(run.sent);
    return status;
}

tw_status_t sim_net_create(const sim_cluster_t *c, sim_net_t **out)
{
    sim_net_t *net = calloc(1, sizeof(*net));
    size_t nodes = (size_t)c->n_nodes, world = nodes * (size_t)c->ranks_per_node;
    double *memory = calloc(4 * nodes + 3 * world, sizeof(*memory));
    if (!net || !memory) {
        tw_error("simulate: out of memory");
        free(net);
        free(memory);
        return TW_ERR_NO_MEMORY;
    }
    *net = (sim_net_t){.cluster = c, .world = (int)world, .memory = memory, .random = c->seed * 2 + 1};
    net->link_out = memory;
    net->link_in = memory + nodes;
    net->up = memory + 2 * nodes; /* switches are no more than nodes */
    net->down = memory + 3 * nodes;
    net->rank_out = memory + 4 * nodes;
    net->rank_in = net->rank_out + world;
    net->cpu = net->rank_in + world;
    *out = net;
    return TW_OK;
}

void sim_net_destroy(sim_net_t *net)
{
    if (net) {
        free(net->memory);
        free(net->heap);
    }
    free(net);
}
