/** Structs and functions that ticker.c, context.c, comm.c and request.c share. A domain is one device in one
 *  context: a p2p end (tw_p2p_t, the local side of all connections on the device) and its lock. The end is
 *  open while listeners, dials or connections use the domain. */
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
    pthread_mutex_t use_lock; /**< guards n_users; a thread takes it before `lock` */
    int n_users;
    pthread_mutex_t lock; /**< guards p2p, its connections and requests, and the next three */
    tw_p2p_t *p2p;        /**< NULL: nothing uses the domain */
    int n_open;           /**< number of unfinished requests of NCCL */
    int n_turned;         /**< times that NCCL's threads made progress since the ticker's last turn */
    int is_idle;          /**< 1: the ticker's sleep is longer than SOON_NS, so waking it may pay */
    pthread_t ticker;
    pthread_mutex_t tick_lock; /**< guards is_woken and ends; a thread takes it after `lock` */
    pthread_cond_t tick;       /**< signaled when is_woken or ends is set */
    int is_woken, ends;
} tw_net_domain_t;

struct tw_net_request {
    tw_net_comm_t *comm;
    int n;       /**< number of p2p requests in `posted`; 0: this request is free */
    int n_done;  /**< number of p2p requests that are done: the first n_done of `posted` */
    int is_void; /**< 1: the request was canceled, and so were its p2p requests */
    const void *data[TW_NET_RECVS_MAX];
    tw_p2p_request_t *posted[TW_NET_RECVS_MAX];
    size_t bytes[TW_NET_RECVS_MAX]; /**< sizes of those messages that are done */
    void *events[TW_NET_RECVS_MAX]; /**< set by the profiler; NULL: it does not want the event */
    tw_net_request_t *next_free;
};

struct tw_net_comm {
    tw_net_domain_t *domain;
    tw_p2p_peer_t *peer;
    tw_net_request_t *free;
    tw_net_request_t requests[TW_NET_REQUESTS];
};

/** A connection that is being made by tw_net_connect. Its number is in NCCL's handle. */
typedef struct tw_net_dial {
    struct tw_net_dial *next;
    uint64_t number;
    uint8_t handle[TW_P2P_HANDLE_BYTES];
    tw_net_domain_t *domain;
    tw_p2p_dial_t *p2p;
} tw_net_dial_t;

struct tw_net_context {
    /** guards all below, except what a domain's lock guards; a thread takes it before a domain's lock */
    pthread_mutex_t lock;
    int n_users; /**< one for its owner, and one for each use of a domain */
    uint64_t last_number;
    int traffic_class;
    tw_net_dial_t *dials;
    tw_net_options_t options;
    tw_net_domain_t domain[TW_NET_DEVICES_MAX];
};

/** Start the domain's ticker, a thread that makes progress when NCCL does not: NCCL calls nothing after its
 *  requests are done, but bytes and answers to peers may still have to be sent. While NCCL tests requests,
 *  the ticker sleeps, and it never waits for the domain's lock. NCCL's threads wake it only if the last
 *  request has ended and something is left to send. The caller does not hold the domain's lock.
 *  TW_ERR_INTERNAL, logged. */
tw_status_t tw_net_ticker_start(tw_net_domain_t *domain);
/** Stop the ticker. Must precede tw_p2p_destroy. */
void tw_net_ticker_stop(tw_net_domain_t *domain);
/** Wake the ticker if it sleeps for long. Called when NCCL's last request has ended and something is left to
 *  send. The caller holds the domain's lock. */
void tw_net_ticker_wake(tw_net_domain_t *domain);

/** Returns the user's profiler, or NULL if there is none. */
tw_nccl_profiler_t tw_net_profiler(void);

/** Begin to use a domain. Its first user opens the p2p end. TW_ERR_INVALID (dev), and as tw_p2p_create. */
tw_status_t tw_net_domain_take(tw_net_context_t *context, int dev, tw_net_domain_t **out);
/** Stop using a domain. Its last user destroys the p2p end, and blocks meanwhile. The context's last user
 *  frees the context. */
void tw_net_domain_put(tw_net_domain_t *domain);

TW_C_END
