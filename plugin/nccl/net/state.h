/** What context.c, comm.c and request.c share. A domain is one device in one context: an end of p2p
 *  (tw_p2p_t) with its lock, there as long as something uses it. */
#pragma once

#include <pthread.h>

#include "plugin/nccl/net/net.h"
#include "transport/p2p.h"

TW_C_BEGIN

/** The most requests that one connection has at a time; NCCL needs TW_NCCL_REQUESTS. */
#define TW_NET_REQUESTS 128

typedef struct tw_net_domain {
    tw_net_context_t *context;
    const tw_net_device_t *device;
    pthread_mutex_t use_lock; /**< guards n_users; taken before `lock` */
    int n_users;
    pthread_mutex_t lock; /**< guards p2p and all that belongs to it */
    tw_p2p_t *p2p;        /**< NULL: nothing uses it */
    int n_open;           /**< requests that NCCL holds */
    int n_turned;         /**< progress made by NCCL's threads since the ticker last made some */
    int is_idle;          /**< the ticker sleeps for long */
    pthread_t ticker;
    pthread_mutex_t tick_lock; /**< guards is_woken and ends; taken after `lock` */
    pthread_cond_t tick;       /**< for the ticker: it is woken, or is to end */
    int is_woken, ends;
} tw_net_domain_t;

struct tw_net_request {
    tw_net_comm_t *comm;
    int n;       /**< how many requests of p2p's it has; 0: it is free */
    int n_done;  /**< how many of those are done, the first ones */
    int is_void; /**< it was canceled, and has none of p2p's any more */
    const void *data[TW_NET_RECVS_MAX];
    tw_p2p_request_t *posted[TW_NET_RECVS_MAX];
    size_t bytes[TW_NET_RECVS_MAX]; /**< sizes of those messages that are done */
    void *events[TW_NET_RECVS_MAX]; /**< the profiler's; NULL: it wants none */
    tw_net_request_t *next_free;
};

struct tw_net_comm {
    tw_net_domain_t *domain;
    tw_p2p_peer_t *peer;
    tw_net_request_t *free;
    tw_net_request_t requests[TW_NET_REQUESTS];
};

/** A connection that is being made. Its number is in NCCL's handle. */
typedef struct tw_net_dial {
    struct tw_net_dial *next;
    uint64_t number;
    uint8_t handle[TW_P2P_HANDLE_BYTES];
    tw_net_domain_t *domain;
    tw_p2p_dial_t *p2p;
} tw_net_dial_t;

struct tw_net_context {
    /** guards what follows, but for what a domain's own lock does; taken before that */
    pthread_mutex_t lock;
    int n_users; /**< its owner, and each use of a domain */
    uint64_t last_number;
    int traffic_class;
    tw_net_dial_t *dials;
    tw_net_options_t options;
    tw_net_domain_t domain[TW_NET_DEVICES_MAX];
};

/** NCCL calls nobody once its requests are done, but what was sent may still be on its way out, or an answer
 *  be due: this thread moves it on. While NCCL asks for its requests it sleeps; it neither takes the lock
 *  from a thread of NCCL's nor makes it wake anybody, but for the last request's end, where something is
 *  left. Domain's lock not held. TW_ERR_INTERNAL, logged. */
tw_status_t tw_net_ticker_start(tw_net_domain_t *domain);
/** Ends before p2p does. */
void tw_net_ticker_stop(tw_net_domain_t *domain);
/** NCCL has no requests any more, though something is left to be sent; under the domain's lock. */
void tw_net_ticker_wake(tw_net_domain_t *domain);

/** NULL: there is none. */
tw_nccl_profiler_t tw_net_profiler(void);

/** The device's end, made if need be, in use until it is put back. TW_ERR_INVALID (device) and as
 *  tw_p2p_create. */
tw_status_t tw_net_domain_take(tw_net_context_t *context, int dev, tw_net_domain_t **out);
/** The last user's end of it: whatever uses p2p is gone. The context goes with its last user. */
void tw_net_domain_put(tw_net_domain_t *domain);

TW_C_END
