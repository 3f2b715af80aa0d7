/** Thinwire's own TCP connections. Read this header, then tcp_link.c (a connection's socket), tcp_send.c,
 *  tcp_receive.c, tcp_close.c, tcp_open.c (connecting, accepting, greeting), tcp_watch.c (finding dead
 *  connections), tcp_device.c (a device: its port, its card, progress).
 *
 *  A stream is one connection, used in both directions. Both ends agree who connects (tw_p2p_peer_params_t).
 *  After the greeting (greeting.h), it carries one frame after another: a header of protocol.h, or a brief
 *  one (brief.h), and its data. If sealed, the header is a piece with its tag, and the data are pieces of up
 *  to TW_TCP_PIECE_BYTES with tags. Nothing in a piece is used before it was opened (decrypted and verified).
 *
 *  Sockets do not block. Edge-triggered epoll reports once when a socket can be read or written again. After
 *  that it counts as ready until a call fails with EAGAIN. A connection that a caller polls again and again
 *  is taken out of epoll ("aside"): there, every packet costs the sender's processor a callback, 2 % of the
 *  time of 512 KB. It returns when nobody polls it any more, and before any thread sleeps.
 *
 *  A caller that polls a connection of long messages and finds nothing must not ask the kernel again at once.
 *  Each such call takes the socket's lock and memory away from the sender's processor, which delivers there.
 *  For 112 messages of 512 KB on four connections there were 13,000 calls, and sending one took 98 us; with a
 *  pause of some us, 85 to 90. A short message right after a long one on the same connection may be seen
 *  later by one pause. A short message after a short one never is. Private to the folder. */
#pragma once

#include "transport/p2p/greeting.h"
#include "transport/p2p/state.h"
#include "transport/seal.h"

TW_C_BEGIN

/** Size of the pieces in which data is sealed: small enough for the cache, large enough that the cost of a
 *  tag and a read does not matter. */
#define TW_TCP_PIECE_BYTES ((size_t)64 << 10)
/** Bytes to read ahead: headers and short messages. If long data follows, at most this much of it is copied
 *  once more. The rest is read directly to its destination. */
#define TW_TCP_IN_BYTES ((size_t)8 << 10)
/** Most addresses of a device in a card. */
#define TW_TCP_ADDRESSES_MAX 16

typedef enum tw_tcp_stage {
    TW_TCP_CONNECTING, /**< client: the TCP connection is being made, or the next attempt is to come */
    TW_TCP_CHALLENGE,  /**< client: waits for CHALLENGE */
    TW_TCP_WELCOME,    /**< client: waits for WELCOME */
    TW_TCP_HELLO,      /**< server: waits for HELLO */
    TW_TCP_PROOF,      /**< server: waits for PROOF */
    TW_TCP_OPEN,
    TW_TCP_LEAVING, /**< the peer is closed: send what is left, and throw away what arrives */
    TW_TCP_CLOSED   /**< the link is to be freed */
} tw_tcp_stage_t;

/** At time `ns`: bytes that this end had written, and how many of them the other end had read. */
typedef struct tw_tcp_mark {
    uint64_t n_written, n_read, ns;
} tw_tcp_mark_t;

struct tw_tcp_link {
    TAILQ_ENTRY(tw_tcp_link) entry; /**< in the device's list of links, or of closed ones */
    TAILQ_ENTRY(tw_tcp_link) ready; /**< in the device's list of links to be read */
    tw_tcp_device_t *device;
    tw_p2p_stream_t *stream; /**< NULL: not known yet, or detached */
    tw_tcp_stage_t stage;
    int fd; /**< -1: closed until the next attempt to connect */
    int is_ready, can_write, is_shut;
    int is_aside;      /**< 1: out of epoll; only trying shows whether it can be read or written */
    uint64_t quiet_ns; /**< a polling caller does not read the socket before this time; 0: it may */
    int follows_long;  /**< 1: the last frame's data was long */
    /** n_asked: reads by polling callers; n_rounds: while aside, rounds of progress since the last one */
    int n_asked, n_rounds;
    int has_end; /**< 1: end of stream, or an error, follows the unread bytes */
    int n_tries;
    uint64_t until_ns; /**< time limit of connecting, of a stranger's proof, or of leaving */
    uint64_t retry_ns;
    tw_greeting_t greeting;
    tw_seal_t *seal[2];    /**< [0] for sending, [1] for receiving; NULL: not sealed */
    uint64_t brief_tag[2]; /**< tag of the last brief header: [0] sent, [1] received; 0: none yet */

    uint64_t n_written, n_read; /**< bytes written and read so far, including the greeting */
    tw_tcp_mark_t mark;
    uint64_t n_moved; /**< bytes in both directions at the last check */
    uint64_t n_acknowledged;
    uint64_t stuck_ns; /**< since when the kernel has been resending without an ACK; 0: it has not */
    int is_silent;     /**< 1: the peer reports on other connections that nothing arrives on this one */

    uint8_t *out; /**< [out_start, out_end) are bytes to send before anything else */
    size_t out_start, out_end, out_capacity;

    tw_p2p_header_t header; /**< header of the arriving frame */
    int has_header;
    /** 1: the frame's data has a destination; 0: it waits for a receive, and nothing is read */
    int has_begun;
    uint8_t *piece;     /**< sealed: the arriving piece of data and its tag, [TW_TCP_PIECE_BYTES + tag] */
    size_t piece_bytes; /**< bytes of the piece that have arrived */
    tw_p2p_landing_t landing; /**< where the frame's data goes */
    size_t in_start, in_end;
    uint8_t in[TW_TCP_IN_BYTES];
};

TAILQ_HEAD(tw_tcp_link_list, tw_tcp_link);

struct tw_tcp_device {
    tw_p2p_worker_t *worker;
    char name[64];
    unsigned index;
    uint8_t addresses[TW_TCP_ADDRESSES_MAX][16];
    int n_addresses;
    int listener; /**< -1: closed */
    int epoll_fd;
    struct tw_tcp_link_list links, ready, closed;
    int n_strangers;    /**< links with an unproven other end */
    int n_timed;        /**< links with a time limit or a time to retry */
    int n_aside;        /**< links out of epoll */
    uint64_t accept_ns; /**< accept no new link before this time, as descriptors had run out; 0: accept */
    /** 1: the device has warned of another version; only once, as any stranger can claim to have one */
    int has_warned;
    int has_warned_of_twin;
    uint8_t *scratch; /**< [TW_TCP_PIECE_BYTES], for data that is thrown away */
};

/* ---- tcp_link.c ---------------------------------------------------------------------------------------- */
/** Make a link, which then owns the socket. NULL: out of memory (logged). */
tw_tcp_link_t *tw_tcp_link_create(tw_tcp_device_t *device, int fd, tw_tcp_stage_t stage);
/** Add the link's socket to epoll. Returns 0 on failure (logged). */
int tw_tcp_watch(tw_tcp_link_t *link);
/** Note that a polling caller reads the link; after many such reads it leaves epoll. */
void tw_tcp_note_asked(tw_tcp_link_t *link);
/** Put links back into epoll: those that nobody has polled lately, or all. */
void tw_tcp_watch_again(tw_tcp_device_t *device, int all);
/** Set whether there may be something to read. */
void tw_tcp_set_ready(tw_tcp_link_t *link, int is_ready);
/** Detach a link from its stream. A message that has not fully arrived on the link is lost. */
void tw_tcp_let_go(tw_tcp_link_t *link);
/** Drop the link, break its stream, and tell the owner why. */
void tw_tcp_break(tw_tcp_link_t *link, const char *why);
/** Close the socket; the link is freed later. */
void tw_tcp_drop(tw_tcp_link_t *link);
void tw_tcp_free_closed(tw_tcp_device_t *device);
/** Read. Returns the bytes read, > 0; 0: nothing to read now (clears is_ready); < 0: the connection is closed
 *  (*error 0) or broken. */
ssize_t tw_tcp_read(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** Write. Returns the bytes written, > 0; 0: the socket takes none now; < 0: see *error. */
ssize_t tw_tcp_write(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** Reserve room in `out`. Returns 0 if out of memory. */
int tw_tcp_out_reserve(tw_tcp_link_t *link, size_t capacity);
/** Append bytes to `out`. Returns 0 if out of memory. */
int tw_tcp_out_add(tw_tcp_link_t *link, const void *data, size_t bytes);
/** Send the bytes of `out`. TW_OK: none is left; TW_IN_PROGRESS; TW_ERR_IO, with *error set. */
tw_status_t tw_tcp_out_flush(tw_tcp_link_t *link, int *error);

/* ---- tcp_send.c ---------------------------------------------------------------------------------------- */
int tw_tcp_send(tw_p2p_stream_t *stream);
void tw_tcp_release(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
/** Encode all waiting operations of the link's stream into `out`. Returns 0 if out of memory. */
int tw_tcp_out_add_waiting(tw_tcp_link_t *link);

/* ---- tcp_receive.c ------------------------------------------------------------------------------------- */
/** Read a limited amount; nothing from a peer that has failed. Returns the number of things done. */
int tw_tcp_receive(tw_tcp_link_t *link);
/** Read as tw_tcp_receive does, even if the link is not marked as ready. */
unsigned tw_tcp_receive_now(tw_p2p_stream_t *stream, int is_asked);
void tw_tcp_resume(tw_p2p_stream_t *stream);

/* ---- tcp_close.c --------------------------------------------------------------------------------------- */
void tw_tcp_close(tw_p2p_stream_t *stream, int is_orderly);
/** Continue a link that is LEAVING: send and read on. Returns 1 if something happened. */
int tw_tcp_leave(tw_tcp_link_t *link);
/** Block until everything sent to closed peers has gone out. */
void tw_tcp_await_leaving(tw_tcp_device_t *device);

/* ---- tcp_open.c ---------------------------------------------------------------------------------------- */
tw_status_t tw_tcp_connect(tw_p2p_stream_t *stream);
int tw_tcp_address_is_sound(const void *address, size_t bytes);
/** Accept all pending connections. */
void tw_tcp_accept(tw_tcp_device_t *device);
/** Continue the greeting: read what has arrived, or check whether connecting has ended. Returns 1 if
 *  something happened. */
int tw_tcp_greet(tw_tcp_link_t *link);
/** Do what is due by now: retry connections, or end links with an expired time limit. */
void tw_tcp_look_at_clock(tw_tcp_device_t *device);

/* ---- tcp_watch.c --------------------------------------------------------------------------------------- */
/** Handle an ALIVE message. Returns NULL, or what is wrong with it. */
const char *tw_tcp_hear_alive(tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** Return 1 if sent data has not been acknowledged for too long, though the system sends it again and again.
 *  Must be called regularly, as it compares with the previous call. */
int tw_tcp_is_unanswered(tw_tcp_link_t *link, uint64_t now);

/** One device's part of a card. */
typedef struct tw_tcp_address {
    uint16_t port;
    uint16_t n; /**< how many addresses follow, 16 bytes each */
} tw_tcp_address_t;

TW_C_END
