/* Bytes from a stranger: as a stream that a connection reads from a socket, and as the payload of each
 * message. First byte: 0, a stream; else the type of a payload. */
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "transport/control/connection.h"

namespace
{

constexpr uint32_t world = 3;

void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* What a connection takes from the stream is always a whole message, of a type it accepts, within the type's
 * size; without the token, none that is signed. */
void stream(const uint8_t *data, size_t bytes)
{
    int fds[2];
    tw_connection_t connection;
    tw_connection_message_t message;
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    check(bytes <= 65536 && write(fds[0], data, bytes) == (ssize_t)bytes);
    close(fds[0]);
    tw_connection_init(&connection, fds[1]);
    tw_token_random(&connection.session.send_key, sizeof(connection.session.send_key));
    tw_token_random(&connection.session.recv_key, sizeof(connection.session.recv_key));
    tw_status_t status;
    while ((status = tw_connection_receive(&connection, ~0u, &message)) == TW_OK) {
        check(message.type == TW_MSG_HELLO || message.type == TW_MSG_CHALLENGE);
        check(message.bytes <= TW_MSG_NONCE_BYTES + TW_MSG_SHARE_BYTES);
    }
    check(status == TW_ERR_IO || status == TW_ERR_FORMAT || status == TW_ERR_AUTH);
    check(connection.in_capacity <= 2 * bytes + 512);
    tw_connection_cleanup(&connection);
}

void blobs(const uint8_t *data, size_t bytes)
{
    tw_msg_blob_t list[world];
    uint32_t n = 0;
    if (tw_msg_blobs_parse(data, bytes, world, list, &n)) {
        return;
    }
    check(n <= world);
    for (uint32_t i = 0; i < n; i++) {
        check(list[i].data >= data && list[i].data + list[i].bytes <= data + bytes);
    }
}

void notice(const uint8_t *data, size_t bytes)
{
    tw_msg_notice_t parsed;
    if (!tw_msg_notice_parse(data, bytes, &parsed)) {
        check(strnlen(parsed.text, sizeof(parsed.text)) == bytes - 4);
    }
}

void heartbeat(const uint8_t *data, size_t bytes)
{
    tw_msg_heartbeat_t parsed;
    if (!tw_msg_heartbeat_parse(data, bytes, &parsed)) {
        check(parsed.heard_bytes + (bytes ? 4 : 0) == bytes);
    }
}

/* What is parsed and written again is the same, but for texts and for what a newer version may say behind
 * them. */
void join(const uint8_t *data, size_t bytes)
{
    tw_msg_join_t parsed;
    tw_msg_writer_t again = {};
    if (tw_msg_join_parse(data, bytes, &parsed)) {
        return;
    }
    tw_msg_join_write(&parsed, &again);
    const size_t without_tls = again.bytes - 4 - sizeof(parsed.who.net_tls) - sizeof(parsed.who.node_tls),
                 numbers = without_tls - sizeof(parsed.version) - sizeof(parsed.who.ucx);
    check(!again.failed && (bytes == numbers || bytes == without_tls || bytes >= again.bytes) &&
          !memcmp(again.data, data, numbers));
    check(memchr(parsed.who.net_tls, 0, sizeof(parsed.who.net_tls)) &&
          memchr(parsed.who.node_tls, 0, sizeof(parsed.who.node_tls)));
    check(memchr(parsed.version, 0, sizeof(parsed.version)) &&
          memchr(parsed.who.ucx, 0, sizeof(parsed.who.ucx)));
    tw_msg_writer_cleanup(&again);
}

void payload(int type, const uint8_t *data, size_t bytes)
{
    tw_msg_settings_t settings;
    tw_msg_member_t members[world];
    uint64_t counts[world], count;
    uint32_t rank;
    switch (type) {
    case TW_MSG_JOIN:
        return join(data, bytes);
    case TW_MSG_MEMBERS:
        if (!tw_msg_members_parse(data, bytes, world, &settings, members)) {
            check(strnlen(settings.device, sizeof(settings.device)) < sizeof(settings.device));
        }
        return;
    case TW_MSG_ADDRESSES:
        return blobs(data, bytes);
    case TW_MSG_HEARTBEAT:
        return heartbeat(data, bytes);
    case TW_MSG_GOODBYE:
        return (void)tw_msg_goodbye_parse(data, bytes, world, counts);
    case TW_MSG_GONE:
        return (void)tw_msg_gone_parse(data, bytes, &rank, &count);
    default:
        return notice(data, bytes);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 65536) {
        return 0;
    }
    if (data[0] == 0) {
        stream(data + 1, size - 1);
    } else {
        payload(data[0], data + 1, size - 1);
    }
    return 0;
}
