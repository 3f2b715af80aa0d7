/** Joins the rendezvous, as its server (rank 0) or a client, and frees what that has made. */
#include "transport/rendezvous/rendezvous.h"

#include <stdlib.h>

static tw_status_t rendezvous_alloc(tw_rendezvous_t *rendezvous)
{
    const size_t world = (size_t)rendezvous->world;
    const size_t n_connections = rendezvous->rank == 0 ? world : 1;
    rendezvous->members = calloc(world, sizeof(*rendezvous->members));
    rendezvous->connections = malloc(n_connections * sizeof(*rendezvous->connections));
    if (!rendezvous->members || !rendezvous->connections) {
        free(rendezvous->connections);
        rendezvous->connections = NULL;
        return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory for a world of %d", rendezvous->rank,
                       rendezvous->world);
    }
    for (size_t i = 0; i < n_connections; i++) {
        rendezvous->connections[i] = (tw_connection_t){.fd = -1};
    }
    return TW_OK;
}

tw_status_t tw_rendezvous_join(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                               const tw_transport_options_t *options, const tw_msg_member_t *own)
{
    tw_token_key_t key;
    *rendezvous = (tw_rendezvous_t){.rank = job->rank,
                                    .world = job->world,
                                    .settings = {.peer_timeout_ms = (uint32_t)(options->peer_timeout * 1e3),
                                                 .chunk_bytes = (uint32_t)options->net_chunk,
                                                 .eager_bytes = (uint32_t)options->eager,
                                                 .streams = (uint32_t)options->net_streams}};
    TW_TRY(rendezvous_alloc(rendezvous));
    rendezvous->members[job->rank] = *own;
    if (job->world == 1) {
        return TW_OK;
    }
    tw_status_t status = tw_token_key_init(&key, job->token);
    if (!status) {
        status = job->rank == 0 ? tw_rendezvous_serve(rendezvous, job, options, &key)
                                : tw_rendezvous_connect(rendezvous, job, options, &key);
    }
    tw_token_key_cleanup(&key);
    return status;
}

tw_connection_t *tw_rendezvous_take_connections(tw_rendezvous_t *rendezvous, int *n_connections)
{
    tw_connection_t *connections = rendezvous->connections;
    *n_connections = rendezvous->rank == 0 ? rendezvous->world : 1;
    rendezvous->connections = NULL;
    return connections;
}

void tw_rendezvous_cleanup(tw_rendezvous_t *rendezvous)
{
    const int n_connections = rendezvous->rank == 0 ? rendezvous->world : 1;
    for (int i = 0; rendezvous->connections && i < n_connections; i++) {
        tw_connection_cleanup(&rendezvous->connections[i]);
    }
    free(rendezvous->connections);
    free(rendezvous->members);
    *rendezvous = (tw_rendezvous_t){0};
}
