/** The ucx backend: life, waiting, failing. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport/rendezvous/job.h"
#include "transport/rendezvous/node_id.h"
#include "transport/rendezvous/socket.h"
#include "transport/ucx/state.h"

/** Longest sleep while a rank that has left may still be needed: its silence is judged when the caller tests. */
#define LEFT_SLEEP_SEC 0.1
/** While connections are being opened: what waits to be sent is tried again. */
#define HELLO_SLEEP_SEC 0.001
/** Of its IP addresses that a rank tells; it hardly has more. */
#define OWN_ADDRESSES_MAX 64

/* ---- waiting ----------------------------------------------------------------------------------------------- */

/** 1: something is there already, do not sleep. */
static int arm(tw_ucx_transport_t *ucx)
{
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker && ucp_worker_arm(ucx->workers[i].worker) != UCS_OK) {
            return 1;
        }
    }
    return 0;
}

static tw_status_t spin(tw_ucx_transport_t *ucx, double sec)
{
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(sec * 1e9);
    tw_status_t status;
    do {
        status = tw_ucx_progress(&ucx->base);
    } while (status == TW_IN_PROGRESS && tw_time_ns() < until_ns);
    return status;
}

static int any_left(const tw_ucx_transport_t *ucx)
{
    uint64_t count;
    for (int r = 0; r < ucx->base.world; r++) {
        if (tw_monitor_gone(ucx->monitor, r, &count)) {
            return 1;
        }
    }
    return 0;
}

/** Until a message, a verdict or, unless it is -1, `wake_fd`. */
static tw_status_t sleep_until(tw_ucx_transport_t *ucx, int wake_fd, double timeout_sec)
{
    nfds_t n = 0;
    tw_status_t status = spin(ucx, ucx->options.spin < timeout_sec ? ucx->options.spin : timeout_sec);
    if (status != TW_IN_PROGRESS) {
        return status;
    }
    if (arm(ucx)) {
        return TW_OK;
    }
    if (timeout_sec > LEFT_SLEEP_SEC && any_left(ucx)) {
        timeout_sec = LEFT_SLEEP_SEC;
    }
    ucx->pollfds[n++] = (struct pollfd){.fd = tw_monitor_event_fd(ucx->monitor), .events = POLLIN};
    ucx->pollfds[n++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker) {
            ucx->pollfds[n++] = (struct pollfd){.fd = ucx->workers[i].event_fd, .events = POLLIN};
        }
    }
    const struct timespec timeout = {(time_t)timeout_sec,
                                     (long)((timeout_sec - (double)(time_t)timeout_sec) * 1e9)};
    const int ready = ppoll(ucx->pollfds, n, &timeout, NULL);
    if (ucx->pollfds[0].revents) {
        tw_monitor_clear_event(ucx->monitor);
    }
    if (ucx->pollfds[1].revents) {
        (void)eventfd_read(wake_fd, &(eventfd_t){0});
    }
    if (tw_monitor_failed_rank(ucx->monitor) >= 0) {
        return TW_ERR_PEER;
    }
    return ready > 0 ? TW_OK : TW_IN_PROGRESS;
}

static tw_status_t tw_ucx_sleep(tw_transport_t *transport, double timeout_sec)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    return sleep_until(ucx, ucx->wake_fd, timeout_sec);
}

tw_status_t tw_ucx_nap(tw_ucx_transport_t *ucx, double timeout_sec)
{
    return sleep_until(ucx, -1, timeout_sec);
}

static void tw_ucx_wake(tw_transport_t *transport)
{
    (void)eventfd_write(tw_ucx_of(transport)->wake_fd, 1); /* can only fail where it is readable already */
}

/* ---- failing ----------------------------------------------------------------------------------------------- */

/** Ends: rank 0 answers, or is taken for dead. */
static void tw_ucx_abort(tw_transport_t *transport, const char *reason)
{
    tw_monitor_t *monitor = tw_ucx_of(transport)->monitor;
    char text[TW_MSG_TEXT_BYTES];
    snprintf(text, sizeof(text), "it gave the job up: %s", reason);
    tw_monitor_fail(monitor, transport->rank, text);
    while (tw_monitor_failed_rank(monitor) < 0) {
        (void)poll(NULL, 0, 1);
    }
}

static int tw_ucx_failed_rank(const tw_transport_t *transport)
{
    return tw_monitor_failed_rank(((const tw_ucx_transport_t *)transport)->monitor);
}

/* ---- life -------------------------------------------------------------------------------------------------- */

static void free_ops(struct tw_ucx_op_list *ops)
{
    tw_ucx_op_t *op;
    while ((op = TAILQ_FIRST(ops))) {
        TAILQ_REMOVE(ops, op, entry);
        free(op);
    }
}

/** Everything but the requests and the monitor. */
static void tw_ucx_free(tw_ucx_transport_t *ucx)
{
    tw_ucx_workers_destroy(ucx); /* ends the operations */
    tw_ucx_peers_destroy(ucx);
    free_ops(&ucx->ops);
    free_ops(&ucx->free_ops);
    free(ucx->slots.slots);
    free(ucx->admitted);
    free(ucx->pollfds);
    if (ucx->wake_fd >= 0) {
        close(ucx->wake_fd);
    }
    tw_rendezvous_cleanup(&ucx->rendezvous);
    tw_transport_base_cleanup(&ucx->base);
    tw_config_cleanup(&tw_transport_config_table, &ucx->options);
    free(ucx);
}

/** Everyone hears how much this rank has said to them, so that they know when they have heard it all. Then UCX has to work
 *  on until they have. */
static void say_goodbye(tw_ucx_transport_t *ucx)
{
    uint64_t *counts = calloc((size_t)ucx->base.world, sizeof(*counts));
    for (int r = 0; counts && r < ucx->base.world; r++) {
        counts[r] = ucx->peers[r].n_sent;
    }
    tw_monitor_leave(ucx->monitor, counts);
    free(counts);
    while (!tw_monitor_has_left(ucx->monitor)) {
        if (tw_ucx_progress(&ucx->base) != TW_OK && !tw_monitor_has_left(ucx->monitor)) {
            (void)tw_ucx_nap(ucx, LEFT_SLEEP_SEC);
        }
    }
}

static int everyone_has_left(const tw_ucx_transport_t *ucx)
{
    uint64_t count;
    for (int r = 0; r < ucx->base.world; r++) {
        if (!tw_monitor_gone(ucx->monitor, r, &count)) {
            return 0;
        }
    }
    return 1;
}

static void tw_ucx_destroy(tw_transport_t *transport)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    tw_ucx_request_t *request;
    while ((request = TAILQ_FIRST(&ucx->requests))) {
        tw_ucx_cancel(transport, (tw_transport_request_t *)request);
    }
    if (tw_monitor_failed_rank(ucx->monitor) < 0) {
        tw_ucx_workers_flush(ucx);
    }
    say_goodbye(ucx);
    if (tw_monitor_failed_rank(ucx->monitor) >= 0 || !everyone_has_left(ucx)) {
        tw_ucx_workers_abandon(ucx);
    }
    tw_monitor_destroy(ucx->monitor);
    ucx->monitor = NULL;
    tw_ucx_free(ucx);
}

static const tw_transport_ops_t tw_ucx_ops = {
    .name = "ucx",
    .destroy = tw_ucx_destroy,
    .send_post = tw_ucx_send_post,
    .recv_post = tw_ucx_recv_post,
    .test = tw_ucx_test,
    .cancel = tw_ucx_cancel,
    .progress = tw_ucx_progress,
    .sleep = tw_ucx_sleep,
    .wake = tw_ucx_wake,
    .abort = tw_ucx_abort,
    .failed_rank = tw_ucx_failed_rank,
};

/* ---- start ------------------------------------------------------------------------------------------------- */

static void identify(const tw_ucx_transport_t *ucx, const tw_job_t *job, tw_msg_member_t *own)
{
    own->local_rank = job->local_rank;
    own->node_id = tw_node_id(ucx->options.node_id);
    own->shm_id = tw_shm_id(own->node_id);
    if (!strcmp(ucx->options.node_tls, "none")) {
        own->shm_id ^= (uint64_t)job->rank + 1; /* shared with nobody */
    }
}

static tw_status_t number_nodes(tw_ucx_transport_t *ucx)
{
    const tw_rendezvous_t *rendezvous = &ucx->rendezvous;
    uint64_t *ids = calloc((size_t)rendezvous->world, sizeof(*ids));
    for (int r = 0; ids && r < rendezvous->world; r++) {
        ids[r] = rendezvous->members[r].node_id;
    }
    tw_status_t status =
        ids ? tw_transport_base_init(&ucx->base, &tw_ucx_ops, rendezvous->rank, rendezvous->world, ids)
            : TW_ERR_NO_MEMORY;
    free(ids);
    return status;
}

static void describe(tw_ucx_transport_t *ucx)
{
    const tw_msg_settings_t *settings = &ucx->rendezvous.settings;
    const char *memory = ucx->base.takes[TW_MEM_CUDA] ? ", from and to CUDA memory" : "";
    char net[256] = "", node[128] = "", chunk[32];
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    if (ucx->n_workers > TW_UCX_FIRST_NET_WORKER) {
        snprintf(net, sizeof(net), ", %s on %s (%u stream%s, chunks of %s)", ucx->options.net_tls,
                 tw_ucx_device_list(ucx), settings->streams, settings->streams == 1 ? "" : "s",
                 tw_format_bytes(settings->chunk_bytes, chunk, sizeof(chunk)));
    }
    if (ucx->workers[TW_UCX_SHM_WORKER].worker) {
        snprintf(node, sizeof(node), ", %s inside a node", ucx->options.node_tls);
    }
    snprintf(ucx->base.describe, sizeof(ucx->base.describe), "%d rank%s on %d node%s, UCX %u.%u.%u%s%s%s",
             ucx->base.world, ucx->base.world == 1 ? "" : "s", ucx->base.n_nodes,
             ucx->base.n_nodes == 1 ? "" : "s", major, minor, release, net, node, memory);
    if (ucx->base.rank == 0) {
        tw_info("rank 0: %s", ucx->base.describe);
    }
}

/** Everyone's addresses, from everyone's own. */
static tw_status_t exchange_addresses(tw_ucx_transport_t *ucx)
{
    uint8_t head[1 + OWN_ADDRESSES_MAX * TW_GUARD_ADDRESS_BYTES] = {(uint8_t)ucx->base.takes[TW_MEM_CUDA]};
    const int with_loopback = strstr(tw_ucx_device_list(ucx), "lo") != NULL;
    const int n_addresses = tw_net_addresses(with_loopback, head + 1, OWN_ADDRESSES_MAX);
    tw_msg_blob_t own[1 + TW_UCX_WORKERS_MAX] = {{head, 1 + (uint32_t)n_addresses * TW_GUARD_ADDRESS_BYTES}};
    tw_msg_blob_t *all = calloc((size_t)ucx->base.world, sizeof(*all));
    tw_msg_writer_t list = {0};
    for (int i = 0; i < ucx->n_workers; i++) {
        own[1 + i] = (tw_msg_blob_t){(const uint8_t *)ucx->workers[i].address,
                                     (uint32_t)ucx->workers[i].address_bytes};
    }
    tw_msg_blobs_write(own, 1 + (uint32_t)ucx->n_workers, &list);
    tw_status_t status = all && !list.failed ? TW_OK : TW_ERR_NO_MEMORY;
    const tw_msg_blob_t own_list = {list.data, (uint32_t)list.bytes};
    if (!status) {
        status = tw_monitor_exchange(ucx->monitor, &own_list, all);
    }
    if (!status) {
        status = tw_ucx_peers_create(ucx, all);
    }
    tw_msg_writer_cleanup(&list);
    free(all);
    return status;
}

static tw_status_t start_monitor(tw_ucx_transport_t *ucx)
{
    tw_monitor_params_t params = {.rank = ucx->base.rank,
                                  .world = ucx->base.world,
                                  .peer_timeout_sec = ucx->peer_timeout_sec,
                                  .join_timeout_sec = ucx->options.join_timeout};
    params.connections = tw_rendezvous_take_connections(&ucx->rendezvous, &params.n_connections);
    return tw_monitor_create(&params, &ucx->monitor);
}

static tw_status_t prepare_sleep(tw_ucx_transport_t *ucx)
{
    ucx->pollfds = calloc(2 + (size_t)ucx->n_workers, sizeof(*ucx->pollfds));
    if (!ucx->pollfds) {
        tw_error("rank %d: out of memory for what to sleep on", ucx->base.rank);
        return TW_ERR_NO_MEMORY;
    }
    ucx->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ucx->wake_fd >= 0) {
        return TW_OK;
    }
    const int error = errno;
    tw_error("rank %d: no descriptor to be woken by: %s", ucx->base.rank, strerror(error));
    return tw_status_from_errno(error);
}

/** A rank that has not yet opened all its connections to this one; -1: none. */
static int awaited(const tw_ucx_transport_t *ucx)
{
    for (int r = 0; r < ucx->base.world; r++) {
        const tw_ucx_peer_t *peer = &ucx->peers[r];
        if (peer->n_streams && peer->streams[0].worker->at_once && peer->n_hellos < peer->n_streams) {
            return r;
        }
    }
    return -1;
}

/** All connections are opened while the other ranks are let in; then nobody has to be any more. If a rank fails meanwhile, the
 *  transport's calls name it. */
static tw_status_t greet_all(tw_ucx_transport_t *ucx)
{
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(ucx->options.join_timeout * 1e9);
    tw_ucx_workers_admit(ucx);
    tw_status_t status = tw_ucx_hellos_send(ucx);
    while (!status && (awaited(ucx) >= 0 || !TAILQ_EMPTY(&ucx->busy_streams))) {
        if (tw_time_ns() > until_ns) {
            const int late = awaited(ucx) >= 0 ? awaited(ucx) : TAILQ_FIRST(&ucx->busy_streams)->peer->rank;
            tw_monitor_fail(ucx->monitor, late, "its connections were not open in time");
        }
        status = tw_ucx_progress(&ucx->base);
        if (status == TW_IN_PROGRESS) {
            status = tw_ucx_nap(ucx, HELLO_SLEEP_SEC);
        }
        status = status == TW_IN_PROGRESS ? TW_OK : status;
    }
    tw_ucx_workers_shut(ucx);
    return status == TW_ERR_PEER ? TW_OK : status;
}

static tw_status_t connect_all(tw_ucx_transport_t *ucx)
{
    tw_status_t status = tw_ucx_workers_create(ucx);
    if (!status) {
        status = exchange_addresses(ucx);
    }
    if (!status) {
        status = prepare_sleep(ucx);
    }
    return status ? status : greet_all(ucx);
}

static tw_status_t meet_and_connect(tw_ucx_transport_t *ucx, const tw_job_t *job)
{
    tw_msg_member_t own;
    identify(ucx, job, &own);
    tw_status_t status = tw_rendezvous_join(&ucx->rendezvous, job, &ucx->options, &own);
    if (status) {
        return status;
    }
    ucx->peer_timeout_sec = ucx->rendezvous.settings.peer_timeout_ms * 1e-3;
    ucx->eager_bytes = ucx->rendezvous.settings.eager_bytes;
    status = number_nodes(ucx);
    if (!status) {
        status = start_monitor(ucx); /* from here on nobody waits in vain for a rank that has stopped */
    }
    if (!status) {
        status = connect_all(ucx);
        if (status && status != TW_ERR_PEER) {
            tw_monitor_fail(ucx->monitor, ucx->base.rank, "it could not start");
        }
    }
    return status;
}

static tw_status_t job_check(const tw_job_t *job)
{
    if (job->world >= 1 && job->rank >= 0 && job->rank < job->world && job->world <= TW_JOB_WORLD_MAX) {
        return TW_OK;
    }
    tw_error("rank %d in a world of %d makes no sense", job->rank, job->world);
    return TW_ERR_INVALID;
}

tw_status_t tw_transport_ucx_create(const tw_job_t *job, tw_transport_t **out)
{
    tw_status_t status = job_check(job);
    if (status) {
        return status;
    }
    tw_ucx_transport_t *ucx = calloc(1, sizeof(*ucx));
    if (!ucx) {
        return TW_ERR_NO_MEMORY;
    }
    TAILQ_INIT(&ucx->requests);
    TAILQ_INIT(&ucx->ops);
    TAILQ_INIT(&ucx->free_ops);
    TAILQ_INIT(&ucx->busy_peers);
    TAILQ_INIT(&ucx->busy_streams);
    ucx->memory[TW_MEM_HOST] = UCS_MEMORY_TYPE_HOST;
    ucx->memory[TW_MEM_CUDA] = UCS_MEMORY_TYPE_CUDA;
    ucx->wake_fd = -1;
    status = tw_config_init(&tw_transport_config_table, &ucx->options);
    if (status) {
        free(ucx);
        return status;
    }
    status = meet_and_connect(ucx, job);
    if (status) {
        tw_monitor_destroy(ucx->monitor);
        tw_ucx_free(ucx);
        return status;
    }
    describe(ucx);
    *out = &ucx->base;
    return TW_OK;
}
