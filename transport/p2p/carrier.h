/** Carriers move messages (TCP or UCX); a worker is one device with its carrier. Private to the folder. */
#pragma once

#include <ucp/api/ucp.h>

#include "transport/p2p.h"
#include "transport/p2p/protocol.h"

TW_C_BEGIN

typedef struct tw_p2p_worker tw_p2p_worker_t;
typedef struct tw_p2p_stream tw_p2p_stream_t;
typedef struct tw_tcp_device tw_tcp_device_t;

/** The functions of a carrier. */
typedef struct tw_p2p_carrier {
    /** 1: Thinwire's own TCP connections: opened by a greeting that authenticates both ends, closed by BYE */
    int is_tcp;
    /** Make progress. Returns the number of things done. */
    unsigned (*progress)(tw_p2p_worker_t *worker);
    /** Prepare to sleep on the worker's descriptor. Returns 1 if there is work already, so do not sleep. */
    int (*arm)(tw_p2p_worker_t *worker);
    /** Send a stream's waiting operations as far as possible now, and finish those that have gone. Returns 1
     *  if bytes are left to send that belong to no waiting operation. */
    int (*send)(tw_p2p_stream_t *stream);
    /** Read what has arrived on a stream, without first asking whether anything has. is_asked: a caller polls
     *  for it, and may ask again soon. Returns the number of things done. NULL: not possible. */
    unsigned (*receive)(tw_p2p_stream_t *stream, int is_asked);
    /** Read on if a message was left unread, because a new request may need this message or one behind it.
     *  NULL: this carrier leaves none unread. */
    void (*resume)(tw_p2p_stream_t *stream);
    /** Release a request's buffer: its operations on this stream end, or go on without the buffer. NULL: they
     *  end, or tw_p2p_ops_disown detaches them. */
    void (*release)(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
    /** Close the stream, because its peer is freed. is_orderly: waiting operations still go out. */
    void (*close)(tw_p2p_stream_t *stream, int is_orderly);
    /** Block until everything sent has gone out, calling `turn` meanwhile. NULL: not needed, because what was
     *  sent is in the kernel already. */
    void (*flush)(tw_p2p_worker_t *worker, uint64_t until_ns, void (*turn)(tw_p2p_t *p2p));
    void (*destroy)(tw_p2p_worker_t *worker);
    /* Only TCP has these: */
    /** Begin to connect a stream to its peer's device. TW_ERR_NO_MEMORY (logged); other failures break the
     *  stream. */
    tw_status_t (*connect)(tw_p2p_stream_t *stream);
    /** Return 1 if a device's part of a card is valid. */
    int (*address_is_sound)(const void *address, size_t bytes);
    /** Stop accepting connections. */
    void (*shut)(tw_p2p_worker_t *worker);
    /** Handle an ALIVE message. Returns NULL, or what is wrong with it. */
    const char *(*hear_alive)(tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
} tw_p2p_carrier_t;

/** A worker: what carries messages over the shared memory of this node, or over one network device. */
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

/** Indices of a p2p's workers: first shared memory, which may not exist, then the devices. */
#define TW_P2P_SHM_WORKER 0
#define TW_P2P_FIRST_NET_WORKER 1
#define TW_P2P_WORKERS_MAX 17

/* ---- worker.c ------------------------------------------------------------------------------------------ */
/** Make the workers. TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_IO, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p);
void tw_p2p_workers_destroy(tw_p2p_t *p2p);
/** Make progress on all workers. Returns the number of things done. */
unsigned tw_p2p_workers_progress(tw_p2p_t *p2p);

/* ---- ucx_memory.c -------------------------------------------------------------------------------------- */
/** Make a value for UCX_TLS: `tls`, plus UCX's CUDA transports if it finds GPUs, unless `tls` already names
 *  or excludes some. The caller frees it; NULL: out of memory (logged). */
char *tw_p2p_tls_with_cuda(const char *tls, int has_gpu);
/** Return 1 if a context can send GPU memory; 0 if not, or after an error, which is logged. */
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
/** If it is time: send ALIVE to peers that wait for this end or that it waits for, and break dead
 *  connections. */
void tw_tcp_watch_peers(tw_p2p_t *p2p);

TW_C_END
