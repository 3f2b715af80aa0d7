/** Messages (messages.h) over a non-blocking TCP connection, signed or sealed once a session is set. Private
 *  to the folder.
 *
 *  Nothing here logs, and only wait and drain block. A connection belongs to one thread at a time. */
#pragma once

#include "transport/control/token.h"

TW_C_BEGIN

#define TW_CONNECTION_NAME_BYTES 64

typedef struct tw_connection {
    int fd; /**< -1: closed */
    /** errno of the last TW_ERR_IO; 0: the other side closed the connection */
    int error;
    char name[TW_CONNECTION_NAME_BYTES]; /**< address of the other end, for logs */
    tw_token_session_t session;
    uint8_t *in, *out;
    size_t in_bytes, in_capacity, consumed;
    int is_open; /**< 1: the header of the sealed message that is arriving has been decrypted */
    size_t out_bytes, out_capacity, out_sent;
    uint64_t heard_ns; /**< time when the last whole message arrived (tw_time_ns) */
} tw_connection_t;

typedef struct tw_connection_message {
    int type;
    const uint8_t *payload; /**< valid until the next call on the connection */
    uint32_t bytes;
} tw_connection_message_t;

/** Initialize a connection from a connected, non-blocking socket, which the connection owns from now on. */
void tw_connection_init(tw_connection_t *connection, int fd);
void tw_connection_cleanup(tw_connection_t *connection);
int tw_connection_is_open(const tw_connection_t *connection);

/** Queue a message and send as much as the socket takes. Returns TW_OK even if bytes are left to send.
 *  TW_ERR_IO, TW_ERR_NO_MEMORY. */
tw_status_t tw_connection_send(tw_connection_t *connection, int type, const void *payload, size_t bytes);
/** Do what tw_connection_send does, for a payload in a writer, which this call cleans up. TW_ERR_NO_MEMORY
 *  also if the writer has failed; TW_ERR_IO, without sending anything, if the connection is closed. */
tw_status_t tw_connection_send_written(tw_connection_t *connection, int type, tw_msg_writer_t *payload);
/** Send queued bytes. TW_OK: all are sent; TW_IN_PROGRESS: some are left; TW_ERR_IO. */
tw_status_t tw_connection_flush(tw_connection_t *connection);
int tw_connection_wants_write(const tw_connection_t *connection);

/** The bit of one message type in the set `accepted` below; bits are joined by |. */
#define TW_CONNECTION_ACCEPTS(type) (1u << (type))

/** Receive the next whole message without blocking. TW_IN_PROGRESS: it has not fully arrived. TW_ERR_FORMAT:
 *  garbage, or a type not in `accepted`; TW_ERR_AUTH: wrong hash, or it cannot be decrypted; TW_ERR_IO:
 *  closed or broken. After these errors the connection is unusable. */
tw_status_t tw_connection_receive(tw_connection_t *connection, unsigned accepted,
                                  tw_connection_message_t *message);

/** Return a deadline for the calls below: now plus `sec`. */
static inline uint64_t tw_connection_deadline(double sec)
{
    return tw_time_ns() + (uint64_t)(sec * 1e9);
}

/** Block until a message has arrived, sending queued bytes meanwhile. Errors as of tw_connection_receive, or
 *  TW_ERR_TIMEOUT. */
tw_status_t tw_connection_wait(tw_connection_t *connection, unsigned accepted, uint64_t deadline_ns,
                               tw_connection_message_t *message);
/** Block until all queued bytes are sent. */
tw_status_t tw_connection_drain(tw_connection_t *connection, uint64_t deadline_ns);

TW_C_END
