#include "collectives/model/bootstrap.h"
#include "collectives/topology.h"

#include <string.h>

_Static_assert(TW_MEET_TAG_COUNT <= TW_COLL_MODEL_TAGS, "the caller reserves TW_COLL_MODEL_TAGS tags");

tw_status_t tw_meet_test(tw_transport_t *transport, tw_transport_request_t **request)
{
    if (*request == NULL) {
        return TW_OK;
    }
    tw_status_t status = tw_transport_test(transport, *request);
    if (status != TW_IN_PROGRESS) {
        *request = NULL;
    }
    return status;
}

tw_status_t tw_meet_step(tw_transport_t *transport)
{
    tw_status_t status = tw_transport_progress(transport);
    if (status == TW_IN_PROGRESS) {
        status = tw_transport_sleep(transport, 0.1);
    }
    return status < 0 ? status : TW_OK;
}

void tw_meet_cancel(tw_transport_t *transport, tw_transport_request_t **requests, int n)
{
    for (int i = 0; i < n; i++) {
        if (requests[i] != NULL) {
            tw_transport_cancel(transport, requests[i]);
            requests[i] = NULL;
        }
    }
}

tw_status_t tw_meet_wait(tw_transport_t *transport, tw_transport_request_t **requests, int n)
{
    for (int i = 0; i < n; i++) {
        tw_status_t status;
        while ((status = tw_meet_test(transport, &requests[i])) == TW_IN_PROGRESS) {
            if ((status = tw_meet_step(transport)) != TW_OK) {
                break;
            }
        }
        if (status != TW_OK) {
            tw_meet_cancel(transport, requests, n);
            return status;
        }
    }
    return TW_OK;
}

tw_status_t tw_meet_gather(const tw_coll_peers_t *peers, const void *mine, size_t bytes, char *all)
{
    int n = peers->topo->rank == 0 ? peers->topo->world : 1;
    tw_transport_request_t *requests[n];

    memset(requests, 0, sizeof(requests));
    if (peers->topo->rank != 0) {
        tw_status_t status =
            tw_transport_send_post(peers->transport, peers->topo->peer[0], peers->tag + TW_MEET_TAG_GATHER,
                                   mine, bytes, &requests[0]);
        return status == TW_OK ? tw_meet_wait(peers->transport, requests, 1) : status;
    }
    if (bytes > 0) { /* else both may be NULL */
        memcpy(all, mine, bytes);
    }
    for (int i = 1; i < n; i++) {
        tw_status_t status =
            tw_transport_recv_post(peers->transport, peers->topo->peer[i], peers->tag + TW_MEET_TAG_GATHER,
                                   all + (size_t)i * bytes, bytes, &requests[i]);
        if (status != TW_OK) {
            tw_meet_cancel(peers->transport, requests, n);
            return status;
        }
    }
    return tw_meet_wait(peers->transport, requests, n);
}

tw_status_t tw_meet_broadcast(const tw_coll_peers_t *peers, void *data, size_t bytes)
{
    int n = peers->topo->rank == 0 ? peers->topo->world : 1;
    tw_transport_request_t *requests[n];
    tw_status_t status = TW_OK;

    memset(requests, 0, sizeof(requests));
    if (peers->topo->rank != 0) {
        status = tw_transport_recv_post(peers->transport, peers->topo->peer[0],
                                        peers->tag + TW_MEET_TAG_BROADCAST, data, bytes, &requests[0]);
    }
    for (int i = 1; i < n && status == TW_OK; i++) {
        status = tw_transport_send_post(peers->transport, peers->topo->peer[i],
                                        peers->tag + TW_MEET_TAG_BROADCAST, data, bytes, &requests[i]);
    }
    if (status != TW_OK) {
        tw_meet_cancel(peers->transport, requests, n);
        return status;
    }
    return tw_meet_wait(peers->transport, requests, n);
}

tw_status_t tw_meet_any(const tw_coll_peers_t *peers, int *flag)
{
    char wishes[peers->topo->world], wish = (char)*flag;
    tw_status_t status = tw_meet_gather(peers, &wish, 1, wishes);

    if (status == TW_OK && peers->topo->rank == 0) {
        for (int i = 0; i < peers->topo->world; i++) {
            wish |= wishes[i];
        }
    }
    if (status == TW_OK) {
        status = tw_meet_broadcast(peers, &wish, 1);
    }
    *flag = wish;
    return status;
}
