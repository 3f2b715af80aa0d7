/* Contexts, devices, and a p2p end for each device in use. Some state is global, because NCCL passes no
 * context to `devices` and `properties`, and before v11 to no function. */
#include "plugin/nccl/net/state.h"

#include <stdlib.h>
#include <unistd.h>

#include "plugin/plugin.h"

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static tw_net_devices_t process_devices; /* n is 0 until the devices are found; never changes afterwards */
static double process_latency_us;
static pid_t process_id;                  /* the process that last made a context; 0: none did */
static int n_open_ends;                   /* number of open p2p ends in all contexts; atomic */
static tw_net_context_t *process_context; /* the one context for versions of NCCL without contexts */

/* ---- devices ------------------------------------------------------------------------------------------- */

static void log_devices(const tw_net_devices_t *devices)
{
    for (int i = 0; i < devices->n; i++) {
        const tw_net_device_t *device = &devices->device[i];

        tw_info("net: device %d: %s, %d Mb/s%s%s", i, device->name, device->speed_mbps,
                device->pci_path[0] != '\0' ? ", " : "", device->pci_path);
    }
}

/** Find the devices, once in a process. The caller holds the process's lock. */
static tw_status_t find_devices_once(const tw_net_options_t *options)
{
    tw_net_devices_t found = {.n = 0};
    if (process_devices.n > 0) {
        return TW_OK;
    }
    tw_status_t status = tw_net_devices_find(options, &found);
    if (status == TW_OK) {
        log_devices(&found);
        process_devices = found;
        process_latency_us = options->alpha_us;
    }
    return status;
}

const tw_net_devices_t *tw_net_devices_get(void)
{
    pthread_mutex_lock(&process_lock);
    const tw_net_devices_t *devices = process_devices.n > 0 ? &process_devices : NULL;
    pthread_mutex_unlock(&process_lock);
    return devices;
}

const tw_net_device_t *tw_net_device_get(int dev)
{
    const tw_net_devices_t *devices = tw_net_devices_get();
    return devices && dev >= 0 && dev < devices->n ? &devices->device[dev] : NULL;
}

float tw_net_latency_us(void)
{
    return (float)process_latency_us;
}

/* ---- contexts ------------------------------------------------------------------------------------------ */

static void context_init(tw_net_context_t *context)
{
    context->n_users = 1;
    (void)pthread_mutex_init(&context->lock, NULL);
    for (int i = 0; i < TW_NET_DEVICES_MAX; i++) {
        context->domain[i].context = context;
        context->domain[i].device = &process_devices.device[i];
        (void)pthread_mutex_init(&context->domain[i].lock, NULL);
        (void)pthread_mutex_init(&context->domain[i].use_lock, NULL);
    }
}

static void context_free(tw_net_context_t *context)
{
    for (int i = 0; i < TW_NET_DEVICES_MAX; i++) {
        (void)pthread_mutex_destroy(&context->domain[i].lock);
        (void)pthread_mutex_destroy(&context->domain[i].use_lock);
    }
    (void)pthread_mutex_destroy(&context->lock);
    tw_config_cleanup(&tw_net_config_table, &context->options);
    free(context);
}

/** Check for a fork. A forked process lacks its parent's threads, so p2p ends that were open at the fork do
 *  not work: it must exec a program first. If none was open, it may use the net. */
static tw_status_t check_process(void)
{
    TW_FAIL_IF(process_id != 0 && process_id != getpid() &&
                   __atomic_load_n(&n_open_ends, __ATOMIC_ACQUIRE) > 0,
               TW_ERR_CONFIG,
               "net: this process was forked from one that uses the net already (process %d): it has to "
               "start a program of its own before it can",
               (int)process_id);
    process_id = getpid();
    return TW_OK;
}

/** Make a context. The caller holds the process's lock. */
static tw_status_t context_create(int traffic_class, tw_net_context_t **out)
{
    tw_net_context_t *context;
    TW_TRY(check_process());
    context = calloc(1, sizeof(*context));
    TW_FAIL_IF(!context, TW_ERR_NO_MEMORY, "net: out of memory");
    tw_status_t status = tw_net_options_init(&context->options);
    if (status != TW_OK) {
        free(context);
        return status;
    }
    context_init(context);
    context->traffic_class = traffic_class;
    if (context->options.is_nccls) {
        tw_info("net: what is sent is sealed, as ncclSetEncryption asks");
    }
    status = find_devices_once(&context->options);
    if (status != TW_OK) {
        context_free(context);
        return status;
    }
    *out = context;
    return TW_OK;
}

tw_status_t tw_net_context_create(int traffic_class, tw_net_context_t **out)
{
    pthread_mutex_lock(&process_lock);
    tw_status_t status = context_create(traffic_class, out);
    pthread_mutex_unlock(&process_lock);
    return status;
}

tw_status_t tw_net_context_shared(tw_net_context_t **out)
{
    tw_status_t status = TW_OK;
    pthread_mutex_lock(&process_lock);
    status = check_process();
    if (status == TW_OK && !process_context) {
        status = context_create(TW_NET_NO_CLASS, &process_context);
    }
    if (status == TW_OK) {
        *out = process_context;
    }
    pthread_mutex_unlock(&process_lock);
    return status;
}

/** Release a context. The last release frees it. */
static void context_put(tw_net_context_t *context)
{
    pthread_mutex_lock(&context->lock);
    int is_last = --context->n_users == 0;
    pthread_mutex_unlock(&context->lock);
    if (is_last) {
        context_free(context);
    }
}

/** Drop the dials that NCCL has begun and never finished. */
static void give_dials_up(tw_net_context_t *context)
{
    tw_net_dial_t *dial;
    for (;;) {
        pthread_mutex_lock(&context->lock);
        dial = context->dials;
        context->dials = dial ? dial->next : NULL;
        pthread_mutex_unlock(&context->lock);
        if (!dial) {
            return;
        }
        pthread_mutex_lock(&dial->domain->lock);
        tw_p2p_dial_cancel(dial->p2p);
        pthread_mutex_unlock(&dial->domain->lock);
        tw_net_domain_put(dial->domain);
        free(dial);
    }
}

void tw_net_context_destroy(tw_net_context_t *context)
{
    if (context) {
        give_dials_up(context);
        context_put(context);
    }
}

/* ---- domains ------------------------------------------------------------------------------------------- */

static tw_status_t open_end(tw_net_domain_t *domain)
{
    const tw_net_options_t *options = &domain->context->options;
    tw_p2p_params_t params = {
        .name = domain->device->name,
        .net_tls = "tcp",
        .net_devices = domain->device->name,
        .n_peers = 16,
        .streams = (int)options->streams,
        .encrypt = options->encrypt,
        .chunk_bytes = options->chunk_bytes,
        .eager_bytes = options->eager_bytes,
        .sends_on_credit = 1,
        .spin_sec = options->spin_sec,
        .timeout_sec = options->timeout_sec,
    };
    tw_status_t status = tw_p2p_create(&params, &domain->p2p);

    if (status == TW_OK) {
        status = tw_net_ticker_start(domain);
        if (status != TW_OK) {
            tw_p2p_destroy(domain->p2p);
        }
    }
    if (status != TW_OK) {
        domain->p2p = NULL;
    }
    (void)__atomic_fetch_add(&n_open_ends, status == TW_OK, __ATOMIC_ACQ_REL);
    return status;
}

/** Take the p2p end out of the domain. The domain's next user opens another one. */
static tw_p2p_t *detach_end(tw_net_domain_t *domain)
{
    tw_p2p_t *p2p = domain->p2p;
    tw_net_ticker_stop(domain);
    domain->p2p = NULL;
    return p2p;
}

/** Close a p2p end. Blocks until all posted bytes are sent, for TW_PEER_TIMEOUT at most. Accepts NULL. */
static void close_end(tw_p2p_t *p2p)
{
    if (p2p) {
        tw_p2p_destroy(p2p);
        (void)__atomic_fetch_sub(&n_open_ends, 1, __ATOMIC_ACQ_REL);
    }
}

tw_status_t tw_net_domain_take(tw_net_context_t *context, int dev, tw_net_domain_t **out)
{
    tw_net_domain_t *domain;
    tw_status_t status = TW_OK;
    TW_FAIL_IF(!tw_net_device_get(dev), TW_ERR_INVALID, "net: there is no device %d", dev);
    domain = &context->domain[dev];
    pthread_mutex_lock(&domain->use_lock);
    if (domain->n_users == 0) {
        status = open_end(domain);
    }
    domain->n_users += status == TW_OK;
    pthread_mutex_unlock(&domain->use_lock);
    if (status == TW_OK) {
        pthread_mutex_lock(&context->lock);
        context->n_users++;
        pthread_mutex_unlock(&context->lock);
        *out = domain;
    }
    return status;
}

void tw_net_domain_put(tw_net_domain_t *domain)
{
    tw_net_context_t *context = domain->context;
    tw_p2p_t *unused = NULL;
    pthread_mutex_lock(&domain->use_lock);
    if (--domain->n_users == 0) {
        unused = detach_end(domain);
    }
    pthread_mutex_unlock(&domain->use_lock);
    /* Closing blocks, so it happens without the lock: a new communicator must not wait for it. */
    close_end(unused);
    context_put(context);
}
