/** The ucx backend: life and failing. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/control/socket.h"
#include "transport/devices.h"
#include "transport/rendezvous/job.h"
#include "transport/rendezvous/node_id.h"
#include "transport/ucx/state.h"

/** Between looks at whether all have said goodbye. */
#define LEFT_SLEEP_SEC 0.1

/* ---- failing ------------------------------------------------------------------------------------------- */

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

/* ---- life ---------------------------------------------------------------------------------------------- */

/** Everything but the requests and the monitor. */
static void tw_ucx_free(tw_ucx_transport_t *ucx)
{
    tw_p2p_destroy(ucx->p2p);
    free(ucx->departed);
    free(ucx->n_heard);
    tw_rendezvous_cleanup(&ucx->rendezvous);
    tw_transport_base_cleanup(&ucx->base);
    tw_config_cleanup(&tw_transport_config_table, &ucx->options);
    free(ucx);
}

/** Everyone hears how much this rank has said to them, so that they know when they have heard it all. Then
 *  UCX has to work on until they have. */
static void say_goodbye(tw_ucx_transport_t *ucx)
{
    uint64_t *counts = calloc((size_t)ucx->base.world, sizeof(*counts));
    for (int r = 0; counts && r < ucx->base.world; r++) {
        counts[r] = tw_p2p_peer_counts(tw_p2p_peer_find(ucx->p2p, r)).n_sent;
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
    tw_p2p_cancel_all(ucx->p2p);
    if (!tw_ucx_job_failed(ucx)) {
        tw_p2p_flush(ucx->p2p);
    }
    say_goodbye(ucx);
    if (tw_monitor_failed_rank(ucx->monitor) >= 0 || !everyone_has_left(ucx)) {
        tw_p2p_abandon(ucx->p2p);
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

/* ---- start --------------------------------------------------------------------------------------------- */

/** Who is alone on a node and sends over TCP does without it; where a launcher does not say how many a node
 *  has, there may be others. */
static int needs_ucx(const tw_transport_options_t *options, const tw_job_t *job)
{
    const int may_share = job->local_world != 1 && job->world > 1 && strcmp(options->node_tls, "none") != 0;
    return may_share || strcmp(options->net_tls, "tcp") != 0;
}

static void identify(const tw_ucx_transport_t *ucx, const tw_job_t *job, tw_msg_member_t *own)
{
    *own = (tw_msg_member_t){.local_rank = job->local_rank, .local_world = job->local_world};
    snprintf(own->net_tls, sizeof(own->net_tls), "%s", ucx->options.net_tls);
    snprintf(own->node_tls, sizeof(own->node_tls), "%s", ucx->options.node_tls);
    own->node_id = tw_node_id(ucx->options.node_id);
    own->shm_id = tw_shm_id(own->node_id);
    if (needs_ucx(&ucx->options, job)) {
        (void)tw_p2p_ucx_version(own->ucx, sizeof(own->ucx));
    } else {
        snprintf(own->ucx, sizeof(own->ucx), "none");
    }
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
    char net[256] = "", node[128] = "", chunk[32], version[32] = "";
    if (ucx->n_far) {
        snprintf(net, sizeof(net), ", %s%s on %s (%u stream%s, chunks of %s)",
                 ucx->options.net_encrypt ? "sealed " : "", ucx->options.net_tls, tw_ucx_device_list(ucx),
                 settings->streams, settings->streams == 1 ? "" : "s",
                 tw_format_bytes(settings->chunk_bytes, chunk, sizeof(chunk)));
    }
    if (ucx->n_near) {
        snprintf(node, sizeof(node), ", %s inside a node", ucx->options.node_tls);
    }
    if (ucx->n_near || (ucx->n_far && strcmp(ucx->options.net_tls, "tcp") != 0)) {
        snprintf(version, sizeof(version), ", UCX ");
        (void)tw_p2p_ucx_version(version + strlen(version), sizeof(version) - strlen(version));
    }
    snprintf(ucx->base.describe, sizeof(ucx->base.describe), "%d rank%s on %d node%s%s%s%s%s",
             ucx->base.world, ucx->base.world == 1 ? "" : "s", ucx->base.n_nodes,
             ucx->base.n_nodes == 1 ? "" : "s", version, net, node, memory);
    if (ucx->base.rank == 0) {
        tw_info("rank 0: %s", ucx->base.describe);
    }
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

static tw_status_t meet_and_connect(tw_ucx_transport_t *ucx, const tw_job_t *job)
{
    tw_msg_member_t own;
    identify(ucx, job, &own);
    TW_TRY(tw_rendezvous_join(&ucx->rendezvous, job, &ucx->options, &own));
    ucx->peer_timeout_sec = ucx->rendezvous.settings.peer_timeout_ms * 1e-3;
    tw_status_t status = number_nodes(ucx);
    if (!status) {
        ucx->departed = calloc((size_t)ucx->base.world, sizeof(*ucx->departed));
        ucx->n_heard = calloc((size_t)ucx->base.world, sizeof(*ucx->n_heard));
        status = ucx->departed && ucx->n_heard ? TW_OK : TW_ERR_NO_MEMORY;
    }
    if (!status) {
        status = start_monitor(ucx); /* from here on nobody waits in vain for a rank that has stopped */
    }
    if (!status) {
        status = tw_ucx_network_open(ucx, job->token);
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

static tw_status_t read_options(const tw_transport_ucx_params_t *params, tw_transport_options_t *options)
{
    const tw_config_table_t *table = &tw_transport_config_table;
    tw_status_t status = TW_OK;
    TW_TRY(tw_config_init(table, options));
    if (params->net_devices) {
        status = tw_config_set(table, options, "TW_NET_DEVICES", params->net_devices);
    }
    if (!status && params->node_id) {
        status = tw_config_set(table, options, "TW_NODE_ID", params->node_id);
    }
    if (!status) {
        char who[32];
        snprintf(who, sizeof(who), "rank %d", params->job->rank);
        status = tw_devices_check(who, options->net_devices); /* what is no list is wrong in any job */
    }
    if (!status && options->net_encrypt && !options->job_token[0]) {
        tw_error("TW_NET_ENCRYPT=y needs TW_JOB_TOKEN, the same on all ranks: keys are made of it");
        status = TW_ERR_CONFIG;
    }
    if (status) {
        tw_config_cleanup(table, options);
    }
    return status;
}

/** Once in a job. */
static void warn_of_weak_token(int rank, const char *token)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    if (rank == 0 && token[0] && tw_token_is_weak(token) && !atomic_flag_test_and_set(&has_warned)) {
        tw_warn(
            "TW_JOB_TOKEN is short: whoever listens to the start of the job may find it by trying; take 32 "
            "random bytes (openssl rand -hex 32)");
    }
}

static tw_status_t create(const tw_transport_ucx_params_t *params, int *listener, tw_transport_t **out)
{
    tw_config_check_names();
    TW_TRY(job_check(params->job));
    tw_ucx_transport_t *ucx = calloc(1, sizeof(*ucx));
    if (!ucx) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = read_options(params, &ucx->options);
    if (status) {
        free(ucx);
        return status;
    }
    warn_of_weak_token(params->job->rank, ucx->options.job_token);
    ucx->options.listener = listener;
    status = meet_and_connect(ucx, params->job);
    ucx->options.listener = NULL;
    if (status) {
        tw_monitor_destroy(ucx->monitor);
        ucx->monitor = NULL;
        tw_ucx_free(ucx);
        return status;
    }
    describe(ucx);
    *out = &ucx->base;
    return TW_OK;
}

tw_status_t tw_transport_ucx_create_with(const tw_transport_ucx_params_t *params, tw_transport_t **out)
{
    int listener = params->listener;
    tw_status_t status = create(params, &listener, out);
    if (listener >= 0) {
        close(listener);
    }
    return status;
}

tw_status_t tw_transport_ucx_create(const tw_job_t *job, tw_transport_t **out)
{
    return tw_transport_ucx_create_with(&(tw_transport_ucx_params_t){.job = job, .listener = -1}, out);
}

int tw_transport_listen(const char *host, int *port)
{
    const int listener = tw_socket_listen(host, 0);
    if (listener >= 0) {
        *port = tw_socket_port(listener);
    }
    return listener;
}

/** Nothing is said of variables that are wrong: who uses them says so. */
int tw_transport_needs_ucx(const tw_job_t *job)
{
    const tw_config_table_t *table = &tw_transport_config_table;
    tw_job_t told;
    tw_transport_options_t options;
    tw_log_held_t held;
    int needs = 1;
    tw_log_keep_begin(&held);
    tw_status_t status = job ? TW_OK : tw_job_ranks_from_env(&told);
    if (status == TW_ERR_NOT_FOUND) {
        told = (tw_job_t){.world = 2, .local_world = -1};
        status = TW_OK;
    }
    if (!status && !tw_config_init(table, &options)) {
        needs = needs_ucx(&options, job ? job : &told);
        tw_config_cleanup(table, &options);
    }
    tw_log_keep_end(&held);
    tw_log_held_cleanup(&held, 0);
    return needs;
}

int tw_transport_ucx_knows(tw_mem_t mem)
{
    return mem == TW_MEM_HOST ? tw_p2p_ucx_is_there() : (mem == TW_MEM_CUDA && tw_p2p_ucx_finds_gpu());
}
