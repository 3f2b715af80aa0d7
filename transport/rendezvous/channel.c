#include "transport/rendezvous/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/rendezvous/socket.h"

#define IN_START_BYTES 256
/** A buffer that one large message has blown up beyond this is given back. */
#define KEEP_BYTES 65536

void tw_channel_init(tw_channel_t *channel, int fd)
{
    *channel = (tw_channel_t){.fd = fd, .heard_ns = tw_time_ns()};
    tw_socket_peer_name(fd, channel->name, sizeof(channel->name));
}

void tw_channel_cleanup(tw_channel_t *channel)
{
    if (channel->fd >= 0) {
        close(channel->fd);
    }
    free(channel->in);
    free(channel->out);
    tw_token_key_cleanup(&channel->session.send_key);
    tw_token_key_cleanup(&channel->session.recv_key);
    *channel = (tw_channel_t){.fd = -1};
}

int tw_channel_is_open(const tw_channel_t *channel)
{
    return channel->fd >= 0;
}

/** TW_IN_PROGRESS: the socket can do no more now. */
static tw_status_t io_status(tw_channel_t *channel, ssize_t result)
{
    if (result > 0) {
        return TW_OK;
    }
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
        return TW_IN_PROGRESS;
    }
    channel->error = result < 0 ? errno : 0;
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

/* ---- sending ----------------------------------------------------------------------------------------------- */

static int reserve(uint8_t **buffer, size_t *capacity, size_t bytes)
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

tw_status_t tw_channel_send(tw_channel_t *channel, int type, const void *payload, size_t bytes)
{
    const size_t mac_bytes = tw_msg_is_signed(type) ? TW_TOKEN_MAC_BYTES : 0;
    const size_t needed = channel->out_bytes + TW_MSG_HEADER_BYTES + bytes + mac_bytes;
    const tw_msg_header_t header = {type, (uint32_t)bytes};
    if (!reserve(&channel->out, &channel->out_capacity, needed)) {
        return TW_ERR_NO_MEMORY;
    }
    uint8_t *start = channel->out + channel->out_bytes;
    tw_msg_header_write(&header, start);
    if (bytes) {
        memcpy(start + TW_MSG_HEADER_BYTES, payload, bytes);
    }
    if (mac_bytes) {
        tw_token_sign(&channel->session, start, start + TW_MSG_HEADER_BYTES, bytes,
                      start + TW_MSG_HEADER_BYTES + bytes);
    }
    channel->out_bytes = needed;
    tw_status_t status = tw_channel_flush(channel);
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

tw_status_t tw_channel_flush(tw_channel_t *channel)
{
    while (channel->out_sent < channel->out_bytes) {
        const ssize_t sent = send(channel->fd, channel->out + channel->out_sent,
                                  channel->out_bytes - channel->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        tw_status_t status = io_status(channel, sent);
        if (status) {
            return status;
        }
        channel->out_sent += (size_t)sent;
    }
    channel->out_sent = channel->out_bytes = 0;
    shrink(&channel->out, &channel->out_capacity);
    return TW_OK;
}

int tw_channel_wants_write(const tw_channel_t *channel)
{
    return channel->out_bytes > 0;
}

/* ---- receiving --------------------------------------------------------------------------------------------- */

/** Read until `bytes` of the message are there. Memory grows with what has come, not with what was announced. */
static tw_status_t fill(tw_channel_t *channel, size_t bytes)
{
    while (channel->in_bytes < bytes) {
        size_t room = 2 * channel->in_bytes + IN_START_BYTES;
        if (room > bytes) {
            room = bytes;
        }
        if (!reserve(&channel->in, &channel->in_capacity, room)) {
            return TW_ERR_NO_MEMORY;
        }
        const ssize_t got =
            recv(channel->fd, channel->in + channel->in_bytes, room - channel->in_bytes, MSG_DONTWAIT);
        tw_status_t status = io_status(channel, got);
        if (status) {
            return status;
        }
        channel->in_bytes += (size_t)got;
    }
    return TW_OK;
}

static void consume(tw_channel_t *channel)
{
    memmove(channel->in, channel->in + channel->consumed, channel->in_bytes - channel->consumed);
    channel->in_bytes -= channel->consumed;
    channel->consumed = 0;
    if (!channel->in_bytes) {
        shrink(&channel->in, &channel->in_capacity);
    }
}

tw_status_t tw_channel_receive(tw_channel_t *channel, unsigned accepted, tw_channel_message_t *message)
{
    tw_msg_header_t header;
    if (channel->consumed) {
        consume(channel);
    }
    tw_status_t status = fill(channel, TW_MSG_HEADER_BYTES);
    if (!status) {
        status = tw_msg_header_parse(channel->in, &header);
    }
    if (status) {
        return status;
    }
    if (!(accepted & TW_CHANNEL_ACCEPTS(header.type))) {
        return TW_ERR_FORMAT;
    }
    const size_t mac_bytes = tw_msg_is_signed(header.type) ? TW_TOKEN_MAC_BYTES : 0;
    const size_t total = TW_MSG_HEADER_BYTES + (size_t)header.bytes + mac_bytes;
    status = fill(channel, total);
    if (status) {
        return status;
    }
    const uint8_t *payload = channel->in + TW_MSG_HEADER_BYTES;
    if (mac_bytes) {
        status =
            tw_token_verify(&channel->session, channel->in, payload, header.bytes, payload + header.bytes);
    }
    if (status) {
        return status;
    }
    *message = (tw_channel_message_t){header.type, payload, header.bytes};
    channel->consumed = total;
    channel->heard_ns = tw_time_ns();
    return TW_OK;
}

/* ---- blocking ---------------------------------------------------------------------------------------------- */

/** TW_OK: look again; TW_ERR_TIMEOUT. */
static tw_status_t wait_ready(tw_channel_t *channel, short events, uint64_t deadline_ns)
{
    const uint64_t now = tw_time_ns();
    struct pollfd pollfd = {.fd = channel->fd, .events = events};
    if (now >= deadline_ns) {
        return TW_ERR_TIMEOUT;
    }
    if (tw_channel_wants_write(channel)) {
        pollfd.events |= POLLOUT;
    }
    (void)poll(&pollfd, 1, (int)((deadline_ns - now) / 1000000 + 1));
    return TW_OK;
}

tw_status_t tw_channel_wait(tw_channel_t *channel, unsigned accepted, uint64_t deadline_ns,
                            tw_channel_message_t *message)
{
    for (;;) {
        tw_status_t status = tw_channel_flush(channel);
        if (status >= 0) {
            status = tw_channel_receive(channel, accepted, message);
        }
        if (status == TW_IN_PROGRESS) {
            status = wait_ready(channel, POLLIN, deadline_ns) ? TW_ERR_TIMEOUT : TW_IN_PROGRESS;
        }
        if (status != TW_IN_PROGRESS) {
            return status;
        }
    }
}

tw_status_t tw_channel_drain(tw_channel_t *channel, uint64_t deadline_ns)
{
    tw_status_t status;
    while ((status = tw_channel_flush(channel)) == TW_IN_PROGRESS) {
        if (wait_ready(channel, 0, deadline_ns)) {
            return TW_ERR_TIMEOUT;
        }
    }
    return status;
}
