/** Peers and their streams. Private to the folder. */
#pragma once

#include <sys/queue.h>

#include "transport/control/token.h"
#include "transport/p2p/carrier.h"
#include "transport/p2p/requests.h"

TW_C_BEGIN

typedef struct tw_tcp_link tw_tcp_link_t;

TAILQ_HEAD(tw_p2p_peer_list, tw_p2p_peer);
TAILQ_HEAD(tw_p2p_stream_list, tw_p2p_stream);

/** One connection to a peer. */
struct tw_p2p_stream {
    tw_p2p_peer_t *peer;
    tw_p2p_worker_t *worker;
    const void *address; /**< address of the peer's worker to connect to; inside the peer's card */
    size_t address_bytes;
    ucp_ep_h endpoint;               /**< UCX: created at its first use */
    tw_tcp_link_t *link;             /**< TCP: NULL until it is connected */
    struct tw_p2p_op_list waiting;   /**< operations that wait to be sent; in order */
    TAILQ_ENTRY(tw_p2p_stream) busy; /**< in the list of streams with waiting operations */
    int is_busy;
    uint64_t sent_ns; /**< if takes_long: time of the last write to the connection */
    int gathers;      /**< 1: the waiting messages are short, and were posted soon after sent_ns */
    int n_chunks;     /**< chunks without ACK; if ACKs are not used, chunks not fully written */
    int is_open;      /**< TCP: both ends have proven themselves */
    int broken;       /**< 1: the stream cannot be used any more */
    int is_ended;     /**< 1: BYE has arrived */
};

/** Credit: bytes of messages of one kind, short or long, that may be sent without being asked for. */
typedef struct tw_p2p_credit {
    size_t limit, step; /**< limit: total credit; step: how much is returned at a time */
    size_t left;        /**< sender: credit that is left */
    size_t owed;        /**< receiver: bytes that receives have taken, with credit not returned yet */
    size_t held;        /**< receiver: bytes that have arrived, with credit not returned yet */
} tw_p2p_credit_t;

#define TW_P2P_WHERE_BYTES 80

struct tw_p2p_peer {
    tw_p2p_t *p2p;
    int id, known_as;
    int takes_cuda;
    int has_failed;                 /**< without hooks: 1: the peer has failed */
    char where[TW_P2P_WHERE_BYTES]; /**< " at 10.0.0.2:4711", for logs; "" unless met by a handle */
    void *card;
    int connects;                    /**< over TCP, 1: this end makes the connections; 0: the peer does */
    uint8_t key[TW_TOKEN_KEY_BYTES]; /**< the key that proves its TCP connections */
    int cipher;                      /**< cipher of its TCP connections, a tw_cipher_t */
    int n_streams, n_byes;           /**< n_byes: number of BYEs that have arrived, one on each stream */
    /** [n_streams] Stream 0 is for control messages, the others for data. A single stream does both. NULL if
     *  the peer is this process. */
    tw_p2p_stream_t *streams;
    /** 1: messages of up to TW_P2P_EAGER_MAX are sent at once: sends_on_credit is set, and there is one data
     *  stream. With several streams, spreading a message over all of them is worth the round trip */
    int takes_long;
    /** length above which messages are cut into chunks; above which they are announced (RTS) */
    size_t chunk_bytes, eager_bytes;
    int credit_stream;                   /**< stream of CREDIT; not that of long messages */
    int next_stream;                     /**< index of the data stream to try first */
    struct tw_p2p_request_list receives; /**< posted receives without a message */
    struct tw_p2p_arrival_list arrivals; /**< arrived messages without a receive */
    struct tw_p2p_request_list sending;  /**< sends that CTS has allowed, with chunks left to hand out */
    TAILQ_ENTRY(tw_p2p_peer) busy;
    int is_busy; /**< 1: the peer is in the list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    int n_pending;             /**< requests that are not done */
    uint64_t their_ns;         /**< ALIVE: the peer's time in the last one; 0: none */
    int is_asked, n_unheard;   /**< the peer wants ALIVE; ALIVEs sent since the peer's last */
    uint32_t n_alive;          /**< number of ALIVEs received */
    tw_p2p_credit_t credit[2]; /**< credit of [0] short messages, [1] long ones */
    int is_closing;            /**< 1: this end closes the peer, so if the peer leaves, that is no failure */
    tw_p2p_counts_t counts;
};

static inline int tw_p2p_is_long(uint64_t bytes)
{
    return bytes >= TW_P2P_LONG_FROM;
}

static inline tw_p2p_stream_t *tw_p2p_credit_stream(tw_p2p_peer_t *peer)
{
    return &peer->streams[peer->credit_stream];
}

/* ---- peer.c -------------------------------------------------------------------------------------------- */
/** Tell the owner that a peer has failed; `peer` NULL: that this process has. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why);
/** Mark a stream as unusable, and tell the owner. The stream's waiting operations are dropped when it is
 *  flushed next. */
void tw_p2p_stream_break(tw_p2p_stream_t *stream, const char *why);
int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer);
/** Return 1 if the peer has left: it sends no more, and may close its sockets at any moment. Do not write to
 *  them then: writing to a closed socket discards data from the peer that this end has not read. */
int tw_p2p_peer_has_left(const tw_p2p_peer_t *peer);
/** Reserve an id for a future peer. Returns -1 if out of memory. */
int tw_p2p_id_reserve(tw_p2p_t *p2p);
/** Free a peer that has no operations under way. */
void tw_p2p_peer_free(tw_p2p_peer_t *peer);

TW_C_END
