#include "collectives/algorithms/pieces.h"

/* Shard r of a view; where the view is one shard, that is its rank's. */
static tw_span_t shard_span(const tw_build_t *build, const tw_view_t *view, const size_t *first, int r)
{
    if (first != NULL) {
        return tw_span_view(view, first[r], first[r + 1] - first[r]);
    }
    return tw_span_view(view, 0, r == build->topo->rank ? view->n_elems : 0);
}

tw_piece_t *tw_pieces_create(const tw_build_t *build)
{
    int world = build->topo->world;
    tw_piece_t *pieces = tw_sched_alloc(build->sched, (size_t)world * sizeof(*pieces));

    for (int r = 0; r < world && pieces != NULL; r++) {
        tw_piece_t *piece = &pieces[r];
        piece->in = shard_span(build, build->in, build->in_first, r);
        piece->out = shard_span(build, build->out, build->out_first, r);
        piece->n_elems = piece->in.n > piece->out.n ? piece->in.n : piece->out.n;
        piece->n_chunks = tw_chunk_count(build, piece->n_elems);
        piece->task = tw_sched_alloc(build->sched, (piece->n_chunks + 1) * sizeof(*piece->task));
        if (piece->task == NULL) {
            return NULL;
        }
        for (size_t c = 0; c < piece->n_chunks; c++) {
            piece->task[c] = TW_TASK_NONE;
        }
    }
    return pieces;
}

void tw_pieces_turn(const tw_build_t *build, tw_piece_t *pieces)
{
    if (pieces != NULL) {
        pieces[build->topo->rank].in = pieces[build->topo->rank].out;
    }
}

static tw_span_t chunk_of(const tw_build_t *build, const tw_piece_t *piece, tw_span_t span, size_t c)
{
    span.first += c * build->chunk_elems;
    span.n = tw_chunk_elems(build, piece->n_elems, c);
    return span;
}

tw_span_t tw_piece_in(const tw_build_t *build, const tw_piece_t *piece, size_t c)
{
    return chunk_of(build, piece, piece->in, c);
}

tw_span_t tw_piece_out(const tw_build_t *build, const tw_piece_t *piece, size_t c)
{
    return chunk_of(build, piece, piece->out, c);
}

size_t tw_piece_chunk_bytes(const tw_build_t *build, const tw_piece_t *piece, size_t c)
{
    return tw_chunk_elems(build, piece->n_elems, c) * build->in->elem_bytes;
}

tw_span_t tw_piece_scratch(const tw_build_t *build, const tw_piece_t *piece, size_t c)
{
    size_t bytes = tw_piece_chunk_bytes(build, piece, c);

    return tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
}

void tw_build_allgather(const tw_build_t *build, tw_phase_t gather)
{
    tw_piece_t *pieces = tw_pieces_create(build);

    if (pieces == NULL) {
        return;
    }
    gather(build, pieces);
    tw_build_copy(build, 0, build->out_first[build->topo->rank], build->in->n_elems);
}

void tw_build_reduce_scatter(const tw_build_t *build, tw_phase_t reduce)
{
    tw_piece_t *pieces = tw_pieces_create(build);

    if (pieces != NULL) {
        reduce(build, pieces);
    }
}

void tw_build_allreduce(const tw_build_t *build, tw_phase_t reduce, tw_phase_t gather)
{
    tw_piece_t *pieces = tw_pieces_create(build);

    if (pieces == NULL) {
        return;
    }
    reduce(build, pieces);
    tw_pieces_turn(build, pieces);
    gather(build, pieces);
}
