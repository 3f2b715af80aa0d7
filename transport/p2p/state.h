/** Internals of p2p.h. Read protocol.h (the messages, and why), carrier.h (what carries them), requests.h
 *  (requests and operations), peers.h (peers and their streams) and this header. Then, each based on those
 *  before it: worker.c (a device and its carrier), peer.c (peers and their streams), request.c (a request and
 *  its number), message.c (sending), arrive.c (handling an incoming message), wait.c (progress and sleep),
 *  post.c (post, test, cancel), life.c (create, flush, close), handshake.c and meet.c (meeting by a handle).
 *  Below them are the two carriers:
 *    ucx_memory.c, ucx_worker.c, ucx_message.c    UCX: shared memory, and networks that are not TCP
 *    greeting.c, seal.c, tcp.h, tcp_*.c           Thinwire's own TCP connections
 *
 *  A peer is this end itself, shares memory with it, or is reached over the network. Shared memory and each
 *  network device have separate workers, so no message can take a wrong path. A network peer has one control
 *  stream, and some data streams per device. A stream is a TCP connection, or a UCX endpoint. A peer in
 *  shared memory has one stream for everything. */
#pragma once

#include <poll.h>

#include "transport/control/connection.h"
#include "transport/control/strangers.h"
#include "transport/p2p/carrier.h"
#include "transport/p2p/peers.h"
#include "transport/p2p/requests.h"

TW_C_BEGIN

TAILQ_HEAD(tw_p2p_listener_list, tw_p2p_listener);
TAILQ_HEAD(tw_p2p_dial_list, tw_p2p_dial);

struct tw_p2p {
    tw_p2p_params_t params;
    char name[64];
    ucs_memory_type_t memory[2]; /**< [tw_mem_t] UCX's name of each kind of memory */
    /** first shared memory (carrier NULL if there is none), then the devices */
    tw_p2p_worker_t workers[TW_P2P_WORKERS_MAX];
    int n_workers;
    tw_p2p_peer_t **peers; /**< [n_peers] by id; NULL where no peer has this id */
    int n_peers;
    struct pollfd *pollfds; /**< [2 + n_workers] */
    int wake_fd;            /**< readable: the next sleep ends at once */

    struct tw_p2p_request_list requests; /**< all requests that the caller holds */
    struct tw_p2p_op_list ops, free_ops; /**< operations that UCX executes; free operations for reuse */
    struct tw_p2p_peer_list busy_peers;
    struct tw_p2p_stream_list busy_streams;
    tw_p2p_numbers_t numbers;
    tw_token_key_t key; /**< key of all peers added by card; valid if has_key */
    int has_key;
    struct tw_p2p_listener_list listeners;
    struct tw_p2p_dial_list dials;
    /** makes progress on listeners and dials, returns the number of things done; NULL: none were made */
    unsigned (*meet)(tw_p2p_t *p2p);
    uint64_t aborted_ns; /**< when a peer was last closed with messages under way */
    /** in_callback: 1 while a carrier delivers messages; n_events: things done in this progress so far */
    int in_callback, n_events;
    tw_strangers_log_t strangers;
    uint64_t watch_ns; /**< time of the next check of TCP connections */
    uint64_t moved_ns; /**< when a TCP connection last carried much data; 0: never */
    int n_watched;     /**< number of TCP peers at the last check */
    int n_for_one;     /**< calls of tw_p2p_progress_for since the last progress on everything */
};

static inline int tw_p2p_is_over(const tw_p2p_t *p2p)
{
    const tw_p2p_hooks_t *hooks = p2p->params.hooks;
    return hooks && hooks->is_over(p2p->params.arg);
}

/** Return the time when a timeout that begins now ends. */
static inline uint64_t tw_p2p_deadline(const tw_p2p_t *p2p)
{
    return tw_connection_deadline(p2p->params.timeout_sec);
}

/* ---- wait.c -------------------------------------------------------------------------------------------- */
/** Allocate what sleeping needs, after the workers are made. TW_ERR_NO_MEMORY, TW_ERR_IO, logged. */
tw_status_t tw_p2p_sleep_init(tw_p2p_t *p2p);
void tw_p2p_sleep_cleanup(tw_p2p_t *p2p);
void tw_p2p_nap(tw_p2p_t *p2p, double timeout_sec);

TW_C_END
