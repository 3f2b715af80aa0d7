/** What context.c, comm.c and request.c share. A domain is one device in one context: an end of p2p
 *  (tw_p2p_t) with its lock, which exist as long as something uses them. */
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
    pthread_mutex_t lock; /**< guards p2p and all that belongs to it */
    tw_p2p_t *p2p;        /**< NULL: nothing uses the domain */
    int n_open;           /**< requests that NCCL holds */
    int n_turned;         /**< progress that NCCL's threads made since the ticker last made some */
    int is_idle;          /**< the ticker sleeps for long */
    pthread_t ticker;
    pthread_mutex_t tick_lock; /**< guards is_woken and ends; a thread takes it after `lock` */
    pthread_cond_t tick;       /**< signals the ticker: it is woken, or is to end */
    int is_woken, ends;
} tw_net_domain_t;

struct tw_net_request {
    tw_net_comm_t *comm;
    int n;       /**< how many of p2p's requests this one has; 0: it is free */
    int n_done;  /**< how many of those are done, the first ones */
    int is_void; /**< 1: the request was canceled, and has none of p2p's requests any more */
    const void *data[TW_NET_RECVS_MAX];
    tw_p2p_request_t *posted[TW_NET_RECVS_MAX];
    size_t bytes[TW_NET_RECVS_MAX]; /**< sizes of those messages that are done */
    void *events[TW_NET_RECVS_MAX]; /**< the profiler's; NULL: the profiler wants none */
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
    /** guards all below but what a domain's own lock guards; a thread takes it before that */
    pthread_mutex_t lock;
    int n_users; /**< one for its owner, and one for each use of a domain */
    uint64_t last_number;
    int traffic_class;
    tw_net_dial_t *dials;
    tw_net_options_t options;
    tw_net_domain_t domain[TW_NET_DEVICES_MAX];
};

/** Start the device's ticker, a thread that moves on what NCCL has sent, or an answer that is due: NCCL
 *  makes no calls once its requests are done. While NCCL tests requests, the ticker sleeps; it never takes
 *  the lock from NCCL's threads, and they wake it only when the last request ends and something is left to
 *  do. The caller does not hold the domain's lock. TW_ERR_INTERNAL, logged. */
tw_status_t tw_net_ticker_start(tw_net_domain_t *domain);
/** Stop the ticker, before p2p is destroyed. */
void tw_net_ticker_stop(tw_net_domain_t *domain);
/** Wake the ticker: NCCL has no requests any more, but something is left to send. The caller holds the
 *  domain's lock. */
void tw_net_ticker_wake(tw_net_domain_t *domain);

/** The user's profiler; NULL: there is none. */
tw_nccl_profiler_t tw_net_profiler(void);

/** Take the device's end, made if need be; it is in use until it is put back. TW_ERR_INVALID (device) and as
 *  tw_p2p_create. */
tw_status_t tw_net_domain_take(tw_net_context_t *context, int dev, tw_net_domain_t **out);
/** Put the end back. The last user's call destroys it: nothing uses p2p any more. The context goes with its
 *  last user. */
void tw_net_domain_put(tw_net_domain_t *domain);

TW_C_END
