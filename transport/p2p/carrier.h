/** What carries messages: shared memory, or a network device. Private to the folder. */
#pragma once

#include <ucp/api/ucp.h>

#include "transport/p2p.h"
#include "transport/p2p/protocol.h"

TW_C_BEGIN

typedef struct tw_p2p_worker tw_p2p_worker_t;
typedef struct tw_p2p_stream tw_p2p_stream_t;
typedef struct tw_tcp_device tw_tcp_device_t;

/** The functions of a worker's carrier. */
typedef struct tw_p2p_carrier {
    /** TCP connections of our own: opened by a greeting that proves both ends, closed with BYE */
    int is_tcp;
    /** Make progress. Returns how much happened. */
    unsigned (*progress)(tw_p2p_worker_t *worker);
    /** Prepare to sleep on the worker's descriptor. Returns 1 if something is there already: do not sleep. */
    int (*arm)(tw_p2p_worker_t *worker);
    /** Send what waits on a stream, as far as possible now, and finish what has gone. 1: something is left
     *  that is in no list. */
    int (*send)(tw_p2p_stream_t *stream);
    /** Read what has arrived on a stream, without first asking whether anything has. is_asked: somebody waits
     *  for it, and may ask again soon. Returns how much happened. NULL: this is not possible. */
    unsigned (*receive)(tw_p2p_stream_t *stream, int is_asked);
    /** Read on if a message was left unread, as somebody now waits for one of the stream's peer. NULL:
     *  none is ever left. */
    void (*resume)(tw_p2p_stream_t *stream);
    /** Let a request go: its operations on this stream end, or go on without its buffer. NULL: they end,
     *  or are disowned (tw_p2p_ops_disown). */
    void (*release)(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
    /** Close the stream, as its peer is freed. is_orderly: what waits still goes out, in the background. */
    void (*close)(tw_p2p_stream_t *stream, int is_orderly);
    /** Block until what was sent has gone out, calling `turn` meanwhile. NULL: the kernel has what was
     *  sent. */
    void (*flush)(tw_p2p_worker_t *worker, uint64_t until_ns, void (*turn)(tw_p2p_t *p2p));
    void (*destroy)(tw_p2p_worker_t *worker);
    /* Only TCP has these: */
    /** Begin to connect a stream to its peer's device. TW_ERR_NO_MEMORY, logged; other failures break the
     *  stream. */
    tw_status_t (*connect)(tw_p2p_stream_t *stream);
    /** Whether a device's part of a card makes sense. */
    int (*address_is_sound)(const void *address, size_t bytes);
    /** Accept no connections any more. */
    void (*shut)(tw_p2p_worker_t *worker);
    /** Handle ALIVE. Returns NULL, or what is wrong with it. */
    const char *(*hear_alive)(tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
} tw_p2p_carrier_t;

/** What carries messages: the shared memory of this node, or one network device. */
struct tw_p2p_worker {
    tw_p2p_t *p2p;
    const tw_p2p_carrier_t *carrier; /**< NULL: this worker does not exist */
    int takes_cuda;
    void *address; /**< the worker's part of the card, owned by it */
    size_t address_bytes;
    int event_fd;
    tw_tcp_device_t *tcp;
    ucp_context_h context;
    ucp_worker_h worker;
};

/** Indices of a p2p's workers: shared memory, which may be missing, then the devices. */
#define TW_P2P_SHM_WORKER 0
#define TW_P2P_FIRST_NET_WORKER 1
#define TW_P2P_WORKERS_MAX 17

/* ---- worker.c ------------------------------------------------------------------------------------------ */
/** Make the workers. TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_IO, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p);
void tw_p2p_workers_destroy(tw_p2p_t *p2p);
/** Make progress on all workers. Returns how much happened. */
unsigned tw_p2p_workers_progress(tw_p2p_t *p2p);

/* ---- ucx_memory.c -------------------------------------------------------------------------------------- */
/** Make a value of UCX_TLS: `tls`, and if UCX finds GPUs its ways to them, unless `tls` decides that itself.
 *  The caller frees it; NULL: out of memory (logged). */
char *tw_p2p_tls_with_cuda(const char *tls, int has_gpu);
/** Returns 1 if a context takes GPU memory; 0 also after an error, which is logged. */
int tw_p2p_context_takes_cuda(ucp_context_h context);

/* ---- ucx_worker.c, ucx_message.c ----------------------------------------------------------------------- */
/** Make a worker for shared memory; for a network device. TW_ERR_UCX, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_ucx_shm_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker);
tw_status_t tw_ucx_net_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *device);
/** Set the handlers of UCX's active messages. TW_ERR_UCX, logged. */
tw_status_t tw_ucx_handlers_set(tw_p2p_worker_t *worker);
int tw_ucx_send(tw_p2p_stream_t *stream);

/* ---- tcp_device.c -------------------------------------------------------------------------------------- */
/** Make a worker for a network device. TW_ERR_IO, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_tcp_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *name);

/* ---- tcp_watch.c --------------------------------------------------------------------------------------- */
/** When it is time, send ALIVE to peers that this end waits for, or that wait for it, and break dead
 *  connections. */
void tw_tcp_watch_peers(tw_p2p_t *p2p);

TW_C_END
