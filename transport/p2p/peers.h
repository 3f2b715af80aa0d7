/** A peer, and its streams. Private to the folder. */
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
    const void *address; /**< the peer's worker to connect to, in the peer's card */
    size_t address_bytes;
    ucp_ep_h endpoint;               /**< UCX: made at its first use */
    tw_tcp_link_t *link;             /**< TCP: NULL until it is connected */
    struct tw_p2p_op_list waiting;   /**< operations that wait for the connection to take more; in order */
    TAILQ_ENTRY(tw_p2p_stream) busy; /**< in the list of streams where something is waiting */
    int is_busy;
    uint64_t sent_ns; /**< takes_long: when it last gave the connection something */
    int gathers;      /**< 1: the waiting messages are short, and came soon after that write */
    int n_chunks;     /**< chunks on the way: not yet acknowledged, or if there is no ACK not yet gone */
    int is_open;      /**< TCP: both sides have proven themselves */
    int broken;       /**< 1: the stream cannot carry anything any more */
    int is_ended;     /**< BYE has come */
};

/** Bytes of messages of one kind that may be sent without being asked for. */
typedef struct tw_p2p_credit {
    size_t limit, step; /**< all the credit; how much of it is given back at a time */
    size_t left;        /**< what may still be sent without being asked for */
    size_t owed;        /**< bytes that receives have taken, and that must be given back */
    size_t held;        /**< bytes that have come, and were not given back yet */
} tw_p2p_credit_t;

#define TW_P2P_WHERE_BYTES 80

struct tw_p2p_peer {
    tw_p2p_t *p2p;
    int id, known_as;
    int takes_cuda;
    int has_failed;                 /**< without hooks: it has failed */
    char where[TW_P2P_WHERE_BYTES]; /**< " at 10.0.0.2:4711", for logs; "" unless met by a handle */
    void *card;
    int connects;                    /**< over TCP, 1: this end makes the connections; 0: the peer does */
    uint8_t key[TW_TOKEN_KEY_BYTES]; /**< the key that proves its TCP connections */
    int cipher;                      /**< a tw_cipher_t, which seals them */
    int n_streams, n_byes;           /**< n_byes: how many BYEs have come, one on each stream */
    /** [n_streams] Stream 0 is control, the others carry data; a single stream does both. NULL where the peer
     *  is this process. */
    tw_p2p_stream_t *streams;
    /** 1: messages of up to TW_P2P_EAGER_MAX are sent at once, as the owner wants it and there is one data
     *  stream; with several, using all of them is worth the round trip */
    int takes_long;
    /** a message longer than chunk_bytes is cut into chunks; one longer than eager_bytes is announced */
    size_t chunk_bytes, eager_bytes;
    int credit_stream;                   /**< the stream of CREDIT, which is not that of long messages */
    int next_stream;                     /**< the data stream that is tried first */
    struct tw_p2p_request_list receives; /**< receives that are posted and have no message yet */
    struct tw_p2p_arrival_list arrivals; /**< messages that have come and have no receive yet */
    struct tw_p2p_request_list sending;  /**< sends that CTS has cleared, with chunks left to hand out */
    TAILQ_ENTRY(tw_p2p_peer) busy;
    int is_busy; /**< 1: the peer is in the list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    int n_pending;           /**< requests that are not done */
    uint64_t their_ns;       /**< ALIVE: the peer's time that came last; 0: none */
    int is_asked, n_unheard; /**< the peer wants to hear ALIVE; how many were sent since it was last heard */
    uint32_t n_alive;        /**< how many ALIVE have come */
    tw_p2p_credit_t credit[2]; /**< credit of short messages; of long ones */
    int is_closing;            /**< 1: it is no failure if the peer leaves */
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
/** Tell the owner that a peer cannot go on; NULL: that this process cannot. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why);
/** Note that a stream is of no use any more, and tell the owner. What waits on it is dropped when the stream
 *  is pumped next. */
void tw_p2p_stream_break(tw_p2p_stream_t *stream, const char *why);
int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer);
/** Whether the peer has left: it sends no more, and may close its sockets at any moment. Writing to a closed
 *  one would lose what it has sent and is not here yet. */
int tw_p2p_peer_has_left(const tw_p2p_peer_t *peer);
/** Reserve an id for a peer that is to come. -1: out of memory. */
int tw_p2p_id_reserve(tw_p2p_t *p2p);
/** Free a peer that has nothing under way any more. */
void tw_p2p_peer_free(tw_p2p_peer_t *peer);

TW_C_END
