/** UCX contexts and workers: one for shared memory, one for each network device. */
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/state.h"
#include "transport/rendezvous/socket.h"

/** Room for headers (ours and UCX's) next to a chunk in one TCP segment. */
#define SEGMENT_HEADER_BYTES 512
/** One setting for UCX. The user's own UCX_ variable wins, unless this layer depends on the setting. */
typedef struct tw_p2p_setting {
    const char *name, *value;
    int needed;
} tw_p2p_setting_t;

static tw_status_t ucx_failed(const tw_p2p_t *p2p, const char *what, ucs_status_t status)
{
    tw_error("%s: UCX: %s: %s", p2p->name, what, ucs_status_string(status));
    return TW_ERR_UCX;
}

/* ---- contexts and workers ---------------------------------------------------------------------------------- */

/** Before 1.17, UCX knows the settings of its transports by their names without the transport's. */
static const char *setting_name(const tw_p2p_setting_t *setting)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    const int bare = major == 1 && minor < 17 && !strncmp(setting->name, "TCP_", 4);
    return setting->name + (bare ? 4 : 0);
}

static tw_status_t config_set(const tw_p2p_t *p2p, ucp_config_t *config, const tw_p2p_setting_t *settings)
{
    char variable[64];
    for (; settings->name; settings++) {
        snprintf(variable, sizeof(variable), "UCX_%s", settings->name);
        if (!settings->needed && getenv(variable)) {
            continue;
        }
        ucs_status_t status = ucp_config_modify(config, setting_name(settings), settings->value);
        if (status != UCS_OK) {
            return ucx_failed(p2p, variable, status);
        }
    }
    return TW_OK;
}

static tw_status_t context_create(const tw_p2p_t *p2p, tw_p2p_worker_t *worker, ucp_config_t *config)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                                               UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = (size_t)p2p->params.n_peers,
                                 .mt_workers_shared = 0};
    ucs_status_t status = ucp_init(&params, config, &worker->context);
    if (status == UCS_OK) {
        return TW_OK;
    }
    char what[128];
    const int shm = worker == &p2p->workers[TW_P2P_SHM_WORKER];
    worker->context = NULL;
    snprintf(what, sizeof(what), "no context for %s=%s", shm ? "TW_NODE_TLS" : "TW_NET_TLS",
             shm ? p2p->params.node_tls : p2p->params.net_tls);
    return ucx_failed(p2p, what, status);
}

static tw_status_t worker_start(tw_p2p_t *p2p, tw_p2p_worker_t *worker)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(worker->context, &params, &worker->worker);
    if (status != UCS_OK) {
        worker->worker = NULL;
        return ucx_failed(p2p, "no worker", status);
    }
    status = ucp_worker_get_efd(worker->worker, &worker->event_fd);
    if (status != UCS_OK) {
        return ucx_failed(p2p, "no event descriptor", status);
    }
    status = ucp_worker_get_address(worker->worker, &worker->address, &worker->address_bytes);
    if (status != UCS_OK) {
        worker->address = NULL;
        return ucx_failed(p2p, "no address", status);
    }
    return TW_OK;
}

static tw_status_t worker_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const tw_p2p_setting_t *settings)
{
    ucp_config_t *config;
    worker->p2p = p2p;
    tw_guard_init(&worker->guard);
    ucs_status_t read = ucp_config_read(NULL, NULL, &config);
    if (read != UCS_OK) {
        return ucx_failed(p2p, "configuration", read);
    }
    tw_status_t status = config_set(p2p, config, settings);
    if (!status) {
        status = context_create(p2p, worker, config);
    }
    ucp_config_release(config);
    return status ? status : worker_start(p2p, worker);
}

static void worker_destroy(tw_p2p_worker_t *worker)
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
    tw_guard_cleanup(&worker->guard);
    *worker = (tw_p2p_worker_t){0};
}

/* Transports and devices are ours alone to say: that is what keeps node and network apart. */

/** Settings: [0] is for the transports. */
static tw_status_t worker_create_with_cuda(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *tls,
                                           tw_p2p_setting_t *settings)
{
    char *all = tw_p2p_tls_with_cuda(tls, tw_p2p_ucx_finds_gpu());
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    settings[0] = (tw_p2p_setting_t){"TLS", all, 1};
    tw_status_t status = worker_create(p2p, worker, settings);
    free(all);
    worker->takes_cuda = !status && tw_p2p_context_takes_cuda(worker->context);
    return status;
}

static tw_status_t shm_worker_create(tw_p2p_t *p2p)
{
    tw_p2p_setting_t settings[] = {{0}, {"MAX_RNDV_RAILS", "1", 0}, {NULL, NULL, 0}};
    return worker_create_with_cuda(p2p, &p2p->workers[TW_P2P_SHM_WORKER], p2p->params.node_tls, settings);
}

static void cannot_guard(const tw_p2p_t *p2p, const char *what)
{
    tw_warn("%s: the kernel takes no filter for UCX's port (%s): anyone who reaches it can end this process",
            p2p->name, what);
}

/** CUDA is not for this one, though UCX can copy from and to a GPU for it: no message in the memory of a GPU goes at once,
 *  nor, with UCX before 1.15, any other one while there is such memory. */
static tw_status_t tcp_worker_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *device)
{
    const tw_p2p_params_t *own = &p2p->params;
    const size_t longest = own->chunk_bytes > own->eager_bytes ? own->chunk_bytes : own->eager_bytes;
    char segment[32];
    const tw_p2p_setting_t settings[] = {
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
    snprintf(segment, sizeof(segment), "%zu", longest + SEGMENT_HEADER_BYTES);
    worker->at_once = 1;
    tw_status_t status = worker_create(p2p, worker, settings);
    if (!status && tw_guard_close(&worker->guard, worker->address, worker->address_bytes)) {
        cannot_guard(p2p, device);
    }
    return status;
}

/** Returns 0 if there is no memory. */
static int note_origin(tw_p2p_t *p2p, const uint8_t *address)
{
    for (size_t i = 0; i < p2p->n_admitted; i++) {
        if (!memcmp(p2p->admitted + i * TW_GUARD_ADDRESS_BYTES, address, TW_GUARD_ADDRESS_BYTES)) {
            return 1;
        }
    }
    uint8_t *grown = realloc(p2p->admitted, (p2p->n_admitted + 1) * TW_GUARD_ADDRESS_BYTES);
    if (grown) {
        memcpy(grown + p2p->n_admitted++ * TW_GUARD_ADDRESS_BYTES, address, TW_GUARD_ADDRESS_BYTES);
        p2p->admitted = grown;
    }
    return grown != NULL;
}

void tw_p2p_admit(tw_p2p_t *p2p, const void *addresses, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!note_origin(p2p, (const uint8_t *)addresses + i * TW_GUARD_ADDRESS_BYTES)) {
            tw_warn("%s: out of memory for an address: no peer can come from there", p2p->name);
        }
    }
    for (int i = 0; i < p2p->n_workers; i++) {
        tw_guard_t *guard = &p2p->workers[i].guard;
        if (p2p->workers[i].at_once && guard->listener >= 0 &&
            tw_guard_admit(guard, p2p->admitted, p2p->n_admitted)) {
            cannot_guard(p2p, "too many addresses");
        }
    }
}

void tw_p2p_shut(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].at_once) {
            tw_guard_shut(&p2p->workers[i].guard);
        }
    }
}

/** Any other transports: UCX knows best. */
static tw_status_t net_worker_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *device)
{
    tw_p2p_setting_t settings[] = {{0}, {"NET_DEVICES", device, 1}, {NULL, NULL, 0}};
    return worker_create_with_cuda(p2p, worker, p2p->params.net_tls, settings);
}

/* ---- devices ----------------------------------------------------------------------------------------------- */

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

static tw_status_t net_workers_create(tw_p2p_t *p2p)
{
    const char *devices = p2p->params.net_devices;
    char list[256], *rest = list, *device;
    snprintf(list, sizeof(list), "%s", devices);
    while ((device = strsep(&rest, ","))) {
        if (is_named_before(devices, device, (size_t)(device - list))) {
            tw_error("%s: TW_NET_DEVICES: \"%s\" stands there twice", p2p->name, device);
            return TW_ERR_CONFIG;
        }
        if (p2p->n_workers == TW_P2P_WORKERS_MAX || !tw_net_device_usable(device)) {
            tw_error("%s: TW_NET_DEVICES: \"%s\": %s", p2p->name, device,
                     p2p->n_workers == TW_P2P_WORKERS_MAX ? "too many devices"
                                                          : "no such device, or it is not up");
            return TW_ERR_CONFIG;
        }
        tw_p2p_worker_t *worker = &p2p->workers[p2p->n_workers++];
        const int tcp = !strcmp(p2p->params.net_tls, "tcp");
        TW_TRY((tcp ? tcp_worker_create : net_worker_create)(p2p, worker, device));
    }
    return TW_OK;
}

/** All must: it is not known beforehand which of the peers a message in the memory of a GPU will be for. */
int tw_p2p_takes_cuda(const tw_p2p_t *p2p)
{
    int n = 0, n_taking = 0;
    for (int i = 0; i < p2p->n_workers; i++) {
        n += p2p->workers[i].context != NULL;
        n_taking += p2p->workers[i].takes_cuda;
    }
    return n > 0 && n_taking == n;
}

const char *tw_p2p_ucx_version(char *text, size_t bytes)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    snprintf(text, bytes, "%u.%u.%u", major, minor, release);
    return text;
}

tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p)
{
    p2p->n_workers = TW_P2P_FIRST_NET_WORKER;
    tw_status_t status = p2p->params.node_tls ? shm_worker_create(p2p) : TW_OK;
    return !status && p2p->params.net_tls ? net_workers_create(p2p) : status;
}

void tw_p2p_workers_destroy(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        worker_destroy(&p2p->workers[i]);
    }
    p2p->n_workers = 0;
}

void tw_p2p_abandon(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        tw_guard_cleanup(&p2p->workers[i].guard);
    }
    p2p->n_workers = 0;
}

unsigned tw_p2p_workers_progress(tw_p2p_t *p2p)
{
    unsigned n_events = 0;
    p2p->in_ucx = 1;
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].worker) {
            n_events += ucp_worker_progress(p2p->workers[i].worker);
        }
    }
    p2p->in_ucx = 0;
    return n_events;
}
