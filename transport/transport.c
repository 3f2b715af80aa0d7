/** The part of a transport that is common to all backends: argument checks, counters, node numbers. */
#include <stdlib.h>

#include "transport/backend.h"

#define POLL_SEC 50e-6

/** Number the nodes in the order of their lowest rank. Returns the number of nodes. */
static int base_number_nodes(const uint64_t *ids, int world, int *node_of)
{
    int n_nodes = 0;
    for (int r = 0; r < world; r++) {
        int first = 0;
        while (ids && first < r && ids[first] != ids[r]) {
            first++;
        }
        node_of[r] = ids && first < r ? node_of[first] : n_nodes++;
    }
    return n_nodes;
}

/* ---- in a forked process ------------------------------------------------------------------------------- */

/** Return 1 if this process was forked from the owner. It shares the owner's sockets: a byte that it reads or
 *  writes would end the owner's job. And other threads of the owner may have held any lock at the fork. */
static int is_forked(const tw_transport_t *transport)
{
    return transport->n_forks != tw_fork_count();
}

static tw_status_t fork_check(const tw_transport_t *transport)
{
    return !is_forked(transport) ? TW_OK
                                 : tw_fail(TW_ERR_INVALID,
                                           "rank %d: this process was forked from the one that has joined "
                                           "the job, and cannot take part in it",
                                           transport->rank);
}

/* ---- the shared part ----------------------------------------------------------------------------------- */

tw_status_t tw_transport_base_init(tw_transport_t *transport, const tw_transport_ops_t *ops, int rank,
                                   int world, const uint64_t *node_ids)
{
    transport->node_of = calloc((size_t)world, sizeof(*transport->node_of));
    transport->sent = calloc((size_t)world, sizeof(*transport->sent));
    if (!transport->node_of || !transport->sent) {
        tw_transport_base_cleanup(transport);
        return TW_ERR_NO_MEMORY;
    }
    transport->ops = ops;
    transport->n_forks = tw_fork_count();
    transport->rank = rank;
    transport->world = world;
    transport->n_nodes = base_number_nodes(node_ids, world, transport->node_of);
    transport->takes[TW_MEM_HOST] = 1;
    return TW_OK;
}

void tw_transport_base_cleanup(tw_transport_t *transport)
{
    free(transport->node_of);
    free(transport->sent);
    transport->node_of = NULL;
    transport->sent = NULL;
}

void tw_transport_destroy(tw_transport_t *transport)
{
    if (transport && !is_forked(transport)) {
        transport->ops->destroy(transport);
    }
}

int tw_transport_rank(const tw_transport_t *transport)
{
    return transport->rank;
}

int tw_transport_world(const tw_transport_t *transport)
{
    return transport->world;
}

int tw_transport_node_of(const tw_transport_t *transport, int rank)
{
    return rank >= 0 && rank < transport->world ? transport->node_of[rank] : -1;
}

int tw_transport_n_nodes(const tw_transport_t *transport)
{
    return transport->n_nodes;
}

const char *tw_transport_name(const tw_transport_t *transport)
{
    return transport->ops->name;
}

const char *tw_transport_describe(const tw_transport_t *transport)
{
    return transport->describe;
}

int tw_transport_takes(const tw_transport_t *transport, tw_mem_t mem)
{
    return (unsigned)mem < TW_TRANSPORT_MEMS && transport->takes[mem];
}

static tw_status_t message_check(const tw_transport_t *transport, const tw_transport_message_t *message)
{
    const char *wrong = NULL;
    tw_status_t status = TW_ERR_INVALID;
    if (message->peer < 0 || message->peer >= transport->world) {
        wrong = "no such peer";
    } else if (message->tag >> TW_TRANSPORT_TAG_BITS) {
        wrong = "tag does not fit 48 bits";
    } else if (!message->buffer && message->bytes) {
        wrong = "no buffer";
    } else {
        status = TW_ERR_UNSUPPORTED;
    }
    if (!wrong && !tw_transport_takes(transport, message->mem)) {
        wrong = message->mem == TW_MEM_CUDA ? "the transport takes no CUDA memory" : "no such memory";
    } else if (!wrong && message->mem != TW_MEM_HOST && message->peer == transport->rank) {
        wrong = "messages to the own rank are in host memory";
    }
    if (!wrong) {
        return TW_OK;
    }
    return tw_fail(status, "rank %d: peer %d, tag %llu, %zu bytes: %s", transport->rank, message->peer,
                   (unsigned long long)message->tag, message->bytes, wrong);
}

tw_status_t tw_transport_message_send(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request)
{
    TW_TRY(message_check(transport, message));
    TW_TRY(fork_check(transport));
    TW_TRY(transport->ops->send_post(transport, message, request));
    transport->sent[message->peer].bytes += message->bytes;
    transport->sent[message->peer].messages++;
    return TW_OK;
}

tw_status_t tw_transport_message_recv(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request)
{
    TW_TRY(message_check(transport, message));
    TW_TRY(fork_check(transport));
    return transport->ops->recv_post(transport, message, request);
}

tw_status_t tw_transport_send_post(tw_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                                   size_t bytes, tw_transport_request_t **request)
{
    const tw_transport_message_t message = {
        .peer = peer, .tag = tag, .buffer = (void *)(uintptr_t)buffer, .bytes = bytes, .mem = TW_MEM_HOST};
    return tw_transport_message_send(transport, &message, request);
}

tw_status_t tw_transport_recv_post(tw_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                   size_t bytes, tw_transport_request_t **request)
{
    const tw_transport_message_t message = {
        .peer = peer, .tag = tag, .buffer = buffer, .bytes = bytes, .mem = TW_MEM_HOST};
    return tw_transport_message_recv(transport, &message, request);
}

tw_status_t tw_transport_test(tw_transport_t *transport, tw_transport_request_t *request)
{
    size_t bytes;
    return tw_transport_test_bytes(transport, request, &bytes);
}

tw_status_t tw_transport_test_bytes(tw_transport_t *transport, tw_transport_request_t *request, size_t *bytes)
{
    TW_TRY(fork_check(transport));
    return transport->ops->test(transport, request, bytes);
}

void tw_transport_cancel(tw_transport_t *transport, tw_transport_request_t *request)
{
    if (!is_forked(transport)) {
        transport->ops->cancel(transport, request);
    }
}

tw_status_t tw_transport_progress(tw_transport_t *transport)
{
    TW_TRY(fork_check(transport));
    tw_status_t status = transport->ops->progress(transport);
    int moved = status == TW_OK;
    if (status < 0) {
        return status;
    }
    if (transport->hook) {
        transport->hook->move(transport->hook->arg, &moved);
    }
    return moved ? TW_OK : TW_IN_PROGRESS;
}

tw_status_t tw_transport_sleep(tw_transport_t *transport, double timeout_sec)
{
    const tw_transport_hook_t *hook = transport->hook;
    TW_TRY(fork_check(transport));
    const int polls = hook && hook->polls(hook->arg);
    return transport->ops->sleep(transport, polls && timeout_sec > POLL_SEC ? POLL_SEC : timeout_sec);
}

void tw_transport_wake(tw_transport_t *transport)
{
    if (!is_forked(transport)) {
        transport->ops->wake(transport);
    }
}

void tw_transport_hook_set(tw_transport_t *transport, tw_transport_hook_t *hook)
{
    transport->hook = hook;
}

tw_transport_hook_t *tw_transport_hook_get(const tw_transport_t *transport)
{
    return transport->hook;
}

void tw_transport_abort(tw_transport_t *transport, const char *reason)
{
    if (!is_forked(transport)) {
        transport->ops->abort(transport, reason ? reason : "no reason given");
    }
}

int tw_transport_failed_rank(const tw_transport_t *transport)
{
    return is_forked(transport) ? -1 : transport->ops->failed_rank(transport);
}

void tw_transport_peer_counters(const tw_transport_t *transport, int peer, tw_transport_counters_t *out)
{
    *out = transport->sent[peer];
}

/** Add up the counters of the other ranks on this node (same_node 1), or on other nodes (0). */
static void counters_sum(const tw_transport_t *transport, int same_node, tw_transport_counters_t *out)
{
    const int own_node = transport->node_of[transport->rank];
    *out = (tw_transport_counters_t){0, 0};
    for (int r = 0; r < transport->world; r++) {
        if (r == transport->rank || (transport->node_of[r] == own_node) != same_node) {
            continue;
        }
        out->bytes += transport->sent[r].bytes;
        out->messages += transport->sent[r].messages;
    }
}

void tw_transport_inter_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out)
{
    counters_sum(transport, 0, out);
}

void tw_transport_in_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out)
{
    counters_sum(transport, 1, out);
}
