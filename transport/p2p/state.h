/** The inside of p2p.h. Read protocol.h (the messages, and why), this header, then, each leaning on those before it: guard.c (who may
 *  reach UCX's port), memory.c (memory of GPUs), worker.c (contexts and workers), endpoint.c (peers and their endpoints), request.c (a
 *  request and its number), message.c (sending), arrive.c (what is done when a message comes), wait.c (progress and sleep),
 *  post.c (post, test, cancel), life.c (create, flush, close), handshake.c and meet.c (meeting by a handle).
 *
 *  A peer is this end itself, shares memory with it, or is reached over the network; a UCX worker of its own
 *  serves each kind (and each network device), so no message can take a wrong way. A network peer has one control
 *  stream and some data streams per device (a stream is a UCX endpoint, hence a connection); a peer in shared
 *  memory has one stream for all. */
#ifndef TW_TRANSPORT_P2P_STATE_H
#define TW_TRANSPORT_P2P_STATE_H

#include <poll.h>
#include <sys/queue.h>

#include <ucp/api/ucp.h>

#include "transport/p2p.h"
#include "transport/p2p/guard.h"
#include "transport/p2p/protocol.h"

TW_C_BEGIN

/** A UCX context and worker: the one for shared memory, or one per network device.
 *
 *  Over TCP a message is sent at once or not at all: what the socket does not take is copied by UCX, and while that waits,
 *  the next message waits here. So UCX never holds on to a buffer, which makes canceling plain; and it needs no handshake
 *  of its own between endpoints, in the midst of which UCX 1.13 aborts the process when the other side dies. */
typedef struct tw_p2p_worker {
    tw_p2p_t *p2p;
    int at_once; /**< as said; else UCX finishes sends when it can */
    int takes_cuda;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int event_fd;
    tw_guard_t guard; /**< of its TCP port */
} tw_p2p_worker_t;

TAILQ_HEAD(tw_p2p_request_list, tw_p2p_request);
TAILQ_HEAD(tw_p2p_arrival_list, tw_p2p_arrival);
TAILQ_HEAD(tw_p2p_op_list, tw_p2p_op);
TAILQ_HEAD(tw_p2p_peer_list, tw_p2p_peer);
TAILQ_HEAD(tw_p2p_stream_list, tw_p2p_stream);

/** One connection to a peer, made when it is first used. */
typedef struct tw_p2p_stream {
    tw_p2p_peer_t *peer;
    tw_p2p_worker_t *worker;
    const ucp_address_t *address; /**< in the peer's card */
    ucp_ep_h endpoint;
    struct tw_p2p_op_list waiting;   /**< for the connection to take more; in order */
    TAILQ_ENTRY(tw_p2p_stream) busy; /**< in the list of streams where something is waiting */
    int is_busy;
    int n_chunks; /**< on the way: not acknowledged, where chunks are, else not gone yet */
    int broken;   /**< of no use any more */
    int is_ended; /**< BYE has come */
} tw_p2p_stream_t;

#define TW_P2P_WHERE_BYTES 80

struct tw_p2p_peer {
    tw_p2p_t *p2p;
    int id, known_as;
    int takes_cuda;
    int has_failed;                 /**< without hooks */
    char where[TW_P2P_WHERE_BYTES]; /**< " at 10.0.0.2:4711", for logs; "" unless met by a handle */
    int has_greeted;
    void *card;
    int n_streams, n_hellos, n_byes; /**< HELLOs come, one for each stream over TCP; BYEs, one for each */
    tw_p2p_stream_t *
        streams; /**< [n_streams] none: this end itself; control first; data streams are the others, or the same if
                                 it is alone */
    size_t chunk_bytes;
    int next_stream;                     /**< where the search for a free one begins */
    struct tw_p2p_request_list receives; /**< posted, no message yet */
    struct tw_p2p_arrival_list arrivals; /**< come, no receive yet */
    struct tw_p2p_request_list sending;  /**< cleared by CTS, chunks left to hand out */
    TAILQ_ENTRY(tw_p2p_peer) busy;
    int is_busy; /**< in the list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    size_t credit_bytes;       /**< that may be sent on credit yet */
    size_t owed_bytes;         /**< came on credit, were taken, and are to be given back */
    uint64_t n_sent_on_credit; /**< 0 again once the peer knows that nothing more comes */
    int got_on_credit;         /**< something has come so */
    int has_said_bye;          /**< it is told that it is closed: that it goes is no failure */
    tw_p2p_counts_t counts;
};

/** A message that came before its receive. */
typedef struct tw_p2p_arrival {
    TAILQ_ENTRY(tw_p2p_arrival) entry;
    uint64_t tag;
    size_t bytes;
    uint64_t id;            /**< RTS: the sender's number */
    int on_credit;          /**< EAGER */
    tw_p2p_request_t *self; /**< from this end itself */
    uint8_t data[];         /**< EAGER */
} tw_p2p_arrival_t;

/** Where a request stands. */
typedef enum tw_p2p_stage {
    TW_P2P_STAGE_UNMATCHED, /**< receive: in `receives`; send: RTS out, or waiting in this end's own `arrivals` */
    TW_P2P_STAGE_MOVING, /**< data under way */
    TW_P2P_STAGE_DONE
} tw_p2p_stage_t;

struct tw_p2p_request {
    TAILQ_ENTRY(tw_p2p_request) owned, queued;
    struct tw_p2p_request_list *queue; /**< `receives` or `sending`, while in it */
    tw_p2p_peer_t *peer;
    int is_send, may_be_shorter;
    tw_p2p_stage_t stage;
    tw_status_t status; /**< once done */
    tw_mem_t mem;
    int keep; /**< send: the receiver wants chunks that UCX keeps */
    uint64_t tag;
    uint8_t *buffer;
    size_t bytes;          /**< a receive's: the message's, once matched */
    size_t moved;          /**< send: handed to UCX; receive: arrived */
    uint64_t number;       /**< by which the peer knows it; 0: none */
    uint64_t their_number; /**< a matched one's counterpart */
    int n_ops;             /**< operations with its buffer */
    int lost;              /**< one of them failed: this will never be complete */
};

/** Something to send, or to fetch, that has not finished at once. Its request may be gone (NULL). */
typedef struct tw_p2p_op {
    TAILQ_ENTRY(tw_p2p_op) entry;
    struct tw_p2p_op_list *list; /**< that it is in: a stream's `waiting`, or `ops`, those in UCX's hands */
    tw_p2p_t *p2p;
    tw_p2p_request_t *request;
    tw_p2p_stream_t *stream; /**< sends */
    const void *data;
    size_t bytes;
    ucs_memory_type_t memory; /**< that the data is in */
    int keep;
    tw_p2p_header_t header; /**< UCX reads it until the operation has finished */
} tw_p2p_op_t;

/** Numbers for requests, never used twice: an index into `entries`, and how often that was used. */
typedef struct tw_p2p_numbers {
    struct tw_p2p_number {
        tw_p2p_request_t *request;
        uint32_t generation, next_free;
    } * entries;
    uint32_t n_entries, first_free;
} tw_p2p_numbers_t;

#define TW_P2P_SHM_WORKER 0
#define TW_P2P_FIRST_NET_WORKER 1
#define TW_P2P_WORKERS_MAX 17
struct tw_p2p {
    tw_p2p_params_t params;
    char name[64];
    ucs_memory_type_t memory[2]; /**< [tw_mem_t] UCX's name of each kind */
    tw_p2p_worker_t
        workers[TW_P2P_WORKERS_MAX]; /**< shared memory first (may lack: context NULL), then the devices */
    int n_workers;
    tw_p2p_peer_t **peers; /**< [n_peers] by id; NULL: none */
    int n_peers;
    struct pollfd *pollfds; /**< [2 + n_workers] */
    int wake_fd;            /**< readable: the next sleep is over before it begins */

    struct tw_p2p_request_list requests; /**< all that the caller holds */
    struct tw_p2p_op_list ops, free_ops; /**< in UCX's hands; of no use */
    struct tw_p2p_peer_list busy_peers;
    struct tw_p2p_stream_list busy_streams;
    tw_p2p_numbers_t numbers;
    uint8_t *admitted; /**< [n_admitted][TW_GUARD_ADDRESS_BYTES] where peers may come from */
    size_t n_admitted;
    int n_opening;        /**< peers that are just being met: ports are open to where they come from */
    int in_ucx, n_events; /**< UCX is calling back; what progress has done since it began */
};

static inline int tw_p2p_is_over(const tw_p2p_t *p2p)
{
    const tw_p2p_hooks_t *hooks = p2p->params.hooks;
    return hooks && hooks->is_over(p2p->params.arg);
}

/* ---- worker.c ---------------------------------------------------------------------------------------------- */
/** TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p);
void tw_p2p_workers_destroy(tw_p2p_t *p2p);
/** Returns how much happened. */
unsigned tw_p2p_workers_progress(tw_p2p_t *p2p);

/* ---- memory.c ---------------------------------------------------------------------------------------------- */
/** A value of UCX_TLS: `tls`, and where UCX has GPUs also its ways to them, unless `tls` decides that by itself. For the caller
 *  to free; NULL: out of memory (logged). */
char *tw_p2p_tls_with_cuda(const char *tls, int has_gpu);
/** 1 if it does; 0 also after an error, which is logged. */
int tw_p2p_context_takes_cuda(ucp_context_h context);

/* ---- endpoint.c -------------------------------------------------------------------------------------------- */
/** A peer cannot go on, or, NULL, this process: tell the owner. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why);
/** Make the endpoint; the stream is broken if that fails. */
void tw_p2p_stream_open(tw_p2p_t *p2p, tw_p2p_stream_t *stream);
/** Note that a stream is of no use any more, and tell the owner. What waits on it is forgotten when it is pumped next. */
void tw_p2p_stream_break(tw_p2p_stream_t *stream, ucs_status_t why);
int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer);
/** An id for a peer to come. -1: out of memory. */
int tw_p2p_id_reserve(tw_p2p_t *p2p);
/** Nothing may be under way any more. */
void tw_p2p_peer_free(tw_p2p_peer_t *peer);

/* ---- message.c --------------------------------------------------------------------------------------------- */
tw_p2p_op_t *tw_p2p_op_create(tw_p2p_t *p2p);
/** Into UCX's hands. */
void tw_p2p_op_hand_over(tw_p2p_op_t *op);
/** It is over, one way or the other. */
void tw_p2p_op_finish(tw_p2p_op_t *op, ucs_status_t status);
/** Send a control message; `request` (EAGER) is counted as busy until UCX is done with its buffer. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_control_send(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                                tw_p2p_request_t *request);
/** Send HELLO or BYE on all streams. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_streams_mark(tw_p2p_peer_t *peer, tw_p2p_kind_t kind);
/** Send what waits on streams that are free again, then hand them chunks of what is in `sending`. */
void tw_p2p_pump(tw_p2p_t *p2p);
/** Take back from the streams what has not gone yet. */
void tw_p2p_ops_take_back(tw_p2p_request_t *request);
/** What UCX has in hand goes on without its request. */
void tw_p2p_ops_disown(tw_p2p_t *p2p, const tw_p2p_request_t *request);

/* ---- arrive.c ---------------------------------------------------------------------------------------------- */
/** TW_ERR_UCX, logged. */
tw_status_t tw_p2p_handlers_set(tw_p2p_t *p2p);
/** A receive takes what has come: EAGER is copied, RTS is answered. */
void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival);

/* ---- request.c --------------------------------------------------------------------------------------------- */
tw_p2p_request_t *tw_p2p_number_find(const tw_p2p_numbers_t *numbers, uint64_t number);
tw_status_t tw_p2p_number_take(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_number_release(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_request_queue(tw_p2p_request_t *request, struct tw_p2p_request_list *queue);
void tw_p2p_request_unqueue(tw_p2p_request_t *request);
/** The first receive that waits for a message with this tag, or NULL. */
tw_p2p_request_t *tw_p2p_receive_find(const tw_p2p_peer_t *peer, uint64_t tag);
/** Something has moved: finish the request if that was all. */
void tw_p2p_request_settle(tw_p2p_t *p2p, tw_p2p_request_t *request);
/** Decide how it ends; UCX may still be busy with its buffer. */
void tw_p2p_request_finish(tw_p2p_t *p2p, tw_p2p_request_t *request, tw_status_t status);

/* ---- wait.c ------------------------------------------------------------------------------------------------ */
/** After the workers are there. TW_ERR_NO_MEMORY, TW_ERR_IO, logged. */
tw_status_t tw_p2p_sleep_init(tw_p2p_t *p2p);
void tw_p2p_sleep_cleanup(tw_p2p_t *p2p);
void tw_p2p_nap(tw_p2p_t *p2p, double timeout_sec);

TW_C_END

#endif
