/** Reads frames, their data directly to its destination. */
#include <string.h>
#include <sys/uio.h>

#include "transport/p2p/tcp.h"

/** Most reads of one connection, and most bytes, before other connections get their turn. A polling caller
 *  gets all of a message that is there: it would ask again at once, when less of the data is still in the
 *  cache. */
#define READS_AT_ONCE 8
#define READ_BYTES ((size_t)512 << 10)
#define HEADER_BYTES sizeof(tw_p2p_header_t)
/** After a poll that found nothing, a connection with messages of at least this length is not read for a
 *  while: BETWEEN two messages, or INSIDE a message. Inside, the pause is shorter if the rest of the message
 *  takes less time to arrive (64 KB: 4 us). */
#define PAUSE_FROM_BYTES ((size_t)128 << 10)
#define PAUSE_BETWEEN_NS 9000
#define PAUSE_INSIDE_NS 14000
#define BYTES_PER_NS 16

/* ---- one frame ----------------------------------------------------------------------------------------- */

static size_t buffered(const tw_tcp_link_t *link)
{
    return link->in_end - link->in_start;
}

/** Return how many bytes of the frame's data have not arrived yet. */
static size_t data_left(const tw_tcp_link_t *link)
{
    return link->has_begun ? link->landing.bytes - link->landing.done : 0;
}

/** Return how many bytes to read of the frame's data; if sealed, of the next piece and its tag. */
static size_t data_wanted(const tw_tcp_link_t *link)
{
    const size_t left = data_left(link);
    if (!left || !link->seal[1]) {
        return left;
    }
    return (left < TW_TCP_PIECE_BYTES ? left : TW_TCP_PIECE_BYTES) + TW_SEAL_TAG_BYTES - link->piece_bytes;
}

/** Return where the next bytes of data go; NULL: throw them away. */
static uint8_t *data_place(const tw_tcp_link_t *link)
{
    if (link->seal[1]) {
        return link->piece + link->piece_bytes;
    }
    return link->landing.to ? link->landing.to + link->landing.done : NULL;
}

static void data_came(tw_tcp_link_t *link, size_t bytes)
{
    if (link->seal[1]) {
        link->piece_bytes += bytes;
    } else {
        link->landing.done += bytes;
    }
}

/** Open a complete piece from its buffer to its destination, which therefore only gets authentic bytes.
 *  Returns NULL, or what is wrong. */
static const char *open_piece(tw_tcp_link_t *link)
{
    const size_t bytes = link->piece_bytes - TW_SEAL_TAG_BYTES;
    uint8_t *to = link->landing.to ? link->landing.to + link->landing.done : link->device->scratch;
    link->piece_bytes = 0;
    link->landing.done += bytes;
    return tw_seal_open(link->seal[1], link->piece, bytes, to) ? "what it sent was changed on the way" : NULL;
}

/** Return the length of the header at the start of the buffer; if its first word is incomplete, the
 *  word's. */
static size_t head_bytes(const tw_tcp_link_t *link)
{
    uint32_t word;
    if (link->seal[1]) {
        return HEADER_BYTES + TW_SEAL_TAG_BYTES;
    }
    if (buffered(link) < sizeof(word)) {
        return sizeof(word);
    }
    memcpy(&word, link->in + link->in_start, sizeof(word));
    return tw_p2p_head_bytes(word);
}

static const char *header_take(tw_tcp_link_t *link, size_t bytes)
{
    const tw_p2p_peer_t *peer = link->stream->peer;
    uint8_t *raw = link->in + link->in_start;
    link->in_start += bytes;
    link->has_header = 1;
    if (bytes < HEADER_BYTES) {
        link->header = tw_p2p_brief_read(raw, (uint32_t)peer->id, (uint32_t)peer->n_control_received,
                                         link->brief_tag[1]);
        link->brief_tag[1] = link->header.tag;
        return NULL;
    }
    if (link->seal[1] && tw_seal_open(link->seal[1], raw, HEADER_BYTES, raw)) {
        return "what it sent was changed on the way";
    }
    memcpy(&link->header, raw, sizeof(link->header));
    return NULL;
}

/** Begin a frame: choose the destination of its data. Returns NULL, or what is wrong. */
static const char *frame_begin(tw_tcp_link_t *link)
{
    tw_p2p_peer_t *peer = link->stream->peer;
    link->has_begun = 1;
    const char *wrong = link->header.source == (uint32_t)peer->id
                            ? tw_p2p_message_begin(peer, &link->header,
                                                   (size_t)tw_p2p_header_data(&link->header), &link->landing)
                            : "it says that it is somebody else";
    return !wrong && link->landing.request && link->landing.request->mem != TW_MEM_HOST
               ? "it sent data that cannot be copied to a GPU"
               : wrong;
}

static void data_take(tw_tcp_link_t *link)
{
    const size_t wanted = data_wanted(link), here = buffered(link), bytes = wanted < here ? wanted : here;
    uint8_t *place = data_place(link);
    if (place && bytes) {
        memcpy(place, link->in + link->in_start, bytes);
    }
    link->in_start += bytes;
    data_came(link, bytes);
}

/** Return 1 if the frame stays unread until a receive is posted; but not if messages behind it are needed. */
static int is_left(const tw_tcp_link_t *link)
{
    return link->has_header && !link->has_begun && !link->has_end &&
           tw_p2p_message_can_wait(link->stream->peer, &link->header);
}

/** Take the next part of a frame out of the buffer. Returns 0 if the part is incomplete, stays unread, or is
 *  wrong (*wrong is set). */
static int take_next(tw_tcp_link_t *link, const char **wrong)
{
    if (!link->has_header) {
        const size_t bytes = head_bytes(link);
        const int is_there = buffered(link) >= bytes;
        *wrong = is_there ? header_take(link, bytes) : NULL;
        return is_there;
    }
    if (!link->has_begun) {
        const int goes_on = !is_left(link);
        *wrong = goes_on ? frame_begin(link) : NULL;
        return goes_on;
    }
    if (data_wanted(link)) {
        const int is_there = buffered(link) > 0;
        data_take(link);
        return is_there;
    }
    if (link->piece_bytes) {
        *wrong = open_piece(link);
        return 1;
    }
    link->has_header = link->has_begun = 0;
    link->follows_long = link->landing.bytes >= PAUSE_FROM_BYTES;
    *wrong = tw_p2p_message_end(link->stream->peer, &link->header, &link->landing);
    return 1;
}

/** Take all frames out of the buffer. Returns 0 if the link is then broken. */
static int receive_all(tw_tcp_link_t *link)
{
    tw_p2p_peer_t *peer = link->stream->peer;
    const char *wrong = NULL;
    while (!wrong && take_next(link, &wrong)) {
        ;
    }
    if (wrong) {
        tw_p2p_peer_fail(peer->p2p, peer, wrong);
        tw_tcp_break(link, wrong);
        return 0;
    }
    if (link->in_start) {
        memmove(link->in, link->in + link->in_start, buffered(link));
        link->in_end -= link->in_start;
        link->in_start = 0;
    }
    return 1;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/** Return how many bytes to read ahead. After long data, it is only the next header. More long data is likely
 *  to follow, and would be copied once more. */
static size_t room_ahead(const tw_tcp_link_t *link, size_t wanted)
{
    return wanted >= sizeof(link->in) && !link->seal[1] ? HEADER_BYTES : sizeof(link->in) - link->in_end;
}

/** Read data to its destination, or throw it away, and read the bytes behind it to the buffer. If fewer bytes
 *  came than fit, that was all, and epoll reports when more arrive. But a polling caller reads until nothing
 *  is there, as more may have come during the copy. */
static ssize_t read_more(tw_tcp_link_t *link, int is_asked, int *error)
{
    struct iovec pieces[2];
    size_t wanted = data_wanted(link), room = 0;
    uint8_t *place = data_place(link);
    int n = 0;
    if (wanted && !place) {
        wanted = wanted < TW_TCP_PIECE_BYTES ? wanted : TW_TCP_PIECE_BYTES;
        pieces[n++] = (struct iovec){link->device->scratch, wanted};
    } else if (wanted) {
        wanted = wanted < READ_BYTES || is_asked ? wanted : READ_BYTES;
        pieces[n++] = (struct iovec){place, wanted};
    }
    if (wanted == data_wanted(link)) {
        pieces[n++] = (struct iovec){link->in + link->in_end, room_ahead(link, wanted)};
    }
    for (int i = 0; i < n; i++) {
        room += pieces[i].iov_len;
    }
    const ssize_t got = tw_tcp_read(link, pieces, n, error);
    tw_tcp_set_ready(link,
                     got > 0 && ((size_t)got == room || link->has_end || (is_asked && data_left(link))));
    if (got > 0) {
        const size_t of_data = (size_t)got < wanted ? (size_t)got : wanted;
        data_came(link, of_data);
        link->in_end += (size_t)got - of_data;
    }
    return got;
}

static void closed(tw_tcp_link_t *link, int error)
{
    tw_tcp_break(link, error ? strerror(error) : "closed by the other end");
}

/** Handle the bytes read. Returns 0 if the link cannot be used any more. */
static int goes_on(tw_tcp_link_t *link)
{
    return receive_all(link) && !link->stream->peer->has_failed;
}

/** Return 1 if enough was read for this turn. */
static int turn_is_over(const tw_tcp_link_t *link, int n_reads, size_t bytes, int is_asked)
{
    return is_asked && data_left(link) ? 0 : n_reads >= READS_AT_ONCE || bytes >= READ_BYTES;
}

/** Return 1 if a read got more than ALIVE messages. *n_alive: ALIVEs counted before it; is updated. */
static int is_more_than_alive(const tw_tcp_link_t *link, uint32_t *n_alive, size_t bytes)
{
    const uint32_t n = link->stream->peer->n_alive - *n_alive;
    *n_alive += n;
    return bytes > n * (HEADER_BYTES + (link->seal[1] ? TW_SEAL_TAG_BYTES : 0));
}

static int receive_some(tw_tcp_link_t *link, int is_asked)
{
    uint32_t n_alive = link->stream->peer->n_alive;
    tw_p2p_counts_t *counts = &link->stream->peer->counts;
    const uint64_t n_before = counts->n_received;
    int n = 0, error = 0;
    size_t bytes = 0;
    ssize_t got = 1;
    if (link->stream->peer->has_failed) {
        tw_tcp_set_ready(link, 0);
        return 0;
    }
    if (link->has_header && !link->has_begun && !goes_on(link)) {
        return 1;
    }
    while (link->is_ready && !is_left(link) && !turn_is_over(link, n, bytes, is_asked) &&
           (got = read_more(link, is_asked, &error)) > 0) {
        n++;
        bytes += (size_t)got;
        if (!goes_on(link)) {
            return n;
        }
        counts->n_reads += is_more_than_alive(link, &n_alive, (size_t)got);
        is_asked &= counts->n_received == n_before; /* a caller may not be waiting for the next message */
    }
    if (got < 0) {
        closed(link, error);
    } else if (is_left(link)) {
        tw_tcp_set_ready(link, 0);
    }
    return n;
}

/** Begin a pause, as a polling caller found nothing. After short messages there is none. */
static void pause_begin(tw_tcp_link_t *link)
{
    uint64_t pause_ns = PAUSE_BETWEEN_NS;
    if (link->has_begun ? link->landing.bytes < PAUSE_FROM_BYTES : !link->follows_long) {
        return;
    }
    if (link->has_begun) {
        const uint64_t left_ns = data_left(link) / BYTES_PER_NS;
        pause_ns = left_ns < PAUSE_INSIDE_NS ? left_ns : PAUSE_INSIDE_NS;
    }
    link->quiet_ns = tw_time_ns() + pause_ns;
}

/** Return 1 if the pause goes on. It ends early when epoll has reported data. */
static int is_pausing(tw_tcp_link_t *link)
{
    if (link->quiet_ns && (link->is_ready || tw_time_ns() >= link->quiet_ns)) {
        link->quiet_ns = 0;
    }
    return link->quiet_ns > 0;
}

int tw_tcp_receive(tw_tcp_link_t *link)
{
    return receive_some(link, 0);
}

unsigned tw_tcp_receive_now(tw_p2p_stream_t *stream, int is_asked)
{
    tw_tcp_link_t *link = stream->link;
    if (!link || link->stage != TW_TCP_OPEN) {
        return 0;
    }
    if (is_asked) {
        tw_tcp_note_asked(link);
    }
    if (is_asked && is_pausing(link)) {
        return 0;
    }
    tw_tcp_set_ready(link, 1);
    const int n = receive_some(link, is_asked);
    if (!n && is_asked && link->stage == TW_TCP_OPEN) {
        pause_begin(link);
    }
    return (unsigned)n;
}

void tw_tcp_resume(tw_p2p_stream_t *stream)
{
    tw_tcp_link_t *link = stream->link;
    if (link && link->has_header && !link->has_begun) {
        tw_tcp_set_ready(link, 1);
    }
}
