/** The messages of p2p.h.
 *
 *  Why TCP connections of our own, where UCX has TCP, too. (1) UCX's port is open to anyone who reaches it,
 *  and a malformed greeting ends the process; here nothing counts before both ends have proven that they hold
 *  the key (greeting.h), and all can be sealed (seal.h). (2) UCX reads into a buffer of its own, and each
 *  byte is copied once more from there; here the kernel writes into the posted buffer. (3) UCX cannot take a
 *  message back when the other side dies, before 1.15; and it splits a long one over lanes by their estimated
 *  bandwidth, where here each chunk goes to the connection that is free. (4) It replaces the process's signal
 *  handlers and patches mmap. UCX carries what it is good at: shared memory, and networks that are not TCP.
 *
 *  Data is not sent with MSG_ZEROCOPY: the receiver's copy remains and is the dearer one, over loopback and
 *  virtual devices the kernel copies all the same, and each send needs an answer from the error queue before
 *  its buffer is free.
 *
 *  The messages. A header as below, then the data, if any: as a frame over TCP, as an active message of
 *  UCX's. Up to eager_bytes: EAGER, with the data. Longer: RTS; the receiver, once a receive matches, answers
 *  CTS with its request's number; then DATA chunks, each on whichever stream is free, in any order. Where
 *  there are several data streams, each chunk is acknowledged (ACK): the number of its chunks on the way
 *  shows how busy a stream is, which a socket with its large buffers does not. CANCEL takes an RTS back. All
 *  but DATA and CREDIT travel on the control stream in order. That keeps equal tags in posting order, and, if
 *  long messages are announced, short ones out of the queue of bulk data. A peer that is closed sends BYE as
 *  the last message on each TCP stream; the backend's peers are not closed, they end with the job.
 *
 *  Credit. What is sent without being asked for may have to wait for late receives, so all EAGER messages
 *  need credit, of which short and long ones each have their own: a message takes its bytes and
 *  TW_P2P_CREDIT_MESSAGE, which are given back (CREDIT) as receives take what has come. A message without
 *  credit goes as RTS. Where there is one data stream over TCP, longer messages go as EAGER, too: up to
 *  eager_alone_bytes, or with sends_on_credit up to TW_P2P_EAGER_MAX, beyond which they are cut into chunks
 *  of 8 MB. A message that is to go when asked for does not. EAGER saves RTS, CTS and the round trip, which
 *  on a full link is long, as RTS waits behind the data.
 *
 *  Over TCP a long EAGER message that no receive waits for is left with the system, and with it all that
 *  comes behind it on its stream, as long as no request of this peer is under way: kept here, it would be
 *  copied once more, and an owner that posts its receives one at a time, as NCCL does, would never catch up.
 *  If the sender closes, or the connection breaks, it is taken. So long messages are only kept while
 *  something else of this peer is under way. With sends_on_credit their credit is large: it must not run out
 *  in the sockets' buffers, since what then goes as RTS, and on another stream, is slower. Where long
 *  messages go at once, CREDIT comes back on that other stream, as it would have to wait behind them on
 *  theirs.
 *
 *  What an EAGER message costs over TCP: one send, with 64 bytes more than the message has (a short one: with
 *  4 or 12, see brief.h), and at the other end one read, of the data's end and whatever comes next; whoever
 *  asks for one request (tw_p2p_progress_for) reads without asking epoll first. An announced one costs two
 *  messages more, without data. With sends_on_credit short ones that follow each other within a few
 *  microseconds share a send: eight of NCCL's then cost little more than one.
 *
 *  A connection that is dead. A middlebox may drop one connection, or acknowledge what it drops, while all
 *  else lives. So an end that waits for a peer says on each stream, many times per timeout, how much it has
 *  read of the next one (ALIVE), and the peer answers. A connection is dead if nothing sent on it has arrived
 *  although the peer has read what was said much later on another one (tcp_watch.c).
 *
 *  Memory of a GPU is touched by UCX alone, never by this code: from there even short messages go by RTS, and
 *  a CTS that names such memory asks for chunks that UCX keeps until it is told where to copy them. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/** Little-endian machines only (as UCX itself).
 *
 *  It is as long as a cache line: then data has the same alignment to lines in the sender's buffer, in the
 *  kernel's pages and in the receiver's buffer, as long as messages are whole lines, too, and the kernel
 *  copies it faster. Processor time of 512 KB in buffers that begin a line after a page, as malloc's do (AMD
 *  Zen 4): with a header of 40 bytes 69 us to send and 34 to receive, with 64 bytes 67 and 23. */
typedef struct tw_p2p_header {
    uint32_t source; /**< the id of the sender at the receiver */
    uint32_t kind;   /**< tw_p2p_kind_t */
    /** all but DATA, CREDIT, BYE and ALIVE: how many such messages this peer has sent to that one before */
    uint32_t sequence;
    /** DATA, ACK: the sender's stream, 0: it wants no ACK; BYE: its stream; ALIVE: the stream of which it
     *  tells; CTS: 1: keep; CREDIT: 1: for long messages */
    uint32_t stream;
    uint64_t tag; /**< EAGER, RTS; DATA: bytes; ALIVE: TW_P2P_ALIVE_... */
    /** RTS: the sender's number; CTS, CANCEL: that number again; DATA: the receiver's number; ALIVE: the
     *  sender's time */
    uint64_t id;
    /** EAGER, RTS, CREDIT: bytes; CTS, CANCEL: the receiver's number, 0: none; DATA: offset; ALIVE: the
     *  latest time that has come from the receiver */
    uint64_t value;
    uint64_t n_read;    /**< ALIVE: bytes of the stream that have been read; others: 0 */
    uint64_t unused[2]; /**< always 0 */
} tw_p2p_header_t;

static_assert(sizeof(tw_p2p_header_t) == TW_CACHE_LINE_BYTES, "the header has no holes");

typedef enum tw_p2p_kind {
    TW_P2P_EAGER = 1,
    TW_P2P_RTS,
    TW_P2P_CTS,
    TW_P2P_DATA,
    TW_P2P_ACK,
    TW_P2P_CANCEL,
    TW_P2P_CREDIT,
    TW_P2P_BYE,
    TW_P2P_ALIVE
} tw_p2p_kind_t;

/** Flags of ALIVE. ASKS: the sender waits, and wants an answer. LEAVES: it leaves unread what is on the
 *  stream. */
#define TW_P2P_ALIVE_ASKS 1u
#define TW_P2P_ALIVE_LEAVES 2u

/** How much data follows the header. */
static inline uint64_t tw_p2p_header_data(const tw_p2p_header_t *header)
{
    return header->kind == TW_P2P_EAGER ? header->value : header->kind == TW_P2P_DATA ? header->tag : 0;
}

/** A message of so many bytes or more is a long one. Of shorter ones several may have been read ahead
 *  already, and they cost little to keep. */
#define TW_P2P_LONG_FROM ((size_t)16 << 10)
/** Credit of messages of one kind, and how much of it is given back at a time. The longest message on credit
 *  and that step together are less than all the credit. */
#define TW_P2P_CREDIT_BYTES ((size_t)9 << 20)
#define TW_P2P_CREDIT_STEP ((size_t)4 << 20)
/** Credit of long messages if those of up to TW_P2P_EAGER_MAX are sent at once. It is enough for the eight
 *  messages that NCCL has under way on a connection, for others that the sockets' buffers hold, and for what
 *  was not given back yet. */
#define TW_P2P_LONG_CREDIT_BYTES ((size_t)96 << 20)
#define TW_P2P_LONG_CREDIT_STEP ((size_t)16 << 20)
/** Credit that a message takes besides its data: about what keeping it costs. */
#define TW_P2P_CREDIT_MESSAGE 128
/** The longest message that is ever sent without being asked for. */
#define TW_P2P_EAGER_MAX ((size_t)4 << 20)

static_assert(TW_P2P_CREDIT_STEP + TW_P2P_EAGER_MAX + TW_P2P_CREDIT_MESSAGE < TW_P2P_CREDIT_BYTES &&
                  TW_P2P_LONG_CREDIT_STEP + TW_P2P_EAGER_MAX + TW_P2P_CREDIT_MESSAGE <
                      TW_P2P_LONG_CREDIT_BYTES,
              "what is not given back yet leaves credit for the longest message");
static_assert(TW_P2P_LONG_FROM <= TW_P2P_EAGER_MAX, "there are long messages on credit");

/** Ids of UCX's active messages: the usual one, and one for chunks that UCX keeps. */
#define TW_P2P_AM 1
#define TW_P2P_AM_KEEP 2

TW_C_END
