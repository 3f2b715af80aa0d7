#include "collectives/ring.h"

void tw_allgather_ring_build(const tw_build_t *build)
{
    const tw_topo_t *topo = build->topo;
    const size_t *first = build->out_first;
    tw_ring_t ring;

    tw_ring_init(&ring, build, topo->ring, topo->world, topo->position[topo->rank]);
    for (int p = 0; p < topo->world; p++) {
        int rank = topo->ring[p];
        size_t n = first[rank + 1] - first[rank];
        tw_ring_set(&ring, p, tw_span_view(build->in, 0, n), tw_span_view(build->out, first[rank], n), n);
    }
    tw_ring_allgather(&ring);
    tw_build_copy(build, 0, first[topo->rank], first[topo->rank + 1] - first[topo->rank]);
}

void tw_allgather_ring_cost(const tw_case_t *c, tw_coll_cost_t *cost)
{
    int world = c->topo->world;

    tw_cost_add_ring(c, world - 1, c->bytes * (world - 1) / world, cost);
}
