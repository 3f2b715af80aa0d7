/** Makes the workers: one for shared memory, and one for each network device. */
#include <string.h>

#include "transport/control/socket.h"
#include "transport/devices.h"
#include "transport/p2p/state.h"

static tw_status_t net_workers_create(tw_p2p_t *p2p)
{
    const char *at = p2p->params.net_devices;
    char device[TW_DEVICES_NAME_BYTES];
    TW_TRY(tw_devices_check(p2p->name, at));
    while (tw_devices_next(&at, device)) {
        TW_FAIL_IF(p2p->n_workers == TW_P2P_WORKERS_MAX || !tw_net_device_usable(device), TW_ERR_CONFIG,
                   "%s: TW_NET_DEVICES: \"%s\": %s", p2p->name, device,
                   p2p->n_workers == TW_P2P_WORKERS_MAX ? "too many devices"
                                                        : "no such device, or it is not up");
        tw_p2p_worker_t *worker = &p2p->workers[p2p->n_workers++];
        worker->p2p = p2p;
        const int tcp = !strcmp(p2p->params.net_tls, "tcp");
        TW_TRY((tcp ? tw_tcp_create : tw_ucx_net_create)(p2p, worker, device));
    }
    return TW_OK;
}

/** Check that encryption is possible: only Thinwire's own TCP connections support it. */
static tw_status_t encrypt_check(const tw_p2p_t *p2p)
{
    TW_FAIL_IF(p2p->params.encrypt && p2p->params.net_tls && strcmp(p2p->params.net_tls, "tcp") != 0,
               TW_ERR_CONFIG, "%s: TW_NET_ENCRYPT=y needs TW_NET_TLS=tcp: nothing is sealed over %s",
               p2p->name, p2p->params.net_tls);
    return TW_OK;
}

tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p)
{
    tw_p2p_worker_t *shm = &p2p->workers[TW_P2P_SHM_WORKER];
    p2p->n_workers = TW_P2P_FIRST_NET_WORKER;
    TW_TRY(encrypt_check(p2p));
    shm->p2p = p2p;
    TW_TRY(p2p->params.node_tls ? tw_ucx_shm_create(p2p, shm) : TW_OK);
    return p2p->params.net_tls ? net_workers_create(p2p) : TW_OK;
}

void tw_p2p_workers_destroy(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier) {
            p2p->workers[i].carrier->destroy(&p2p->workers[i]);
        }
        p2p->workers[i] = (tw_p2p_worker_t){0};
    }
    p2p->n_workers = 0;
}

void tw_p2p_abandon(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier && !p2p->workers[i].carrier->is_tcp) {
            p2p->workers[i].carrier = NULL;
        }
    }
}

void tw_p2p_shut(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier && p2p->workers[i].carrier->is_tcp) {
            p2p->workers[i].carrier->shut(&p2p->workers[i]);
        }
    }
}

unsigned tw_p2p_workers_progress(tw_p2p_t *p2p)
{
    unsigned n_events = 0;
    p2p->in_callback = 1;
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier) {
            n_events += p2p->workers[i].carrier->progress(&p2p->workers[i]);
        }
    }
    tw_tcp_watch_peers(p2p);
    p2p->in_callback = 0;
    return n_events;
}
