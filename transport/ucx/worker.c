/** UCX contexts, workers and endpoints: who is reached how. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "transport/rendezvous/socket.h"
#include "transport/ucx/state.h"

/** Room for headers (ours and UCX's) next to a chunk in one TCP segment. */
#define SEGMENT_HEADER_BYTES 512
/** Shared memory needs no streams; long messages are still cut, so that several move together. */
#define SHM_CHUNK_BYTES ((size_t)4 << 20)

/** Descriptors that UCX and the process need besides. */
#define SPARE_DESCRIPTORS 32

/** One setting for UCX. The user's own UCX_ variable wins, unless this backend depends on the setting. */
typedef struct tw_ucx_setting {
    const char *name, *value;
    int needed;
} tw_ucx_setting_t;

static tw_status_t ucx_failed(const tw_ucx_transport_t *ucx, const char *what, ucs_status_t status)
{
    tw_error("rank %d: UCX: %s: %s", ucx->base.rank, what, ucs_status_string(status));
    return TW_ERR_UCX;
}

/* ---- contexts and workers ---------------------------------------------------------------------------------- */

/** Before 1.17, UCX knows the settings of its transports by their names without the transport's. */
static const char *setting_name(const tw_ucx_setting_t *setting)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    const int bare = major == 1 && minor < 17 && !strncmp(setting->name, "TCP_", 4);
    return setting->name + (bare ? 4 : 0);
}

static tw_status_t config_set(const tw_ucx_transport_t *ucx, ucp_config_t *config,
                              const tw_ucx_setting_t *settings)
{
    char variable[64];
    for (; settings->name; settings++) {
        snprintf(variable, sizeof(variable), "UCX_%s", settings->name);
        if (!settings->needed && getenv(variable)) {
            continue;
        }
        ucs_status_t status = ucp_config_modify(config, setting_name(settings), settings->value);
        if (status != UCS_OK) {
            return ucx_failed(ucx, variable, status);
        }
    }
    return TW_OK;
}

static tw_status_t context_create(const tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker,
                                  ucp_config_t *config)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                                               UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = (size_t)ucx->base.world,
                                 .mt_workers_shared = 0};
    ucs_status_t status = ucp_init(&params, config, &worker->context);
    if (status == UCS_OK) {
        return TW_OK;
    }
    char what[128];
    const int shm = worker == &ucx->workers[TW_UCX_SHM_WORKER];
    worker->context = NULL;
    snprintf(what, sizeof(what), "no context for %s=%s", shm ? "TW_NODE_TLS" : "TW_NET_TLS",
             shm ? ucx->options.node_tls : ucx->options.net_tls);
    return ucx_failed(ucx, what, status);
}

static tw_status_t worker_start(tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(worker->context, &params, &worker->worker);
    if (status != UCS_OK) {
        worker->worker = NULL;
        return ucx_failed(ucx, "no worker", status);
    }
    status = ucp_worker_get_efd(worker->worker, &worker->event_fd);
    if (status != UCS_OK) {
        return ucx_failed(ucx, "no event descriptor", status);
    }
    status = ucp_worker_get_address(worker->worker, &worker->address, &worker->address_bytes);
    if (status != UCS_OK) {
        worker->address = NULL;
        return ucx_failed(ucx, "no address", status);
    }
    return TW_OK;
}

static tw_status_t worker_create(tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker,
                                 const tw_ucx_setting_t *settings)
{
    ucp_config_t *config;
    worker->ucx = ucx;
    tw_ucx_guard_init(&worker->guard);
    ucs_status_t read = ucp_config_read(NULL, NULL, &config);
    if (read != UCS_OK) {
        return ucx_failed(ucx, "configuration", read);
    }
    tw_status_t status = config_set(ucx, config, settings);
    if (!status) {
        status = context_create(ucx, worker, config);
    }
    ucp_config_release(config);
    return status ? status : worker_start(ucx, worker);
}

static void worker_destroy(tw_ucx_worker_t *worker)
{
    if (worker->address) {
        ucp_worker_release_address(worker->worker, worker->address);
    }
    if (worker->worker) {
        ucp_worker_destroy(worker->worker);
    }
    if (worker->context) {
        ucp_cleanup(worker->context);
    }
    tw_ucx_guard_cleanup(&worker->guard);
    *worker = (tw_ucx_worker_t){0};
}

/* Transports and devices are ours alone to say: that is what keeps node and network apart. */

/** Settings: [0] is for the transports. */
static tw_status_t worker_create_with_cuda(tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker, const char *tls,
                                           tw_ucx_setting_t *settings)
{
    char *all = tw_ucx_tls_with_cuda(tls);
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    settings[0] = (tw_ucx_setting_t){"TLS", all, 1};
    tw_status_t status = worker_create(ucx, worker, settings);
    free(all);
    worker->takes_cuda = !status && tw_ucx_context_takes_cuda(worker->context);
    return status;
}

static tw_status_t shm_worker_create(tw_ucx_transport_t *ucx)
{
    tw_ucx_setting_t settings[] = {{0}, {"MAX_RNDV_RAILS", "1", 0}, {NULL, NULL, 0}};
    return worker_create_with_cuda(ucx, &ucx->workers[TW_UCX_SHM_WORKER], ucx->options.node_tls, settings);
}

static void cannot_guard(const tw_ucx_transport_t *ucx, const char *what)
{
    tw_warn("rank %d: the kernel takes no filter for UCX's port (%s): anyone who reaches it while the job "
            "runs can end "
            "this process",
            ucx->base.rank, what);
}

/** CUDA is not for this one, though UCX can copy from and to a GPU for it: no message in the memory of a GPU goes at once,
 *  nor, with UCX before 1.15, any other one while there is such memory. */
static tw_status_t tcp_worker_create(tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker, const char *device)
{
    const tw_msg_settings_t *own = &ucx->rendezvous.settings;
    const uint32_t longest = own->chunk_bytes > own->eager_bytes ? own->chunk_bytes : own->eager_bytes;
    char segment[32];
    const tw_ucx_setting_t settings[] = {
        {"TLS", "tcp", 1},
        {"NET_DEVICES", device, 1},
        /* Any message is one segment, sent at once: the receiver copies it to its place straight from where the socket was
         * read to. A rendezvous of UCX's own would wait, once per chunk, behind what flows the other way. */
        {"TCP_TX_SEG_SIZE", segment, 1},
        {"TCP_RX_SEG_SIZE", segment, 1},
        {"ZCOPY_THRESH", "auto", 1},
        {"RNDV_THRESH", "inf", 1},
        {"PROTO_ENABLE", "n", 1},
        /* A host that does not answer must not stop this rank. */
        {"TCP_CONN_NB", "y", 0},
        {NULL, NULL, 0},
    };
    snprintf(segment, sizeof(segment), "%u", longest + SEGMENT_HEADER_BYTES);
    worker->at_once = 1;
    tw_status_t status = worker_create(ucx, worker, settings);
    if (!status && (tw_ucx_guard_close(&worker->guard, worker->address, worker->address_bytes) ||
                    tw_ucx_guard_admit(&worker->guard, ucx->admitted, ucx->n_admitted))) {
        cannot_guard(ucx, device);
    }
    return status;
}

void tw_ucx_workers_shut(tw_ucx_transport_t *ucx)
{
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].at_once) {
            tw_ucx_guard_shut(&ucx->workers[i].guard);
        }
    }
}

/** Any other transports: UCX knows best. */
static tw_status_t net_worker_create(tw_ucx_transport_t *ucx, tw_ucx_worker_t *worker, const char *device)
{
    tw_ucx_setting_t settings[] = {{0}, {"NET_DEVICES", device, 1}, {NULL, NULL, 0}};
    return worker_create_with_cuda(ucx, worker, ucx->options.net_tls, settings);
}

/* ---- devices ----------------------------------------------------------------------------------------------- */

/** Own choice, the way to rank 0, or, where that way stays in the node, rank 0's own way out. */
const char *tw_ucx_device_list(const tw_ucx_transport_t *ucx)
{
    const tw_rendezvous_t *rendezvous = &ucx->rendezvous;
    const tw_msg_member_t *members = rendezvous->members;
    if (ucx->options.net_devices[0]) {
        return ucx->options.net_devices;
    }
    const int inside =
        !strcmp(rendezvous->device, "lo") && members[ucx->base.rank].node_id == members[0].node_id;
    return inside && rendezvous->settings.device[0] ? rendezvous->settings.device : rendezvous->device;
}

/** Whether a device is in a list of them before byte `end`. */
static int is_named_before(const char *list, const char *device, size_t end)
{
    const size_t bytes = strlen(device);
    for (size_t at = 0; at < end; at += strcspn(list + at, ",") + 1) {
        if (!strncmp(list + at, device, bytes) && strcspn(list + at, ",") == bytes) {
            return 1;
        }
    }
    return 0;
}

static tw_status_t net_workers_create(tw_ucx_transport_t *ucx)
{
    char list[256], *rest = list, *device;
    snprintf(list, sizeof(list), "%s", tw_ucx_device_list(ucx));
    while ((device = strsep(&rest, ","))) {
        if (is_named_before(tw_ucx_device_list(ucx), device, (size_t)(device - list))) {
            tw_error("rank %d: TW_NET_DEVICES: \"%s\" stands there twice", ucx->base.rank, device);
            return TW_ERR_CONFIG;
        }
        if (ucx->n_workers == TW_UCX_WORKERS_MAX || !tw_net_device_usable(device)) {
            tw_error("rank %d: TW_NET_DEVICES: \"%s\": %s", ucx->base.rank, device,
                     ucx->n_workers == TW_UCX_WORKERS_MAX ? "too many devices"
                                                          : "no such device, or it is not up");
            return TW_ERR_CONFIG;
        }
        tw_ucx_worker_t *worker = &ucx->workers[ucx->n_workers++];
        const int tcp = !strcmp(ucx->options.net_tls, "tcp");
        tw_status_t status = (tcp ? tcp_worker_create : net_worker_create)(ucx, worker, device);
        if (status) {
            return status;
        }
    }
    return TW_OK;
}

int tw_ucx_shares_memory(const tw_ucx_transport_t *ucx, int rank)
{
    const tw_msg_member_t *members = ucx->rendezvous.members;
    return members[rank].shm_id == members[ucx->base.rank].shm_id;
}

/** All must: a rank does not know beforehand which of its peers a message in the memory of a GPU will be for. */
static int all_take_cuda(const tw_ucx_transport_t *ucx)
{
    int n = 0, n_taking = 0;
    for (int i = 0; i < ucx->n_workers; i++) {
        n += ucx->workers[i].context != NULL;
        n_taking += ucx->workers[i].takes_cuda;
    }
    return n > 0 && n_taking == n;
}

/** UCX does not say so when it runs out of descriptors, and may end the process. */
static void descriptors_check(const tw_ucx_transport_t *ucx, int n_far)
{
    struct rlimit limit;
    int n_devices = 1;
    for (const char *at = tw_ucx_device_list(ucx); (at = strchr(at, ',')); at++) {
        n_devices++;
    }
    const int lowest_free = dup(tw_monitor_event_fd(ucx->monitor));
    if (lowest_free >= 0) {
        close(lowest_free);
    }
    /* Of each stream one connection each way, at most. */
    const size_t n_connections =
        2 * (size_t)n_far * (1 + (size_t)n_devices * ucx->rendezvous.settings.streams);
    if (getrlimit(RLIMIT_NOFILE, &limit)) {
        return;
    }
    const size_t n_open = lowest_free >= 0 ? (size_t)lowest_free : (size_t)limit.rlim_cur;
    if (limit.rlim_cur < n_open + n_connections + SPARE_DESCRIPTORS) {
        tw_warn("rank %d: up to %zu connections to other nodes, with what is open already, may need %zu "
                "descriptors, and "
                "RLIMIT_NOFILE is %zu: raise it (ulimit -n)",
                ucx->base.rank, n_connections, n_open + n_connections + SPARE_DESCRIPTORS,
                (size_t)limit.rlim_cur);
    }
}

tw_status_t tw_ucx_workers_create(tw_ucx_transport_t *ucx)
{
    int n_near = 0, n_far = 0;
    for (int r = 0; r < ucx->base.world; r++) {
        const int near = tw_ucx_shares_memory(ucx, r);
        n_near += near && r != ucx->base.rank;
        n_far += !near;
    }
    ucx->workers = calloc(TW_UCX_WORKERS_MAX, sizeof(*ucx->workers));
    if (!ucx->workers) {
        return TW_ERR_NO_MEMORY;
    }
    ucx->n_workers = TW_UCX_FIRST_NET_WORKER;
    tw_status_t status = n_near ? shm_worker_create(ucx) : TW_OK;
    if (!status && n_far) {
        descriptors_check(ucx, n_far);
        status = net_workers_create(ucx);
    }
    ucx->base.takes[TW_MEM_CUDA] = !status && all_take_cuda(ucx);
    return status;
}

void tw_ucx_workers_destroy(tw_ucx_transport_t *ucx)
{
    for (int i = 0; i < ucx->n_workers; i++) {
        worker_destroy(&ucx->workers[i]);
    }
    tw_ucx_workers_abandon(ucx);
}

void tw_ucx_workers_abandon(tw_ucx_transport_t *ucx)
{
    free(ucx->workers);
    ucx->workers = NULL;
    ucx->n_workers = 0;
}

/* ---- peers ------------------------------------------------------------------------------------------------- */

static int n_net_workers(const tw_ucx_transport_t *ucx)
{
    return ucx->n_workers - TW_UCX_FIRST_NET_WORKER;
}

/** How many streams a peer needs, given how many devices it has. */
static int count_streams(const tw_ucx_transport_t *ucx, int rank, int n_devices)
{
    if (rank == ucx->base.rank) {
        return 0;
    }
    return tw_ucx_shares_memory(ucx, rank) ? 1 : 1 + n_devices * (int)ucx->rendezvous.settings.streams;
}

static void stream_init(tw_ucx_stream_t *stream, tw_ucx_peer_t *peer, int worker,
                        const tw_msg_blob_t *addresses)
{
    *stream = (tw_ucx_stream_t){.peer = peer,
                                .worker = &peer->ucx->workers[worker],
                                .address = (const ucp_address_t *)addresses[worker].data};
    TAILQ_INIT(&stream->waiting);
}

/** Device i talks to device i. */
static void streams_init(tw_ucx_peer_t *peer, int n_devices, const tw_msg_blob_t *addresses)
{
    if (peer->n_streams == 1) {
        stream_init(&peer->streams[0], peer, TW_UCX_SHM_WORKER, addresses);
    }
    for (int s = 0; s < peer->n_streams && peer->n_streams > 1; s++) {
        stream_init(&peer->streams[s], peer, TW_UCX_FIRST_NET_WORKER + (s ? (s - 1) % n_devices : 0),
                    addresses);
    }
}

/** What a rank tells of itself: whether it takes CUDA memory, 1 or 0, then the addresses of its workers. */
static tw_status_t card_parse(const tw_msg_blob_t *list, tw_msg_blob_t *card, uint32_t *n_addresses)
{
    uint32_t n = 0;
    tw_status_t status = tw_msg_blobs_parse(list->data, list->bytes, 1 + TW_UCX_WORKERS_MAX, card, &n);
    if (!status && (card[0].bytes != 1 || card[0].data[0] > 1)) {
        status = TW_ERR_FORMAT;
    }
    *n_addresses = n > 0 ? n - 1 : 0;
    return status;
}

static tw_status_t peer_create(tw_ucx_transport_t *ucx, int rank, const tw_msg_blob_t *list)
{
    tw_ucx_peer_t *peer = &ucx->peers[rank];
    tw_msg_blob_t card[1 + TW_UCX_WORKERS_MAX] = {{0}};
    const tw_msg_blob_t *addresses = &card[1];
    uint32_t n_addresses = 0;
    int n_devices = 0;
    tw_status_t status = card_parse(list, card, &n_addresses);
    while (!status && n_devices < n_net_workers(ucx) &&
           TW_UCX_FIRST_NET_WORKER + n_devices < (int)n_addresses) {
        n_devices++;
    }
    const int shm = rank != ucx->base.rank && tw_ucx_shares_memory(ucx, rank);
    const int far = rank != ucx->base.rank && !shm;
    if (status || (shm && !addresses[TW_UCX_SHM_WORKER].bytes) || (far && !n_devices)) {
        tw_error("rank %d: peer %d: its list of addresses makes no sense", ucx->base.rank, rank);
        return TW_ERR_FORMAT;
    }
    ucx->base.takes[TW_MEM_CUDA] &= card[0].data[0];
    peer->ucx = ucx;
    peer->rank = rank;
    peer->n_streams = count_streams(ucx, rank, n_devices);
    peer->chunk_bytes = shm ? SHM_CHUNK_BYTES : ucx->rendezvous.settings.chunk_bytes;
    peer->streams = peer->n_streams ? calloc((size_t)peer->n_streams, sizeof(*peer->streams)) : NULL;
    TAILQ_INIT(&peer->receives);
    TAILQ_INIT(&peer->arrivals);
    TAILQ_INIT(&peer->sending);
    if (peer->n_streams && !peer->streams) {
        return TW_ERR_NO_MEMORY;
    }
    if (peer->n_streams) {
        streams_init(peer, n_devices, addresses);
    }
    return TW_OK;
}

tw_status_t tw_ucx_peers_create(tw_ucx_transport_t *ucx, const tw_msg_blob_t *addresses)
{
    ucx->peers = calloc((size_t)ucx->base.world, sizeof(*ucx->peers));
    tw_status_t status = ucx->peers ? TW_OK : TW_ERR_NO_MEMORY;
    for (int r = 0; r < ucx->base.world && !status; r++) {
        status = peer_create(ucx, r, &addresses[r]);
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_error("rank %d: out of memory for %d peers", ucx->base.rank, ucx->base.world);
    }
    return status;
}

void tw_ucx_peers_destroy(tw_ucx_transport_t *ucx)
{
    for (int r = 0; ucx->peers && r < ucx->base.world; r++) {
        tw_ucx_arrival_t *arrival;
        while (ucx->peers[r].arrivals.tqh_last && (arrival = TAILQ_FIRST(&ucx->peers[r].arrivals))) {
            TAILQ_REMOVE(&ucx->peers[r].arrivals, arrival, entry);
            free(arrival);
        }
        free(ucx->peers[r].streams);
    }
    free(ucx->peers);
    ucx->peers = NULL;
}

/* ---- endpoints --------------------------------------------------------------------------------------------- */

static void on_endpoint_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    tw_ucx_stream_break(arg, status);
}

void tw_ucx_stream_break(tw_ucx_stream_t *stream, ucs_status_t why)
{
    tw_ucx_peer_t *peer = stream->peer;
    if (stream->broken) {
        return;
    }
    stream->broken = 1;
    peer->broken = 1;
    tw_debug("rank %d: peer %d: connection lost: %s", peer->ucx->base.rank, peer->rank,
             ucs_status_string(why));
    if (peer->ucx->monitor) {
        tw_monitor_suspect(peer->ucx->monitor, peer->rank);
    }
}

/** Shared memory reports no errors of its own, the monitor does; asking for them would exclude CMA. */
static ucp_err_handling_mode_t error_mode(const tw_ucx_transport_t *ucx, const tw_ucx_stream_t *stream)
{
    return stream->worker == &ucx->workers[TW_UCX_SHM_WORKER] ? UCP_ERR_HANDLING_MODE_NONE
                                                              : UCP_ERR_HANDLING_MODE_PEER;
}

void tw_ucx_stream_open(tw_ucx_transport_t *ucx, tw_ucx_stream_t *stream)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = stream->address,
        .err_mode = error_mode(ucx, stream),
        .err_handler = {.cb = on_endpoint_error, .arg = stream},
    };
    ucs_status_t status = ucp_ep_create(stream->worker->worker, &params, &stream->endpoint);
    if (status == UCS_OK) {
        return;
    }
    stream->endpoint = NULL;
    tw_error("rank %d: peer %d: UCX: no way to it: %s", ucx->base.rank, stream->peer->rank,
             ucs_status_string(status));
    tw_ucx_stream_break(stream, status);
}

unsigned tw_ucx_workers_progress(tw_ucx_transport_t *ucx)
{
    unsigned n_events = 0;
    ucx->in_ucx = 1;
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker) {
            n_events += ucp_worker_progress(ucx->workers[i].worker);
        }
    }
    ucx->in_ucx = 0;
    return n_events;
}
