/** Messages (messages.h) over a non-blocking TCP connection, signed or sealed once a session is set. Private
 *  to the folder.
 *
 *  Nothing here logs or blocks; a connection belongs to one thread at a time. */
#pragma once

#include "transport/control/token.h"

TW_C_BEGIN

#define TW_CONNECTION_NAME_BYTES 64

typedef struct tw_connection {
    int fd; /**< -1: closed */
    /** errno of the last TW_ERR_IO; 0: the other side closed the connection */
    int error;
    char name[TW_CONNECTION_NAME_BYTES]; /**< the other end's address, for logs */
    tw_token_session_t session;
    uint8_t *in, *out;
    size_t in_bytes, in_capacity, consumed;
    int is_open; /**< 1: the header of the sealed message that is arriving has been opened */
    size_t out_bytes, out_capacity, out_sent;
    uint64_t heard_ns; /**< tw_time_ns of the last whole message */
} tw_connection_t;

typedef struct tw_connection_message {
    int type;
    const uint8_t *payload; /**< valid until the next call on the connection */
    uint32_t bytes;
} tw_connection_message_t;

/** Make a connection of a connected, non-blocking socket, which it owns from now on. */
void tw_connection_init(tw_connection_t *connection, int fd);
void tw_connection_cleanup(tw_connection_t *connection);
int tw_connection_is_open(const tw_connection_t *connection);

/** Queue a message and send what the socket takes. TW_OK even if some of it still waits. TW_ERR_IO,
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_connection_send(tw_connection_t *connection, int type, const void *payload, size_t bytes);
/** The same for a payload in a writer, which this cleans up. TW_ERR_NO_MEMORY also if the writer has failed;
 *  TW_ERR_IO, and nothing is sent, on a closed connection. */
tw_status_t tw_connection_send_written(tw_connection_t *connection, int type, tw_msg_writer_t *payload);
/** Send what waits. TW_OK: nothing waits any more; TW_IN_PROGRESS; TW_ERR_IO. */
tw_status_t tw_connection_flush(tw_connection_t *connection);
int tw_connection_wants_write(const tw_connection_t *connection);

/** A set with one type of message; sets are joined by |. */
#define TW_CONNECTION_ACCEPTS(type) (1u << (type))

/** Receive the next whole message, as far as it has arrived. TW_IN_PROGRESS: not yet. TW_ERR_FORMAT: garbage,
 *  or a type not in `accepted`; TW_ERR_AUTH: wrong hash, or it does not open; TW_ERR_IO: closed or broken;
 *  after these errors the connection is of no use. */
tw_status_t tw_connection_receive(tw_connection_t *connection, unsigned accepted,
                                  tw_connection_message_t *message);

/** A deadline for the calls below, so long from now. */
static inline uint64_t tw_connection_deadline(double sec)
{
    return tw_time_ns() + (uint64_t)(sec * 1e9);
}

/** Block until a message has arrived, sending what waits meanwhile. As tw_connection_receive, or
 *  TW_ERR_TIMEOUT. */
tw_status_t tw_connection_wait(tw_connection_t *connection, unsigned accepted, uint64_t deadline_ns,
                               tw_connection_message_t *message);
/** Block until all is sent. */
tw_status_t tw_connection_drain(tw_connection_t *connection, uint64_t deadline_ns);

TW_C_END
