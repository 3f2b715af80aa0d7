/** The ucx backend: life and failing. */
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rendezvous/job.h"
#include "transport/rendezvous/node_id.h"
#include "transport/rendezvous/socket.h"
#include "transport/ucx/state.h"

/** Between looks at whether all have said goodbye. */
#define LEFT_SLEEP_SEC 0.1
/** While connections are being opened: what waits to be sent is tried again. */
#define HELLO_SLEEP_SEC 0.001
/** Of its IP addresses that a rank tells; it hardly has more. */
#define OWN_ADDRESSES_MAX 64

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
    tw_ucx_sleep_cleanup(ucx);
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

static int flush_done(tw_ucx_transport_t *ucx, ucs_status_ptr_t *requests)
{
    int done = 1;
    for (int i = 0; i < ucx->n_workers; i++) {
        if (!UCS_PTR_IS_PTR(requests[i])) {
            continue;
        }
        if (ucp_request_check_status(requests[i]) == UCS_INPROGRESS) {
            done = 0;
            continue;
        }
        ucp_request_free(requests[i]);
        requests[i] = NULL;
    }
    return done;
}

/** Until everything has gone out, the job has failed, or the peer timeout has passed. */
static void flush_all(tw_ucx_transport_t *ucx)
{
    const ucp_request_param_t params = {0};
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(ucx->peer_timeout_sec * 1e9);
    ucs_status_ptr_t requests[TW_UCX_WORKERS_MAX] = {NULL};
    while (!TAILQ_EMPTY(&ucx->busy_streams) && tw_time_ns() < until_ns && !tw_ucx_job_failed(ucx)) {
        tw_ucx_pump(ucx);
        if (!tw_ucx_workers_progress(ucx)) {
            sched_yield();
        }
    }
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker) {
            requests[i] = ucp_worker_flush_nbx(ucx->workers[i].worker, &params);
        }
    }
    while (!flush_done(ucx, requests) && tw_time_ns() < until_ns && !tw_ucx_job_failed(ucx)) {
        if (!tw_ucx_workers_progress(ucx)) {
            sched_yield();
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
        flush_all(ucx);
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

/** Ranks of one node have the same ones. TW_ERR_NO_MEMORY. */
static tw_status_t admit(tw_ucx_transport_t *ucx, const tw_msg_blob_t *addresses)
{
    const size_t n = addresses->bytes / TW_GUARD_ADDRESS_BYTES;
    uint8_t *all = realloc(ucx->admitted, (ucx->n_admitted + n) * TW_GUARD_ADDRESS_BYTES + 1);
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    ucx->admitted = all;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *address = addresses->data + i * TW_GUARD_ADDRESS_BYTES;
        size_t known = 0;
        while (known < ucx->n_admitted &&
               memcmp(all + known * TW_GUARD_ADDRESS_BYTES, address, TW_GUARD_ADDRESS_BYTES)) {
            known++;
        }
        if (known == ucx->n_admitted) {
            memcpy(all + known * TW_GUARD_ADDRESS_BYTES, address, TW_GUARD_ADDRESS_BYTES);
            ucx->n_admitted++;
        }
    }
    return TW_OK;
}

/** The IP addresses that ranks on other nodes come from. Known before there is a port for them to come to: what a filter drops is
 *  sent again only after a second. */
static tw_status_t exchange_origins(tw_ucx_transport_t *ucx)
{
    uint8_t addresses[OWN_ADDRESSES_MAX * TW_GUARD_ADDRESS_BYTES];
    const int with_loopback = strstr(tw_ucx_device_list(ucx), "lo") != NULL;
    const int n = tw_net_addresses(with_loopback, addresses, OWN_ADDRESSES_MAX);
    const tw_msg_blob_t own = {addresses, (uint32_t)n * TW_GUARD_ADDRESS_BYTES};
    tw_msg_blob_t *all = calloc((size_t)ucx->base.world, sizeof(*all));
    tw_status_t status = all ? tw_monitor_exchange(ucx->monitor, &own, all) : TW_ERR_NO_MEMORY;
    for (int r = 0; r < ucx->base.world && !status; r++) {
        status = tw_ucx_shares_memory(ucx, r) ? TW_OK : admit(ucx, &all[r]);
    }
    free(all);
    return status;
}

/** Everyone's addresses, from everyone's own. */
static tw_status_t exchange_addresses(tw_ucx_transport_t *ucx)
{
    const uint8_t takes_cuda = (uint8_t)ucx->base.takes[TW_MEM_CUDA];
    tw_msg_blob_t own[1 + TW_UCX_WORKERS_MAX] = {{&takes_cuda, 1}};
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
                                  .node_of = ucx->base.node_of,
                                  .peer_timeout_sec = ucx->peer_timeout_sec,
                                  .join_timeout_sec = ucx->options.join_timeout};
    params.connections = tw_rendezvous_take_connections(&ucx->rendezvous, &params.n_connections);
    return tw_monitor_create(&params, &ucx->monitor);
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
    tw_status_t status = exchange_origins(ucx);
    if (!status) {
        status = tw_ucx_workers_create(ucx);
    }
    if (!status) {
        status = tw_ucx_handlers_set(ucx);
    }
    if (!status) {
        status = exchange_addresses(ucx);
    }
    if (!status) {
        status = tw_ucx_sleep_init(ucx);
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
