/** The messages of the rendezvous and of the monitor, as bytes. Pure functions without sockets or keys.
 *  Private to the folder.
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
 *  A rank with TW_NET_ENCRYPT=y adds a public key to its HELLO. If rank 0 encrypts, too, it adds a public key
 *  to CHALLENGE. From JOIN on, the header is then a sealed piece with its tag, and the payload another one
 *  (seal.h). If only one of the two encrypts, they cannot connect: rank 0 refuses a JOIN that is not sealed,
 *  and a rank sends REJECT (with its rank number) in place of JOIN.
 *
 *  After ADDRESSES the same connections carry HEARTBEAT, GOODBYE, GONE, REPORT, LOST, ABORT and FAILED
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

/** X(name, value, largest payload). JOIN's largest payload must never change: a rank of another version also
 *  sends JOIN, and rank 0 must be able to read which version that is. */
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

/** Return the type's name, such as "HELLO", or "?" for an unknown type. */
const char *tw_msg_type_name(int type);
/** Return 1 if messages of this type carry a keyed hash, as all types from JOIN on do. */
static inline int tw_msg_is_signed(int type)
{
    return type >= TW_MSG_JOIN;
}

typedef struct tw_msg_header {
    int type;
    uint32_t bytes; /**< size of the payload */
} tw_msg_header_t;

void tw_msg_header_write(const tw_msg_header_t *header, uint8_t out[TW_MSG_HEADER_BYTES]);
/** Parse a header. TW_ERR_FORMAT (silent): wrong magic or version, an unknown type, or a payload longer than
 *  its type allows. */
tw_status_t tw_msg_header_parse(const uint8_t in[TW_MSG_HEADER_BYTES], tw_msg_header_t *header);

/** A payload under construction. It must be zeroed at first. After a failed allocation, `failed` stays 1. */
typedef struct tw_msg_writer {
    uint8_t *data;
    size_t bytes, capacity;
    int failed;
} tw_msg_writer_t;

void tw_msg_write(tw_msg_writer_t *writer, const void *data, size_t bytes);
void tw_msg_writer_cleanup(tw_msg_writer_t *writer);

/* The parsers below return TW_ERR_FORMAT, silently, unless the payload is exactly what they expect. Their
 * results point into the payload. */

/** Where a rank runs, and its versions and networks. */
typedef struct tw_msg_member {
    int32_t local_rank;
    uint64_t node_id; /**< equal for ranks of one node */
    uint64_t shm_id;  /**< equal for ranks that can share memory */
    /* The members below are known only to the rank itself and to rank 0. */
    char ucx[TW_MSG_VERSION_BYTES]; /**< version of the rank's UCX; "" if the rank does not say */
    int32_t local_world;            /**< number of ranks on its node, from the launcher; -1: not known */
    /** TW_NET_TLS and TW_NODE_TLS, cut to fit; "" if the rank does not say */
    char net_tls[TW_MSG_TLS_BYTES], node_tls[TW_MSG_TLS_BYTES];
} tw_msg_member_t;

/** Who a rank is. In the message, versions come before the members that may change between versions, so that
 *  every version's JOIN can be parsed. Parsing turns unprintable bytes of texts into '?'. */
typedef struct tw_msg_join {
    /** random, one per process and attempt to join: tells a second attempt from a second process */
    uint8_t instance[TW_MSG_INSTANCE_BYTES];
    uint32_t rank, world;
    char version[TW_MSG_VERSION_BYTES]; /**< version of Thinwire; "" if the rank does not say */
    tw_msg_member_t who;
} tw_msg_join_t;

void tw_msg_join_write(const tw_msg_join_t *join, tw_msg_writer_t *out);
tw_status_t tw_msg_join_parse(const uint8_t *in, size_t bytes, tw_msg_join_t *join);

/** Settings that rank 0 decides for all ranks. */
typedef struct tw_msg_settings {
    uint32_t peer_timeout_ms, chunk_bytes, eager_bytes, streams;
    /** device of rank 0 that other nodes reach it by; "" if all ranks are on its node */
    char device[TW_MSG_DEVICE_BYTES];
} tw_msg_settings_t;

void tw_msg_members_write(const tw_msg_settings_t *settings, const tw_msg_member_t *members, uint32_t world,
                          tw_msg_writer_t *out);
/** Parse MEMBERS into the caller's members, [world]. */
tw_status_t tw_msg_members_parse(const uint8_t *in, size_t bytes, uint32_t world, tw_msg_settings_t *settings,
                                 tw_msg_member_t *members);

/** One byte string of a list. A list holds the addresses of one rank, or the lists of all ranks. */
typedef struct tw_msg_blob {
    const uint8_t *data;
    uint32_t bytes;
} tw_msg_blob_t;

void tw_msg_blobs_write(const tw_msg_blob_t *blobs, uint32_t n_blobs, tw_msg_writer_t *out);
/** Parse ADDRESS or ADDRESSES into the caller's blobs, [max]. */
tw_status_t tw_msg_blobs_parse(const uint8_t *in, size_t bytes, uint32_t max, tw_msg_blob_t *blobs,
                               uint32_t *n_blobs);

/** A number and a text. The number is, in REJECT: a status; in REPORT: a rank that cannot be reached; in
 *  LOST: 0, as rank 0 cannot be reached; in ABORT: a rank to be failed; in FAILED: a failed rank. */
typedef struct tw_msg_notice {
    int32_t number;
    char text[TW_MSG_TEXT_BYTES + 1]; /**< cut to fit; parsing turns unprintable bytes into '?' */
} tw_msg_notice_t;

void tw_msg_notice_write(int32_t number, const char *text, tw_msg_writer_t *out);
tw_status_t tw_msg_notice_parse(const uint8_t *in, size_t bytes, tw_msg_notice_t *notice);

/** HEARTBEAT. late_ms: how long the sender's process did not run and so sent nothing. heard: a bit for each
 *  rank from which the sender got data since its last heartbeat (bit r % 8 of byte r / 8; missing bytes are
 *  0). An empty payload means late_ms 0 and no bits. */
typedef struct tw_msg_heartbeat {
    uint32_t late_ms, heard_bytes;
    const uint8_t *heard; /**< [heard_bytes], TW_MSG_HEARD_MAX at most */
} tw_msg_heartbeat_t;

void tw_msg_heartbeat_write(const tw_msg_heartbeat_t *heartbeat, tw_msg_writer_t *out);
tw_status_t tw_msg_heartbeat_parse(const uint8_t *in, size_t bytes, tw_msg_heartbeat_t *heartbeat);

/** GOODBYE: the number of messages that this rank has sent to each rank. */
void tw_msg_goodbye_write(const uint64_t *counts, uint32_t world, tw_msg_writer_t *out);
/** Parse GOODBYE into the caller's counts, [world]. */
tw_status_t tw_msg_goodbye_parse(const uint8_t *in, size_t bytes, uint32_t world, uint64_t *counts);

/** GONE: `rank` has said goodbye, after sending `count` messages to the rank that gets this GONE. */
void tw_msg_gone_write(uint32_t rank, uint64_t count, tw_msg_writer_t *out);
tw_status_t tw_msg_gone_parse(const uint8_t *in, size_t bytes, uint32_t *rank, uint64_t *count);

TW_C_END
