/** The protocol of p2p.h: its messages, and the reasons for them.
 *
 *  Why Thinwire has TCP connections although UCX supports TCP, too. (1) UCX's port is open to anyone who
 *  reaches it, and a malformed greeting ends the process. Here nothing counts before both ends have proven
 *  that they hold the key (greeting.h), and everything can be encrypted (seal.h). (2) UCX reads into an
 *  internal buffer and copies each byte once more from there. Here the kernel writes into the posted buffer.
 *  (3) Before version 1.15, UCX cannot cancel a message when the other end dies. And it splits a long message
 *  over lanes by their estimated bandwidth, where here each chunk goes to a connection that is free. (4) UCX
 *  replaces the process's signal handlers and patches mmap. So UCX carries shared memory, and networks that
 *  are not TCP.
 *
 *  Data is not sent with MSG_ZEROCOPY. The receiver's copy would remain, and is the more expensive one. Over
 *  loopback and virtual devices the kernel copies anyway. And each send needs an answer from the error queue
 *  before its buffer is free.
 *
 *  Messages. A message is a header as below and then data, if any. Over TCP it is a frame, in UCX an active
 *  message. Up to eager_bytes, one EAGER message carries the data. A longer message is announced by RTS. When
 *  a receive matches, the receiver answers CTS with the number of its request. Then DATA chunks follow, each
 *  on any free stream, in any order. If there are several data streams, each chunk is acknowledged (ACK): the
 *  number of unacknowledged chunks shows how busy a stream is, which a socket with its large buffers does not
 *  show. CANCEL withdraws an RTS. All messages but DATA, CREDIT, BYE and ALIVE travel in order on the control
 *  stream. That keeps equal tags in posting order. It also keeps short messages out of the queue of bulk
 *  data, if long messages are announced. A peer that is closed gets BYE as the last message on each TCP
 *  stream. The network backend's peers are not closed; they end with the job.
 *
 *  Credit. EAGER messages may have to wait in the receiver's memory for late receives, so each of them needs
 *  credit. Short and long ones have separate credit. A message takes its bytes plus TW_P2P_CREDIT_MESSAGE.
 *  The receiver returns credit (CREDIT) when receives take the messages. A message without credit goes as
 *  RTS. With one data stream over TCP, longer messages go as EAGER, too: up to eager_alone_bytes, or with
 *  sends_on_credit up to TW_P2P_EAGER_MAX, and above that in chunks of 8 MB. A message with when_asked is
 *  announced if longer than eager_bytes. EAGER saves RTS, CTS and the round trip, which is long on a full
 *  link, as RTS waits behind the data.
 *
 *  A long EAGER message over TCP that no receive waits for stays in the kernel's socket buffer, with
 *  everything behind it on its stream, as long as no request of this peer is under way. Reading it early
 *  would cost one more copy, and an owner that posts its receives one at a time, as NCCL does, would never
 *  catch up. If the sender closes, or the connection breaks, the message is read. So this process stores long
 *  messages only while other requests of the peer are under way. With sends_on_credit, long messages have
 *  much credit, so that it does not run out while they are in socket buffers: messages without credit go as
 *  RTS on another stream, which is slower. Where long messages go at once, CREDIT is sent on that other
 *  stream, because on theirs it would have to wait behind them.
 *
 *  Cost of an EAGER message over TCP: one send, with 64 bytes more than the message (if short: 4 or 12 bytes,
 *  see brief.h). At the receiver, it is one read, which also gets the start of the next message. A caller
 *  that polls one request (tw_p2p_progress_for) reads without asking epoll first. An announced message costs
 *  two additional messages without data. With sends_on_credit, short messages that follow each other within a
 *  few microseconds share a send: eight of NCCL's then cost little more than one.
 *
 *  Dead connections. A middlebox may drop one connection, or acknowledge data that it drops, while all other
 *  connections work. So an end that waits for a peer says on each stream, many times per timeout, how much it
 *  has read of the next stream (ALIVE), and the peer answers. A connection is dead if nothing sent on it has
 *  arrived although the peer has read messages that were sent much later on another one (tcp_watch.c).
 *
 *  GPU memory is touched by UCX alone, never by this code. So even short messages from GPU memory go by RTS.
 *  A CTS for a receive in GPU memory asks for chunks that UCX keeps until it is told where to copy them. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/** The header of a message. Little-endian machines only (as UCX itself).
 *
 *  It is as long as a cache line. If messages are whole lines, too, data then has the same alignment to lines
 *  in the sender's buffer, in the kernel's pages and in the receiver's buffer, and the kernel copies it
 *  faster. Processor time of 512 KB in buffers that begin a line after a page, as malloc's do (AMD Zen 4):
 *  with a header of 40 bytes 69 us to send and 34 to receive, with 64 bytes 67 and 23. */
typedef struct tw_p2p_header {
    uint32_t source; /**< id of the sender at the receiver */
    uint32_t kind;   /**< tw_p2p_kind_t */
    /** number of earlier messages in this direction; DATA, CREDIT, BYE and ALIVE do not count and have 0 */
    uint32_t sequence;
    /** DATA, ACK: the sender's stream number, 0: no ACK wanted; BYE: the stream that ends; ALIVE: the stream
     *  that it describes; CTS: 1: UCX keeps the chunks; CREDIT: 1: for long messages */
    uint32_t stream;
    uint64_t tag; /**< EAGER, RTS: tag; DATA: bytes; ALIVE: TW_P2P_ALIVE_ flags */
    /** RTS: number of the send; CTS, CANCEL: that number again; DATA: number of the receive; ALIVE: the
     *  sender's time */
    uint64_t id;
    /** EAGER, RTS, CREDIT: bytes; CTS, CANCEL: number of the receive, 0: none; DATA: offset; ALIVE: the
     *  latest of the receiver's times that has arrived at the sender */
    uint64_t value;
    uint64_t n_read;    /**< ALIVE: bytes of the stream that the sender has read; others: 0 */
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

/** Flags of ALIVE. ASKS: the sender waits, and wants an answer. LEAVES: the sender leaves the stream's bytes
 *  unread for now. */
#define TW_P2P_ALIVE_ASKS 1u
#define TW_P2P_ALIVE_LEAVES 2u

/** Return the bytes of data that follow the header. */
static inline uint64_t tw_p2p_header_data(const tw_p2p_header_t *header)
{
    return header->kind == TW_P2P_EAGER ? header->value : header->kind == TW_P2P_DATA ? header->tag : 0;
}

/** Messages of this length or more are long. Shorter ones may already have been read ahead in groups, and
 *  storing them costs little. */
#define TW_P2P_LONG_FROM ((size_t)16 << 10)
/** Credit of messages of one kind, and how much of it is returned at a time. The step plus the longest
 *  message on credit must be less than the credit. */
#define TW_P2P_CREDIT_BYTES ((size_t)9 << 20)
#define TW_P2P_CREDIT_STEP ((size_t)4 << 20)
/** Credit of long messages if messages of up to TW_P2P_EAGER_MAX are sent at once. It is enough for the eight
 *  messages that NCCL has under way on a connection, for others in the sockets' buffers, and for messages
 *  with credit that was not returned yet. */
#define TW_P2P_LONG_CREDIT_BYTES ((size_t)96 << 20)
#define TW_P2P_LONG_CREDIT_STEP ((size_t)16 << 20)
/** Credit that a message takes besides its data: about the cost of storing it. */
#define TW_P2P_CREDIT_MESSAGE 128
/** Longest message that is ever sent without being asked for. */
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
