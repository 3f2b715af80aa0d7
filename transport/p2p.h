/** Point to point: tagged messages between this process and others, without ranks or a job. The transport's
 *  network backend uses it, and code with its own connections. The implementation is in p2p/, see
 *  p2p/state.h.
 *
 *  One tw_p2p_t has a worker for shared memory, if asked for, and one for each network device. A device uses
 *  Thinwire's own TCP connections, on which both ends prove that they share a secret before anything counts,
 *  or UCX for other networks. Another process is a peer. It is added by its card of addresses, which the
 *  caller has received (tw_p2p_peer_add), or met through a handle of TW_P2P_HANDLE_BYTES (tw_p2p_listen,
 *  tw_p2p_accept, tw_p2p_dial_start). The same process may be a peer several times; each peer has separate
 *  tags and connections.
 *
 *  One thread at a time may use a tw_p2p_t and its objects, except for tw_p2p_wake. Only functions that say
 *  so block. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_p2p tw_p2p_t;
typedef struct tw_p2p_peer tw_p2p_peer_t;
typedef struct tw_p2p_request tw_p2p_request_t;

/* ---- life ---------------------------------------------------------------------------------------------- */

/** Callbacks for an owner that watches its peers by other means, as a job does. Without hooks, a peer that is
 *  lost or breaks the protocol has failed: this is logged once, and its requests end with TW_ERR_PEER. */
typedef struct tw_p2p_hooks {
    /** Returns 1 if the job has ended, so nothing must be moved. Progress, sleep and cancel call it. */
    int (*is_over)(void *arg);
    /** The connection to the peer with this id is broken or dead. */
    void (*lost)(void *arg, int id, const char *why);
    /** The peer with this id has failed; id -1: this process has. `why` has not been logged. */
    void (*failed)(void *arg, int id, const char *why);
    /** Returns 1 if the peer with this id has left, may close its connections at any moment, and needs no
     *  credit any more. */
    int (*has_left)(void *arg, int id);
} tw_p2p_hooks_t;

typedef struct tw_p2p_params {
    const char *name;            /**< this end's name in logs: "rank 3"; copied */
    const tw_p2p_hooks_t *hooks; /**< borrowed; NULL: none */
    void *arg;
    int n_peers;             /**< expected number of peers */
    const char *node_tls;    /**< UCX's transports inside a node; NULL: no shared memory */
    const char *net_tls;     /**< "tcp", or UCX's transports between nodes; NULL: no network */
    const char *net_devices; /**< names, separated by commas */
    int streams;             /**< connections to each network peer and device; over TCP, equal at both ends */
    /** secret shared with the TCP peers that are added by card; NULL: no such peers. Copied */
    const char *token;
    int encrypt;        /**< 1: encrypt everything sent over TCP; equal at both ends */
    size_t chunk_bytes; /**< size of a network chunk; longer with sends_on_credit and one data stream */
    size_t eager_bytes; /**< longest message sent without asking the receiver first, at most 4 MB */
    /** as eager_bytes, for a TCP peer with one data stream; has no effect if smaller than eager_bytes */
    size_t eager_alone_bytes;
    /** 1: send messages of up to 4 MB without asking, and more at a time, to a peer with one data stream */
    int sends_on_credit;
    double spin_sec; /**< how long to poll before sleeping */
    /** time limit for a peer's actions. A TCP connection is dead if nothing arrives on it for this long
     *  although something was sent, while the peer reads its other connections. A peer that reads none of
     *  them may take as long as it likes */
    double timeout_sec;
} tw_p2p_params_t;

/** Make a tw_p2p_t. Errors, all logged: TW_ERR_CONFIG (devices, transports, encrypt), TW_ERR_UCX, TW_ERR_IO,
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_p2p_create(const tw_p2p_params_t *params, tw_p2p_t **out);
/** Destroy p2p. Remaining requests are freed; their buffers are no longer touched. First blocks until all
 *  that was sent to closed peers has gone out, within one timeout for all of them; but not if a peer with
 *  messages under way was closed within the last timeout. Accepts NULL. */
void tw_p2p_destroy(tw_p2p_t *p2p);
/** Make tw_p2p_destroy leave UCX's workers open until the process ends, because closing them may wait for a
 *  peer that has failed and never answers. They are not used any more, so they touch no buffers, but cost
 *  memory and descriptors. TCP connections are closed by destroy. */
void tw_p2p_abandon(tw_p2p_t *p2p);
/** Returns 1 if messages may lie in GPU memory at this end. */
int tw_p2p_takes_cuda(const tw_p2p_t *p2p);

/** Return 1 if this machine has UCX. This call, or the first use of UCX, loads it for good. Any thread. */
int tw_p2p_ucx_is_there(void);
/** Returns 1 if UCX finds a GPU. */
int tw_p2p_ucx_finds_gpu(void);
/** Write UCX's version, "1.13.1", or "none", into text, and return text. */
const char *tw_p2p_ucx_version(char *text, size_t bytes);

/* ---- peers --------------------------------------------------------------------------------------------- */

/** Make this end's card: its addresses, for the caller to send to peers. The caller frees it.
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_p2p_card(const tw_p2p_t *p2p, void **card, size_t *bytes);
/** Stop accepting TCP connections, as all peers are connected. */
void tw_p2p_shut(tw_p2p_t *p2p);

typedef struct tw_p2p_peer_params {
    int id;       /**< the peer's number at this end: 0 or more, not in use; -1: choose one */
    int known_as; /**< this end's id at the peer; both ends must agree on it */
    int is_near;  /**< 1: over shared memory */
    int is_self;  /**< 1: this end itself is the peer; there is no card */
    int connects; /**< over TCP, 1: this end connects, 0: the peer does; the two ends must differ */
    /** over TCP: [32], the key that the ends prove to have; NULL: derived from the token. Copied */
    const uint8_t *key;
    const void *card; /**< copied */
    size_t card_bytes;
} tw_p2p_peer_params_t;

/** Add a peer. Returns at once. Errors, all logged: TW_ERR_FORMAT, TW_ERR_CONFIG (streams or encrypt differ),
 *  TW_ERR_AUTH (neither key nor token), TW_ERR_NO_MEMORY. */
tw_status_t tw_p2p_peer_add(tw_p2p_t *p2p, const tw_p2p_peer_params_t *params, tw_p2p_peer_t **out);
/** Begin to open the peer's TCP connections, if this end makes them. Returns at once. TW_ERR_NO_MEMORY,
 *  logged. */
tw_status_t tw_p2p_peer_greet(tw_p2p_peer_t *peer);
/** Returns 1 if all TCP connections of the peer are open: both ends have proven themselves. */
int tw_p2p_peer_is_open(const tw_p2p_peer_t *peer);
/** Cancel the peer's requests, close it and free it. Over TCP, data already sent still goes out in the
 *  background, within the timeout, as long as p2p makes progress. But if a request was canceled, or the peer
 *  has failed, the connections are dropped at once. Accepts NULL. */
void tw_p2p_peer_close(tw_p2p_peer_t *peer);

/** Set the traffic class, 0 to 255, of this end's packets to the peer over TCP from now on. (It is the byte
 *  in the IP header by which switches and routers prioritize.) Negative: do not change it. */
void tw_p2p_peer_mark(const tw_p2p_peer_t *peer, int traffic_class);

int tw_p2p_peer_id(const tw_p2p_peer_t *peer);
/** Find a peer by its id. Returns NULL if there is none. */
tw_p2p_peer_t *tw_p2p_peer_find(const tw_p2p_t *p2p, int id);
/** For owners without hooks. has_failed: 1 if the peer has failed; has_closed: 1 if it has closed in order
 *  and all that it sent has arrived. In both cases its requests end with TW_ERR_PEER (logged once). */
int tw_p2p_peer_has_failed(const tw_p2p_peer_t *peer);
int tw_p2p_peer_has_closed(const tw_p2p_peer_t *peer);
int tw_p2p_peer_takes_cuda(const tw_p2p_peer_t *peer);
/** Numbers of messages, including handshakes but not ALIVE messages. */
typedef struct tw_p2p_counts {
    uint64_t n_sent, n_received;
    uint64_t n_reads; /**< over TCP: number of reads that got data, perhaps part of a message */
} tw_p2p_counts_t;
tw_p2p_counts_t tw_p2p_peer_counts(const tw_p2p_peer_t *peer);

/* ---- meeting by a handle ------------------------------------------------------------------------------- */

#define TW_P2P_HANDLE_BYTES 64

typedef struct tw_p2p_listener tw_p2p_listener_t;
typedef struct tw_p2p_dial tw_p2p_dial_t;

/** Listen on a TCP port that others reach at `address`: 16 bytes, IPv4 mapped into IPv6. The caller gives the
 *  handle to the others. `token`: a secret that both ends share and a peer must prove to have, without
 *  sending it; NULL: having the handle is enough. The caller destroys the listener before p2p. TW_ERR_IO,
 *  TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, all logged. */
tw_status_t tw_p2p_listen(tw_p2p_t *p2p, const uint8_t address[16], const char *token,
                          uint8_t handle[TW_P2P_HANDLE_BYTES], tw_p2p_listener_t **out);
/** Accept a peer. TW_OK: *out is a new, open peer; TW_IN_PROGRESS: none yet. Makes progress on p2p. Errors of
 *  strangers are not returned. */
tw_status_t tw_p2p_accept(tw_p2p_listener_t *listener, tw_p2p_peer_t **out);
/** Destroy the listener; pending handshakes are dropped. Accepts NULL. */
void tw_p2p_listener_destroy(tw_p2p_listener_t *listener);

/** Begin to connect to the maker of the handle. Errors, all logged: TW_ERR_FORMAT: not a handle;
 *  TW_ERR_CONFIG: another version of Thinwire made it; TW_ERR_IO, TW_ERR_NO_MEMORY, TW_ERR_INTERNAL. */
tw_status_t tw_p2p_dial_start(tw_p2p_t *p2p, const uint8_t handle[TW_P2P_HANDLE_BYTES], const char *token,
                              tw_p2p_dial_t **out);
/** Test a dial. TW_OK: the peer is open; TW_IN_PROGRESS; or an error, logged with the address:
 *  TW_ERR_AUTH (another token), TW_ERR_IO, TW_ERR_PEER, TW_ERR_TIMEOUT, TW_ERR_FORMAT, TW_ERR_NO_MEMORY.
 *  Makes progress on p2p. Unless the result is TW_IN_PROGRESS, the dial is freed. */
tw_status_t tw_p2p_dial_test(tw_p2p_dial_t *dial, tw_p2p_peer_t **out);
/** Stop a dial and free it. Accepts NULL. */
void tw_p2p_dial_cancel(tw_p2p_dial_t *dial);

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Post a send or a receive. message->peer is ignored. Equal tags match in posting order. The buffer is
 *  borrowed until the request is done. Any number of sends may be under way. A short one is done when the
 *  system has taken it, a longer one when the peer has asked for it and the system has taken it. A message of
 *  another size, or with may_be_shorter a larger one, ends the receive with TW_ERR_TRUNCATED (logged).
 *  TW_ERR_PEER: the peer has failed, or the job has ended; TW_ERR_NO_MEMORY. */
tw_status_t tw_p2p_send(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out);
tw_status_t tw_p2p_recv(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out);
/** Test a request, without making progress. TW_OK: it is done and freed, and *bytes (may be NULL) is the
 *  message's size; TW_IN_PROGRESS; any error: it is freed, too. TW_ERR_PEER: as for tw_p2p_send;
 *  TW_ERR_CANCELED: the sender has canceled the message. */
tw_status_t tw_p2p_test(tw_p2p_t *p2p, tw_p2p_request_t *request, size_t *bytes);
/** Cancel a request if it is not done, and free it; its buffer is no longer touched. A message that is sent
 *  without asking can be canceled only before its first byte has gone; after that the peer still receives it.
 *  Waits for UCX, up to the timeout. */
void tw_p2p_cancel(tw_p2p_t *p2p, tw_p2p_request_t *request);
void tw_p2p_cancel_all(tw_p2p_t *p2p);
/** Make progress. TW_OK: something happened; TW_IN_PROGRESS: nothing did; TW_ERR_PEER: the job has ended. */
tw_status_t tw_p2p_progress(tw_p2p_t *p2p);
/** Make progress for a caller that polls one request: on that request first, and mostly on nothing else. */
tw_status_t tw_p2p_progress_for(tw_p2p_t *p2p, const tw_p2p_request_t *request);
/** Return 1 if some message is not yet completely taken by the system. */
int tw_p2p_has_unsent(const tw_p2p_t *p2p);
/** Block until everything has gone out, the job has ended, or the timeout has passed. */
void tw_p2p_flush(tw_p2p_t *p2p);

typedef struct tw_p2p_sleep_args {
    double timeout_sec;
    int fd;          /**< another descriptor that ends the sleep when readable; -1: none */
    int keeps_wakes; /**< 1: tw_p2p_wake does not end this sleep, but the one after it */
    int fd_is_ready; /**< out: whether fd was readable */
} tw_p2p_sleep_args_t;

/** Make progress, and sleep until something may have happened (TW_OK) or the timeout has passed
 *  (TW_IN_PROGRESS). TW_ERR_PEER: the job has ended. */
tw_status_t tw_p2p_sleep(tw_p2p_t *p2p, tw_p2p_sleep_args_t *sleep);
/** Make the current tw_p2p_sleep, or if there is none the next one, return at once with TW_OK. Any thread. */
void tw_p2p_wake(tw_p2p_t *p2p);

/** What must happen before a request can end. */
typedef enum tw_p2p_need {
    TW_P2P_NEEDS_ANSWER,  /**< the peer must answer */
    TW_P2P_NEEDS_CARRIER, /**< the carrier (TCP, UCX) must finish */
    TW_P2P_NEEDS_LOST     /**< nothing can help: a part of the message is lost */
} tw_p2p_need_t;
tw_p2p_need_t tw_p2p_request_needs(const tw_p2p_request_t *request);
tw_p2p_peer_t *tw_p2p_request_peer(const tw_p2p_request_t *request);
int tw_p2p_request_is_done(const tw_p2p_request_t *request);
/** Returns 1 if the request is a send, 0 if it is a receive. */
int tw_p2p_request_is_send(const tw_p2p_request_t *request);

TW_C_END
