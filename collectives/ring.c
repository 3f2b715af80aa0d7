#include "collectives/ring.h"

tw_span_t tw_span_elems(tw_span_t span, size_t first, size_t n, size_t elem_bytes)
{
    size_t unit = span.view != NULL ? 1 : elem_bytes;

    span.first += first * unit;
    span.n = n * unit;
    return span;
}

void tw_ring_init(tw_ring_t *ring, const tw_build_t *build, const int *ranks, int size, int me)
{
    *ring = (tw_ring_t){.build = build, .size = size, .me = me, .ranks = ranks};
    ring->piece = tw_sched_alloc(build->sched, (size_t)size * sizeof(*ring->piece));
}

void tw_ring_set(tw_ring_t *ring, int position, tw_span_t in, tw_span_t out, size_t n_elems)
{
    if (ring->piece == NULL)
        return;
    size_t n_chunks = tw_chunk_count(ring->build, n_elems);
    tw_task_t *task = tw_sched_alloc(ring->build->sched, (n_chunks + 1) * sizeof(*task));
    if (task == NULL) {
        ring->piece = NULL;
        return;
    }
    for (size_t c = 0; c < n_chunks; c++)
        task[c] = TW_TASK_NONE;
    ring->piece[position] = (tw_ring_piece_t){in, out, n_elems, task};
}

static int neighbour(const tw_ring_t *ring, int distance)
{
    return ring->ranks[(ring->me + distance + ring->size) % ring->size];
}

static int wrap(const tw_ring_t *ring, int position)
{
    return ((position % ring->size) + ring->size) % ring->size;
}

/* Chunk c of a piece's span. */
static tw_span_t chunk_of(const tw_ring_t *ring, const tw_ring_piece_t *piece, tw_span_t span, size_t c)
{
    const tw_build_t *build = ring->build;

    return tw_span_elems(span, c * build->chunk_elems, tw_chunk_elems(build, piece->n_elems, c),
                         build->out->elem_bytes);
}

/* The piece starts its way here. */
static void send_piece(tw_ring_t *ring, tw_ring_piece_t *piece, int keep_task)
{
    tw_sched_t *sched = ring->build->sched;

    for (size_t c = 0; c < tw_chunk_count(ring->build, piece->n_elems); c++) {
        tw_task_t send = tw_sched_send(sched, neighbour(ring, 1), chunk_of(ring, piece, piece->in, c));
        tw_sched_after(sched, send, piece->task[c]);
        if (!keep_task)
            piece->task[c] = send;
    }
}

/* A chunk of partial sums comes in, ours is added, and it goes on, or ends here. */
static void add_chunk(tw_ring_t *ring, tw_ring_piece_t *piece, size_t c, int is_last, float factor)
{
    const tw_build_t *build = ring->build;
    tw_sched_t *sched = build->sched;
    tw_span_t in = chunk_of(ring, piece, piece->in, c);
    size_t bytes = tw_chunk_elems(build, piece->n_elems, c) * build->out->elem_bytes;
    tw_span_t partial = tw_span_buffer(tw_sched_buffer(sched, bytes), 0, bytes);
    tw_span_t inputs[2] = {partial, in};
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = inputs,
        .n_inputs = 2,
        .factor = is_last ? factor : 1.0f,
        .to = is_last ? chunk_of(ring, piece, piece->out, c) : partial,
    };
    tw_task_t recv = tw_sched_recv(sched, neighbour(ring, -1), partial);
    tw_task_t add = tw_work_reduce(sched, &sum);

    tw_sched_after(sched, add, recv);
    tw_sched_after(sched, add, piece->task[c]);
    piece->task[c] = add;
    if (is_last)
        return;
    tw_task_t send = tw_sched_send(sched, neighbour(ring, 1), partial);
    tw_sched_after(sched, send, add);
}

/* A ring of one: only the factor is left to do. */
static void scale_own(tw_ring_t *ring, float factor)
{
    tw_ring_piece_t *piece = &ring->piece[ring->me];

    for (size_t c = 0; c < tw_chunk_count(ring->build, piece->n_elems); c++) {
        tw_span_t in = chunk_of(ring, piece, piece->in, c);
        tw_work_sum_t sum = {ring->build->args->type, &in, 1, factor, chunk_of(ring, piece, piece->out, c)};
        tw_task_t scale = tw_work_reduce(ring->build->sched, &sum);
        tw_sched_after(ring->build->sched, scale, piece->task[c]);
        piece->task[c] = scale;
    }
}

void tw_ring_reduce_scatter(tw_ring_t *ring, float factor)
{
    if (ring->piece == NULL)
        return;
    if (ring->size == 1) {
        scale_own(ring, factor);
        return;
    }
    send_piece(ring, &ring->piece[wrap(ring, ring->me - 1)], 0);
    for (int distance = 2; distance <= ring->size; distance++) {
        tw_ring_piece_t *piece = &ring->piece[wrap(ring, ring->me - distance)];
        for (size_t c = 0; c < tw_chunk_count(ring->build, piece->n_elems); c++)
            add_chunk(ring, piece, c, distance == ring->size, factor);
    }
}

void tw_ring_allgather(tw_ring_t *ring)
{
    if (ring->piece == NULL || ring->size == 1)
        return;
    tw_sched_t *sched = ring->build->sched;

    send_piece(ring, &ring->piece[ring->me], 1);
    for (int distance = 1; distance < ring->size; distance++) {
        tw_ring_piece_t *piece = &ring->piece[wrap(ring, ring->me - distance)];
        for (size_t c = 0; c < tw_chunk_count(ring->build, piece->n_elems); c++) {
            tw_span_t out = chunk_of(ring, piece, piece->out, c);
            tw_task_t recv = tw_sched_recv(sched, neighbour(ring, -1), out);
            tw_sched_after(sched, recv, piece->task[c]);
            piece->task[c] = recv;
            if (distance + 1 < ring->size)
                tw_sched_after(sched, tw_sched_send(sched, neighbour(ring, 1), out), recv);
        }
    }
}
