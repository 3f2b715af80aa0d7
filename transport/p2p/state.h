/** The inside of p2p.h. Read protocol.h (the messages, and why), this header, then, each leaning on those
 *  before it: worker.c (what carries messages: shared memory, network devices), peer.c (peers and their
 *  streams), request.c (a request and its number), message.c (sending), arrive.c (what is done when a message
 *  comes), wait.c (progress and sleep), post.c (post, test, cancel), life.c (create, flush, close),
 *  handshake.c and meet.c (meeting by a handle). Below them, the two carriers:
 *    ucx_memory.c, ucx_worker.c, ucx_message.c    UCX: shared memory, and networks that are not TCP
 *    greeting.c, seal.c, tcp.h, tcp_*.c           TCP connections of our own
 *
 *  A peer is this end itself, shares memory with it, or is reached over the network; a worker of its own
 *  serves each kind (and each network device), so no message can take a wrong way. A network peer has one
 *  control stream and some data streams per device (a stream is a TCP connection, or a UCX endpoint); a peer
 *  in shared memory has one stream for all. */
#ifndef TW_TRANSPORT_P2P_STATE_H
#define TW_TRANSPORT_P2P_STATE_H

#include <poll.h>
#include <sys/queue.h>

#include <ucp/api/ucp.h>

#include "transport/control/token.h"
#include "transport/p2p.h"
#include "transport/p2p/protocol.h"
#include "transport/seal.h"

TW_C_BEGIN

typedef struct tw_p2p_worker tw_p2p_worker_t;
typedef struct tw_p2p_stream tw_p2p_stream_t;
typedef struct tw_tcp_device tw_tcp_device_t;
typedef struct tw_tcp_link tw_tcp_link_t;

/** What a worker does its work with. */
typedef struct tw_p2p_carrier {
    int is_tcp; /**< connections of our own: opened by greeting, proven, and closed with BYE */
    /** Returns how much happened. */
    unsigned (*progress)(tw_p2p_worker_t *worker);
    /** Before sleeping on its descriptor. 1: something is there already, do not sleep. */
    int (*arm)(tw_p2p_worker_t *worker);
    /** Send what waits on a stream, as far as that goes now; what has gone is finished. 1: something is left
     *  that is in no list. */
    int (*send)(tw_p2p_stream_t *stream);
    /** Read what is there on a stream, without asking first whether something is; is_asked: somebody waits
     *  for what comes there, and may ask again soon. Returns how much happened. NULL: that is not
     *  possible. */
    unsigned (*receive)(tw_p2p_stream_t *stream, int is_asked);
    /** Somebody waits for a message of its peer's now: one that was left where it was may go on. NULL: none
     *  is left anywhere. */
    void (*resume)(tw_p2p_stream_t *stream);
    /** Let a request go: what is under way with its buffer on this stream is ended, or goes on without the
     *  buffer. */
    void (*release)(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
    /** Its peer is gone. is_orderly: what still waits goes out first, in the background. */
    void (*close)(tw_p2p_stream_t *stream, int is_orderly);
    /** Until what was sent has gone out, turning everything forward meanwhile (blocks). */
    void (*flush)(tw_p2p_worker_t *worker, uint64_t until_ns, void (*turn)(tw_p2p_t *p2p));
    void (*destroy)(tw_p2p_worker_t *worker);
    /* TCP alone: */
    /** Begin to connect a stream to its peer's device. TW_ERR_NO_MEMORY, logged; other failures break the
     *  stream. */
    tw_status_t (*connect)(tw_p2p_stream_t *stream);
    /** Whether what a card says of a device makes sense. */
    int (*address_is_sound)(const void *address, size_t bytes);
    /** Take no new connections any more. */
    void (*shut)(tw_p2p_worker_t *worker);
} tw_p2p_carrier_t;

/** What carries messages: the shared memory of this node, or one network device. */
struct tw_p2p_worker {
    tw_p2p_t *p2p;
    const tw_p2p_carrier_t *carrier; /**< NULL: it is not there */
    int takes_cuda;
    void *address; /**< its part of the card, its own */
    size_t address_bytes;
    int event_fd;
    tw_tcp_device_t *tcp;
    ucp_context_h context;
    ucp_worker_h worker;
};

TAILQ_HEAD(tw_p2p_request_list, tw_p2p_request);
TAILQ_HEAD(tw_p2p_arrival_list, tw_p2p_arrival);
TAILQ_HEAD(tw_p2p_op_list, tw_p2p_op);
TAILQ_HEAD(tw_p2p_peer_list, tw_p2p_peer);
TAILQ_HEAD(tw_p2p_stream_list, tw_p2p_stream);
TAILQ_HEAD(tw_p2p_listener_list, tw_p2p_listener);
TAILQ_HEAD(tw_p2p_dial_list, tw_p2p_dial);

/** One connection to a peer. */
struct tw_p2p_stream {
    tw_p2p_peer_t *peer;
    tw_p2p_worker_t *worker;
    const void *address; /**< the other end's worker, in the peer's card */
    size_t address_bytes;
    ucp_ep_h endpoint;               /**< UCX: made when it is first used */
    tw_tcp_link_t *link;             /**< TCP: NULL until it is connected */
    struct tw_p2p_op_list waiting;   /**< for the connection to take more; in order */
    TAILQ_ENTRY(tw_p2p_stream) busy; /**< in the list of streams where something is waiting */
    int is_busy;
    int n_chunks; /**< on the way: not acknowledged, where chunks are, else not gone yet */
    int is_open;  /**< TCP: both sides have proven themselves */
    int broken;   /**< of no use any more */
    int is_ended; /**< BYE has come */
};

#define TW_P2P_WHERE_BYTES 80

struct tw_p2p_peer {
    tw_p2p_t *p2p;
    int id, known_as;
    int takes_cuda;
    int has_failed;                 /**< without hooks */
    char where[TW_P2P_WHERE_BYTES]; /**< " at 10.0.0.2:4711", for logs; "" unless met by a handle */
    void *card;
    int connects;                    /**< over TCP: this end makes the connections, else the peer */
    uint8_t key[TW_TOKEN_KEY_BYTES]; /**< that its connections over TCP are proven with */
    int cipher;                      /**< tw_cipher_t: what they are sealed with */
    int n_streams, n_byes;           /**< BYEs come, one for each */
    /** [n_streams] none: this end itself; control first; data streams are the others, or the same if it is
     *  alone */
    tw_p2p_stream_t *streams;
    size_t chunk_bytes;
    int next_stream;                     /**< where the search for a free one begins */
    struct tw_p2p_request_list receives; /**< posted, no message yet */
    struct tw_p2p_arrival_list arrivals; /**< come, no receive yet */
    struct tw_p2p_request_list sending;  /**< cleared by CTS, chunks left to hand out */
    TAILQ_ENTRY(tw_p2p_peer) busy;
    int is_busy; /**< in the list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    int n_pending;       /**< requests that are not done */
    size_t credit_bytes; /**< that it may still be sent without being asked */
    size_t owed_bytes;   /**< of its credit: taken, and to be given back */
    size_t held_bytes;   /**< of its credit: come, and not given back yet */
    int is_closing;      /**< that it goes is no failure */
    tw_p2p_counts_t counts;
};

/** A message that came before its receive. */
typedef struct tw_p2p_arrival {
    TAILQ_ENTRY(tw_p2p_arrival) entry;
    uint64_t tag;
    size_t bytes;
    uint64_t id;                    /**< RTS: the sender's number */
    tw_p2p_request_t *self;         /**< from this end itself */
    struct tw_p2p_landing *landing; /**< EAGER: where the rest is coming in; NULL: all is here */
    uint8_t data[];                 /**< EAGER */
} tw_p2p_arrival_t;

/** Where the data of a message that is coming in goes. Zeroed: nowhere, it is thrown away. */
typedef struct tw_p2p_landing {
    uint8_t *to;
    size_t bytes;              /**< that are to come */
    size_t done;               /**< that lie there already */
    tw_p2p_request_t *request; /**< whose buffer it is; counted among its operations */
    tw_p2p_arrival_t *arrival; /**< or it is kept there */
} tw_p2p_landing_t;

/** Where a request stands. */
typedef enum tw_p2p_stage {
    /** receive: in `receives`; send: RTS out, or waiting in this end's own `arrivals` */
    TW_P2P_STAGE_UNMATCHED,
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
    size_t moved;          /**< send: handed to a stream; receive: arrived */
    size_t landed;         /**< receive, long: arrived or arriving */
    uint64_t number;       /**< by which the peer knows it; 0: none */
    uint64_t their_number; /**< a matched one's counterpart */
    int n_ops;             /**< operations with its buffer */
    int lost;              /**< one of them failed: this will never be complete */
};

/** Something to send, or to fetch, that has not finished at once. Its request may be gone (NULL). */
typedef struct tw_p2p_op {
    TAILQ_ENTRY(tw_p2p_op) entry;
    struct tw_p2p_op_list *list; /**< that it is in: a stream's `waiting`, or `ops`, those in UCX's hands */
    size_t sent;                 /**< TCP: bytes of header and data that have gone */
    void *copy;                  /**< TCP: of what is left of the data, its own */
    size_t copied_from;          /**< then `data` begins at this byte of it */
    tw_p2p_t *p2p;
    tw_p2p_request_t *request;
    tw_p2p_stream_t *stream; /**< sends */
    const void *data;
    size_t bytes;
    tw_mem_t mem; /**< that the data is in */
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
    /** shared memory first (may lack: context NULL), then the devices */
    tw_p2p_worker_t workers[TW_P2P_WORKERS_MAX];
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
    tw_token_key_t key; /**< that peers added by their cards share; has_key: there is one */
    int has_key;
    struct tw_p2p_listener_list listeners;
    struct tw_p2p_dial_list dials;
    unsigned (*meet)(
        tw_p2p_t *p2p);  /**< moves those two on, and returns how much happened; NULL: there were none yet */
    uint64_t aborted_ns; /**< when a peer was last closed with messages under way */
    int in_callback, n_events; /**< a carrier is calling back; what progress has done since it began */
    int n_for_one;             /**< progress for one request alone, since all was moved on */
};

static inline int tw_p2p_is_over(const tw_p2p_t *p2p)
{
    const tw_p2p_hooks_t *hooks = p2p->params.hooks;
    return hooks && hooks->is_over(p2p->params.arg);
}

/* ---- worker.c ------------------------------------------------------------------------------------------ */
/** TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_IO, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_workers_create(tw_p2p_t *p2p);
void tw_p2p_workers_destroy(tw_p2p_t *p2p);
/** Returns how much happened. */
unsigned tw_p2p_workers_progress(tw_p2p_t *p2p);

/* ---- ucx_memory.c -------------------------------------------------------------------------------------- */
/** A value of UCX_TLS: `tls`, and where UCX has GPUs also its ways to them, unless `tls` decides that by
 *  itself. For the caller to free; NULL: out of memory (logged). */
char *tw_p2p_tls_with_cuda(const char *tls, int has_gpu);
/** 1 if it does; 0 also after an error, which is logged. */
int tw_p2p_context_takes_cuda(ucp_context_h context);

/* ---- ucx_worker.c, ucx_message.c ----------------------------------------------------------------------- */
/** For shared memory; for a network device. TW_ERR_UCX, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_ucx_shm_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker);
tw_status_t tw_ucx_net_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *device);
/** TW_ERR_UCX, logged. */
tw_status_t tw_ucx_handlers_set(tw_p2p_worker_t *worker);
int tw_ucx_send(tw_p2p_stream_t *stream);

/* ---- tcp_device.c -------------------------------------------------------------------------------------- */
/** For a network device. TW_ERR_IO, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_tcp_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *name);

/* ---- peer.c -------------------------------------------------------------------------------------------- */
/** A peer cannot go on, or, NULL, this process: tell the owner. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why);
/** Note that a stream is of no use any more, and tell the owner. What waits on it is forgotten when it is
 *  pumped next. */
void tw_p2p_stream_break(tw_p2p_stream_t *stream, const char *why);
int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer);
/** An id for a peer to come. -1: out of memory. */
int tw_p2p_id_reserve(tw_p2p_t *p2p);
/** Nothing may be under way any more. */
void tw_p2p_peer_free(tw_p2p_peer_t *peer);

/* ---- message.c ----------------------------------------------------------------------------------------- */
tw_p2p_op_t *tw_p2p_op_create(tw_p2p_t *p2p);
/** Into UCX's hands. */
void tw_p2p_op_hand_over(tw_p2p_op_t *op);
/** It is over; why: NULL if it has gone, else what was wrong with the connection. */
void tw_p2p_op_finish(tw_p2p_op_t *op, const char *why);
/** Its request is done with it, though it is not done itself. */
void tw_p2p_op_disown(tw_p2p_op_t *op);
/** Number it as the n-th (from 0) that goes next, and return the number that follows; once it goes for sure,
 *  count it. */
uint32_t tw_p2p_op_number(tw_p2p_op_t *op, uint32_t n);
void tw_p2p_op_count(tw_p2p_op_t *op);
/** Send a control message; `request` (EAGER) is counted as busy until its buffer is free. TW_ERR_NO_MEMORY,
 *  logged. */
tw_status_t tw_p2p_control_send(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                                tw_p2p_request_t *request);
/** Send BYE on all streams. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_say_bye(tw_p2p_peer_t *peer);
/** A stream may take more. */
void tw_p2p_stream_set_busy(tw_p2p_stream_t *stream, int is_busy);
/** Send what waits on streams that are free again, then hand them chunks of what is in `sending`. */
void tw_p2p_pump(tw_p2p_t *p2p);
/** Its buffer is free afterwards, but for what UCX has in hand: that ends, or is disowned. */
void tw_p2p_ops_take_back(tw_p2p_request_t *request);
/** What UCX has in hand goes on without its request. */
void tw_p2p_ops_disown(tw_p2p_t *p2p, const tw_p2p_request_t *request);

/* ---- arrive.c ------------------------------------------------------------------------------------------ */
/** It may stay with the system until a receive is posted: it is long, and nobody waits for it or for anything
 *  that comes behind it. */
int tw_p2p_message_can_wait(const tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** A message begins to come in; a control message is dealt with at once, all others when they end. NULL, or
 *  what is wrong with it. `landing`: set up for its data, of which there are `bytes`; it stays where it is
 *  until the end. */
const char *tw_p2p_message_begin(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, size_t bytes,
                                 tw_p2p_landing_t *landing);
/** All of it is there. NULL, or what is wrong. */
const char *tw_p2p_message_end(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, tw_p2p_landing_t *landing);
/** The rest will not come, as the connection is lost. */
void tw_p2p_landing_lose(tw_p2p_peer_t *peer, tw_p2p_landing_t *landing);
/** A receive takes what has come: EAGER is copied, RTS is answered. */
void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival);

/* ---- request.c ----------------------------------------------------------------------------------------- */
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

/* ---- wait.c -------------------------------------------------------------------------------------------- */
/** After the workers are there. TW_ERR_NO_MEMORY, TW_ERR_IO, logged. */
tw_status_t tw_p2p_sleep_init(tw_p2p_t *p2p);
void tw_p2p_sleep_cleanup(tw_p2p_t *p2p);
void tw_p2p_nap(tw_p2p_t *p2p, double timeout_sec);

TW_C_END

#endif
