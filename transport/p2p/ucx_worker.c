/** UCX contexts and workers. */
#include <stdlib.h>

#include "transport/p2p/state.h"
#include "transport/p2p/ucx_load.h"

/** One setting of UCX. A UCX_ variable of the user overrides it, unless `needed` is 1: this code depends on
 *  the setting. */
typedef struct tw_p2p_setting {
    const char *name, *value;
    int needed;
} tw_p2p_setting_t;

static tw_status_t ucx_failed(const tw_p2p_t *p2p, const char *what, ucs_status_t status)
{
    return tw_fail(TW_ERR_UCX, "%s: UCX: %s: %s", p2p->name, what, tw_ucx->ucs_status_string(status));
}

/* ---- contexts and workers ------------------------------------------------------------------------------ */

static tw_status_t config_set(const tw_p2p_t *p2p, ucp_config_t *config, const tw_p2p_setting_t *settings)
{
    char variable[64];
    for (; settings->name; settings++) {
        snprintf(variable, sizeof(variable), "UCX_%s", settings->name);
        if (!settings->needed && getenv(variable)) {
            continue;
        }
        ucs_status_t status = tw_ucx->ucp_config_modify(config, settings->name, settings->value);
        if (status != UCS_OK && settings->needed) {
            return ucx_failed(p2p, variable, status);
        }
    }
    return TW_OK;
}

static const char *variable_of(const tw_p2p_worker_t *worker)
{
    return worker == &worker->p2p->workers[TW_P2P_SHM_WORKER] ? "TW_NODE_TLS" : "TW_NET_TLS";
}

static tw_status_t context_create(const tw_p2p_t *p2p, tw_p2p_worker_t *worker, ucp_config_t *config)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                                               UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = (size_t)p2p->params.n_peers,
                                 .mt_workers_shared = 0};
    ucs_status_t status =
        tw_ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &worker->context);
    if (status == UCS_OK) {
        return TW_OK;
    }
    char what[128];
    const int shm = worker == &p2p->workers[TW_P2P_SHM_WORKER];
    worker->context = NULL;
    snprintf(what, sizeof(what), "no context for %s=%s", variable_of(worker),
             shm ? p2p->params.node_tls : p2p->params.net_tls);
    return ucx_failed(p2p, what, status);
}

static tw_status_t worker_start(tw_p2p_t *p2p, tw_p2p_worker_t *worker)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = tw_ucx->ucp_worker_create(worker->context, &params, &worker->worker);
    if (status != UCS_OK) {
        worker->worker = NULL;
        return ucx_failed(p2p, "no worker", status);
    }
    status = tw_ucx->ucp_worker_get_efd(worker->worker, &worker->event_fd);
    if (status != UCS_OK) {
        return ucx_failed(p2p, "no event descriptor", status);
    }
    ucp_address_t *address;
    status = tw_ucx->ucp_worker_get_address(worker->worker, &address, &worker->address_bytes);
    if (status != UCS_OK) {
        return ucx_failed(p2p, "no address", status);
    }
    worker->address = address;
    return TW_OK;
}

static tw_status_t worker_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const tw_p2p_setting_t *settings)
{
    ucp_config_t *config;
    ucs_status_t read = tw_ucx->ucp_config_read(NULL, NULL, &config);
    if (read != UCS_OK) {
        return ucx_failed(p2p, "configuration", read);
    }
    tw_status_t status = config_set(p2p, config, settings);
    status = status ? status : context_create(p2p, worker, config);
    tw_ucx->ucp_config_release(config);
    return status ? status : worker_start(p2p, worker);
}

static void ucx_destroy(tw_p2p_worker_t *worker)
{
    if (worker->address) {
        tw_ucx->ucp_worker_release_address(worker->worker, worker->address);
    }
    if (worker->worker) {
        tw_ucx->ucp_worker_destroy(worker->worker);
    }
    if (worker->context) {
        tw_ucx->ucp_cleanup(worker->context);
    }
}

/* ---- operations of the carrier ------------------------------------------------------------------------- */

static unsigned ucx_progress(tw_p2p_worker_t *worker)
{
    return tw_ucx->ucp_worker_progress(worker->worker);
}

static int ucx_arm(tw_p2p_worker_t *worker)
{
    return tw_ucx->ucp_worker_arm(worker->worker) != UCS_OK;
}

/** Flush a worker. If the flush is not done in time, UCX keeps its request and frees it later. */
static void ucx_flush(tw_p2p_worker_t *worker, uint64_t until_ns, void (*turn)(tw_p2p_t *p2p))
{
    const ucp_request_param_t params = {0};
    ucs_status_ptr_t handle = tw_ucx->ucp_worker_flush_nbx(worker->worker, &params);
    if (!UCS_PTR_IS_PTR(handle)) {
        return;
    }
    while (tw_ucx->ucp_request_check_status(handle) == UCS_INPROGRESS && tw_time_ns() < until_ns &&
           !tw_p2p_is_over(worker->p2p)) {
        turn(worker->p2p);
    }
    tw_ucx->ucp_request_free(handle);
}

/** Close the endpoint without waiting for it. */
static void ucx_close(tw_p2p_stream_t *stream, int is_orderly)
{
    const ucp_request_param_t params = {0};
    (void)is_orderly;
    ucs_status_ptr_t handle = stream->endpoint ? tw_ucx->ucp_ep_close_nbx(stream->endpoint, &params) : NULL;
    if (UCS_PTR_IS_PTR(handle)) {
        tw_ucx->ucp_request_free(handle);
    }
}

static const tw_p2p_carrier_t ucx = {.progress = ucx_progress,
                                     .arm = ucx_arm,
                                     .send = tw_ucx_send,
                                     .close = ucx_close,
                                     .flush = ucx_flush,
                                     .destroy = ucx_destroy};

/* ---- shared memory and network ------------------------------------------------------------------------- */

/* Transports and devices are set only here, never by the user's UCX_ variables, so that shared memory and
 * network stay separate. */

/** Make a worker. Fills in settings[0] with UCX's TLS. The caller has filled in the others. */
static tw_status_t worker_create_with_cuda(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *tls,
                                           tw_p2p_setting_t *settings)
{
    TW_FAIL_IF(!tw_ucx_load(), TW_ERR_UCX,
               "%s: %s=%s needs UCX (Debian: libucx0), which cannot be loaded: %s", p2p->name,
               variable_of(worker), tls, tw_ucx_why_not());
    char *all = tw_p2p_tls_with_cuda(tls, tw_p2p_ucx_finds_gpu());
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    settings[0] = (tw_p2p_setting_t){"TLS", all, 1};
    worker->carrier = &ucx;
    tw_status_t status = worker_create(p2p, worker, settings);
    free(all);
    status = status ? status : tw_ucx_handlers_set(worker);
    worker->takes_cuda = !status && tw_p2p_context_takes_cuda(worker->context);
    return status;
}

tw_status_t tw_ucx_shm_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker)
{
    /* UCX's cache of registered memory is off. Shared memory does not need it, and it patches mmap, munmap
     * and more in the whole process. */
    tw_p2p_setting_t settings[] = {
        {0}, {"MAX_RNDV_RAILS", "1", 0}, {"RCACHE_ENABLE", "n", 0}, {NULL, NULL, 0}};
    return worker_create_with_cuda(p2p, worker, p2p->params.node_tls, settings);
}

tw_status_t tw_ucx_net_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *device)
{
    tw_p2p_setting_t settings[] = {{0}, {"NET_DEVICES", device, 1}, {NULL, NULL, 0}};
    return worker_create_with_cuda(p2p, worker, p2p->params.net_tls, settings);
}
