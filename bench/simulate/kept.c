/* Runs that have been seen before: a step has the same operation for each layer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/simulate/simulate.h"

/* Of those that do not come again, the oldest is forgotten. */
#define MOST_KEPT 64

/* Times are from where the operation begins. */
typedef struct kept {
    const sim_graph_t *graph;
    double bytes, chunk_bytes, ratio[TW_FORM_COUNT];
    double *before; /* [world] when ranks post it, then the net's times */
    double *after;  /* [world] when ranks are done, then the net's times */
    sim_result_t result;
} kept_t;

struct sim_kept {
    const sim_cluster_t *cluster;
    sim_net_t *net;
    double *net_times; /* [n_times] the net's */
    size_t n_times, world;
    kept_t kept[MOST_KEPT];
    size_t n_kept; /* ever */
};

static size_t n_doubles(const sim_kept_t *k)
{
    return k->world + k->n_times;
}

/** What is free before the operation begins is free then. */
static void note(const sim_kept_t *k, const double *ranks, double base, double *out)
{
    for (size_t r = 0; r < k->world; r++) {
        out[r] = ranks[r] - base;
    }
    for (size_t i = 0; i < k->n_times; i++) {
        out[k->world + i] = fmax(k->net_times[i] - base, 0.0);
    }
}

static void recall(const sim_kept_t *k, const kept_t *kept, double base, sim_result_t *result)
{
    double *done = result->done;
    *result = kept->result;
    result->done = done;
    result->sec += base;
    result->n_events = 0;
    for (size_t r = 0; r < k->world; r++) {
        done[r] = base + kept->after[r];
    }
    for (size_t i = 0; i < k->n_times; i++) {
        k->net_times[i] = base + kept->after[k->world + i];
    }
}

static int are_equal(const double *a, const double *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i == n;
}

static int is_same(const sim_kept_t *k, const kept_t *a, const kept_t *b)
{
    return a->graph == b->graph && a->bytes == b->bytes && a->chunk_bytes == b->chunk_bytes &&
           are_equal(a->ratio, b->ratio, TW_FORM_COUNT) && are_equal(a->before, b->before, n_doubles(k));
}

static const kept_t *find(const sim_kept_t *k, const kept_t *wanted)
{
    for (size_t i = 0; i < k->n_kept && i < MOST_KEPT; i++) {
        if (&k->kept[i] != wanted && is_same(k, &k->kept[i], wanted)) {
            return &k->kept[i];
        }
    }
    return NULL;
}

/** The place of the next one that is kept. */
static kept_t *make_room(sim_kept_t *k)
{
    kept_t *kept = &k->kept[k->n_kept % MOST_KEPT];
    if (!kept->before) {
        kept->before = malloc(2 * n_doubles(k) * sizeof(*kept->before));
        kept->after = kept->before + n_doubles(k);
    }
    if (!kept->before) {
        tw_error("simulate: out of memory");
    }
    return kept->before ? kept : NULL;
}

tw_status_t sim_kept_run(sim_kept_t *k, const sim_graph_t *graph, double bytes, double chunk_bytes,
                         const double *start, sim_result_t *result)
{
    kept_t *own = make_room(k);
    double base = start[0];
    if (!own) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t r = 1; r < k->world; r++) {
        base = fmin(base, start[r]);
    }
    own->graph = graph;
    own->bytes = bytes;
    own->chunk_bytes = chunk_bytes;
    memcpy(own->ratio, k->cluster->ratio, sizeof(own->ratio));
    note(k, start, base, own->before);
    const kept_t *kept = k->cluster->jitter_sec > 0.0 ? NULL : find(k, own);
    own->graph = NULL; /* nothing has come of it yet */
    if (kept) {
        recall(k, kept, base, result);
        return TW_OK;
    }
    TW_TRY(sim_run(k->net, graph, bytes, chunk_bytes, start, result));
    note(k, result->done, base, own->after);
    own->graph = graph;
    own->result = *result;
    own->result.sec -= base;
    k->n_kept++;
    return TW_OK;
}

tw_status_t sim_kept_create(const sim_cluster_t *cluster, sim_net_t *net, sim_kept_t **out)
{
    sim_kept_t *k = calloc(1, sizeof(*k));
    if (!k) {
        tw_error("simulate: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    k->cluster = cluster;
    k->net = net;
    k->world = (size_t)cluster->n_nodes * (size_t)cluster->ranks_per_node;
    k->net_times = sim_net_times(net, &k->n_times);
    *out = k;
    return TW_OK;
}

void sim_kept_destroy(sim_kept_t *k)
{
    for (size_t i = 0; k && i < MOST_KEPT; i++) {
        free(k->kept[i].before);
    }
    free(k);
}
