#include "transport/control/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/control/socket.h"

#define IN_START_BYTES 256
/** A buffer that has grown beyond this size, for a large message, is freed after use. */
#define KEEP_BYTES 65536

void tw_connection_init(tw_connection_t *connection, int fd)
{
    *connection = (tw_connection_t){.fd = fd, .heard_ns = tw_time_ns()};
    tw_socket_peer_name(fd, connection->name, sizeof(connection->name));
}

void tw_connection_cleanup(tw_connection_t *connection)
{
    if (connection->fd >= 0) {
        close(connection->fd);
    }
    free(connection->in);
    free(connection->out);
    tw_token_session_cleanup(&connection->session);
    *connection = (tw_connection_t){.fd = -1};
}

int tw_connection_is_open(const tw_connection_t *connection)
{
    return connection->fd >= 0;
}

/** Return the status of a read or write with this result. TW_IN_PROGRESS: the socket can do no more now. */
static tw_status_t io_status(tw_connection_t *connection, ssize_t result)
{
    if (result > 0) {
        return TW_OK;
    }
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
        return TW_IN_PROGRESS;
    }
    connection->error = result < 0 ? errno : 0;
    return TW_ERR_IO;
}

static void shrink(uint8_t **buffer, size_t *capacity)
{
    if (*capacity <= KEEP_BYTES) {
        return;
    }
    free(*buffer);
    *buffer = NULL;
    *capacity = 0;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static int connection_reserve(uint8_t **buffer, size_t *capacity, size_t bytes)
{
    if (bytes <= *capacity) {
        return 1;
    }
    uint8_t *grown = realloc(*buffer, bytes);
    if (!grown) {
        return 0;
    }
    *buffer = grown;
    *capacity = bytes;
    return 1;
}

/** Offset of a message's payload on the wire, and total length of the message. */
typedef struct frame {
    size_t payload_at, total;
} frame_t;

static frame_t frame_of(const tw_seal_t *seal, int is_signed, size_t bytes)
{
    const size_t header_bytes = TW_MSG_HEADER_BYTES + (seal ? TW_SEAL_TAG_BYTES : 0);
    const size_t tail_bytes = seal ? TW_SEAL_TAG_BYTES : is_signed ? TW_TOKEN_MAC_BYTES : 0;
    return (frame_t){header_bytes, header_bytes + bytes + tail_bytes};
}

tw_status_t tw_connection_send(tw_connection_t *connection, int type, const void *payload, size_t bytes)
{
    const int is_signed = tw_msg_is_signed(type);
    tw_seal_t *seal = connection->session.seal[0];
    const frame_t frame = frame_of(seal, is_signed, bytes);
    const size_t needed = connection->out_bytes + frame.total;
    const tw_msg_header_t header = {type, (uint32_t)bytes};
    if (!connection_reserve(&connection->out, &connection->out_capacity, needed)) {
        return TW_ERR_NO_MEMORY;
    }
    uint8_t *start = connection->out + connection->out_bytes, *body = start + frame.payload_at;
    tw_msg_header_write(&header, start);
    if (bytes) {
        memcpy(body, payload, bytes);
    }
    if (seal) {
        tw_seal_close(seal, start, TW_MSG_HEADER_BYTES, start);
        tw_seal_close(seal, body, bytes, body);
    } else if (is_signed) {
        tw_token_sign(&connection->session, start, body, bytes, body + bytes);
    }
    connection->out_bytes = needed;
    tw_status_t status = tw_connection_flush(connection);
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

tw_status_t tw_connection_send_written(tw_connection_t *connection, int type, tw_msg_writer_t *payload)
{
    tw_status_t status = payload->failed ? TW_ERR_NO_MEMORY : TW_ERR_IO;
    if (!payload->failed && tw_connection_is_open(connection)) {
        status = tw_connection_send(connection, type, payload->data, payload->bytes);
    }
    tw_msg_writer_cleanup(payload);
    return status;
}

tw_status_t tw_connection_flush(tw_connection_t *connection)
{
    while (connection->out_sent < connection->out_bytes) {
        const ssize_t sent = send(connection->fd, connection->out + connection->out_sent,
                                  connection->out_bytes - connection->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        TW_TRY(io_status(connection, sent));
        connection->out_sent += (size_t)sent;
    }
    connection->out_sent = connection->out_bytes = 0;
    shrink(&connection->out, &connection->out_capacity);
    return TW_OK;
}

int tw_connection_wants_write(const tw_connection_t *connection)
{
    return connection->out_bytes > 0;
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

/** Read until `bytes` of the message have arrived. The buffer grows with the bytes that arrive, not to the
 *  length in the header, which could be forged. */
static tw_status_t connection_fill(tw_connection_t *connection, size_t bytes)
{
    while (connection->in_bytes < bytes) {
        size_t room = 2 * connection->in_bytes + IN_START_BYTES;
        if (room > bytes) {
            room = bytes;
        }
        if (!connection_reserve(&connection->in, &connection->in_capacity, room)) {
            return TW_ERR_NO_MEMORY;
        }
        const ssize_t got = recv(connection->fd, connection->in + connection->in_bytes,
                                 room - connection->in_bytes, MSG_DONTWAIT);
        TW_TRY(io_status(connection, got));
        connection->in_bytes += (size_t)got;
    }
    return TW_OK;
}

static void consume(tw_connection_t *connection)
{
    memmove(connection->in, connection->in + connection->consumed,
            connection->in_bytes - connection->consumed);
    connection->in_bytes -= connection->consumed;
    connection->consumed = 0;
    if (!connection->in_bytes) {
        shrink(&connection->in, &connection->in_capacity);
    }
}

/** Read the header of the next message. Decrypts a sealed header, but only once. */
static tw_status_t read_header(tw_connection_t *connection, tw_msg_header_t *header)
{
    tw_seal_t *seal = connection->session.seal[1];
    TW_TRY(connection_fill(connection, frame_of(seal, 0, 0).payload_at));
    if (seal && !connection->is_open) {
        TW_TRY(tw_seal_open(seal, connection->in, TW_MSG_HEADER_BYTES, connection->in));
        connection->is_open = 1;
    }
    return tw_msg_header_parse(connection->in, header);
}

tw_status_t tw_connection_receive(tw_connection_t *connection, unsigned accepted,
                                  tw_connection_message_t *message)
{
    tw_msg_header_t header;
    tw_seal_t *seal = connection->session.seal[1];
    if (connection->consumed) {
        consume(connection);
    }
    TW_TRY(read_header(connection, &header));
    if (!(accepted & TW_CONNECTION_ACCEPTS(header.type))) {
        return TW_ERR_FORMAT;
    }
    const int is_signed = tw_msg_is_signed(header.type);
    const frame_t frame = frame_of(seal, is_signed, header.bytes);
    TW_TRY(connection_fill(connection, frame.total));
    uint8_t *payload = connection->in + frame.payload_at;
    if (seal) {
        TW_TRY(tw_seal_open(seal, payload, header.bytes, payload));
    } else if (is_signed) {
        TW_TRY(tw_token_verify(&connection->session, connection->in, payload, header.bytes,
                               payload + header.bytes));
    }
    *message = (tw_connection_message_t){header.type, payload, header.bytes};
    connection->is_open = 0;
    connection->consumed = frame.total;
    connection->heard_ns = tw_time_ns();
    return TW_OK;
}

/* ---- blocking ------------------------------------------------------------------------------------------ */

/** Wait until the socket is ready. TW_OK: it may be; TW_ERR_TIMEOUT. */
static tw_status_t wait_ready(tw_connection_t *connection, short events, uint64_t deadline_ns)
{
    const uint64_t now = tw_time_ns();
    struct pollfd pollfd = {.fd = connection->fd, .events = events};
    if (now >= deadline_ns) {
        return TW_ERR_TIMEOUT;
    }
    if (tw_connection_wants_write(connection)) {
        pollfd.events |= POLLOUT;
    }
    (void)poll(&pollfd, 1, (int)((deadline_ns - now) / 1000000 + 1));
    return TW_OK;
}

tw_status_t tw_connection_wait(tw_connection_t *connection, unsigned accepted, uint64_t deadline_ns,
                               tw_connection_message_t *message)
{
    for (;;) {
        tw_status_t status = tw_connection_flush(connection);
        if (status >= 0) {
            status = tw_connection_receive(connection, accepted, message);
        }
        if (status == TW_IN_PROGRESS) {
            status = wait_ready(connection, POLLIN, deadline_ns) ? TW_ERR_TIMEOUT : TW_IN_PROGRESS;
        }
        if (status != TW_IN_PROGRESS) {
            return status;
        }
    }
}

tw_status_t tw_connection_drain(tw_connection_t *connection, uint64_t deadline_ns)
{
    tw_status_t status;
    while ((status = tw_connection_flush(connection)) == TW_IN_PROGRESS) {
        if (wait_ready(connection, 0, deadline_ns)) {
            return TW_ERR_TIMEOUT;
        }
    }
    return status;
}
