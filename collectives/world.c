/** Makes communicators for callers without a transport: of a whole job, or of some ranks of another one. */
#include <stdlib.h>

#include "collectives/communicator.h"

tw_status_t tw_coll_world_create(const tw_coll_params_t *params, tw_coll_t **out)
{
    tw_coll_params_t own = params ? *params : (tw_coll_params_t){0};
    tw_job_t job;
    TW_FAIL_IF(own.transport || own.ranks, TW_ERR_INVALID,
               "a communicator of the whole job finds its ranks and its transport by itself");
    TW_TRY(tw_job_from_env(&job));
    TW_TRY(tw_transport_create(&job, &own.transport));
    tw_status_t status = tw_coll_create(&own, out);
    if (status != TW_OK) {
        tw_transport_destroy(own.transport);
        return status;
    }
    (*out)->owns_transport = 1;
    return TW_OK;
}

int tw_coll_launched(void)
{
    return tw_job_launched();
}

tw_status_t tw_coll_group_create(tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out)
{
    return tw_coll_group_create_for(parent, parent->params.mem, ranks, n_ranks, out);
}

tw_status_t tw_coll_group_create_for(tw_coll_t *parent, tw_mem_t mem, const int *ranks, int n_ranks,
                                     tw_coll_t **out)
{
    const tw_topo_t *topo = &parent->topo;
    tw_coll_params_t params = parent->params;
    TW_TRY(tw_coll_check_process(parent));

    TW_FAIL_IF(!parent->transport, TW_ERR_UNSUPPORTED,
               "rank %d: ranks of a communicator that was made from one of NCCL's: split that one",
               topo->rank);
    TW_FAIL_IF(n_ranks < 1 || n_ranks > topo->world, TW_ERR_INVALID,
               "rank %d: a group of %d ranks, of a communicator of %d", topo->rank, n_ranks, topo->world);
    int *peers = malloc((size_t)n_ranks * sizeof(*peers));
    TW_FAIL_IF(!peers, TW_ERR_NO_MEMORY, "rank %d: out of memory for a group of %d ranks", topo->rank,
               n_ranks);
    tw_status_t status = TW_OK;
    for (int i = 0; i < n_ranks && status == TW_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= topo->world) {
            tw_error("rank %d: a group with rank %d, of a communicator of %d", topo->rank, ranks[i],
                     topo->world);
            status = TW_ERR_INVALID;
        } else {
            peers[i] = topo->peer[ranks[i]];
        }
    }
    params.ranks = peers;
    params.n_ranks = n_ranks;
    params.id = 0;
    params.mem = mem;
    status = status == TW_OK ? tw_coll_create(&params, out) : status;
    free(peers);
    return status;
}
