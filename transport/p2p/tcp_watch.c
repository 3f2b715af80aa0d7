/** Finds connections that are dead while others work.
 *
 *  (1) Sent data is not acknowledged, though the kernel resends it again and again. The kernel itself gives
 *  up only after 15 minutes. TCP_USER_TIMEOUT would also end connections to a peer that lives but does not
 *  read. (2) Sent data is acknowledged by a middlebox that then drops it; or an end waits for data while a
 *  middlebox has forgotten the connection. The kernel cannot know. So each end tells on another connection
 *  how much it has read of this one. It also sends its own time, and repeats the peer's: an end that gets its
 *  own time back knows that the peer has read something after that time. A connection is dead only if this
 *  has happened and nothing has moved on it since. A pause of a process, or a long queue of both connections,
 *  does not look like this.
 *
 *  A peer that does not read may be busy. It then says nothing, and is not judged. */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "transport/p2p/tcp.h"

/** Number of checks of all connections per timeout. */
#define CHECKS 32
/** A connection is dead after this share of the timeout. With hooks, the owner needs a quarter to judge. */
#define SHARE_WATCHED 0.65
#define SHARE_ALONE 0.9
/** While much data moves on one connection, another may stand still for as long as a network queue takes to
 *  fill and to empty, including resends: QUEUE_NS, as in the monitor. MUCH_BYTES between two checks are much,
 *  and count as such for MOVING_SHARE of the timeout. */
#define QUEUE_NS 5000000000ull
#define MUCH_BYTES 4096
#define MOVING_SHARE 0.25
/** Most ALIVEs to a peer that does not answer, as it may not read for long: those of one timeout. */
#define UNHEARD_MAX CHECKS

static uint64_t limit_ns(const tw_p2p_t *p2p, uint64_t now)
{
    const double timeout_ns = p2p->params.timeout_sec * 1e9;
    const int is_moving = p2p->moved_ns && now < p2p->moved_ns + (uint64_t)(timeout_ns * MOVING_SHARE);
    return (uint64_t)(timeout_ns * (p2p->params.hooks ? SHARE_WATCHED : SHARE_ALONE)) +
           (is_moving ? QUEUE_NS : 0);
}

int tw_tcp_is_unanswered(tw_tcp_link_t *link, uint64_t now)
{
    const uint64_t limit = limit_ns(link->device->worker->p2p, now);
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    int unacknowledged = 0;
    if (getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
        ioctl(link->fd, SIOCOUTQ, &unacknowledged)) {
        return 0;
    }
    const uint64_t n_acknowledged = link->n_written - (uint64_t)unacknowledged;
    if (!info.tcpi_retransmits || n_acknowledged != link->n_acknowledged) {
        link->n_acknowledged = n_acknowledged;
        link->stuck_ns = 0;
        return 0;
    }
    link->stuck_ns = link->stuck_ns ? link->stuck_ns : now;
    return now - link->stuck_ns >= limit && info.tcpi_last_ack_recv >= limit / 1000000;
}

/* ---- both ends tell ------------------------------------------------------------------------------------ */

const char *tw_tcp_hear_alive(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    const uint64_t now = tw_time_ns();
    if (header->stream >= (uint32_t)peer->n_streams || header->value > now) {
        return "it tells of what there is not";
    }
    tw_tcp_link_t *link = peer->streams[header->stream].link;
    peer->n_unheard = 0;
    peer->n_alive++;
    peer->is_asked |= (header->tag & TW_P2P_ALIVE_ASKS) != 0;
    peer->their_ns = header->id > peer->their_ns ? header->id : peer->their_ns;
    if (!link || link->stage != TW_TCP_OPEN) {
        return NULL;
    }
    if (header->n_read > link->n_written) {
        return "it has read more than was sent";
    }
    const tw_tcp_mark_t *mark = &link->mark;
    if (header->n_read >= mark->n_written || header->n_read != mark->n_read ||
        (header->tag & TW_P2P_ALIVE_LEAVES)) {
        link->mark = (tw_tcp_mark_t){.n_written = link->n_written, .n_read = header->n_read, .ns = now};
    } else if (header->value >= mark->ns + limit_ns(peer->p2p, now)) {
        link->is_silent = 1;
    }
    return NULL;
}

/** Send ALIVE on each stream about the next stream: a dead connection cannot report on itself. */
static void say_alive(tw_p2p_peer_t *peer, uint64_t heard_ns, uint64_t now)
{
    for (int s = 0; s < peer->n_streams; s++) {
        const int other = (s + 1) % peer->n_streams;
        const tw_tcp_link_t *link = peer->streams[other].link;
        if (!link || link->stage != TW_TCP_OPEN || peer->streams[s].is_ended) {
            continue;
        }
        const int leaves = link->has_header && !link->has_begun;
        const tw_p2p_header_t alive = {.kind = TW_P2P_ALIVE,
                                       .stream = (uint32_t)other,
                                       .tag = (peer->n_pending ? TW_P2P_ALIVE_ASKS : 0) |
                                              (leaves ? TW_P2P_ALIVE_LEAVES : 0),
                                       .id = now,
                                       .value = heard_ns,
                                       .n_read = link->n_read};
        if (tw_p2p_stream_say(&peer->streams[s], &alive, NULL)) {
            return;
        }
    }
}

/* ---- finding dead connections -------------------------------------------------------------------------- */

static void note_moves(tw_tcp_link_t *link, uint64_t now)
{
    const uint64_t n_moved = link->n_read + link->n_acknowledged;
    if (n_moved > link->n_moved + MUCH_BYTES) {
        link->device->worker->p2p->moved_ns = now;
    }
    link->n_moved = n_moved;
}

/** Return why a stream is dead; NULL if it lives, as far as known. */
static const char *dead_because(const tw_p2p_stream_t *stream, uint64_t now)
{
    tw_tcp_link_t *link = stream->link;
    if (!link || link->stage != TW_TCP_OPEN) {
        return NULL;
    }
    const int is_unanswered = tw_tcp_is_unanswered(link, now);
    note_moves(link, now);
    return is_unanswered     ? "what was sent on it is not acknowledged"
           : link->is_silent ? "what was sent on it does not come"
                             : NULL;
}

/** Break a dead connection; without hooks, all of the peer's connections, so that the peer notices. */
static void break_dead(tw_p2p_stream_t *dead, const char *why)
{
    const tw_p2p_peer_t *peer = dead->peer;
    tw_tcp_break(dead->link, why);
    for (int s = 0; s < peer->n_streams && !peer->p2p->params.hooks; s++) {
        if (peer->streams[s].link) {
            tw_tcp_break(peer->streams[s].link, why);
        }
    }
}

/** Read all that has arrived, break dead streams, and send ALIVE with the peer's time from before the
 *  read. */
static void watch_connection(tw_p2p_peer_t *peer, uint64_t now)
{
    const uint64_t heard_ns = peer->their_ns;
    for (int s = 0; s < peer->n_streams; s++) {
        (void)peer->streams[s].worker->carrier->receive(&peer->streams[s], 0);
    }
    for (int s = 0; s < peer->n_streams; s++) {
        const char *why = dead_because(&peer->streams[s], now);
        if (why) {
            break_dead(&peer->streams[s], why);
        }
    }
    if (!peer->has_failed && peer->n_unheard < UNHEARD_MAX && !tw_p2p_peer_has_left(peer)) {
        peer->n_unheard++;
        peer->is_asked = 0;
        say_alive(peer, heard_ns, now);
    }
}

void tw_tcp_watch_peers(tw_p2p_t *p2p)
{
    const uint64_t now = tw_time_ns();
    if (now < p2p->watch_ns) {
        return;
    }
    p2p->watch_ns = now + (uint64_t)(p2p->params.timeout_sec * 1e9 / CHECKS);
    p2p->n_watched = 0;
    for (int i = 0; i < p2p->n_peers && !tw_p2p_is_over(p2p); i++) {
        tw_p2p_peer_t *peer = p2p->peers[i];
        if (!peer || !tw_p2p_peer_is_over_tcp(peer)) {
            continue;
        }
        p2p->n_watched++;
        if (!peer->has_failed && (peer->n_pending || peer->is_asked)) {
            watch_connection(peer, now);
        }
    }
}
