/** Sends frames. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/p2p/tcp.h"

#define HEADER_BYTES sizeof(tw_p2p_header_t)
/** Most frames in one call. */
#define FRAMES_AT_ONCE 16
/** Longest frame that is copied into one piece. */
#define SHORT_BYTES 512
/** Most writes on one connection, and without sealing most bytes, before the caller gets its turn. The bytes
 *  are those of one long message: the receiver reads it from the cache before the next is sent. It goes in
 *  one write, because 4 MB in four writes of 1 MB take 5 to 9 % more processor time. */
#define SENDS_AT_ONCE 4
#define SEND_BYTES (TW_P2P_EAGER_MAX + HEADER_BYTES)
/** Size of the buffer of sealed frames: two pieces, and headers. */
#define OUT_BYTES (2 * TW_TCP_PIECE_BYTES + 4096)

/* ---- operations ---------------------------------------------------------------------------------------- */

/** Choose an operation's header, whole or brief, before its first byte is sent. last_tag: tag of the previous
 *  brief header; a new brief header updates it. */
static void op_set_head(tw_p2p_op_t *op, uint64_t *last_tag)
{
    if (op->stream->link->seal[0] || !tw_p2p_brief_fits(&op->header) || op->header.value != op->bytes) {
        op->head = &op->header;
        op->head_bytes = HEADER_BYTES;
        return;
    }
    op->head = &op->brief;
    op->head_bytes = tw_p2p_brief_write(&op->header, *last_tag, &op->brief);
    *last_tag = op->header.tag;
}

/** Return the length of a frame with a chosen header. */
static size_t frame_bytes(const tw_p2p_op_t *op)
{
    return op->head_bytes + op->bytes;
}

/** Return the most bytes of a frame that are left to send. For a long message it is exact. */
static size_t send_bytes_left(const tw_p2p_op_t *op)
{
    return HEADER_BYTES + op->bytes - op->sent;
}

/** Return the data that is left to send, and its size; NULL if none is left. */
static const uint8_t *op_data(const tw_p2p_op_t *op, size_t *bytes)
{
    const size_t done = op->sent > op->head_bytes ? op->sent - op->head_bytes : 0;
    *bytes = op->bytes - done;
    return *bytes ? (const uint8_t *)op->data + (done - op->copied_from) : NULL;
}

/** Count bytes of the frame as sent, or as copied into the link's buffer. Returns 1 if it is complete. */
static int op_advance(tw_p2p_op_t *op, size_t bytes)
{
    if (!op->sent && bytes) {
        tw_p2p_op_count(op);
        if (op->head == &op->brief) {
            op->stream->link->brief_tag[0] = op->header.tag;
        }
    }
    op->sent += bytes;
    if (op->sent < frame_bytes(op)) {
        return 0;
    }
    tw_p2p_op_finish(op, NULL);
    return 1;
}

/** Copy the rest of a partly sent frame, which must be sent to its end. Returns 0 if out of memory. */
static int op_keep_rest(tw_p2p_op_t *op)
{
    size_t bytes = 0;
    const uint8_t *rest = op_data(op, &bytes);
    void *copy = malloc(bytes + 1);
    if (!copy) {
        return 0;
    }
    if (bytes) {
        memcpy(copy, rest, bytes);
    }
    free(op->copy);
    op->copy = copy;
    op->data = copy;
    op->copied_from = op->bytes - bytes;
    tw_p2p_op_disown(op);
    return 1;
}

static void release_landing(tw_tcp_link_t *link, tw_p2p_request_t *request)
{
    if (link->landing.request == request) {
        request->n_ops--;
        link->landing.request = NULL;
        link->landing.to = NULL;
    }
}

void tw_tcp_release(tw_p2p_stream_t *stream, tw_p2p_request_t *request)
{
    tw_p2p_op_t *op, *next;
    for (op = TAILQ_FIRST(&stream->waiting); op; op = next) {
        next = TAILQ_NEXT(op, entry);
        if (op->request == request && !op_keep_rest(op)) {
            tw_p2p_stream_break(stream, "out of memory");
            tw_p2p_op_disown(op);
            op->data = NULL; /* no more of it is sent on a broken stream */
        }
    }
    if (stream->link) {
        release_landing(stream->link, request);
    }
}

/* ---- plain --------------------------------------------------------------------------------------------- */

/** Collect the waiting frames as pieces of one call. Returns the number of pieces. */
static int send_gather(const tw_p2p_stream_t *stream, struct iovec *pieces)
{
    int n = 0, n_frames = 0;
    uint32_t n_numbered = 0;
    uint64_t last_tag = stream->link->brief_tag[0];
    tw_p2p_op_t *op;
    TAILQ_FOREACH(op, &stream->waiting, entry)
    {
        size_t bytes = 0;
        if (n_frames++ == FRAMES_AT_ONCE) {
            break;
        }
        if (!op->sent) {
            n_numbered = tw_p2p_op_number(op, n_numbered);
            op_set_head(op, &last_tag);
        }
        const uint8_t *data = op_data(op, &bytes);
        if (op->sent < op->head_bytes) {
            pieces[n++] =
                (struct iovec){(uint8_t *)(uintptr_t)op->head + op->sent, op->head_bytes - op->sent};
        }
        if (bytes) {
            pieces[n++] = (struct iovec){(void *)(uintptr_t)data, bytes};
        }
    }
    return n;
}

static void send_advance(tw_p2p_stream_t *stream, size_t bytes)
{
    while (bytes) {
        tw_p2p_op_t *op = TAILQ_FIRST(&stream->waiting);
        const size_t left = frame_bytes(op) - op->sent, now = bytes < left ? bytes : left;
        bytes -= now;
        (void)op_advance(op, now);
    }
}

/** Copy a short frame into one piece, which costs less than two. Returns the number of pieces left. */
static int join_short(struct iovec *pieces, int n, uint8_t *room)
{
    if (n != 2 || pieces[0].iov_len + pieces[1].iov_len > SHORT_BYTES) {
        return n;
    }
    memcpy(room, pieces[0].iov_base, pieces[0].iov_len);
    memcpy(room + pieces[0].iov_len, pieces[1].iov_base, pieces[1].iov_len);
    pieces[0] = (struct iovec){room, pieces[0].iov_len + pieces[1].iov_len};
    return 1;
}

/** Cut the pieces to `left` bytes (not 0) together. Returns the number of pieces left. */
static int cut_long(struct iovec *pieces, int n, size_t left)
{
    for (int i = 0; i < n; i++) {
        if (pieces[i].iov_len >= left) {
            pieces[i].iov_len = left;
            return i + 1;
        }
        left -= pieces[i].iov_len;
    }
    return n;
}

/** Send frames without sealing. left: bytes that may be sent, not 0; reduced by what was sent. */
static tw_status_t send_plain(tw_tcp_link_t *link, size_t *left, int *error)
{
    struct iovec pieces[2 * FRAMES_AT_ONCE];
    uint8_t room[SHORT_BYTES];
    const int n = cut_long(pieces, join_short(pieces, send_gather(link->stream, pieces), room), *left);
    const ssize_t sent = tw_tcp_write(link, pieces, n, error);
    if (sent <= 0) {
        return sent ? TW_ERR_IO : TW_IN_PROGRESS;
    }
    send_advance(link->stream, (size_t)sent);
    *left -= (size_t)sent;
    return TW_OK;
}

/* ---- sealed -------------------------------------------------------------------------------------------- */

/** Seal the next piece of a frame: its header, or some of its data. Returns 0 if there is no room. */
static int seal_piece(tw_tcp_link_t *link, tw_p2p_op_t *op)
{
    size_t bytes = HEADER_BYTES;
    const void *data = &op->header;
    if (!op->sent) {
        op_set_head(op, &link->brief_tag[0]);
    } else {
        data = op_data(op, &bytes);
        bytes = bytes < TW_TCP_PIECE_BYTES ? bytes : TW_TCP_PIECE_BYTES;
    }
    if (link->out_capacity - link->out_end < bytes + TW_SEAL_TAG_BYTES) {
        return 0;
    }
    if (!op->sent) {
        (void)tw_p2p_op_number(op, 0);
    }
    tw_seal_close(link->seal[0], data, bytes, link->out + link->out_end);
    link->out_end += bytes + TW_SEAL_TAG_BYTES;
    (void)op_advance(op, bytes);
    return 1;
}

static tw_status_t send_sealed(tw_tcp_link_t *link, int *error)
{
    tw_p2p_op_t *op;
    if (!tw_tcp_out_reserve(link, OUT_BYTES)) {
        *error = ENOMEM;
        return TW_ERR_NO_MEMORY;
    }
    while ((op = TAILQ_FIRST(&link->stream->waiting)) && seal_piece(link, op)) {
        ;
    }
    return tw_tcp_out_flush(link, error);
}

/** Return how many bytes may be sent before the caller gets its turn. */
static size_t send_limit(const tw_p2p_stream_t *stream)
{
    const tw_p2p_op_t *op = TAILQ_FIRST(&stream->waiting);
    return op && op->header.kind == TW_P2P_EAGER && tw_p2p_is_long(op->bytes) ? send_bytes_left(op)
                                                                              : SEND_BYTES;
}

/* ---- plain or sealed ----------------------------------------------------------------------------------- */

int tw_tcp_send(tw_p2p_stream_t *stream)
{
    tw_tcp_link_t *link = stream->link;
    tw_status_t status = TW_OK;
    size_t left = send_limit(stream);
    int error = 0, n = 0;
    if (!link || link->stage != TW_TCP_OPEN) {
        return 0;
    }
    link->can_write |= link->is_aside;
    while (!status && link->can_write && left && n++ < SENDS_AT_ONCE &&
           (link->out_end || !TAILQ_EMPTY(&stream->waiting))) {
        status = link->out_end   ? tw_tcp_out_flush(link, &error)
                 : link->seal[0] ? send_sealed(link, &error)
                                 : send_plain(link, &left, &error);
    }
    if (status == TW_ERR_IO) {
        /* The other end is gone. What it sent before, perhaps BYE, may still be unread here. Reading will
         * find the end of it. */
        link->can_write = 0;
        tw_tcp_set_ready(link, 1);
        return 0;
    }
    if (status < 0) {
        tw_tcp_break(link, strerror(error));
        return 0;
    }
    if (link->can_write && (link->out_end || !TAILQ_EMPTY(&stream->waiting))) {
        tw_tcp_set_ready(link, 1); /* do not sleep before the rest has gone */
    }
    return link->out_end > 0;
}

/** Return the most bytes that the rest of a frame takes on the wire. */
static size_t bytes_on_wire(const tw_tcp_link_t *link, const tw_p2p_op_t *op)
{
    const size_t left = send_bytes_left(op);
    return left + (link->seal[0] ? (2 + left / TW_TCP_PIECE_BYTES) * TW_SEAL_TAG_BYTES : 0);
}

static int out_add_frame(tw_tcp_link_t *link, tw_p2p_op_t *op)
{
    size_t bytes = 0;
    uint64_t last_tag = link->brief_tag[0];
    if (!op->sent) {
        (void)tw_p2p_op_number(op, 0);
        op_set_head(op, &last_tag);
    }
    const uint8_t *data = op_data(op, &bytes);
    if ((op->sent < op->head_bytes &&
         !tw_tcp_out_add(link, (const uint8_t *)op->head + op->sent, op->head_bytes - op->sent)) ||
        (bytes && !tw_tcp_out_add(link, data, bytes))) {
        return 0;
    }
    (void)op_advance(op, frame_bytes(op) - op->sent);
    return 1;
}

int tw_tcp_out_add_waiting(tw_tcp_link_t *link)
{
    tw_p2p_op_t *op;
    size_t bytes = link->out_end;
    TAILQ_FOREACH(op, &link->stream->waiting, entry)
    {
        bytes += bytes_on_wire(link, op);
    }
    if (!tw_tcp_out_reserve(link, bytes)) {
        return 0;
    }
    while ((op = TAILQ_FIRST(&link->stream->waiting))) {
        if (!(link->seal[0] ? seal_piece(link, op) : out_add_frame(link, op))) {
            return 0;
        }
    }
    return 1;
}
