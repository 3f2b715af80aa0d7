/** TCP connections of our own. Read this header, then tcp_link.c (a connection's socket), tcp_send.c,
 *  tcp_receive.c, tcp_close.c, tcp_open.c (connecting, accepting, greeting), tcp_watch.c (connections that
 *  are dead), tcp_device.c (a device: its port, its card, progress).
 *
 *  A stream is one connection, for both directions; the peer that connects is agreed (tw_p2p_peer_params_t).
 *  On it travels, after the greeting (greeting.h), frame after frame: a header of protocol.h, or a brief one
 *  (brief.h), and its data. Sealed, the header is a piece with its tag, and the data are pieces of up to
 *  TW_TCP_PIECE_BYTES with theirs; nothing is looked at before its piece has opened.
 *
 *  Sockets do not block. The kernel tells by epoll, once each time, when one can be read or written again;
 *  after that it counts as ready until a call fails with EAGAIN. A connection that is polled again and again
 *  is taken out of epoll, where every packet costs the sender's processor a call, 2 % of what 512 KB take. It
 *  comes back when nobody polls it any more, and before anybody sleeps.
 *
 *  A caller that polls a connection of long messages and finds nothing does not ask the kernel again at once:
 *  each such call takes the socket's lock and its memory away from the sender's processor, which delivers
 *  there. Of 512 KB on four connections it was 13,000 calls for 112 messages, and 98 us to send one; with a
 *  pause of some us, 85 to 90. A short message right after a long one on the same connection may be seen
 *  later by that pause, once; one after a short message never is. Private to the folder. */
#pragma once

#include "transport/p2p/greeting.h"
#include "transport/p2p/state.h"
#include "transport/seal.h"

TW_C_BEGIN

/** Data that is sealed as one piece: small enough for the cache, large enough that its tag and its read do
 *  not matter. */
#define TW_TCP_PIECE_BYTES ((size_t)64 << 10)
/** Bytes that are read ahead: headers and short messages. Of long data behind them at most this much is
 *  copied once more; the rest is read to its place. */
#define TW_TCP_IN_BYTES ((size_t)8 << 10)
/** The most addresses of a device that a card tells. */
#define TW_TCP_ADDRESSES_MAX 16

typedef enum tw_tcp_stage {
    TW_TCP_CONNECTING, /**< client: the TCP connection is being made, or waits for the next try */
    TW_TCP_CHALLENGE,  /**< client: waits for CHALLENGE */
    TW_TCP_WELCOME,    /**< client: waits for WELCOME */
    TW_TCP_HELLO,      /**< server: waits for HELLO */
    TW_TCP_PROOF,      /**< server: waits for PROOF */
    TW_TCP_OPEN,
    TW_TCP_LEAVING, /**< the peer is closed: what is left is still sent, what comes is thrown away */
    TW_TCP_CLOSED   /**< the link is to be freed */
} tw_tcp_stage_t;

/** How much had been sent on a connection at some time, and how much of it the other end had read. */
typedef struct tw_tcp_mark {
    uint64_t n_written, n_read, ns;
} tw_tcp_mark_t;

struct tw_tcp_link {
    TAILQ_ENTRY(tw_tcp_link) entry; /**< in the device's list of links, or of closed ones */
    TAILQ_ENTRY(tw_tcp_link) ready; /**< in the device's list of links to be read */
    tw_tcp_device_t *device;
    tw_p2p_stream_t *stream; /**< NULL: not known yet, or no longer */
    tw_tcp_stage_t stage;
    int fd; /**< -1: the next try to connect is due */
    int is_ready, can_write, is_shut;
    int is_aside;      /**< 1: out of epoll; trying shows whether it can be read or written */
    uint64_t quiet_ns; /**< until then a polling caller does not read the socket; 0: it may */
    int follows_long;  /**< 1: the last frame's data was long */
    /** reads by polling callers; while aside: rounds of progress since the last one */
    int n_asked, n_rounds;
    int has_end; /**< 1: the stream's end, or an error, follows the unread bytes */
    int n_tries;
    uint64_t until_ns; /**< time limit of the stage: connecting, a stranger's proof, or leaving */
    uint64_t retry_ns;
    tw_greeting_t greeting;
    tw_seal_t *seal[2];    /**< seals of what is sent, and of what is received; NULL: not sealed */
    uint64_t brief_tag[2]; /**< tag of the last brief header that was sent, and that came; 0: none yet */

    uint64_t n_written, n_read; /**< bytes on this connection, including its greeting */
    tw_tcp_mark_t mark;
    uint64_t n_moved; /**< bytes in both directions at the last check */
    uint64_t n_acknowledged;
    uint64_t stuck_ns; /**< since when the system has been sending the next bytes again; 0: it has not */
    int is_silent; /**< 1: the peer, which hears other connections, says that nothing has come on this one */

    uint8_t *out; /**< [out_start, out_end) is sent before anything else */
    size_t out_start, out_end, out_capacity;

    tw_p2p_header_t header; /**< header of the frame that is coming in */
    int has_header;
    /** 1: the frame's data has a place; 0: it waits for a receive, and nothing is read */
    int has_begun;
    uint8_t *piece;     /**< sealed: [TW_TCP_PIECE_BYTES, and a tag], the piece of data that is coming in */
    size_t piece_bytes; /**< bytes of the piece that have come */
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
    int n_strangers;    /**< links that have not proven anything to this end yet */
    int n_timed;        /**< links with a time at which something must be done */
    int n_aside;        /**< links out of epoll */
    uint64_t accept_ns; /**< until then no new link is accepted, as no descriptor was left; 0: they are */
    /** 1: the device has warned of another version, which it does once: any stranger can claim to have one */
    int has_warned;
    int has_warned_of_twin;
    uint8_t *scratch; /**< [TW_TCP_PIECE_BYTES], for data that is thrown away */
};

/* ---- tcp_link.c ---------------------------------------------------------------------------------------- */
/** Make a link, which owns the socket. NULL: out of memory, logged. */
tw_tcp_link_t *tw_tcp_link_create(tw_tcp_device_t *device, int fd, tw_tcp_stage_t stage);
/** Let the kernel watch the link's socket. 0: it cannot, logged. */
int tw_tcp_watch(tw_tcp_link_t *link);
/** Note that a polling caller reads the link. */
void tw_tcp_note_asked(tw_tcp_link_t *link);
/** Let epoll watch links again that nobody has polled lately, or all. */
void tw_tcp_watch_again(tw_tcp_device_t *device, int all);
/** Note whether there may be something to read. */
void tw_tcp_set_ready(tw_tcp_link_t *link, int is_ready);
/** Detach a link from its stream, which goes on without it. */
void tw_tcp_let_go(tw_tcp_link_t *link);
/** Drop the link, break its stream, and tell the owner why. */
void tw_tcp_break(tw_tcp_link_t *link, const char *why);
/** Close the socket; the link is freed later. */
void tw_tcp_drop(tw_tcp_link_t *link);
void tw_tcp_free_closed(tw_tcp_device_t *device);
/** Read. Returns > 0; 0: nothing is there now (the link is no longer ready); < 0: the connection is closed
 *  (*error 0) or broken. */
ssize_t tw_tcp_read(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** Write. Returns > 0; 0: the socket takes nothing now; < 0: see *error. */
ssize_t tw_tcp_write(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error);
/** Make room in `out`. 0: out of memory. */
int tw_tcp_out_reserve(tw_tcp_link_t *link, size_t capacity);
/** Add bytes that are sent before anything else. 0: out of memory. */
int tw_tcp_out_add(tw_tcp_link_t *link, const void *data, size_t bytes);
/** Send what is in `out`. TW_OK: nothing is left; TW_IN_PROGRESS; TW_ERR_IO, with *error set. */
tw_status_t tw_tcp_out_flush(tw_tcp_link_t *link, int *error);

/* ---- tcp_send.c ---------------------------------------------------------------------------------------- */
int tw_tcp_send(tw_p2p_stream_t *stream);
void tw_tcp_release(tw_p2p_stream_t *stream, tw_p2p_request_t *request);
/** Turn all that waits on the link's stream into bytes to be sent. 0: out of memory. */
int tw_tcp_out_add_waiting(tw_tcp_link_t *link);

/* ---- tcp_receive.c ------------------------------------------------------------------------------------- */
/** Read a limited amount; of a peer that has failed nothing is read. Returns how much happened. */
int tw_tcp_receive(tw_tcp_link_t *link);
/** Read as tw_tcp_receive, even if nothing is known to be there. */
unsigned tw_tcp_receive_now(tw_p2p_stream_t *stream, int is_asked);
void tw_tcp_resume(tw_p2p_stream_t *stream);

/* ---- tcp_close.c --------------------------------------------------------------------------------------- */
void tw_tcp_close(tw_p2p_stream_t *stream, int is_orderly);
/** Continue a link that is LEAVING: send and read on. Returns 1 if something happened. */
int tw_tcp_leave(tw_tcp_link_t *link);
/** Block until closed peers have been sent all that they are to get. */
void tw_tcp_await_leaving(tw_tcp_device_t *device);

/* ---- tcp_open.c ---------------------------------------------------------------------------------------- */
tw_status_t tw_tcp_connect(tw_p2p_stream_t *stream);
int tw_tcp_address_is_sound(const void *address, size_t bytes);
/** Accept the new connections. */
void tw_tcp_accept(tw_tcp_device_t *device);
/** Continue the greeting: something may be there to read, or connecting has ended. Returns 1 if something
 *  happened. */
int tw_tcp_greet(tw_tcp_link_t *link);
/** Try again, or give up, whatever is due. */
void tw_tcp_look_at_clock(tw_tcp_device_t *device);

/* ---- tcp_watch.c --------------------------------------------------------------------------------------- */
/** Handle ALIVE. Returns NULL, or what is wrong with it. */
const char *tw_tcp_hear_alive(tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** Returns 1 if nothing has been acknowledged for too long, though the system sends it again and again. It
 *  must be called now and then. */
int tw_tcp_is_unanswered(tw_tcp_link_t *link, uint64_t now);

/** One device's part of a card. */
typedef struct tw_tcp_address {
    uint16_t port;
    uint16_t n; /**< how many addresses follow, 16 bytes each */
} tw_tcp_address_t;

TW_C_END
