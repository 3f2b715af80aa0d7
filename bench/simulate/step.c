/* A step of sharded data parallelism: gathers one layer ahead of the computing, reductions behind it. */
#include <math.h>
#include <stdlib.h>

#include "bench/simulate/graph.h"

#define WEIGHT_BYTES 2.0
#define INT8_RATIO 0.508
#define INT4_RATIO 0.258

typedef struct walk {
    sim_cluster_t cluster; /* own: the codec's ratio changes between operations */
    const sim_step_t *step;
    sim_net_t *net;
    sim_kept_t *kept;
    sim_graph_t *gather, *reduce;
    int world;
    double *net_done, *compute_done, *begin, *gathered, *start, *done; /* [world] each */
    double *memory;
    double node_bytes;
} walk_t;

static tw_status_t run_op(walk_t *w, const sim_graph_t *graph, double ratio, const double *from)
{
    sim_result_t result = {.done = w->done};
    double bytes = WEIGHT_BYTES * w->step->n_params / w->step->n_layers;
    for (int r = 0; r < w->world; r++) {
        w->start[r] = fmax(w->net_done[r], from[r]);
    }
    w->cluster.ratio[TW_FORM_CODEC] = ratio;
    TW_TRY(sim_kept_run(w->kept, graph, bytes, w->step->chunk_bytes, w->start, &result));
    w->node_bytes += result.node_bytes;
    for (int r = 0; r < w->world; r++) {
        w->net_done[r] = w->done[r];
    }
    return TW_OK;
}

/** From the replicas of the node: no other node has to do with it. */
static void gather_in_node(walk_t *w, const double *from)
{
    double local = w->cluster.ranks_per_node, bytes = WEIGHT_BYTES * w->step->n_params / w->step->n_layers;
    double sec = sim_ticks(bytes * (local - 1.0) / local / w->cluster.in_node_Bps);
    for (int r = 0; r < w->world; r++) {
        w->net_done[r] = fmax(w->net_done[r], from[r]) + sec;
    }
}

static tw_status_t gather(walk_t *w, int visit, const double *from)
{
    if (w->step->quantized && visit >= w->step->n_layers) {
        gather_in_node(w, from);
    } else {
        TW_TRY(run_op(w, w->gather, INT8_RATIO, from));
    }
    for (int r = 0; r < w->world; r++) {
        w->gathered[r] = w->net_done[r];
    }
    return TW_OK;
}

static void compute(walk_t *w, int visit)
{
    const sim_cluster_t *c = &w->cluster;
    double share = visit < w->step->n_layers ? SIM_FORWARD_SHARE : 1.0 - SIM_FORWARD_SHARE;
    double sec = w->step->compute_sec * share / w->step->n_layers;
    for (int r = 0; r < w->world; r++) {
        w->compute_done[r] = w->begin[r] + sim_ticks(sec * (r == c->straggler ? c->straggler_factor : 1.0));
    }
}

static tw_status_t visit_layer(walk_t *w, int visit)
{
    int n_visits = 2 * w->step->n_layers, is_backward = visit >= w->step->n_layers;
    for (int r = 0; r < w->world; r++) {
        w->begin[r] = fmax(w->compute_done[r], w->gathered[r]);
    }
    if (w->step->overlap && visit + 1 < n_visits) {
        TW_TRY(gather(w, visit + 1, w->begin));
    }
    compute(w, visit);
    if (is_backward) {
        TW_TRY(run_op(w, w->reduce, INT4_RATIO, w->compute_done));
    }
    for (int r = 0; r < w->world && !w->step->overlap && is_backward; r++) {
        w->compute_done[r] = w->net_done[r];
    }
    return !w->step->overlap && visit + 1 < n_visits ? gather(w, visit + 1, w->compute_done) : TW_OK;
}

static tw_status_t make(walk_t *w)
{
    int q = w->step->quantized;
    const tw_algo_t *gather = sim_algo_find(TW_COLL_ALLGATHER, q, "hierarchical");
    const tw_algo_t *reduce = sim_algo_find(TW_COLL_REDUCE_SCATTER, q, q ? "two_hop" : "hierarchical");
    w->memory = calloc(6 * (size_t)w->world, sizeof(*w->memory));
    if (!w->memory || !gather || !reduce) {
        tw_error("simulate: %s", w->memory ? "the step's algorithms are not there" : "out of memory");
        return w->memory ? TW_ERR_NOT_FOUND : TW_ERR_NO_MEMORY;
    }
    double **vectors[] = {&w->net_done, &w->compute_done, &w->begin, &w->gathered, &w->start, &w->done};
    for (size_t i = 0; i < 6; i++) {
        *vectors[i] = w->memory + i * (size_t)w->world;
    }
    TW_TRY(sim_graph_create(&w->cluster, gather, 1, &w->gather));
    TW_TRY(sim_graph_create(&w->cluster, reduce, 1, &w->reduce));
    TW_TRY(sim_net_create(&w->cluster, &w->net));
    return sim_kept_create(&w->cluster, w->net, &w->kept);
}

tw_status_t sim_step_run(const sim_cluster_t *cluster, const sim_step_t *step, double *sec,
                         double *node_bytes)
{
    walk_t w = {.cluster = *cluster, .step = step, .world = cluster->n_nodes * cluster->ranks_per_node};
    tw_status_t status = make(&w);
    if (status == TW_OK) {
        status = gather(&w, 0, w.compute_done);
    }
    for (int visit = 0; visit < 2 * step->n_layers && status == TW_OK; visit++) {
        status = visit_layer(&w, visit);
    }
    *sec = 0.0;
    for (int r = 0; r < w.world && status == TW_OK; r++) {
        *sec = fmax(*sec, fmax(w.compute_done[r], w.net_done[r]));
    }
    *node_bytes = w.node_bytes;
    sim_kept_destroy(w.kept);
    sim_net_destroy(w.net);
    sim_graph_destroy(w.gather);
    sim_graph_destroy(w.reduce);
    free(w.memory);
    return status;
}
