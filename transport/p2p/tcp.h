/** TCP connections of our own. Read this header, then tcp_link.c (a connection's socket), tcp_send.c,
 *  tcp_receive.c, tcp_close.c, tcp_open.c (connecting, accepting, greeting), tcp_watch.c (connections that
 *  are dead), tcp_device.c (a device: its port, its card, progress).
 *
 *  A stream is one connection, for both directions; the peer that connects is agreed (tw_p2p_peer_params_t).
 *  On it travels, after the greeting (greeting.h), one frame after the other: a header of protocol.h, or a
 *  brief one (brief.h), and its data. Sealed, the header is a piece with its tag, and the data are pieces of
 *  up to TW_TCP_PIECE_BYTES with theirs; nothing is looked at before its piece has opened.
 *
 *  Sockets do not block. The kernel tells by epoll, once each time, when one can be read or written again;
 *  until a call says that it cannot (EAGAIN), it is taken to be able to. A connection that is asked for
 *  again and again is taken aside, out of epoll, where every packet costs the sender's processor a call, 2 %
 *  of what 512 KB take. It comes back when nobody asks any more, and before anybody sleeps.
 *
 *  Who asks a connection of long messages, and finds nothing, does not ask the kernel again at once: each
 *  such call takes the socket's lock and its memory away from the sender's processor, which delivers there.
 *  Of 512 KB on four connections it was 13,000 calls for 112 messages, and 98 us to send one; with a pause of
 *  some us, 85 to 90. A short message right behind a long one of the same connection may be seen that much
 *  later, once; behind a short one it never is. Private to the folder. */
#pragma once

#include "transport/p2p/greeting.h"
#include "transport/p2p/state.h"
#include "transport/seal.h"

TW_C_BEGIN

/** Of data that is sealed at once: small enough for the cache, large enough for its tag and its read not to
 *  matter. */
#define TW_TCP_PIECE_BYTES ((size_t)64 << 10)
/** Read ahead: headers and short messages. Of long data that follow those so much is copied at most, all else
 *  is read to its place. */
#define TW_TCP_IN_BYTES ((size_t)8 << 10)
/** A device's addresses that are told. */
#define TW_TCP_ADDRESSES_MAX 16

typedef enum tw_tcp_stage {
    TW_TCP_CONNECTING, /**< who connects: the TCP connection is being made, or waits for the next try */
    TW_TCP_CHALLENGE,  /**< who connects: CHALLENGE is awaited */
    TW_TCP_WELCOME,    /**< who connects: WELCOME is awaited */
    TW_TCP_HELLO,      /**< who listens: HELLO is awaited */
    TW_TCP_PROOF,      /**< who listens: PROOF is awaited */
    TW_TCP_OPEN,
    TW_TCP_LEAVING, /**< its peer is closed: what is left goes out, what comes is thrown away */
    TW_TCP_CLOSED   /**< to be freed */
} tw_tcp_stage_t;

/** What had been sent of a connection at some time, and was read of it at the other end. */
typedef struct tw_tcp_mark {
    uint64_t n_written, n_read, ns;
} tw_tcp_mark_t;

struct tw_tcp_link {
    TAILQ_ENTRY(tw_tcp_link) entry; /**< in the device's links, or its closed ones */
    TAILQ_ENTRY(tw_tcp_link) ready; /**< in the device's list of those to be read */
    tw_tcp_device_t *device;
    tw_p2p_stream_t *stream; /**< NULL: not known yet, or no longer */
    tw_tcp_stage_t stage;
    int fd; /**< -1: the next try to connect is due */
    int is_ready, can_write, is_shut;
    int is_aside;          /**< out of epoll; whether it can be read or written is found by trying */
    uint64_t quiet_ns;     /**< a caller does not read the socket before this time; 0: it may now */
    int follows_long;      /**< the last frame's data was long */
    int n_asked, n_rounds; /**< reads by who asked for it; aside: rounds of progress since the last one */
    int has_end;           /**< the stream's end, or an error, follows the unread bytes */
    int n_tries;
    uint64_t until_ns; /**< for connecting, for strangers, for leaving */
    uint64_t retry_ns;
    tw_greeting_t greeting;
    tw_seal_t *seal[2];    /**< seal what is sent, and open what is received; NULL: plain */
    uint64_t brief_tag[2]; /**< tag of the last brief header that has gone, and that came; 0: none yet */

    uint64_t n_written, n_read; /**< bytes of this connection, its greeting included */
    tw_tcp_mark_t mark;
    uint64_t n_moved; /**< both ways, when it was last looked at */
    uint64_t n_acknowledged;
    uint64_t stuck_ns; /**< since when the system sends again what comes next; 0: it does not */
    int is_silent;     /**< the peer, which hears other connections, says that nothing has come on this one */

    uint8_t *out; /**< [out_start, out_end) is to be sent before anything else */
    size_t out_start, out_end, out_capacity;

    tw_p2p_header_t header; /**< heads the frame that is coming in */
    int has_header;
    int has_begun;      /**< what comes has its place; else it waits for a receive, and nothing is read */
    uint8_t *piece;     /**< sealed: [TW_TCP_PIECE_BYTES, and a tag] of its data, what is coming in */
    size_t piece_bytes; /**< bytes of the piece that are there */
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
    int n_strangers;    /**< links that have not proven anything to this end */
    int n_timed;        /**< links with something to be done at a time */
    int n_aside;        /**< links out of epoll */
    uint64_t accept_ns; /**< no descriptor was left: take no new ones until then; 0: do */
    int has_warned;     /**< it has warned of another version, once: any stranger can claim to have one */
    int has_warned_of_twin;
    uint8_t *scratch; /**< [TW_TCP_PIECE_BYTES] for what is thrown away */
};

/* ---- tcp_link.c ---------------------------------------------------------------------------------------- */
/** NULL: out of memory, logged. Takes the socket. */
tw_tcp_link_t *tw_tcp_link_create(tw_tcp_device_t *device, int fd, tw_tcp_stage_t stage);
/** Have the kernel watch its socket. 0: it does not, logged. */
int tw_tcp_watch(tw_tcp_link_t *link);
/** It is read because somebody asks for it. */
void tw_tcp_note_asked(tw_tcp_link_t *link);
/** Watch again those that nobody has asked for lately, or all. */
void tw_tcp_watch_again(tw_tcp_device_t *device, int all);
/** Something may be there to read. */
void tw_tcp_set_ready(tw_tcp_link_t *link, int is_ready);
/** The stream goes on without it. */
void tw_tcp_let_go(tw_tcp_link_t *link);
/** Drop the link, break its stream, and tell the owner why. */
void tw_tcp_break(tw_tcp_link_t *link, const char *why);
/** Close the socket; the link is freed later. */
void tw_tcp_drop(tw_tcp_link_t *link);
void tw_tcp_free_closed(tw_tcp_device_t *device);
/** > 0; 0: nothing now (it is no longer ready); < 0: closed (*error 0) or broken. */
ssize_t tw_tcp_read(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** > 0; 0: the socket takes nothing now; < 0: *error. */
ssize_t tw_tcp_write(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** Room in `out`. 0: out of memory. */
int tw_tcp_out_reserve(tw_tcp_link_t *link, size_t capacity);
/** Add bytes that are sent before anything else. 0: out of memory. */
int tw_tcp_out_add(tw_tcp_link_t *link, const void *data, size_t bytes);
/** TW_OK: nothing is left; TW_IN_PROGRESS; TW_ERR_IO, with *error set. */
tw_status_t tw_tcp_out_flush(tw_tcp_link_t *link, int *error);

/* ---- tcp_send.c ---------------------------------------------------------------------------------------- */
int tw_tcp_send(tw_p2p_stream_t *stream);
void tw_tcp_release(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
/** Turn all that waits on the link's stream into bytes to be sent. 0: out of memory. */
int tw_tcp_out_add_waiting(tw_tcp_link_t *link);

/* ---- tcp_receive.c ------------------------------------------------------------------------------------- */
/** Read a bounded amount; of a peer that has failed nothing is read. Returns how much happened. */
int tw_tcp_receive(tw_tcp_link_t *link);
/** The same, whether or not something is known to be there. */
unsigned tw_tcp_receive_now(tw_p2p_stream_t *stream, int is_asked);
void tw_tcp_resume(tw_p2p_stream_t *stream);

/* ---- tcp_close.c --------------------------------------------------------------------------------------- */
void tw_tcp_close(tw_p2p_stream_t *stream, int is_orderly);
/** LEAVING: send and read on. Returns 1 if something happened. */
int tw_tcp_leave(tw_tcp_link_t *link);
/** Block until nothing is left that a closed peer is to get. */
void tw_tcp_await_leaving(tw_tcp_device_t *device);

/* ---- tcp_open.c ---------------------------------------------------------------------------------------- */
tw_status_t tw_tcp_connect(tw_p2p_stream_t *stream);
int tw_tcp_address_is_sound(const void *address, size_t bytes);
/** Take the new connections. */
void tw_tcp_accept(tw_tcp_device_t *device);
/** Go on with the greeting: something may be there to read, or the connection is made. Returns 1 if something
 *  happened. */
int tw_tcp_greet(tw_tcp_link_t *link);
/** Try again, or give up, what is due. */
void tw_tcp_look_at_clock(tw_tcp_device_t *device);

/* ---- tcp_watch.c --------------------------------------------------------------------------------------- */
/** ALIVE has come. NULL, or what is wrong with it. */
const char *tw_tcp_hear_alive(tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** 1 if nothing has been acknowledged for too long, though the system sends it again and again. To be asked
 *  now and then. */
int tw_tcp_is_unanswered(tw_tcp_link_t *link, uint64_t now);

/** One device's part of a card. */
typedef struct tw_tcp_address {
    uint16_t port;
    uint16_t n; /**< addresses that follow, 16 bytes each */
} tw_tcp_address_t;

TW_C_END
