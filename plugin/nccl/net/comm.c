/* Connections: each connection of NCCL is one peer of the device's p2p end (transport/p2p.h). */
#include "plugin/nccl/net/state.h"

#include <stdlib.h>
#include <string.h>

/* Offset in NCCL's handle, after p2p's, of the number of the dial that this process began. Number 0: none. */
#define NUMBER_AT TW_P2P_HANDLE_BYTES

_Static_assert(NUMBER_AT + sizeof(uint64_t) <= TW_NCCL_HANDLE_BYTES, "a handle fits into NCCL's");

struct tw_net_listener {
    tw_net_domain_t *domain;
    tw_p2p_listener_t *p2p;
};

static const char *token_of(const tw_net_domain_t *domain)
{
    const char *token = domain->context->options.token;
    return token[0] != '\0' ? token : NULL;
}

/** Make a connection of a connected peer; a failure closes the peer. The connection takes over the caller's
 *  use of the domain. A negative traffic_class means the context's. */
static tw_status_t net_comm_create(tw_net_domain_t *domain, tw_p2p_peer_t *peer, int traffic_class,
                                   tw_net_comm_t **out)
{
    tw_net_comm_t *comm = calloc(1, sizeof(*comm));
    pthread_mutex_lock(&domain->lock);
    if (comm) {
        tw_p2p_peer_mark(peer, traffic_class >= 0 ? traffic_class : domain->context->traffic_class);
    } else {
        tw_p2p_peer_close(peer);
    }
    pthread_mutex_unlock(&domain->lock);
    TW_FAIL_IF(!comm, TW_ERR_NO_MEMORY, "net: out of memory for a connection");
    comm->domain = domain;
    comm->peer = peer;
    for (int i = 0; i < TW_NET_REQUESTS; i++) {
        comm->requests[i].comm = comm;
        comm->requests[i].next_free = comm->free;
        comm->free = &comm->requests[i];
    }
    *out = comm;
    return TW_OK;
}

/* ---- the receiver's side ------------------------------------------------------------------------------- */

static tw_status_t listen_on(tw_net_domain_t *domain, void *handle, tw_p2p_listener_t **out)
{
    memset(handle, 0, TW_NCCL_HANDLE_BYTES);
    pthread_mutex_lock(&domain->lock);
    tw_status_t status = tw_p2p_listen(domain->p2p, domain->device->address, token_of(domain), handle, out);
    pthread_mutex_unlock(&domain->lock);
    return status;
}

tw_status_t tw_net_listen(tw_net_context_t *context, int dev, void *handle, tw_net_listener_t **out)
{
    tw_net_listener_t *listener;
    tw_net_domain_t *domain;
    tw_status_t status;
    TW_TRY(tw_net_domain_take(context, dev, &domain));
    listener = calloc(1, sizeof(*listener));
    if (!listener) {
        status = tw_fail(TW_ERR_NO_MEMORY, "net: out of memory for a listener");
        goto err_domain;
    }
    listener->domain = domain;
    status = listen_on(domain, handle, &listener->p2p);
    if (status != TW_OK) {
        goto err_listener;
    }
    *out = listener;
    return TW_OK;

err_listener:
    free(listener);
err_domain:
    tw_net_domain_put(domain);
    return status;
}

/** Make a connection of an accepted peer. Cannot fail to take the domain: the listener already uses it. */
static tw_status_t adopt(tw_net_domain_t *domain, tw_p2p_peer_t *peer, tw_net_comm_t **out)
{
    tw_net_domain_t *taken = NULL;
    TW_TRY(tw_net_domain_take(domain->context, (int)(domain - domain->context->domain), &taken));
    tw_status_t status = net_comm_create(taken, peer, TW_NET_NO_CLASS, out);

    if (status != TW_OK) {
        tw_net_domain_put(taken);
    }
    return status;
}

tw_status_t tw_net_accept(tw_net_listener_t *listener, tw_net_comm_t **out)
{
    tw_net_domain_t *domain = listener->domain;
    tw_p2p_peer_t *peer;
    pthread_mutex_lock(&domain->lock);
    tw_status_t status = tw_p2p_accept(listener->p2p, &peer);
    pthread_mutex_unlock(&domain->lock);
    return status == TW_OK ? adopt(domain, peer, out) : status;
}

void tw_net_listener_close(tw_net_listener_t *listener)
{
    if (!listener) {
        return;
    }
    pthread_mutex_lock(&listener->domain->lock);
    tw_p2p_listener_destroy(listener->p2p);
    pthread_mutex_unlock(&listener->domain->lock);
    tw_net_domain_put(listener->domain);
    free(listener);
}

/* ---- the sender's side --------------------------------------------------------------------------------- */

/** Take the dial that began with this handle out of the list. Compares the whole handle, so that a number
 *  that another process wrote into the handle finds no dial. */
static tw_net_dial_t *take_dial(tw_net_context_t *context, const uint8_t *handle)
{
    tw_net_dial_t **at, *dial;
    uint64_t number;
    memcpy(&number, handle + NUMBER_AT, sizeof(number));
    pthread_mutex_lock(&context->lock);
    at = &context->dials;
    while (*at && ((*at)->number != number || memcmp((*at)->handle, handle, sizeof((*at)->handle)) != 0)) {
        at = &(*at)->next;
    }
    dial = *at;
    if (dial) {
        *at = dial->next;
    }
    pthread_mutex_unlock(&context->lock);
    return dial;
}

static void put_dial_back(tw_net_context_t *context, tw_net_dial_t *dial)
{
    pthread_mutex_lock(&context->lock);
    dial->next = context->dials;
    context->dials = dial;
    pthread_mutex_unlock(&context->lock);
}

static uint64_t new_number(tw_net_context_t *context)
{
    pthread_mutex_lock(&context->lock);
    uint64_t number = ++context->last_number;
    pthread_mutex_unlock(&context->lock);
    return number;
}

static tw_status_t start_dial(tw_net_context_t *context, int dev, uint8_t *handle, tw_net_dial_t **out)
{
    tw_net_dial_t *dial = calloc(1, sizeof(*dial));
    TW_FAIL_IF(!dial, TW_ERR_NO_MEMORY, "net: out of memory for a connection");
    tw_status_t status = tw_net_domain_take(context, dev, &dial->domain);
    if (status != TW_OK) {
        goto err_dial;
    }
    memcpy(dial->handle, handle, sizeof(dial->handle));
    pthread_mutex_lock(&dial->domain->lock);
    status = tw_p2p_dial_start(dial->domain->p2p, dial->handle, token_of(dial->domain), &dial->p2p);
    pthread_mutex_unlock(&dial->domain->lock);
    if (status != TW_OK) {
        goto err_domain;
    }
    dial->number = new_number(context);
    memcpy(handle + NUMBER_AT, &dial->number, sizeof(dial->number));
    *out = dial;
    return TW_OK;

err_domain:
    tw_net_domain_put(dial->domain);
err_dial:
    free(dial);
    return status;
}

tw_status_t tw_net_connect(tw_net_context_t *context, int dev, void *handle, int traffic_class,
                           tw_net_comm_t **out)
{
    tw_net_dial_t *dial = take_dial(context, handle);
    tw_p2p_peer_t *peer;
    if (!dial) {
        TW_TRY(start_dial(context, dev, handle, &dial));
    }
    pthread_mutex_lock(&dial->domain->lock);
    tw_status_t status = tw_p2p_dial_test(dial->p2p, &peer);
    pthread_mutex_unlock(&dial->domain->lock);
    if (status == TW_IN_PROGRESS) {
        put_dial_back(context, dial);
        return TW_IN_PROGRESS;
    }
    if (status == TW_OK) { /* takes over the dial's use of the domain */
        status = net_comm_create(dial->domain, peer, traffic_class, out);
    }
    if (status != TW_OK) {
        tw_net_domain_put(dial->domain);
    }
    free(dial);
    return status;
}

/* ---- closing ------------------------------------------------------------------------------------------- */

void tw_net_comm_close(tw_net_comm_t *comm)
{
    if (!comm) {
        return;
    }
    pthread_mutex_lock(&comm->domain->lock);
    tw_p2p_peer_close(comm->peer);
    for (int i = 0; i < TW_NET_REQUESTS; i++) {
        comm->domain->n_open -= comm->requests[i].n > 0;
    }
    pthread_mutex_unlock(&comm->domain->lock);
    tw_net_domain_put(comm->domain);
    free(comm);
}
