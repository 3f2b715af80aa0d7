/** The messages of the rendezvous and of the monitor, as bytes. Pure functions: no sockets, no keys. Private
 *  to the folder.
 *
 *  A message is a header of 12 bytes (magic "TWIR", version, type, two zero bytes, payload length), the
 *  payload and, from JOIN on, a 32-byte keyed hash (token.h). Numbers are little-endian.
 *
 *      rank r                                   rank 0
 *      HELLO      32 random bytes           ->
 *                                           <-  CHALLENGE  32 random bytes
 *      JOIN       who r is; keyed hash      ->
 *                                           <-  ACCEPT     keyed hash: this is rank 0; or REJECT
 *                                           <-  MEMBERS    once all have joined
 *      ADDRESS    r's addresses             ->
 *                                           <-  ADDRESSES  everyone's
 *  A rank that must seal its connection adds a public key to its HELLO; if rank 0 must, too, it adds one to
 *  CHALLENGE, and from JOIN on the header is a sealed piece with its tag, and the payload another (seal.h).
 *  If only one of them must, they do not fit: rank 0 refuses a JOIN that is not sealed, and a rank sends
 *  REJECT (its number) in place of JOIN.
 *
 *  From then on the same connections carry HEARTBEAT, GOODBYE, GONE, REPORT, LOST, ABORT and FAILED
 *  (monitor.h). */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_MSG_HEADER_BYTES 12
#define TW_MSG_NONCE_BYTES 32
#define TW_MSG_SHARE_BYTES 32
#define TW_MSG_INSTANCE_BYTES 16
#define TW_MSG_DEVICE_BYTES 16
#define TW_MSG_TEXT_BYTES 256
#define TW_MSG_VERSION_BYTES 24
#define TW_MSG_TLS_BYTES 16
#define TW_MSG_HEARD_MAX 512u
#define TW_MSG_ADDRESS_MAX (64u << 10)

/** X(name, value, largest payload). JOIN's must never change: a rank of another version sends it, and rank 0
 *  must read it to name that version. */
#define TW_MSG_LIST(X)                                              \
    X(TW_MSG_HELLO, 1, TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES)     \
    X(TW_MSG_CHALLENGE, 2, TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES) \
    X(TW_MSG_JOIN, 3, 128)                                          \
    X(TW_MSG_ACCEPT, 4, 0)                                          \
    X(TW_MSG_REJECT, 5, 4 + TW_MSG_TEXT_BYTES)                      \
    X(TW_MSG_MEMBERS, 6, 2u << 20)                                  \
    X(TW_MSG_ADDRESS, 7, TW_MSG_ADDRESS_MAX)                        \
    X(TW_MSG_ADDRESSES, 8, 256u << 20)                              \
    X(TW_MSG_HEARTBEAT, 9, 4 + TW_MSG_HEARD_MAX)                    \
    X(TW_MSG_GOODBYE, 10, 1u << 20)                                 \
    X(TW_MSG_GONE, 11, 12)                                          \
    X(TW_MSG_REPORT, 12, 4 + TW_MSG_TEXT_BYTES)                     \
    X(TW_MSG_ABORT, 13, 4 + TW_MSG_TEXT_BYTES)                      \
    X(TW_MSG_FAILED, 14, 4 + TW_MSG_TEXT_BYTES)                     \
    X(TW_MSG_LOST, 15, 4 + TW_MSG_TEXT_BYTES)

typedef enum tw_msg_type {
#define TW_MSG_ENUM(name, value, max_bytes) name = value,
    TW_MSG_LIST(TW_MSG_ENUM)
#undef TW_MSG_ENUM
} tw_msg_type_t;

/** "HELLO"; "?" for an unknown type. */
const char *tw_msg_type_name(int type);
/** Whether messages of a type carry a keyed hash, as all do from JOIN on. */
static inline int tw_msg_is_signed(int type)
{
    return type >= TW_MSG_JOIN;
}

typedef struct tw_msg_header {
    int type;
    uint32_t bytes; /**< size of the payload */
} tw_msg_header_t;

void tw_msg_header_write(const tw_msg_header_t *header, uint8_t out[TW_MSG_HEADER_BYTES]);
/** Parse a header. TW_ERR_FORMAT, silent: another magic or version, an unknown type, a payload larger than
 *  the type's. */
tw_status_t tw_msg_header_parse(const uint8_t in[TW_MSG_HEADER_BYTES], tw_msg_header_t *header);

/** A payload under construction. Starts zeroed; the first failure to allocate sticks. */
typedef struct tw_msg_writer {
    uint8_t *data;
    size_t bytes, capacity;
    int failed;
} tw_msg_writer_t;

void tw_msg_write(tw_msg_writer_t *writer, const void *data, size_t bytes);
void tw_msg_writer_cleanup(tw_msg_writer_t *writer);

/* The parsers below return TW_ERR_FORMAT, silently, unless the payload is exactly what they expect; their
 * results point into the payload. */

/** Where a rank runs, and with which versions and networks. */
typedef struct tw_msg_member {
    int32_t local_rank;
    uint64_t node_id; /**< equal for ranks of one node */
    uint64_t shm_id;  /**< equal for ranks that can share memory */
    /* Only the rank itself and rank 0 know this. */
    char ucx[TW_MSG_VERSION_BYTES]; /**< version of its UCX; "" if it does not say */
    int32_t local_world; /**< number of ranks on its node, as the launcher says; -1: it does not say */
    /** TW_NET_TLS and TW_NODE_TLS, cut to fit; "" if the rank does not say */
    char net_tls[TW_MSG_TLS_BYTES], node_tls[TW_MSG_TLS_BYTES];
} tw_msg_member_t;

/** Who a rank is. Versions come before anything that could differ between them: a rank that does not name
 *  them, or says more after them, can be read, too. Parsing turns unprintable bytes of texts into '?'. */
typedef struct tw_msg_join {
    /** random, one per process and attempt to join: tells a second try from a second process */
    uint8_t instance[TW_MSG_INSTANCE_BYTES];
    uint32_t rank, world;
    char version[TW_MSG_VERSION_BYTES]; /**< version of Thinwire; "" if the rank does not say */
    tw_msg_member_t who;
} tw_msg_join_t;

void tw_msg_join_write(const tw_msg_join_t *join, tw_msg_writer_t *out);
tw_status_t tw_msg_join_parse(const uint8_t *in, size_t bytes, tw_msg_join_t *join);

/** What rank 0 decides for all ranks. */
typedef struct tw_msg_settings {
    uint32_t peer_timeout_ms, chunk_bytes, eager_bytes, streams;
    /** device by which others reach rank 0; "" if all ranks are on its node */
    char device[TW_MSG_DEVICE_BYTES];
} tw_msg_settings_t;

void tw_msg_members_write(const tw_msg_settings_t *settings, const tw_msg_member_t *members, uint32_t world,
                          tw_msg_writer_t *out);
/** Parse MEMBERS into members: [world], the caller's. */
tw_status_t tw_msg_members_parse(const uint8_t *in, size_t bytes, uint32_t world, tw_msg_settings_t *settings,
                                 tw_msg_member_t *members);

/** A list of byte strings: the addresses of one rank, or those lists of all ranks. */
typedef struct tw_msg_blob {
    const uint8_t *data;
    uint32_t bytes;
} tw_msg_blob_t;

void tw_msg_blobs_write(const tw_msg_blob_t *blobs, uint32_t n_blobs, tw_msg_writer_t *out);
/** Parse ADDRESS or ADDRESSES into blobs: [max], the caller's. */
tw_status_t tw_msg_blobs_parse(const uint8_t *in, size_t bytes, uint32_t max, tw_msg_blob_t *blobs,
                               uint32_t *n_blobs);

/** A number and a text. REJECT: a status; REPORT: a rank that cannot be reached; LOST: 0, as rank 0 cannot be
 *  reached; ABORT: a rank that must be failed; FAILED: a rank that has failed. */
typedef struct tw_msg_notice {
    int32_t number;
    char text[TW_MSG_TEXT_BYTES + 1]; /**< cut to fit; parsing turns unprintable bytes into '?' */
} tw_msg_notice_t;

void tw_msg_notice_write(int32_t number, const char *text, tw_msg_writer_t *out);
tw_status_t tw_msg_notice_parse(const uint8_t *in, size_t bytes, tw_msg_notice_t *notice);

/** HEARTBEAT: late_ms: for how long the sender did not run, and sent nothing; heard: a bit for each rank
 *  whose data has come since the last sign of life (bit r % 8 of byte r / 8; missing bytes are 0). An empty
 *  payload: 0 and none. */
typedef struct tw_msg_heartbeat {
    uint32_t late_ms, heard_bytes;
    const uint8_t *heard; /**< [heard_bytes], TW_MSG_HEARD_MAX at most */
} tw_msg_heartbeat_t;

void tw_msg_heartbeat_write(const tw_msg_heartbeat_t *heartbeat, tw_msg_writer_t *out);
tw_status_t tw_msg_heartbeat_parse(const uint8_t *in, size_t bytes, tw_msg_heartbeat_t *heartbeat);

/** GOODBYE: how many messages this rank has sent to each rank. */
void tw_msg_goodbye_write(const uint64_t *counts, uint32_t world, tw_msg_writer_t *out);
/** Parse GOODBYE into counts: [world], the caller's. */
tw_status_t tw_msg_goodbye_parse(const uint8_t *in, size_t bytes, uint32_t world, uint64_t *counts);

/** GONE: `rank` has said goodbye, after it sent `count` messages to the reader. */
void tw_msg_gone_write(uint32_t rank, uint64_t count, tw_msg_writer_t *out);
tw_status_t tw_msg_gone_parse(const uint8_t *in, size_t bytes, uint32_t *rank, uint64_t *count);

TW_C_END
