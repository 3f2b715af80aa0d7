/** Point to point: tagged messages between this process and others; no ranks, no job. The transport's network
 *  backend and whoever has connections of its own use it. What lives under it is in p2p/, see p2p/state.h.
 *
 *  One tw_p2p_t has a worker for shared memory, if asked for, and one for each network device: TCP
 *  connections of its own, on which both ends prove that they share a secret before anything counts, or UCX
 *  for other networks. Another process is a peer. It is added by its addresses, which it has told in some way
 *  (tw_p2p_peer_add), or met by a handle of at most TW_P2P_HANDLE_BYTES (tw_p2p_listen, tw_p2p_accept,
 *  tw_p2p_dial_start). The same process may be a peer several times; each has tags and connections of its
 *  own.
 *
 *  All belongs to one thread at a time, but for tw_p2p_wake. Nothing blocks except where it says so. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_p2p tw_p2p_t;
typedef struct tw_p2p_peer tw_p2p_peer_t;
typedef struct tw_p2p_request tw_p2p_request_t;

/* ---- life ---------------------------------------------------------------------------------------------- */

/** Calls to an owner that watches its peers by other means, as a job does. Without hooks, a peer that is lost
 *  or breaks the rules has failed: that is logged once, and its requests end with TW_ERR_PEER. */
typedef struct tw_p2p_hooks {
    /** Returns 1 if all is over and nothing must be moved any more; progress, sleep and cancel ask. */
    int (*is_over)(void *arg);
    /** The connection to the peer with this id broke, or is dead. */
    void (*lost)(void *arg, int id, const char *why);
    /** The peer with this id cannot go on; -1: this process. It is not logged yet. */
    void (*failed)(void *arg, int id, const char *why);
    /** Returns 1 if the peer with this id has left, and may close its connections at any moment. It needs
     *  no credit any more. */
    int (*has_left)(void *arg, int id);
} tw_p2p_hooks_t;

typedef struct tw_p2p_params {
    const char *name;            /**< names this end in logs: "rank 3"; copied */
    const tw_p2p_hooks_t *hooks; /**< borrowed; NULL: none */
    void *arg;
    int n_peers;             /**< about how many peers there will be */
    const char *node_tls;    /**< UCX's transports inside a node; NULL: no shared memory */
    const char *net_tls;     /**< "tcp", or UCX's transports between nodes; NULL: no network */
    const char *net_devices; /**< names, separated by commas */
    int streams; /**< connections to each network peer and device; over TCP the same at both ends */
    /** secret of the TCP peers that are added by their cards; NULL: there are none. Copied */
    const char *token;
    int encrypt;        /**< 1: all that goes over TCP is sealed; the same at both ends */
    size_t chunk_bytes; /**< size of a network chunk; it is longer with sends_on_credit and one data stream */
    size_t eager_bytes; /**< longest message that is sent at once, 4 MB at most */
    /** the same for a network peer with one stream and device over TCP; has no effect if less than
     *  eager_bytes */
    size_t eager_alone_bytes;
    /** 1: messages of up to 4 MB are sent at once to a peer with one stream, and more may be on the way */
    int sends_on_credit;
    double spin_sec; /**< how long to poll before sleeping */
    /** limit for what a peer must do. A TCP connection is dead that carries nothing for so long although
     *  there is something, while the peer reads others. A peer that does not read at all may take as long as
     *  it likes */
    double timeout_sec;
} tw_p2p_params_t;

/** Make an end. TW_ERR_CONFIG (devices, transports, encrypt), TW_ERR_UCX, TW_ERR_IO, TW_ERR_NO_MEMORY,
 *  logged. */
tw_status_t tw_p2p_create(const tw_p2p_params_t *params, tw_p2p_t **out);
/** Destroy the end. Requests that are left are freed; their buffers are no longer touched. What closed peers
 *  are still to get goes out first (blocks), within one timeout for all of them, unless a peer was closed
 *  with messages under way. Accepts NULL. */
void tw_p2p_destroy(tw_p2p_t *p2p);
/** Let UCX's workers live until the process ends: to close them, UCX may wait for a peer that has failed and
 *  never answers. They are not called any more, so they touch nobody's buffers, but cost memory and
 *  descriptors. TCP connections are closed by destroy. */
void tw_p2p_abandon(tw_p2p_t *p2p);
/** Returns 1 if messages may lie in GPU memory at this end. */
int tw_p2p_takes_cuda(const tw_p2p_t *p2p);

/** Returns 1 if this machine has UCX, which this or the first need of it loads for good. Any thread. */
int tw_p2p_ucx_is_there(void);
/** Returns 1 if UCX finds a GPU. */
int tw_p2p_ucx_finds_gpu(void);
/** Write the version, "1.13.1", or "none", into text, and return it. */
const char *tw_p2p_ucx_version(char *text, size_t bytes);

/* ---- peers --------------------------------------------------------------------------------------------- */

/** Make this end's card: its addresses, to be told to peers. The caller frees it. TW_ERR_NO_MEMORY,
 *  logged. */
tw_status_t tw_p2p_card(const tw_p2p_t *p2p, void **card, size_t *bytes);
/** Accept no TCP connections any more: all peers are connected. */
void tw_p2p_shut(tw_p2p_t *p2p);

typedef struct tw_p2p_peer_params {
    int id;       /**< number of the peer at this end: 0 or more, not in use; -1: a new one */
    int known_as; /**< the id of this end at the peer; the two must agree on it */
    int is_near;  /**< 1: over shared memory */
    int is_self;  /**< 1: this end itself is the peer; there is no card */
    int connects; /**< over TCP, 1: this end makes the connections; exactly one of both must */
    /** over TCP: [32], the key that proves the connections; NULL: made of the token. Copied */
    const uint8_t *key;
    const void *card; /**< copied */
    size_t card_bytes;
} tw_p2p_peer_params_t;

/** Add a peer. Returns at once. TW_ERR_FORMAT, TW_ERR_CONFIG (streams or encrypt differ), TW_ERR_AUTH (no
 *  secret), TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_peer_add(tw_p2p_t *p2p, const tw_p2p_peer_params_t *params, tw_p2p_peer_t **out);
/** Begin to open the peer's TCP connections, if this end makes them. Returns at once. TW_ERR_NO_MEMORY,
 *  logged. */
tw_status_t tw_p2p_peer_greet(tw_p2p_peer_t *peer);
/** Returns 1 if all TCP connections of the peer are open: both ends have proven themselves. */
int tw_p2p_peer_is_open(const tw_p2p_peer_t *peer);
/** Cancel what is posted, close and free the peer. Over TCP what was sent still goes out in the background,
 *  within the timeout, as long as p2p makes progress; if something was canceled, or the peer has failed, the
 *  connections are just dropped. Accepts NULL. */
void tw_p2p_peer_close(tw_p2p_peer_t *peer);

/** Set the traffic class of what this end sends the peer over TCP from now on, 0 to 255 (the byte in the
 *  head of IP packets by which switches and routers sort); negative: it stays as it is. */
void tw_p2p_peer_mark(const tw_p2p_peer_t *peer, int traffic_class);

int tw_p2p_peer_id(const tw_p2p_peer_t *peer);
/** Find a peer by its id; NULL: there is none. */
tw_p2p_peer_t *tw_p2p_peer_find(const tw_p2p_t *p2p, int id);
/** For owners without hooks: returns 1 if the peer has failed, or if it has closed in order and all that
 *  it sent has arrived. What is posted for it then ends with TW_ERR_PEER (logged once). */
int tw_p2p_peer_has_failed(const tw_p2p_peer_t *peer);
int tw_p2p_peer_has_closed(const tw_p2p_peer_t *peer);
int tw_p2p_peer_takes_cuda(const tw_p2p_peer_t *peer);
/** Counts of messages of all kinds but signs of life, including handshakes. */
typedef struct tw_p2p_counts {
    uint64_t n_sent, n_received;
    uint64_t n_reads; /**< over TCP: how many reads brought something, perhaps part of a message */
} tw_p2p_counts_t;
tw_p2p_counts_t tw_p2p_peer_counts(const tw_p2p_peer_t *peer);

/* ---- meeting by a handle ------------------------------------------------------------------------------- */

#define TW_P2P_HANDLE_BYTES 64

typedef struct tw_p2p_listener tw_p2p_listener_t;
typedef struct tw_p2p_dial tw_p2p_dial_t;

/** Listen on a TCP port, to be reached by `address`: 16 bytes, IPv4 mapped into IPv6. The caller tells the
 *  others the handle. `token`: a secret that both ends share, which a peer must prove to have, without
 *  sending it; NULL: whoever has the handle may come in. The caller destroys the listener before p2p.
 *  TW_ERR_IO, TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_p2p_listen(tw_p2p_t *p2p, const uint8_t address[16], const char *token,
                          uint8_t handle[TW_P2P_HANDLE_BYTES], tw_p2p_listener_t **out);
/** Accept a peer. TW_OK: one has come, and is open; TW_IN_PROGRESS: not yet. Makes progress on p2p. Errors of
 *  strangers are not returned. */
tw_status_t tw_p2p_accept(tw_p2p_listener_t *listener, tw_p2p_peer_t **out);
/** Destroy the listener; pending handshakes are dropped. Accepts NULL. */
void tw_p2p_listener_destroy(tw_p2p_listener_t *listener);

/** Begin to connect to whoever made the handle. TW_ERR_FORMAT: it is none; TW_ERR_CONFIG: another version of
 *  Thinwire made it; TW_ERR_IO, TW_ERR_NO_MEMORY, TW_ERR_INTERNAL; logged. */
tw_status_t tw_p2p_dial_start(tw_p2p_t *p2p, const uint8_t handle[TW_P2P_HANDLE_BYTES], const char *token,
                              tw_p2p_dial_t **out);
/** Test a dial. TW_OK: the peer is open; TW_IN_PROGRESS; or an error, logged with the address:
 *  TW_ERR_AUTH (another token), TW_ERR_IO, TW_ERR_PEER, TW_ERR_TIMEOUT, TW_ERR_FORMAT, TW_ERR_NO_MEMORY.
 *  Makes progress on p2p. Unless the result is TW_IN_PROGRESS, the dial is freed. */
tw_status_t tw_p2p_dial_test(tw_p2p_dial_t *dial, tw_p2p_peer_t **out);
/** Give a dial up. Accepts NULL. */
void tw_p2p_dial_cancel(tw_p2p_dial_t *dial);

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Post a send or a receive. The message's own `peer` is ignored. Equal tags match in posting order. The
 *  buffer is borrowed until the request is done. Any number of sends may be on the way; a short one is done
 *  when the system has it, a longer one when the peer has asked for it. A message that does not fit ends the
 *  receive with TW_ERR_TRUNCATED (logged), and none of it is sent. TW_ERR_PEER: the peer has failed, or all
 *  is over; TW_ERR_NO_MEMORY. */
tw_status_t tw_p2p_send(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out);
tw_status_t tw_p2p_recv(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out);
/** Test a request. TW_OK: it is done and freed, *bytes (may be NULL) is the message's size; TW_IN_PROGRESS;
 *  an error: it is freed, too. It makes no progress by itself. TW_ERR_PEER: as above; TW_ERR_CANCELED: the
 *  sender has taken the message back. */
tw_status_t tw_p2p_test(tw_p2p_t *p2p, tw_p2p_request_t *request, size_t *bytes);
/** Cancel the request if it is not done, and free it; then the buffer is no longer touched. A message that is
 *  sent at once can be taken back only until its first byte has gone; after that the peer still receives it.
 *  Waits for UCX, up to the timeout. */
void tw_p2p_cancel(tw_p2p_t *p2p, tw_p2p_request_t *request);
void tw_p2p_cancel_all(tw_p2p_t *p2p);
/** Move everything forward. TW_OK if something happened, TW_IN_PROGRESS if nothing did, TW_ERR_PEER: it is
 *  over. */
tw_status_t tw_p2p_progress(tw_p2p_t *p2p);
/** The same for a caller that polls one request: it moves what that request waits for first, and most of the
 *  time nothing else. */
tw_status_t tw_p2p_progress_for(tw_p2p_t *p2p, const tw_p2p_request_t *request);
/** Returns 1 if something is left to send that the system has not taken yet. */
int tw_p2p_has_unsent(const tw_p2p_t *p2p);
/** Block until everything has gone out, it is over, or the timeout has passed. */
void tw_p2p_flush(tw_p2p_t *p2p);

typedef struct tw_p2p_sleep_args {
    double timeout_sec;
    int fd;          /**< another descriptor that ends the sleep when it is readable; -1: none */
    int keeps_wakes; /**< 1: tw_p2p_wake does not end this sleep, but the next one */
    int fd_is_ready; /**< out: whether fd was readable */
} tw_p2p_sleep_args_t;

/** Progress, and sleep until something may have happened (TW_OK), or until the timeout (TW_IN_PROGRESS).
 *  TW_ERR_PEER: it is over. */
tw_status_t tw_p2p_sleep(tw_p2p_t *p2p, tw_p2p_sleep_args_t *sleep);
/** Make the running tw_p2p_sleep, or else the next one, return at once with TW_OK. Any thread. */
void tw_p2p_wake(tw_p2p_t *p2p);

/** What a request still needs of its peer. */
typedef enum tw_p2p_need {
    TW_P2P_NEEDS_ANSWER,  /**< only an answer of the peer can end it */
    TW_P2P_NEEDS_CARRIER, /**< the carrier (TCP, UCX) can still end it */
    TW_P2P_NEEDS_LOST     /**< a part of it is lost: it will never be complete */
} tw_p2p_need_t;
tw_p2p_need_t tw_p2p_request_needs(const tw_p2p_request_t *request);
tw_p2p_peer_t *tw_p2p_request_peer(const tw_p2p_request_t *request);
int tw_p2p_request_is_done(const tw_p2p_request_t *request);
/** Returns 1 if the request is a send, 0 if it is a receive. */
int tw_p2p_request_is_send(const tw_p2p_request_t *request);

TW_C_END
