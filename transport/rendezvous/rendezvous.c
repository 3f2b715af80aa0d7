#include "transport/rendezvous/rendezvous.h"

#include <stdlib.h>
#include <string.h>

static tw_status_t rendezvous_alloc(tw_rendezvous_t *rendezvous)
{
    const size_t world = (size_t)rendezvous->world;
    const size_t n_channels = rendezvous->rank == 0 ? world : 1;
    rendezvous->members = calloc(world, sizeof(*rendezvous->members));
    rendezvous->channels = malloc(n_channels * sizeof(*rendezvous->channels));
    if (!rendezvous->members || !rendezvous->channels) {
        free(rendezvous->channels);
        rendezvous->channels = NULL;
        tw_error("rank %d: out of memory for a world of %d", rendezvous->rank, rendezvous->world);
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_channels; i++) {
        rendezvous->channels[i] = (tw_channel_t){.fd = -1};
    }
    return TW_OK;
}

tw_status_t tw_rendezvous_join(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                               const tw_transport_options_t *options, const tw_msg_member_t *own)
{
    tw_token_key_t key;
    *rendezvous = (tw_rendezvous_t){.rank = job->rank,
                                    .world = job->world,
                                    .join_timeout = options->join_timeout,
                                    .failed_rank = -1,
                                    .settings = {.peer_timeout_ms = (uint32_t)(options->peer_timeout * 1e3),
                                                 .chunk_bytes = (uint32_t)options->net_chunk,
                                                 .eager_bytes = (uint32_t)options->eager,
                                                 .streams = (uint32_t)options->net_streams}};
    tw_status_t status = rendezvous_alloc(rendezvous);
    if (status) {
        return status;
    }
    rendezvous->members[job->rank] = *own;
    if (job->world == 1) {
        return TW_OK;
    }
    status = tw_token_key_init(&key, job->token);
    if (!status) {
        status = job->rank == 0 ? tw_rendezvous_serve(rendezvous, job, options, &key)
                                : tw_rendezvous_connect(rendezvous, job, options, &key);
    }
    tw_token_key_cleanup(&key);
    return status;
}

tw_status_t tw_rendezvous_exchange(tw_rendezvous_t *rendezvous, const tw_msg_blob_t *own,
                                   tw_msg_blob_t *blobs)
{
    free(rendezvous->gathered);
    rendezvous->gathered = NULL;
    if (rendezvous->rank) {
        return tw_rendezvous_exchange_client(rendezvous, own, blobs);
    }
    blobs[0] = *own;
    return tw_rendezvous_exchange_server(rendezvous, blobs);
}

tw_channel_t *tw_rendezvous_take_channels(tw_rendezvous_t *rendezvous, int *n_channels)
{
    tw_channel_t *channels = rendezvous->channels;
    *n_channels = rendezvous->rank == 0 ? rendezvous->world : 1;
    rendezvous->channels = NULL;
    return channels;
}

void tw_rendezvous_cleanup(tw_rendezvous_t *rendezvous)
{
    const int n_channels = rendezvous->rank == 0 ? rendezvous->world : 1;
    for (int i = 0; rendezvous->channels && i < n_channels; i++) {
        tw_channel_cleanup(&rendezvous->channels[i]);
    }
    free(rendezvous->channels);
    free(rendezvous->members);
    free(rendezvous->gathered);
    *rendezvous = (tw_rendezvous_t){.failed_rank = -1};
}
