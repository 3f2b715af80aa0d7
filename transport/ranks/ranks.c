/** Creates, destroys and fails the network backend. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/control/socket.h"
#include "transport/devices.h"
#include "transport/ranks/state.h"
#include "transport/rendezvous/job.h"
#include "transport/rendezvous/node_id.h"

/** Longest sleep between two checks whether the monitor has left. */
#define LEFT_SLEEP_SEC 0.1

/* ---- failing ------------------------------------------------------------------------------------------- */

/** End the job. Returns when rank 0 has answered, or counts as dead. */
static void tw_ranks_abort(tw_transport_t *transport, const char *reason)
{
    tw_monitor_t *monitor = tw_ranks_of(transport)->monitor;
    char text[TW_MSG_TEXT_BYTES];
    snprintf(text, sizeof(text), "it gave the job up: %s", reason);
    tw_monitor_fail(monitor, transport->rank, text);
    while (tw_monitor_failed_rank(monitor) < 0) {
        (void)poll(NULL, 0, 1);
    }
}

static int tw_ranks_failed_rank(const tw_transport_t *transport)
{
    return tw_monitor_failed_rank(((const tw_ranks_t *)transport)->monitor);
}

/* ---- leaving ------------------------------------------------------------------------------------------- */

/** Free everything but the monitor. */
static void tw_ranks_free(tw_ranks_t *ranks)
{
    tw_p2p_destroy(ranks->p2p);
    free(ranks->departed);
    free(ranks->n_heard);
    tw_rendezvous_cleanup(&ranks->rendezvous);
    tw_transport_base_cleanup(&ranks->base);
    tw_config_cleanup(&tw_transport_config_table, &ranks->options);
    free(ranks);
}

/** Tell each rank how many messages this rank has sent to it, so that it knows when it has all of them. Then
 *  make progress, which UCX needs to deliver them, until this rank has left. */
static void say_goodbye(tw_ranks_t *ranks)
{
    uint64_t *counts = calloc((size_t)ranks->base.world, sizeof(*counts));
    for (int r = 0; counts && r < ranks->base.world; r++) {
        counts[r] = tw_p2p_peer_counts(tw_p2p_peer_find(ranks->p2p, r)).n_sent;
    }
    tw_monitor_leave(ranks->monitor, counts);
    free(counts);
    while (!tw_monitor_has_left(ranks->monitor)) {
        if (tw_ranks_progress(&ranks->base) != TW_OK && !tw_monitor_has_left(ranks->monitor)) {
            (void)tw_ranks_nap(ranks, LEFT_SLEEP_SEC);
        }
    }
}

static int everyone_has_left(const tw_ranks_t *ranks)
{
    uint64_t count;
    for (int r = 0; r < ranks->base.world; r++) {
        if (!tw_monitor_gone(ranks->monitor, r, &count)) {
            return 0;
        }
    }
    return 1;
}

static void tw_ranks_destroy(tw_transport_t *transport)
{
    tw_ranks_t *ranks = tw_ranks_of(transport);
    tw_p2p_cancel_all(ranks->p2p);
    if (!tw_ranks_job_failed(ranks)) {
        tw_p2p_flush(ranks->p2p);
    }
    say_goodbye(ranks);
    if (tw_monitor_failed_rank(ranks->monitor) >= 0 || !everyone_has_left(ranks)) {
        tw_p2p_abandon(ranks->p2p);
    }
    tw_monitor_destroy(ranks->monitor);
    ranks->monitor = NULL;
    tw_ranks_free(ranks);
}

static const tw_transport_ops_t tw_ranks_ops = {
    .name = "network",
    .destroy = tw_ranks_destroy,
    .send_post = tw_ranks_send_post,
    .recv_post = tw_ranks_recv_post,
    .test = tw_ranks_test,
    .cancel = tw_ranks_cancel,
    .progress = tw_ranks_progress,
    .sleep = tw_ranks_sleep,
    .wake = tw_ranks_wake,
    .abort = tw_ranks_abort,
    .failed_rank = tw_ranks_failed_rank,
};

/* ---- start --------------------------------------------------------------------------------------------- */

/** Return 1 if a rank needs UCX: it may share its node with others, or does not send over TCP. If the
 *  launcher does not say how many ranks a node has, there may be others. */
static int needs_ucx(const tw_transport_options_t *options, const tw_job_t *job)
{
    const int may_share = job->local_world != 1 && job->world > 1 && strcmp(options->node_tls, "none") != 0;
    return may_share || strcmp(options->net_tls, "tcp") != 0;
}

static void identify(const tw_ranks_t *ranks, const tw_job_t *job, tw_msg_member_t *own)
{
    *own = (tw_msg_member_t){.local_rank = job->local_rank, .local_world = job->local_world};
    snprintf(own->net_tls, sizeof(own->net_tls), "%s", ranks->options.net_tls);
    snprintf(own->node_tls, sizeof(own->node_tls), "%s", ranks->options.node_tls);
    own->node_id = tw_node_id(ranks->options.node_id);
    own->shm_id = tw_shm_id(own->node_id);
    if (needs_ucx(&ranks->options, job)) {
        (void)tw_p2p_ucx_version(own->ucx, sizeof(own->ucx));
    } else {
        snprintf(own->ucx, sizeof(own->ucx), "none");
    }
    if (!strcmp(ranks->options.node_tls, "none")) {
        own->shm_id ^= (uint64_t)job->rank + 1; /* share memory with no rank */
    }
}

static tw_status_t ranks_number_nodes(tw_ranks_t *ranks)
{
    const tw_rendezvous_t *rendezvous = &ranks->rendezvous;
    uint64_t *ids = calloc((size_t)rendezvous->world, sizeof(*ids));
    for (int r = 0; ids && r < rendezvous->world; r++) {
        ids[r] = rendezvous->members[r].node_id;
    }
    tw_status_t status =
        ids ? tw_transport_base_init(&ranks->base, &tw_ranks_ops, rendezvous->rank, rendezvous->world, ids)
            : TW_ERR_NO_MEMORY;
    free(ids);
    return status;
}

static void ranks_describe(tw_ranks_t *ranks)
{
    const tw_msg_settings_t *settings = &ranks->rendezvous.settings;
    const char *memory = ranks->base.takes[TW_MEM_CUDA] ? ", from and to CUDA memory" : "";
    char net[256] = "", node[128] = "", chunk[32], version[32] = "";
    if (ranks->n_far) {
        snprintf(net, sizeof(net), ", %s%s on %s (%u stream%s, chunks of %s)",
                 ranks->options.net_encrypt ? "sealed " : "", ranks->options.net_tls,
                 tw_ranks_device_list(ranks), settings->streams, settings->streams == 1 ? "" : "s",
                 tw_format_bytes(settings->chunk_bytes, chunk, sizeof(chunk)));
    }
    if (ranks->n_near) {
        snprintf(node, sizeof(node), ", %s inside a node", ranks->options.node_tls);
    }
    if (ranks->n_near || (ranks->n_far && strcmp(ranks->options.net_tls, "tcp") != 0)) {
        snprintf(version, sizeof(version), ", UCX ");
        (void)tw_p2p_ucx_version(version + strlen(version), sizeof(version) - strlen(version));
    }
    snprintf(ranks->base.describe, sizeof(ranks->base.describe), "%d rank%s on %d node%s%s%s%s%s",
             ranks->base.world, ranks->base.world == 1 ? "" : "s", ranks->base.n_nodes,
             ranks->base.n_nodes == 1 ? "" : "s", version, net, node, memory);
    if (ranks->base.rank == 0) {
        tw_info("rank 0: %s", ranks->base.describe);
    }
}

static tw_status_t start_monitor(tw_ranks_t *ranks)
{
    tw_monitor_params_t params = {.rank = ranks->base.rank,
                                  .world = ranks->base.world,
                                  .node_of = ranks->base.node_of,
                                  .peer_timeout_sec = ranks->peer_timeout_sec,
                                  .join_timeout_sec = ranks->options.join_timeout};
    params.connections = tw_rendezvous_take_connections(&ranks->rendezvous, &params.n_connections);
    return tw_monitor_create(&params, &ranks->monitor);
}

static tw_status_t meet_and_connect(tw_ranks_t *ranks, const tw_job_t *job)
{
    tw_msg_member_t own;
    identify(ranks, job, &own);
    TW_TRY(tw_rendezvous_join(&ranks->rendezvous, job, &ranks->options, &own));
    ranks->peer_timeout_sec = ranks->rendezvous.settings.peer_timeout_ms * 1e-3;
    tw_status_t status = ranks_number_nodes(ranks);
    if (!status) {
        ranks->departed = calloc((size_t)ranks->base.world, sizeof(*ranks->departed));
        ranks->n_heard = calloc((size_t)ranks->base.world, sizeof(*ranks->n_heard));
        status = ranks->departed && ranks->n_heard ? TW_OK : TW_ERR_NO_MEMORY;
    }
    if (!status) {
        status = start_monitor(ranks); /* from here on, the monitor reports a rank that has stopped */
    }
    if (!status) {
        status = tw_ranks_network_open(ranks, job->token);
        if (status && status != TW_ERR_PEER) {
            tw_monitor_fail(ranks->monitor, ranks->base.rank, "it could not start");
        }
    }
    return status;
}

static tw_status_t job_check(const tw_job_t *job)
{
    if (job->world >= 1 && job->rank >= 0 && job->rank < job->world && job->world <= TW_JOB_WORLD_MAX) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_INVALID, "rank %d in a world of %d makes no sense", job->rank, job->world);
}

static tw_status_t read_options(const tw_transport_params_t *params, tw_transport_options_t *options)
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
    if (params->peer_timeout_sec > 0) {
        options->peer_timeout = params->peer_timeout_sec;
    }
    if (!status) {
        char who[32];
        snprintf(who, sizeof(who), "rank %d", params->job->rank);
        status = tw_devices_check(who, options->net_devices); /* a malformed list is an error, used or not */
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

/** Warn once, on rank 0, if the job's token can be guessed. */
static void warn_of_weak_token(int rank, const char *token)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    if (rank == 0 && token[0] && tw_token_is_weak(token) && !atomic_flag_test_and_set(&has_warned)) {
        tw_warn("TW_JOB_TOKEN is short: whoever listens to the start of the job may find it by trying; take "
                "32 random bytes (openssl rand -hex 32)");
    }
}

static tw_status_t ranks_create(const tw_transport_params_t *params, int *listener, tw_transport_t **out)
{
    tw_config_check_names();
    TW_TRY(job_check(params->job));
    tw_ranks_t *ranks = calloc(1, sizeof(*ranks));
    if (!ranks) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = read_options(params, &ranks->options);
    if (status) {
        free(ranks);
        return status;
    }
    warn_of_weak_token(params->job->rank, ranks->options.job_token);
    ranks->options.listener = listener;
    status = meet_and_connect(ranks, params->job);
    ranks->options.listener = NULL;
    if (status) {
        tw_monitor_destroy(ranks->monitor);
        ranks->monitor = NULL;
        tw_ranks_free(ranks);
        return status;
    }
    ranks_describe(ranks);
    *out = &ranks->base;
    return TW_OK;
}

tw_status_t tw_transport_create_with(const tw_transport_params_t *params, tw_transport_t **out)
{
    int listener = params->listener;
    tw_status_t status = ranks_create(params, &listener, out);
    if (listener >= 0) {
        close(listener);
    }
    return status;
}

tw_status_t tw_transport_create(const tw_job_t *job, tw_transport_t **out)
{
    return tw_transport_create_with(&(tw_transport_params_t){.job = job, .listener = -1}, out);
}

int tw_transport_listen(const char *host, int *port)
{
    const int listener = tw_socket_listen(host, 0);
    if (listener >= 0) {
        *port = tw_socket_port(listener);
    }
    return listener;
}

/** Wrong values of variables are not logged here, because the code that uses the variables logs them. */
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
