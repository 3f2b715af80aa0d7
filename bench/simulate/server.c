/* A step of data parallelism over a parameter server: the baseline that all-reduces have replaced. */
#include <math.h>
#include <stdlib.h>

#include "bench/simulate/graph.h"

#define WEIGHT_BYTES 2.0
#define N_STEPS 3 /* the last one is as all that follow */

/* Every rank is a server of a shard of each layer. Gradients are added up in the nodes first, and weights are
 * given to one rank of each. */
static const tw_algo_t push = {.info = {TW_COLL_REDUCE_SCATTER, "push", "", 0, 0},
                               .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1}};
static const tw_algo_t pull = {.info = {TW_COLL_ALLGATHER, "pull", "", 0, 0},
                               .flows = {.spread = tw_flow_spread_rails}};

typedef struct layer {
    double ready_sec;   /* for what comes next; below 0: nothing does */
    double weights_sec; /* when the weights are there */
    enum { LAYER_PUSH, LAYER_PULL } next;
} layer_t;

typedef struct server {
    const sim_cluster_t *cluster;
    const sim_step_t *step;
    sim_net_t *net;
    sim_kept_t *kept;
    sim_graph_t *push, *pull;
    layer_t *layers;
    double *start, *done; /* [world] */
    int world;
    double net_sec, node_bytes;
} server_t;

/** What the network does next, of what is ready then: the first layer's, or what is ready first. -1: nothing
 *  is left. */
static int choose(const server_t *s)
{
    double begin = INFINITY;
    int best = -1;
    for (int l = 0; l < s->step->n_layers; l++) {
        double ready = s->layers[l].ready_sec;
        begin = ready >= 0.0 ? fmin(begin, fmax(ready, s->net_sec)) : begin;
    }
    for (int l = 0; l < s->step->n_layers; l++) {
        double ready = s->layers[l].ready_sec;
        if (ready < 0.0 || ready > begin) {
            continue;
        }
        if (best < 0 || (s->step->server != SIM_SERVER_PRIORITY && ready < s->layers[best].ready_sec)) {
            best = l;
        }
    }
    return best;
}

static tw_status_t move(server_t *s, layer_t *layer)
{
    sim_result_t result = {.done = s->done};
    double bytes = WEIGHT_BYTES * s->step->n_params / s->step->n_layers;
    int pushes = layer->next == LAYER_PUSH;
    for (int r = 0; r < s->world; r++) {
        s->start[r] = fmax(s->net_sec, layer->ready_sec);
    }
    TW_TRY(sim_kept_run(s->kept, pushes ? s->push : s->pull, bytes, s->step->chunk_bytes, s->start, &result));
    s->node_bytes += result.node_bytes;
    s->net_sec = result.sec;
    layer->ready_sec = pushes ? result.sec : -1.0;
    layer->weights_sec = result.sec;
    layer->next = pushes ? LAYER_PULL : LAYER_PUSH;
    return TW_OK;
}

/** Forwards as weights come, backwards from the last layer on, and all that is to be moved then. */
static tw_status_t run_step(server_t *s, double *compute_sec)
{
    int n = s->step->n_layers, l;
    double factor = s->cluster->straggler >= 0 ? s->cluster->straggler_factor : 1.0; /* all wait for it */
    double sec = s->step->compute_sec * factor / n;
    for (l = 0; l < n; l++) {
        *compute_sec = fmax(*compute_sec, s->layers[l].weights_sec) + sim_ticks(sec * SIM_FORWARD_SHARE);
    }
    for (l = n - 1; l >= 0; l--) {
        *compute_sec += sim_ticks(sec * (1.0 - SIM_FORWARD_SHARE));
        s->layers[l].ready_sec = *compute_sec;
    }
    while ((l = choose(s)) >= 0) {
        TW_TRY(move(s, &s->layers[l]));
    }
    return TW_OK;
}

static tw_status_t make(server_t *s)
{
    size_t world = (size_t)s->world;
    s->layers = calloc((size_t)s->step->n_layers, sizeof(*s->layers));
    s->start = calloc(2 * world, sizeof(*s->start));
    if (!s->layers || !s->start) {
        tw_error("simulate: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    s->done = s->start + world;
    for (int l = 0; l < s->step->n_layers; l++) {
        s->layers[l].ready_sec = -1.0;
    }
    TW_TRY(sim_graph_create(s->cluster, &push, 1, &s->push));
    TW_TRY(sim_graph_create(s->cluster, &pull, 1, &s->pull));
    TW_TRY(sim_net_create(s->cluster, &s->net));
    return sim_kept_create(s->cluster, s->net, &s->kept);
}

tw_status_t sim_server_run(const sim_cluster_t *cluster, const sim_step_t *step, double *sec,
                           double *node_bytes)
{
    server_t s = {.cluster = cluster, .step = step, .world = cluster->n_nodes * cluster->ranks_per_node};
    double compute_sec = 0.0, before = 0.0, end = 0.0;
    tw_status_t status = make(&s);
    for (int i = 0; i < N_STEPS && status == TW_OK; i++) {
        before = end;
        s.node_bytes = 0.0;
        status = run_step(&s, &compute_sec);
        end = compute_sec;
    }
    *sec = end - before;
    *node_bytes = s.node_bytes;
    sim_kept_destroy(s.kept);
    sim_net_destroy(s.net);
    sim_graph_destroy(s.push);
    sim_graph_destroy(s.pull);
    free(s.layers);
    free(s.start);
    return status;
}
