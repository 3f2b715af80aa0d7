/** A rank's side of the registry. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plugin/interpose/registry.h"

#define ANSWER_SEC 20.0 /**< longest time for an answer, in addition to wait_ms */

/** Wait for events of the socket. Returns 1 once there are any, or 0 at end_sec. */
static int wait_until(int fd, short events, double end_sec)
{
    for (;;) {
        double left = end_sec - tw_time_sec();
        struct pollfd wait = {.fd = fd, .events = events};
        int n = poll(&wait, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (n > 0 || (n == 0 && left <= 0)) {
            return n;
        }
        if (n < 0 && errno != EINTR) {
            return 0;
        }
    }
}

static int registry_connect(const tw_ip_place_t *place, double end_sec)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(place->port)};
    int off = 0, error = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof(error);
    memcpy(&at.sin6_addr, place->address, 16);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if ((connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 || errno == EINPROGRESS) &&
        wait_until(fd, POLLOUT, end_sec) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 &&
        error == 0) {
        return fd;
    }
    (void)close(fd);
    return -1;
}

static int registry_receive(int fd, void *message, size_t bytes, double end_sec)
{
    size_t n_bytes = 0;
    while (n_bytes < bytes && wait_until(fd, POLLIN, end_sec)) {
        ssize_t n = recv(fd, (char *)message + n_bytes, bytes - n_bytes, 0);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
            return 0;
        }
        n_bytes += n > 0 ? (size_t)n : 0;
    }
    return n_bytes == bytes;
}

static int send_all(int fd, const void *message, size_t bytes)
{
    return send(fd, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/** Connect, and check that the registry has the meeting's key. Returns the socket, or -1 if none answered. */
static int reach(const tw_ip_place_t *place, double end_sec, tw_ip_session_t *session)
{
    tw_ip_hello_t hello;
    tw_ip_welcome_t in;
    int fd = sodium_init() >= 0 ? registry_connect(place, end_sec) : -1;
    if (fd < 0) {
        return -1;
    }
    memcpy(hello.name, place->name, sizeof(hello.name));
    randombytes_buf(hello.nonce, sizeof(hello.nonce));
    memcpy(session->key, place->key, sizeof(session->key));
    memcpy(session->rank_nonce, hello.nonce, sizeof(hello.nonce));
    if (send_all(fd, &hello, sizeof(hello)) && registry_receive(fd, &in, sizeof(in), end_sec)) {
        memcpy(session->registry_nonce, in.nonce, sizeof(in.nonce));
        if (tw_ip_is_signed(session, 'w', in.nonce, sizeof(in.nonce), in.mac)) {
            return fd;
        }
    }
    (void)close(fd);
    return -1;
}

static int registry_exchange(int fd, const tw_ip_session_t *session, tw_ip_what_t what,
                             const tw_ip_entry_t *entry, tw_ip_answer_t *answer)
{
    double wait_sec = ANSWER_SEC + (what == TW_IP_ASK ? entry->wait_ms * 1e-3 : 0);
    tw_ip_question_t out;
    tw_ip_reply_t in;
    memset(&out, 0, sizeof(out));
    out.what = (uint64_t)what;
    out.entry = *entry;
    tw_ip_sign(session, 'q', &out, offsetof(tw_ip_question_t, mac), out.mac);
    TW_FAIL_IF(!send_all(fd, &out, sizeof(out)) ||
                   !registry_receive(fd, &in, sizeof(in), tw_time_sec() + wait_sec) ||
                   !tw_ip_is_signed(session, 'a', &in.answer, sizeof(in.answer), in.mac),
               0, "nccl: rank %u of %u: the process that made the communicator's id does not answer",
               entry->rank, entry->world);
    *answer = in.answer;
    answer->said[sizeof(answer->said) - 1] = '\0';
    return 1;
}

tw_status_t tw_ip_registry_register(const tw_ip_place_t *place, const tw_ip_entry_t *entry,
                                    double connect_sec)
{
    tw_ip_session_t session;
    tw_ip_answer_t none;
    int fd = reach(place, tw_time_sec() + connect_sec, &session);
    if (fd < 0) {
        return TW_ERR_NOT_FOUND;
    }
    int is_done = registry_exchange(fd, &session, TW_IP_REGISTER, entry, &none);
    (void)close(fd);
    return is_done ? TW_OK : TW_ERR_PEER;
}

tw_status_t tw_ip_registry_ask(const tw_ip_place_t *place, const tw_ip_entry_t *entry, tw_ip_answer_t *answer)
{
    tw_ip_session_t session;
    int fd = reach(place, tw_time_sec() + ANSWER_SEC, &session);
    TW_FAIL_IF(fd < 0, TW_ERR_PEER,
               "nccl: rank %u of %u: the process that made the communicator's id cannot be reached any more",
               entry->rank, entry->world);
    int is_done = registry_exchange(fd, &session, TW_IP_ASK, entry, answer);
    (void)close(fd);
    return is_done && answer->verdict != 0 ? TW_OK : TW_ERR_PEER;
}
