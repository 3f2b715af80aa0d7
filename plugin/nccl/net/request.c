/* Requests: a request of NCCL consists of one p2p request for each of its messages. */
#include "plugin/nccl/net/state.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static tw_net_request_t *take_request(tw_net_comm_t *comm)
{
    tw_net_request_t *request = comm->free;
    if (request) {
        comm->free = request->next_free;
        request->n = request->n_done = request->is_void = 0;
        comm->domain->n_open++;
    }
    return request;
}

static void put_request(tw_net_request_t *request)
{
    tw_net_domain_t *domain = request->comm->domain;
    request->n = request->n_done = 0;
    request->next_free = request->comm->free;
    request->comm->free = request;
    domain->n_open--;
    if (domain->n_open == 0 && tw_p2p_has_unsent(domain->p2p)) {
        tw_net_ticker_wake(domain);
    }
}

/** Cancel the messages of a request that have not ended. */
static void cancel_posted(tw_net_request_t *request)
{
    for (; request->n_done < request->n; request->n_done++) {
        tw_p2p_cancel(request->comm->domain->p2p, request->posted[request->n_done]);
    }
}

static void request_give_up(tw_net_request_t *request)
{
    cancel_posted(request);
    put_request(request);
}

static tw_status_t check_buffers(const tw_net_buffer_t *buffers, int n)
{
    for (int i = 0; i < n; i++) {
        TW_FAIL_IF(buffers[i].bytes > TW_NCCL_MESSAGE_BYTES, TW_ERR_INVALID,
                   "net: a message of %zu bytes: up to %zu are possible", buffers[i].bytes,
                   (size_t)TW_NCCL_MESSAGE_BYTES);
        TW_FAIL_IF(!buffers[i].data && buffers[i].bytes > 0, TW_ERR_INVALID,
                   "net: a message of %zu bytes without memory for them", buffers[i].bytes);
    }
    return TW_OK;
}

/* ---- the profiler -------------------------------------------------------------------------------------- */

/** Tell the profiler that messages are posted. Call without the lock: the callback may call the net. */
static void profile_start(tw_net_request_t *request, const tw_net_buffer_t *buffers, int n, int op)
{
    tw_nccl_profiler_t profiler = tw_net_profiler();
    memset(request->events, 0, sizeof(request->events));
    for (int i = 0; profiler && i < n; i++) {
        tw_nccl_profiler_socket_t message = {.type = 1, .sock = {-1, op, buffers[i].bytes}};
        if (buffers[i].phandle) {
            (void)profiler(&request->events[i], TW_NCCL_PROFILER_START, buffers[i].phandle,
                           TW_NCCL_PROFILER_SOCKET, &message);
        }
    }
}

static void profile_stop(void **events)
{
    tw_nccl_profiler_t profiler = tw_net_profiler();
    for (int i = 0; profiler && i < TW_NET_RECVS_MAX; i++) {
        if (events[i]) {
            (void)profiler(&events[i], TW_NCCL_PROFILER_STOP, NULL, 0, NULL);
        }
    }
}

/* ---- posted -------------------------------------------------------------------------------------------- */

typedef tw_status_t (*post_t)(tw_p2p_peer_t *peer, const tw_transport_message_t *message,
                              tw_p2p_request_t **request);

static tw_status_t post_buffers(tw_net_request_t *request, const tw_net_buffer_t *buffers, int n, post_t post)
{
    tw_net_comm_t *comm = request->comm;
    tw_status_t status = TW_OK;
    for (int i = 0; i < n && status == TW_OK; i++) {
        tw_transport_message_t message = {.tag = (uint32_t)buffers[i].tag,
                                          .buffer = buffers[i].data,
                                          .bytes = buffers[i].bytes,
                                          .mem = TW_MEM_HOST,
                                          .may_be_shorter = post == tw_p2p_recv};

        status = post(comm->peer, &message, &request->posted[i]);
        request->data[i] = buffers[i].data;
        request->n += status == TW_OK;
    }
    return status;
}

static tw_status_t post_all(tw_net_comm_t *comm, const tw_net_buffer_t *buffers, int n, post_t post,
                            tw_net_request_t **out)
{
    tw_status_t status = TW_IN_PROGRESS;
    TW_TRY(check_buffers(buffers, n));
    pthread_mutex_lock(&comm->domain->lock);
    tw_net_request_t *request = take_request(comm);
    if (request) {
        status = post_buffers(request, buffers, n, post);
        if (status == TW_OK) {
            *out = request;
        } else {
            request_give_up(request);
        }
    }
    pthread_mutex_unlock(&comm->domain->lock);
    if (status == TW_OK) {
        profile_start(request, buffers, n, post == tw_p2p_recv);
    }
    return status;
}

tw_status_t tw_net_send(tw_net_comm_t *comm, const tw_net_buffer_t *buffer, tw_net_request_t **out)
{
    return post_all(comm, buffer, 1, tw_p2p_send, out);
}

tw_status_t tw_net_recv(tw_net_comm_t *comm, const tw_net_buffer_t *buffers, int n, tw_net_request_t **out)
{
    TW_FAIL_IF(n < 1 || n > TW_NET_RECVS_MAX, TW_ERR_INVALID,
               "net: a group of %d receives: 1 to %d are possible", n, TW_NET_RECVS_MAX);
    return post_all(comm, buffers, n, tw_p2p_recv, out);
}

/** Test the messages in order, from n_done on: p2p requests that are done no longer exist. */
static tw_status_t test_posted(tw_net_request_t *request)
{
    tw_p2p_t *p2p = request->comm->domain->p2p;
    while (request->n_done < request->n) {
        int i = request->n_done;
        tw_status_t status = tw_p2p_test(p2p, request->posted[i], &request->bytes[i]);

        if (status == TW_IN_PROGRESS) {
            return status;
        }
        request->n_done++;
        TW_TRY(status);
    }
    return TW_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

struct tw_net_region {
    tw_net_comm_t *comm;
    const char *data;
    size_t bytes;
};

tw_status_t tw_net_register(tw_net_comm_t *comm, void *data, size_t bytes, tw_net_region_t **out)
{
    tw_net_region_t *region = malloc(sizeof(*region));
    TW_FAIL_IF(!region, TW_ERR_NO_MEMORY, "net: out of memory for a region");
    *region = (tw_net_region_t){.comm = comm, .data = data, .bytes = bytes};
    *out = region;
    return TW_OK;
}

static int touches(const tw_net_request_t *request, const tw_net_region_t *region)
{
    for (int i = request->n_done; i < request->n; i++) {
        if ((uintptr_t)request->data[i] - (uintptr_t)region->data < region->bytes) {
            return 1;
        }
    }
    return 0;
}

void tw_net_deregister(tw_net_region_t *region)
{
    tw_net_comm_t *comm = region->comm;
    pthread_mutex_lock(&comm->domain->lock);
    for (int i = 0; i < TW_NET_REQUESTS; i++) {
        if (touches(&comm->requests[i], region)) {
            cancel_posted(&comm->requests[i]);
            comm->requests[i].is_void = 1;
        }
    }
    pthread_mutex_unlock(&comm->domain->lock);
    free(region);
}

/* ---- done ---------------------------------------------------------------------------------------------- */

static void tell_sizes(const tw_net_request_t *request, int *sizes)
{
    for (int i = 0; sizes && i < request->n; i++) {
        sizes[i] = request->bytes[i] <= INT_MAX ? (int)request->bytes[i] : INT_MAX;
    }
}

tw_status_t tw_net_test(tw_net_request_t *request, int *sizes)
{
    tw_net_domain_t *domain = request->comm->domain;
    void *events[TW_NET_RECVS_MAX];
    pthread_mutex_lock(&domain->lock);
    memcpy(events, request->events, sizeof(events));
    tw_status_t status = request->is_void ? TW_ERR_CANCELED : test_posted(request);
    if (status == TW_IN_PROGRESS) {
        (void)tw_p2p_progress_for(domain->p2p, request->posted[request->n_done]);
        domain->n_turned++;
        status = test_posted(request);
    }
    if (status == TW_OK) {
        tell_sizes(request, sizes);
        put_request(request);
    } else if (status != TW_IN_PROGRESS) {
        request_give_up(request);
    }
    pthread_mutex_unlock(&domain->lock);
    if (status != TW_IN_PROGRESS) {
        profile_stop(events);
    }
    return status;
}
