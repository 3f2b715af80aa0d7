/** What several algorithms do alike. */
#include "collectives/algorithms/algorithm.h"

#include <math.h>

tw_task_t tw_build_copy(const tw_build_t *build, size_t in_first, size_t out_first, size_t n)
{
    tw_task_t last = TW_TASK_NONE;
    size_t n_chunks = tw_chunk_count(build, n);

    if (build->in_place || n == 0) {
        return TW_TASK_NONE;
    }
    tw_task_t *copies = tw_sched_alloc(build->sched, n_chunks * sizeof(*copies));
    if (!copies) {
        return TW_TASK_NONE;
    }
    for (size_t c = 0; c < n_chunks; c++) {
        size_t at = c * build->chunk_elems, run = tw_chunk_elems(build, n, c);
        copies[c] = tw_work_copy(build->sched, tw_span_view(build->in, in_first + at, run),
                                 tw_span_view(build->out, out_first + at, run));
        last = copies[c];
    }
    if (n_chunks == 1) {
        return last;
    }
    last = tw_sched_join(build->sched);
    for (size_t c = 0; c < n_chunks; c++) {
        tw_sched_after(build->sched, last, copies[c]);
    }
    return last;
}

double tw_cost_messages(const tw_case_t *c, double bytes)
{
    return bytes > 0 ? ceil(bytes / c->chunk_bytes) : 0;
}

void tw_cost_add_ring(const tw_case_t *c, int rounds, double bytes, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    double messages = fmax(rounds, tw_cost_messages(c, bytes));
    int several_nodes = topo->n_nodes > 1, crossings = 0;

    if (several_nodes) {
        crossings = rounds < topo->n_nodes ? rounds : topo->n_nodes;
        cost->inter_messages += messages;
        cost->inter_bytes += bytes;
    }
    cost->inter_rounds += crossings;
    cost->node_rounds += rounds - crossings;
    if (topo->max_local > 1) {
        cost->node_messages += messages;
        cost->node_bytes += bytes * (topo->max_local - several_nodes);
    }
}

int tw_log2_ceil(int n)
{
    int k = 0;

    while ((1 << k) < n) {
        k++;
    }
    return k;
}
