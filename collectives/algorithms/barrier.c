/** Barrier by dissemination: on hop k a rank signals the one 2^k further on, once it has heard from all hops
 *  before. */
#include "collectives/algorithms/algorithm.h"

void tw_build_barrier(const tw_build_t *build)
{
    int world = build->topo->world, rank = build->topo->rank;
    tw_task_t heard[32];

    for (int hop = 0; hop < tw_log2_ceil(world); hop++) {
        int distance = 1 << hop;
        tw_task_t send = tw_sched_send(build->sched, (rank + distance) % world, tw_span_signal());
        for (int before = 0; before < hop; before++) {
            tw_sched_after(build->sched, send, heard[before]);
        }
        heard[hop] = tw_sched_recv(build->sched, (rank - distance + world) % world, tw_span_signal());
    }
}
