/** The messages of p2p.h.
 *
 *  Why there is an eager and a rendezvous protocol of our own over UCX, which has both. Over TCP, (1) UCX's rendezvous cannot be
 *  taken back when the other side dies, so that a buffer would stay in its hands: its second set of protocols can do that from
 *  1.15 on, and is the default from 1.16; this code also runs with 1.13, which is what distributions have. (2) UCX splits a
 *  long message over lanes by what it estimates of their bandwidth; several connections of one device are equal to it, and the
 *  slowest sets the pace. Here each chunk goes to the connection that is free. No UCX that we know of, up to 1.20, does that.
 *  (3) A chunk is copied once, from where the socket was read to. So with 1.16 as the oldest UCX, messages that need one
 *  connection could be left to UCX's tagged calls, and none of this would be needed once UCX hands out chunks by what is free.
 *
 *  The messages. All are UCX active messages with the header below. Up to eager_bytes: EAGER, with the data. Longer: RTS; the
 *  receiver, once a receive matches, answers CTS with its request's number; then DATA chunks, each on whichever stream is free, to
 *  be copied to their place as they come, in any order. Where there are several data streams, each chunk is acknowledged (ACK): a
 *  stream is as busy as its chunks on the way are many, and that is not what a socket with its large buffers would tell. CANCEL
 *  takes an RTS back. All but DATA travel on the control stream in order; that is what keeps equal tags in posting order, and small
 *  messages out of the bulk's queue. HELLO is the first message on each stream over TCP, sent by tw_p2p_peer_greet: once all have
 *  come, nobody has to be let in any more (guard.h). BYE is the last one on each stream, of a peer that is closed; the backend's
 *  are not, they end with the job.
 *
 *  On credit. Where the owner wants it and there is one data stream, a message of up to a chunk goes as EAGER, too, as long as its
 *  bytes are covered by credit: TW_P2P_CREDIT_BYTES for each peer, which it gives back (CREDIT) as receives take what has come. It
 *  saves RTS, CTS and the round trip, and what lies there for receives that are late stays within the credit. The last CREDIT answers
 *  BYE: who has sent on credit closes the connection only then, as credit that comes after that would end it on the other side with
 *  messages in it that have not been read.
 *
 *  What an EAGER message costs over TCP: one sendmsg, with 53 bytes more than the message has (the header, and 13 of UCX's), and at
 *  the other end epoll_wait, recv (of all that is there) and a copy, out of the buffer that UCX reads into. Plain sockets need no
 *  such copy, but read a length first. An announced one costs two messages more, without data.
 *
 *  Memory of a GPU is touched by UCX alone, never by this code: from there even short messages go by RTS, and a CTS that
 *  names such memory asks for chunks that UCX keeps until it is told where to copy them. */
#ifndef TW_TRANSPORT_P2P_PROTOCOL_H
#define TW_TRANSPORT_P2P_PROTOCOL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/** Little-endian machines only (as UCX itself). */
typedef struct tw_p2p_header {
    uint32_t source; /**< the id of the sender at the receiver */
    uint32_t kind;   /**< tw_p2p_kind_t */
    uint32_t
        sequence; /**< all but DATA, HELLO and BYE: how many of those came before, from this peer to that */
    uint32_t
        stream;   /**< DATA, ACK: the sender's stream, 0: no ACK wanted; HELLO, BYE: its stream; CTS: 1: keep;
                   EAGER: 1: on credit; CREDIT: 1: the last */
    uint64_t tag; /**< EAGER, RTS */
    uint64_t id;  /**< RTS: the sender's number; CTS, CANCEL: that again; DATA: the receiver's number */
    uint64_t
        value; /**< EAGER, RTS, CREDIT: bytes; CTS, CANCEL: the receiver's number, 0: none; DATA: offset */
} tw_p2p_header_t;

static_assert(sizeof(tw_p2p_header_t) == 40, "the header has no holes");

typedef enum tw_p2p_kind {
    TW_P2P_EAGER = 1,
    TW_P2P_RTS,
    TW_P2P_CTS,
    TW_P2P_DATA,
    TW_P2P_ACK,
    TW_P2P_CANCEL,
    TW_P2P_CREDIT,
    TW_P2P_HELLO,
    TW_P2P_BYE
} tw_p2p_kind_t;

/** Eight chunks of the usual size: as many messages as NCCL has under way on a connection. */
#define TW_P2P_CREDIT_BYTES ((size_t)2 << 20)
/** Given back when it has come to so much; no longer message goes on credit, or it might wait for ever for less than this. */
#define TW_P2P_CREDIT_STEP (TW_P2P_CREDIT_BYTES / 2)

/** UCX's active messages: the usual one, and the same for chunks that UCX keeps. */
#define TW_P2P_AM 1
#define TW_P2P_AM_KEEP 2

TW_C_END

#endif
