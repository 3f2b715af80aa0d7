/** Opens connections: connects, accepts, and does the greeting. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/control/socket.h"
#include "transport/devices.h"
#include "transport/p2p/tcp.h"

/** Pause between two attempts to connect. */
#define RETRY_NS 50000000u
/** Time limit for a stranger's proof, long as a rank may be stopped for a while; most strangers at a time. */
#define STRANGER_NS 60000000000u
#define STRANGERS_MAX 64
/** Pause before the next connection is accepted, when descriptors have run out. */
#define NO_DESCRIPTOR_NS 100000000u
/** Additional time of a connection's keep-alive probes if the owner watches its peers: more than any network
 *  queue takes to empty. */
#define WATCHED_SEC 20.0

/* ---- connecting ---------------------------------------------------------------------------------------- */

int tw_tcp_address_is_sound(const void *address, size_t bytes)
{
    tw_tcp_address_t head;
    if (bytes < sizeof(head)) {
        return 0;
    }
    memcpy(&head, address, sizeof(head));
    return head.port && head.n >= 1 && head.n <= TW_TCP_ADDRESSES_MAX &&
           bytes == sizeof(head) + 16 * (size_t)head.n;
}

/** Return this end's address of the kind of `theirs`, to connect from; NULL if there is none. */
static const uint8_t *own_address_for(const tw_tcp_device_t *device, const uint8_t *theirs)
{
    for (int i = 0; i < device->n_addresses; i++) {
        if (tw_net_address_kind(device->addresses[i]) == tw_net_address_kind(theirs)) {
            return device->addresses[i];
        }
    }
    return NULL;
}

static void warn_of_twin(tw_tcp_device_t *device, const char *twin, const char *why)
{
    if (!device->has_warned_of_twin) {
        device->has_warned_of_twin = 1;
        tw_warn("%s: %s and %s are in one subnet, and %s: what is sent may all leave by one of them",
                device->worker->p2p->name, device->name, twin, why);
    }
}

/** Return 1 if a connection with this address must be bound to the device, because another device is in the
 *  same subnet, and the routes would choose one of the two for all connections. */
static int is_to_be_bound(tw_tcp_device_t *device, const uint8_t *theirs, char twin[TW_DEVICES_NAME_BYTES])
{
    if (!tw_devices_twin(device->name, theirs, twin)) {
        return 0;
    }
    if (!tw_devices_can_bind()) {
        warn_of_twin(device, twin,
                     "this process may not bind sockets to devices (CAP_NET_RAW, or Linux 5.7)");
        return 0;
    }
    return 1;
}

/** Bind an accepted connection to the device on which it came in, so that answers leave there. Bound to
 *  another device, it would receive nothing any more. */
static void keep_to_device(tw_tcp_link_t *link)
{
    tw_tcp_device_t *device = link->device;
    char twin[TW_DEVICES_NAME_BYTES];
    uint8_t theirs[16];
    if (tw_socket_peer_address(link->fd, theirs) && is_to_be_bound(device, theirs, twin) &&
        !tw_socket_keep_to(link->fd, device->name, device->index)) {
        warn_of_twin(device, twin,
                     "each answers for the other's address (sysctl net.ipv4.conf.all.arp_ignore=1, "
                     "arp_announce=2)");
    }
}

/** Begin to connect to the next one of the peer's addresses. Returns the socket, or -1 with errno set. */
static int begin_socket(const tw_tcp_link_t *link)
{
    const uint8_t *told = link->stream->address;
    tw_tcp_device_t *device = link->device;
    tw_tcp_address_t head;
    char twin[TW_DEVICES_NAME_BYTES];
    memcpy(&head, told, sizeof(head));
    for (int i = 0; i < head.n; i++) {
        const uint8_t *theirs = told + sizeof(head) + 16 * (size_t)((link->n_tries + i) % head.n);
        const uint8_t *own = own_address_for(device, theirs);
        if (own) {
            const tw_socket_from_t from = {.own = own,
                                           .device = device->name,
                                           .index = device->index,
                                           .is_bound = is_to_be_bound(device, theirs, twin)};
            return tw_socket_begin_from(&from, theirs, head.port);
        }
    }
    errno = EADDRNOTAVAIL;
    return -1;
}

static void open_begin(tw_tcp_link_t *link)
{
    link->fd = begin_socket(link);
    link->n_tries++;
    if (link->fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        tw_error("%s: no descriptor is left for a connection: raise RLIMIT_NOFILE (ulimit -n)",
                 link->device->worker->p2p->name);
        tw_tcp_break(link, "no descriptor is left");
    } else if (link->fd < 0) {
        link->retry_ns = tw_time_ns() + RETRY_NS;
    } else if (!tw_tcp_watch(link)) {
        tw_tcp_break(link, "out of memory");
    }
}

tw_status_t tw_tcp_connect(tw_p2p_stream_t *stream)
{
    tw_tcp_link_t *link = tw_tcp_link_create(stream->worker->tcp, -1, TW_TCP_CONNECTING);
    if (!link) {
        return TW_ERR_NO_MEMORY;
    }
    link->stream = stream;
    stream->link = link;
    link->until_ns = tw_p2p_deadline(stream->peer->p2p);
    open_begin(link);
    return TW_OK;
}

/** Try again to connect later, until the time limit. The other end was not there, or busy. */
static void try_again(tw_tcp_link_t *link, const char *why)
{
    const uint64_t now = tw_time_ns();
    close(link->fd);
    link->fd = -1;
    tw_tcp_set_ready(link, 0);
    link->stage = TW_TCP_CONNECTING;
    link->can_write = 0;
    link->in_start = link->in_end = link->out_start = link->out_end = 0;
    link->n_written = link->n_read = link->n_acknowledged = link->stuck_ns = 0;
    link->retry_ns = now + RETRY_NS;
    if (now > link->until_ns) {
        tw_tcp_break(link, why);
    }
}

/* ---- accepting ----------------------------------------------------------------------------------------- */

/** Return the oldest stranger that has not sent HELLO; if all have, the oldest stranger. */
static tw_tcp_link_t *whom_to_send_away(const tw_tcp_device_t *device)
{
    tw_tcp_link_t *link, *oldest = NULL;
    TAILQ_FOREACH(link, &device->links, entry)
    {
        if (link->stage == TW_TCP_HELLO) {
            return link;
        }
        oldest = !oldest && link->stage == TW_TCP_PROOF ? link : oldest;
    }
    return oldest;
}

/** Count the connections that peers have yet to make. */
static int count_awaited(const tw_tcp_device_t *device)
{
    const tw_p2p_t *p2p = device->worker->p2p;
    int n = 0;
    for (int i = 0; i < p2p->n_peers; i++) {
        const tw_p2p_peer_t *peer = p2p->peers[i];
        for (int s = 0; peer && !peer->connects && s < peer->n_streams; s++) {
            n += !peer->streams[s].is_open;
        }
    }
    return n;
}

static void open_make_room(tw_tcp_device_t *device)
{
    if (device->n_strangers >= STRANGERS_MAX &&
        device->n_strangers >= STRANGERS_MAX + count_awaited(device)) {
        tw_tcp_drop(whom_to_send_away(device));
    }
}

static void accept_stranger(tw_tcp_device_t *device, int fd)
{
    open_make_room(device);
    tw_tcp_link_t *link = tw_tcp_link_create(device, fd, TW_TCP_HELLO);
    if (!link) {
        close(fd);
        return;
    }
    device->n_strangers++;
    link->until_ns = tw_time_ns() + STRANGER_NS;
    if (!tw_tcp_watch(link)) {
        tw_tcp_drop(link);
    }
}

void tw_tcp_accept(tw_tcp_device_t *device)
{
    int fd;
    while ((fd = tw_socket_accept(device->listener)) >= 0 || errno == ECONNABORTED || errno == EINTR) {
        if (fd >= 0) {
            accept_stranger(device, fd);
        }
    }
    if (errno != EAGAIN) {
        const int error = errno;
        char more[TW_STRANGERS_MORE_BYTES];
        if (tw_strangers_may_log(&device->worker->p2p->strangers, tw_time_ns(), more)) {
            tw_error("%s: %s: cannot take a connection, will try again: %s%s", device->worker->p2p->name,
                     device->name, strerror(error), more);
        }
        device->accept_ns = tw_time_ns() + NO_DESCRIPTOR_NS;
    }
}

/* ---- the greeting -------------------------------------------------------------------------------------- */

static void not_let_in(tw_tcp_link_t *link, const char *why)
{
    tw_p2p_t *p2p = link->device->worker->p2p;
    char name[80], more[TW_STRANGERS_MORE_BYTES];
    if (tw_strangers_may_log(&p2p->strangers, tw_time_ns(), more)) {
        tw_socket_peer_name(link->fd, name, sizeof(name));
        tw_debug("%s: %s: not let in: %s%s", p2p->name, name, why, more);
    }
    tw_tcp_drop(link);
}

/** Make the seals of both directions. Returns 0 if out of memory, or if the public key is invalid. */
static int seals_create(tw_tcp_link_t *link, int connects)
{
    uint8_t keys[2][TW_SEAL_KEY_BYTES];
    const tw_cipher_t cipher = (tw_cipher_t)link->greeting.cipher;
    if (cipher == TW_CIPHER_NONE) {
        return 1;
    }
    if (tw_greeting_keys(&link->greeting, connects, keys)) {
        return 0;
    }
    link->seal[0] = tw_seal_create(cipher, keys[!connects]);
    link->seal[1] = tw_seal_create(cipher, keys[connects]);
    memset(keys, 0, sizeof(keys));
    link->piece = malloc(TW_TCP_PIECE_BYTES + TW_SEAL_TAG_BYTES);
    return link->seal[0] && link->seal[1] && link->piece;
}

/** Return the time after which keep-alive probes give a connection up. Probes wait in network queues, and may
 *  be dropped there, so an owner that watches its peers knows better which are dead. */
static double keep_alive_sec(const tw_p2p_t *p2p)
{
    return p2p->params.timeout_sec + (p2p->params.hooks ? WATCHED_SEC : 0);
}

/** Open the stream, after both ends have proven themselves. */
static void open_stream(tw_tcp_link_t *link, int connects)
{
    tw_p2p_stream_t *stream = link->stream;
    if (!seals_create(link, connects)) {
        tw_tcp_break(link, "no keys for it");
        return;
    }
    tw_greeting_cleanup(&link->greeting);
    tw_socket_keep_alive(link->fd, keep_alive_sec(link->device->worker->p2p));
    link->stage = TW_TCP_OPEN;
    link->device->n_timed--;
    stream->is_open = 1;
    if (link->out_end || !TAILQ_EMPTY(&stream->waiting)) {
        tw_p2p_stream_set_busy(stream, 1);
    }
}

/** Find the stream that a HELLO is for; NULL if there is none, or it has a connection. */
static tw_p2p_stream_t *stream_for(const tw_tcp_device_t *device, const tw_greeting_hello_t *hello)
{
    tw_p2p_peer_t *peer =
        hello->source <= INT32_MAX ? tw_p2p_peer_find(device->worker->p2p, (int)hello->source) : NULL;
    if (!peer || peer->connects || !tw_p2p_peer_is_over_tcp(peer) || peer->has_failed ||
        hello->target != (uint32_t)peer->known_as || hello->stream >= (uint32_t)peer->n_streams ||
        hello->cipher != (uint32_t)peer->cipher) {
        return NULL;
    }
    tw_p2p_stream_t *stream = &peer->streams[hello->stream];
    return stream->worker == device->worker && !stream->link && !stream->broken ? stream : NULL;
}

static void of_another_version(tw_tcp_link_t *link)
{
    char name[80];
    if (!link->device->has_warned) {
        link->device->has_warned = 1;
        tw_socket_peer_name(link->fd, name, sizeof(name));
        tw_warn("%s: %s: not let in: it speaks another version of the protocol",
                link->device->worker->p2p->name, name);
    }
    tw_tcp_drop(link);
}

static void hear_hello(tw_tcp_link_t *link)
{
    uint8_t challenge[TW_GREETING_CHALLENGE_BYTES];
    tw_greeting_hello_t hello;
    const tw_status_t status = tw_greeting_hello_parse(link->in, &hello);
    const tw_p2p_stream_t *stream = status ? NULL : stream_for(link->device, &hello);
    if (status == TW_ERR_CONFIG) {
        of_another_version(link);
        return;
    }
    if (!stream) {
        not_let_in(link, "it is nobody who is expected");
        return;
    }
    tw_greeting_challenge_write(&link->greeting, link->in, stream->peer->key, challenge);
    link->stage = TW_TCP_PROOF;
    if (!tw_tcp_out_add(link, challenge, sizeof(challenge))) {
        tw_tcp_drop(link);
    }
}

/** Check a PROOF. Its stream may have gone, or got another connection, since HELLO. A peer with a wrong proof
 *  is told so, if the socket takes the message. */
static void hear_proof(tw_tcp_link_t *link)
{
    uint8_t welcome[TW_GREETING_WELCOME_BYTES];
    tw_greeting_hello_t hello;
    (void)tw_greeting_hello_parse(link->greeting.said, &hello);
    tw_p2p_stream_t *stream = stream_for(link->device, &hello);
    const tw_status_t status =
        stream ? tw_greeting_welcome_write(&link->greeting, link->in, welcome) : TW_ERR_AUTH;
    if (stream && !tw_tcp_out_add(link, welcome, sizeof(welcome))) {
        tw_tcp_drop(link);
    } else if (status) {
        int error = 0;
        (void)tw_tcp_out_flush(link, &error);
        not_let_in(link, "it does not prove who it is");
    } else {
        link->stream = stream;
        stream->link = link;
        link->device->n_strangers--;
        keep_to_device(link);
        open_stream(link, 0);
    }
}

static void say_hello(tw_tcp_link_t *link)
{
    const tw_p2p_stream_t *stream = link->stream;
    const tw_p2p_peer_t *peer = stream->peer;
    const tw_greeting_hello_t who = {.source = (uint32_t)peer->known_as,
                                     .target = (uint32_t)peer->id,
                                     .stream = (uint32_t)(stream - peer->streams),
                                     .cipher = (uint32_t)peer->cipher};
    uint8_t hello[TW_GREETING_HELLO_BYTES];
    tw_greeting_hello_write(&link->greeting, &who, peer->key, hello);
    link->stage = TW_TCP_CHALLENGE;
    if (!tw_tcp_out_add(link, hello, sizeof(hello))) {
        tw_tcp_break(link, "out of memory");
    }
}

static void hear_challenge(tw_tcp_link_t *link)
{
    uint8_t proof[TW_GREETING_PROOF_BYTES];
    tw_greeting_proof_write(&link->greeting, link->in, proof);
    link->stage = TW_TCP_WELCOME;
    if (!tw_tcp_out_add(link, proof, sizeof(proof))) {
        tw_tcp_break(link, "out of memory");
    }
}

static void hear_welcome(tw_tcp_link_t *link)
{
    tw_p2p_peer_t *peer = link->stream->peer;
    if (tw_greeting_welcome_check(&link->greeting, link->in)) {
        tw_p2p_peer_fail(peer->p2p, peer, "it does not hold the secret that both share (TW_JOB_TOKEN)");
        tw_tcp_break(link, "it does not hold the secret");
    } else {
        open_stream(link, 1);
    }
}

/** Continue after connecting has ended: begin the greeting, or if it failed try the next address. */
static void connected(tw_tcp_link_t *link)
{
    int error = 0;
    tw_status_t status = tw_socket_begun(link->fd, &error);
    if (status == TW_IN_PROGRESS) {
        tw_tcp_set_ready(link, 0);
    } else if (status) {
        try_again(link, strerror(error));
    } else {
        link->can_write = 1;
        say_hello(link);
    }
}

/** The next message of the greeting in each stage: its length, and its handler. */
static const struct {
    size_t bytes;
    void (*hear)(tw_tcp_link_t *link);
} expected[] = {
    [TW_TCP_CHALLENGE] = {TW_GREETING_CHALLENGE_BYTES, hear_challenge},
    [TW_TCP_WELCOME] = {TW_GREETING_WELCOME_BYTES, hear_welcome},
    [TW_TCP_HELLO] = {TW_GREETING_HELLO_BYTES, hear_hello},
    [TW_TCP_PROOF] = {TW_GREETING_PROOF_BYTES, hear_proof},
};

/** Handle a lost connection. Before WELCOME, try again, as the other end may have had too many strangers. */
static void lost(tw_tcp_link_t *link, int error)
{
    const char *why = error ? strerror(error) : "closed by the other end";
    if (link->stage == TW_TCP_CHALLENGE || link->stage == TW_TCP_WELCOME) {
        try_again(link, why);
    } else {
        not_let_in(link, why);
    }
}

/** Read the next message of the greeting, and no more: what follows may be used only after the proof. Returns
 *  1 if the whole message has come. */
static int open_hear(tw_tcp_link_t *link)
{
    int error = 0;
    const size_t bytes = expected[link->stage].bytes;
    const struct iovec piece = {link->in + link->in_end, bytes - link->in_end};
    const ssize_t got = tw_tcp_read(link, &piece, 1, &error);
    if (got < 0) {
        lost(link, error);
        return 0;
    }
    link->in_end += (size_t)got;
    if (link->in_end < bytes) {
        return 0;
    }
    link->in_end = 0;
    expected[link->stage].hear(link);
    return 1;
}

static void flush_greeting(tw_tcp_link_t *link)
{
    int error = 0;
    if (link->stage < TW_TCP_OPEN && link->fd >= 0 && tw_tcp_out_flush(link, &error) < 0) {
        lost(link, error);
    }
}

int tw_tcp_greet(tw_tcp_link_t *link)
{
    int n = 0;
    if (link->stage == TW_TCP_CONNECTING) {
        connected(link);
    }
    while (link->stage > TW_TCP_CONNECTING && link->stage < TW_TCP_OPEN && link->is_ready &&
           open_hear(link)) {
        n++;
    }
    flush_greeting(link);
    return n > 0;
}

/* ---- the clock ----------------------------------------------------------------------------------------- */

void tw_tcp_look_at_clock(tw_tcp_device_t *device)
{
    const uint64_t now = tw_time_ns();
    const int looks = now >= device->worker->p2p->watch_ns;
    tw_tcp_link_t *link, *next;
    for (link = TAILQ_FIRST(&device->links); link; link = next) {
        next = TAILQ_NEXT(link, entry);
        if (link->stage == TW_TCP_CONNECTING && link->fd < 0 && now > link->retry_ns) {
            open_begin(link);
        } else if (looks && link->fd >= 0 && link->stage <= TW_TCP_WELCOME &&
                   tw_tcp_is_unanswered(link, now)) {
            try_again(link, "nothing is acknowledged");
        } else if ((link->stage == TW_TCP_HELLO || link->stage == TW_TCP_PROOF) && now > link->until_ns) {
            not_let_in(link, "it takes too long");
        } else if (link->stage == TW_TCP_LEAVING && now > link->until_ns) {
            tw_tcp_drop(link);
        }
    }
}
