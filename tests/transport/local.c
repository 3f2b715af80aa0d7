/** The local backend: ranks are threads of one process that share a hub.
 *
 *  A send waits in the receiver's port until a receive takes it. Nothing is ever buffered, so code that
 *  counts on buffering hangs here rather than on a cluster. One lock guards everything, the copies
 *  included. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "tests/transport/local.h"
#include "transport/backend.h"

typedef TAILQ_HEAD(local_queue, local_request) local_queue_t;

typedef struct local_request {
    TAILQ_ENTRY(local_request) queued, owned;
    local_queue_t *queue; /**< that it waits in; NULL once matched */
    tw_transport_message_t message;
    int owner;  /**< the rank that posted it */
    int source; /**< the rank that sends: the owner or the message's peer */
    tw_status_t status;
} local_request_t;

/** One rank's end of the hub: what it posted to receive, and what others posted to send to it, both
 *  unmatched. */
typedef struct local_port {
    pthread_cond_t wake;
    local_queue_t receives, sends;
    uint64_t n_events; /**< counts everything its rank may be waiting for */
    int awake;         /**< its next sleep is over before it begins */
    int gone;          /**< destroyed */
} local_port_t;

typedef struct local_hub {
    pthread_mutex_t lock;
    int world, n_users;
    int failed_rank; /**< -1: all is well */
    local_port_t ports[];
} local_hub_t;

typedef struct local_transport {
    tw_transport_t base;
    local_hub_t *hub;
    uint64_t seen_events;
    local_queue_t requests; /**< posted and not yet freed; touched by the owner's thread alone */
} local_transport_t;

static local_transport_t *local_of(tw_transport_t *transport)
{
    return (local_transport_t *)transport;
}

/* ---- the hub; its lock is held in all of these --------------------------------------------------------- */

static void hub_wake(local_hub_t *hub, int rank)
{
    hub->ports[rank].n_events++;
    pthread_cond_signal(&hub->ports[rank].wake);
}

static void hub_wake_all(local_hub_t *hub)
{
    for (int r = 0; r < hub->world; r++) {
        hub_wake(hub, r);
    }
}

/** The first failure ends the job; returns 1 if this is it. */
static int hub_fail(local_hub_t *hub, int rank)
{
    if (hub->failed_rank >= 0) {
        return 0;
    }
    hub->failed_rank = rank;
    hub_wake_all(hub);
    return 1;
}

static local_request_t *queue_find(local_queue_t *queue, int source, uint64_t tag)
{
    local_request_t *request = TAILQ_FIRST(queue);
    while (request && (request->source != source || request->message.tag != tag)) {
        request = TAILQ_NEXT(request, queued);
    }
    return request;
}

static void queue_add(local_queue_t *queue, local_request_t *request)
{
    request->queue = queue;
    TAILQ_INSERT_TAIL(queue, request, queued);
}

static void queue_remove(local_request_t *request)
{
    if (request->queue) {
        TAILQ_REMOVE(request->queue, request, queued);
    }
    request->queue = NULL;
}

static void hub_deliver(local_hub_t *hub, local_request_t *send, local_request_t *receive)
{
    queue_remove(send);
    queue_remove(receive);
    send->status = receive->status = TW_OK;
    const size_t room = receive->message.bytes, bytes = send->message.bytes;
    if (bytes > room || (bytes < room && !receive->message.may_be_shorter)) {
        tw_error("rank %d: peer %d: a message of %zu bytes came where %zu were expected (tag %llu)",
                 receive->owner, send->owner, bytes, room, (unsigned long long)send->message.tag);
        receive->status = TW_ERR_TRUNCATED;
    } else if (bytes) {
        memcpy(receive->message.buffer, send->message.buffer, bytes);
    }
    receive->message.bytes = bytes;
    hub_wake(hub, send->owner);
    hub_wake(hub, receive->owner);
}

static void hub_destroy(local_hub_t *hub)
{
    for (int r = 0; r < hub->world; r++) {
        pthread_cond_destroy(&hub->ports[r].wake);
    }
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static tw_status_t request_create(local_transport_t *local, const tw_transport_message_t *message, int source,
                                  local_request_t **out)
{
    local_request_t *request = calloc(1, sizeof(*request));
    if (!request) {
        tw_error("rank %d: out of memory for a request", local->base.rank);
        return TW_ERR_NO_MEMORY;
    }
    request->message = *message;
    request->owner = local->base.rank;
    request->source = source;
    request->status = TW_IN_PROGRESS;
    TAILQ_INSERT_TAIL(&local->requests, request, owned);
    *out = request;
    return TW_OK;
}

static void request_destroy(local_transport_t *local, local_request_t *request)
{
    TAILQ_REMOVE(&local->requests, request, owned);
    free(request);
}

/** What is posted meets its other half in the receiver's port, or waits there for it. */
static tw_status_t post(tw_transport_t *transport, const tw_transport_message_t *message, int is_send,
                        tw_transport_request_t **out)
{
    local_transport_t *local = local_of(transport);
    local_hub_t *hub = local->hub;
    local_port_t *port = &hub->ports[is_send ? message->peer : transport->rank];
    local_request_t *request;
    tw_status_t status = TW_OK;
    TW_TRY(request_create(local, message, is_send ? transport->rank : message->peer, &request));
    pthread_mutex_lock(&hub->lock);
    local_request_t *other =
        queue_find(is_send ? &port->receives : &port->sends, request->source, message->tag);
    if (hub->failed_rank >= 0) {
        status = TW_ERR_PEER;
    } else if (other) {
        hub_deliver(hub, is_send ? request : other, is_send ? other : request);
    } else {
        queue_add(is_send ? &port->sends : &port->receives, request);
    }
    pthread_mutex_unlock(&hub->lock);
    if (status) {
        request_destroy(local, request);
    } else {
        *out = (tw_transport_request_t *)request;
    }
    return status;
}

static tw_status_t local_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                                   tw_transport_request_t **out)
{
    return post(transport, message, 1, out);
}

static tw_status_t local_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                                   tw_transport_request_t **out)
{
    return post(transport, message, 0, out);
}

/** A message to or from a rank that has left can no longer come about; to need one ends the job. Lock
 *  held. */
static tw_status_t request_look(local_transport_t *local, local_request_t *request)
{
    local_hub_t *hub = local->hub;
    const int peer = request->message.peer;
    if (request->status != TW_IN_PROGRESS) {
        return request->status;
    }
    if (hub->ports[peer].gone && hub_fail(hub, peer)) {
        tw_error("rank %d: peer %d has left the job while a message was %s", local->base.rank, peer,
                 request->source == peer ? "awaited from it" : "on its way to it");
    }
    if (hub->failed_rank >= 0) {
        queue_remove(request);
        request->status = TW_ERR_PEER;
    }
    return request->status;
}

static tw_status_t local_test(tw_transport_t *transport, tw_transport_request_t *opaque, size_t *bytes)
{
    local_transport_t *local = local_of(transport);
    local_request_t *request = (local_request_t *)opaque;
    pthread_mutex_lock(&local->hub->lock);
    tw_status_t status = request_look(local, request);
    *bytes = request->message.bytes; /* its other half may set it */
    pthread_mutex_unlock(&local->hub->lock);
    if (status != TW_IN_PROGRESS) {
        request_destroy(local, request);
    }
    return status;
}

static void local_cancel(tw_transport_t *transport, tw_transport_request_t *opaque)
{
    local_transport_t *local = local_of(transport);
    local_request_t *request = (local_request_t *)opaque;
    pthread_mutex_lock(&local->hub->lock);
    queue_remove(request);
    pthread_mutex_unlock(&local->hub->lock);
    request_destroy(local, request);
}

/* ---- waiting and failing ------------------------------------------------------------------------------- */

/** Lock held. Takes note of what happened since the last look. */
static tw_status_t port_look(local_transport_t *local)
{
    const uint64_t n_events = local->hub->ports[local->base.rank].n_events;
    if (local->hub->failed_rank >= 0) {
        return TW_ERR_PEER;
    }
    if (local->seen_events == n_events) {
        return TW_IN_PROGRESS;
    }
    local->seen_events = n_events;
    return TW_OK;
}

static tw_status_t local_progress(tw_transport_t *transport)
{
    local_transport_t *local = local_of(transport);
    pthread_mutex_lock(&local->hub->lock);
    tw_status_t status = port_look(local);
    pthread_mutex_unlock(&local->hub->lock);
    return status;
}

static struct timespec deadline_after(double sec)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const double whole = floor(sec);
    at.tv_sec += (time_t)whole;
    at.tv_nsec += (long)((sec - whole) * 1e9);
    if (at.tv_nsec >= 1000000000L) {
        at.tv_nsec -= 1000000000L;
        at.tv_sec++;
    }
    return at;
}

/** Lock held. As port_look; TW_OK also if somebody has woken this rank. */
static tw_status_t port_wake_up(local_transport_t *local)
{
    local_port_t *port = &local->hub->ports[local->base.rank];
    const tw_status_t status = port_look(local);
    const int awake = port->awake;
    port->awake = 0;
    return status == TW_IN_PROGRESS && awake ? TW_OK : status;
}

static tw_status_t local_sleep(tw_transport_t *transport, double timeout_sec)
{
    local_transport_t *local = local_of(transport);
    local_hub_t *hub = local->hub;
    const struct timespec deadline = deadline_after(timeout_sec);
    int error = 0;
    pthread_mutex_lock(&hub->lock);
    tw_status_t status = port_wake_up(local);
    while (status == TW_IN_PROGRESS && !error) {
        error = pthread_cond_timedwait(&hub->ports[transport->rank].wake, &hub->lock, &deadline);
        status = port_wake_up(local);
    }
    pthread_mutex_unlock(&hub->lock);
    return status;
}

static void local_wake(tw_transport_t *transport)
{
    local_hub_t *hub = local_of(transport)->hub;
    pthread_mutex_lock(&hub->lock);
    hub->ports[transport->rank].awake = 1;
    pthread_cond_signal(&hub->ports[transport->rank].wake);
    pthread_mutex_unlock(&hub->lock);
}

static void local_abort(tw_transport_t *transport, const char *reason)
{
    local_hub_t *hub = local_of(transport)->hub;
    pthread_mutex_lock(&hub->lock);
    if (hub_fail(hub, transport->rank)) {
        tw_error("rank %d: gave the job up: %s", transport->rank, reason);
    }
    pthread_mutex_unlock(&hub->lock);
}

static int local_failed_rank(const tw_transport_t *transport)
{
    local_hub_t *hub = ((const local_transport_t *)transport)->hub;
    pthread_mutex_lock(&hub->lock);
    const int failed_rank = hub->failed_rank;
    pthread_mutex_unlock(&hub->lock);
    return failed_rank;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void local_destroy(tw_transport_t *transport)
{
    local_transport_t *local = local_of(transport);
    local_hub_t *hub = local->hub;
    pthread_mutex_lock(&hub->lock);
    local_request_t *request;
    TAILQ_FOREACH(request, &local->requests, owned) queue_remove(request);
    hub->ports[transport->rank].gone = 1;
    hub_wake_all(hub);
    const int last = --hub->n_users == 0;
    pthread_mutex_unlock(&hub->lock);

    while ((request = TAILQ_FIRST(&local->requests))) {
        request_destroy(local, request);
    }
    if (last) {
        hub_destroy(hub);
    }
    tw_transport_base_cleanup(transport);
    free(local);
}

static const tw_transport_ops_t local_ops = {
    .name = "local",
    .destroy = local_destroy,
    .send_post = local_send_post,
    .recv_post = local_recv_post,
    .test = local_test,
    .cancel = local_cancel,
    .progress = local_progress,
    .sleep = local_sleep,
    .wake = local_wake,
    .abort = local_abort,
    .failed_rank = local_failed_rank,
};

static local_hub_t *hub_create(int world)
{
    local_hub_t *hub = calloc(1, sizeof(*hub) + (size_t)world * sizeof(hub->ports[0]));
    if (!hub) {
        return NULL;
    }
    hub->world = world;
    hub->failed_rank = -1;
    pthread_mutex_init(&hub->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int r = 0; r < world; r++) {
        pthread_cond_init(&hub->ports[r].wake, &monotonic);
        TAILQ_INIT(&hub->ports[r].receives);
        TAILQ_INIT(&hub->ports[r].sends);
    }
    pthread_condattr_destroy(&monotonic);
    return hub;
}

/** Joins the hub as its next rank. */
static tw_status_t rank_create(local_hub_t *hub, const uint64_t *node_ids, tw_transport_t **out)
{
    local_transport_t *local = calloc(1, sizeof(*local));
    if (!local) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_transport_base_init(&local->base, &local_ops, hub->n_users, hub->world, node_ids);
    if (status) {
        free(local);
        return status;
    }
    TAILQ_INIT(&local->requests);
    local->hub = hub;
    hub->n_users++;
    snprintf(local->base.describe, sizeof(local->base.describe), "%d threads of one process, %d nodes",
             hub->world, local->base.n_nodes);
    *out = &local->base;
    return TW_OK;
}

static tw_status_t ranks_create(local_hub_t *hub, const uint64_t *node_ids, tw_transport_t **out)
{
    tw_status_t status = TW_OK;
    while (hub->n_users < hub->world && !status) {
        status = rank_create(hub, node_ids, &out[hub->n_users]);
    }
    if (!status) {
        return TW_OK;
    }
    const int n_created = hub->n_users;
    if (!n_created) {
        hub_destroy(hub);
    }
    for (int r = 0; r < n_created; r++) { /* the last one takes the hub along */
        tw_transport_destroy(out[r]);
    }
    return status;
}

tw_status_t tw_transport_local_create(int world, const int *node_of, tw_transport_t **out)
{
    if (world < 1) {
        tw_error("a world of %d ranks makes no sense", world);
        return TW_ERR_INVALID;
    }
    tw_status_t status = TW_ERR_NO_MEMORY;
    uint64_t *node_ids = malloc((size_t)world * sizeof(*node_ids));
    local_hub_t *hub = node_ids ? hub_create(world) : NULL;
    if (hub) {
        for (int r = 0; r < world; r++) {
            node_ids[r] = (uint64_t)(node_of ? node_of[r] : r);
        }
        status = ranks_create(hub, node_ids, out);
    }
    if (status) {
        tw_error("could not create %d local transports: %s", world, tw_status_string(status));
    }
    free(node_ids);
    return status;
}
