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
    const void *address; /**< the other end's worker, in the peer's card */
    size_t address_bytes;
    ucp_ep_h endpoint;               /**< UCX: made when it is first used */
    tw_tcp_link_t *link;             /**< TCP: NULL until it is connected */
    struct tw_p2p_op_list waiting;   /**< for the connection to take more; in order */
    TAILQ_ENTRY(tw_p2p_stream) busy; /**< in the list of streams where something is waiting */
    int is_busy;
    uint64_t sent_ns; /**< takes_long: when it last gave the connection something */
    int gathers;      /**< what waits is short, and came soon after that */
    int n_chunks;     /**< on the way: not acknowledged, where chunks are, else not gone yet */
    int is_open;      /**< TCP: both sides have proven themselves */
    int broken;       /**< 1: it can carry nothing any more */
    int is_ended;     /**< BYE has come */
};

/** Bytes that may be sent without being asked for, in messages of one kind. */
typedef struct tw_p2p_credit {
    size_t limit, step; /**< all there is; so much is given back at a time */
    size_t left;        /**< may still be sent without being asked for */
    size_t owed;        /**< taken, and to be given back */
    size_t held;        /**< come, and not given back yet */
} tw_p2p_credit_t;

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
    /** [n_streams] Stream 0 is control, the others carry data; a single stream does both. NULL where the peer
     *  is this process. */
    tw_p2p_stream_t *streams;
    /** 1 if a message of up to TW_P2P_EAGER_MAX goes at once: the owner wants it, and there is one data
     *  stream; several are worth more than the way there and back */
    int takes_long;
    size_t chunk_bytes, eager_bytes;     /**< a longer message is cut; is announced */
    int credit_stream;                   /**< on which CREDIT travels: not where long messages do */
    int next_stream;                     /**< where the search for a free one begins */
    struct tw_p2p_request_list receives; /**< posted, no message yet */
    struct tw_p2p_arrival_list arrivals; /**< come, no receive yet */
    struct tw_p2p_request_list sending;  /**< cleared by CTS, chunks left to hand out */
    TAILQ_ENTRY(tw_p2p_peer) busy;
    int is_busy; /**< in the list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    int n_pending;             /**< requests that are not done */
    uint64_t their_ns;         /**< ALIVE: the last time that it has said; 0: none */
    int is_asked, n_unheard;   /**< it wants to hear ALIVE; so many have gone since it was last heard */
    uint32_t n_alive;          /**< that have come */
    tw_p2p_credit_t credit[2]; /**< for short messages; for long ones */
    int is_closing;            /**< that it goes is no failure */
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
/** A peer cannot go on, or, NULL, this process: tell the owner. */
void tw_p2p_peer_fail(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const char *why);
/** Note that a stream is of no use any more, and tell the owner. What waits on it is forgotten when it is
 *  pumped next. */
void tw_p2p_stream_break(tw_p2p_stream_t *stream, const char *why);
int tw_p2p_peer_is_over_tcp(const tw_p2p_peer_t *peer);
/** It sends no more, and may close its sockets any moment. To write to a closed one would take back what it
 *  has sent and is not here yet. */
int tw_p2p_peer_has_left(const tw_p2p_peer_t *peer);
/** An id for a peer to come. -1: out of memory. */
int tw_p2p_id_reserve(tw_p2p_t *p2p);
/** Nothing may be under way any more. */
void tw_p2p_peer_free(tw_p2p_peer_t *peer);

TW_C_END
