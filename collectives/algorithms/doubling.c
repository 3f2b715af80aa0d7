/** Recursive doubling and halving, for any world: log2(W) hops, rounded up.
 *
 *  All-gather: before the hop of distance d = 1, 2, 4, ... a rank has its own shard and the d - 1 after it
 *  (round the world); it sends the first m = min(d, W - d) of them to the rank d before it and gets as many
 *  from the rank d after it. Reduce-scatter is the same backwards: for d = ..., 4, 2, 1 a rank sends its
 *  partial sums of the m shards that begin d after its own to the rank d after it. What a rank has received
 *  is summed in fp32, in the order of the hops, when it is sent or at the end; partial sums travel in the
 *  tensor's type, so each hop rounds once. Long shards are done chunk by chunk: a slice is the same chunk of
 *  every shard. A slice is a few rounds behind the one before, so that a rank that waits for a slice's hop
 *  has other slices to send: one after the other, ranks that drift apart would idle. Source: J. Bruck et al.,
 *  "Efficient algorithms for all-to-all communications", IEEE TPDS 8(11), 1997 (any world). */
#include "collectives/algorithms/algorithm.h"

#define MAX_HOPS 32

/** Elements [first, first + n) of the stream of all shards: at most a chunk, at `at` in its row of shards. */
typedef struct piece {
    size_t first, n, at;
    tw_task_t task;
} piece_t;

/** A row of shards, round the world, as pieces. */
typedef struct pieces {
    piece_t *piece;
    size_t n_pieces, n_elems;
} pieces_t;

typedef struct received {
    pieces_t pieces;
    tw_sbuf_t buffer; /**< the row, one after the other */
} received_t;

/** A slice on its way. */
typedef struct doubling {
    const tw_build_t *build;
    const size_t *first; /**< [W + 1] of the shards */
    size_t slice, n_slices;
    pieces_t own;
    pieces_t *sent;  /**< [n_hops] halving, by log2 of the distance */
    received_t *got; /**< [n_hops] halving, in the order of the hops */
    pieces_t *have;  /**< [n_hops + 1] doubling: the own one, and what each hop brought */
    int n_got;
} doubling_t;

/* ---- rows of shards ------------------------------------------------------------------------------------ */

static void add_run(const doubling_t *d, pieces_t *pieces, size_t first, size_t n)
{
    for (size_t c = 0; c < tw_chunk_count(d->build, n); c++) {
        size_t piece = tw_chunk_elems(d->build, n, c);
        pieces->piece[pieces->n_pieces++] =
            (piece_t){first + c * d->build->chunk_elems, piece, pieces->n_elems, TW_TASK_NONE};
        pieces->n_elems += piece;
    }
}

/* The slice of m shards from `start` on, round the world. */
static void add_slices(const doubling_t *d, pieces_t *pieces, int start, int m)
{
    size_t at = d->slice * d->build->chunk_elems;

    for (int i = 0; i < m; i++) {
        int shard = (start + i) % d->build->topo->world;
        size_t n = d->first[shard + 1] - d->first[shard];
        if (at < n) {
            add_run(d, pieces, d->first[shard] + at, tw_chunk_elems(d->build, n, d->slice));
        }
    }
}

/* The m shards that begin `distance` after the own one. */
static pieces_t row(const doubling_t *d, int distance, int m)
{
    int world = d->build->topo->world, start = (d->build->topo->rank + distance) % world;
    int m_wrapped = start + m > world ? start + m - world : 0, end = start + m - m_wrapped;
    size_t n = d->first[end] - d->first[start], n_wrapped = d->first[m_wrapped];
    size_t most = tw_chunk_count(d->build, n) + tw_chunk_count(d->build, n_wrapped);
    pieces_t pieces = {0};

    most = d->n_slices > 1 ? (size_t)m : most;
    pieces.piece = tw_sched_alloc(d->build->sched, (most + 1) * sizeof(piece_t));
    if (!pieces.piece) {
        return pieces;
    }
    if (d->n_slices > 1) {
        add_slices(d, &pieces, start, m);
    } else {
        add_run(d, &pieces, d->first[start], n);
        add_run(d, &pieces, 0, n_wrapped);
    }
    return pieces;
}

static int peer_at(const doubling_t *d, int distance)
{
    int world = d->build->topo->world;

    return (d->build->topo->rank + distance + world) % world;
}

static int shards_of_hop(const doubling_t *d, int distance)
{
    int rest = d->build->topo->world - distance;

    return distance < rest ? distance : rest;
}

/* `task` waits for all pieces that overlap elements [first, first + n). */
static void after_overlapping(const doubling_t *d, tw_task_t task, const pieces_t *pieces, size_t first,
                              size_t n)
{
    for (size_t i = 0; i < pieces->n_pieces; i++) {
        const piece_t *piece = &pieces->piece[i];
        if (piece->first < first + n && first < piece->first + piece->n) {
            tw_sched_after(d->build->sched, task, piece->task);
        }
    }
}

/* ---- halving ------------------------------------------------------------------------------------------- */

/* Sum up everything that is here of a range: elements [at, at + n) of the row that begins with the own shard.
 * All of the range, or nothing of it, came with each hop. */
static tw_task_t sum_range(doubling_t *d, const piece_t *range, tw_span_t to, float factor)
{
    const tw_build_t *build = d->build;
    size_t elem_bytes = build->in->elem_bytes;
    tw_span_t inputs[MAX_HOPS + 1] = {tw_span_view(build->in, range->first, range->n)};
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = inputs,
        .n_inputs = 1,
        .scale = build->scale,
        .factor = factor,
        .limit = build->limit,
        .to = to,
    };

    for (int g = 0; g < d->n_got; g++) {
        if (range->at < d->got[g].pieces.n_elems) {
            inputs[sum.n_inputs++] =
                tw_span_buffer(d->got[g].buffer, range->at * elem_bytes, range->n * elem_bytes);
        }
    }
    if (build->scale != 1.0f) { /* what came in has been scaled: it is first */
        inputs[0] = inputs[sum.n_inputs - 1];
        inputs[sum.n_inputs - 1] = tw_span_view(build->in, range->first, range->n);
        sum.n_partial = sum.n_inputs - 1;
    }
    tw_task_t task = tw_work_reduce(build->sched, &sum);
    for (int g = 0; g < d->n_got; g++) {
        after_overlapping(d, task, &d->got[g].pieces, range->first, range->n);
    }
    return task;
}

/* How far from `at` on, at most n elements, did the same hops bring something? *any: 0 if none did. */
static size_t same_hops(const doubling_t *d, size_t at, size_t n, int *any)
{
    *any = 0;
    for (int g = 0; g < d->n_got; g++) {
        size_t end = d->got[g].pieces.n_elems;
        if (at >= end) {
            continue;
        }
        *any = 1;
        n = end - at < n ? end - at : n;
    }
    return n;
}

/* Send the partial sum of a piece that begins `at` elements after the own shard; what is all ours goes as it
 * is. */
static tw_task_t send_piece(doubling_t *d, int peer, const piece_t *piece, size_t at)
{
    tw_sched_t *sched = d->build->sched;
    size_t elem_bytes = d->build->in->elem_bytes, done = 0;
    int any;

    if (same_hops(d, at, piece->n, &any) == piece->n && !any && d->build->scale == 1.0f) {
        return tw_sched_send(sched, peer, tw_span_view(d->build->in, piece->first, piece->n));
    }
    tw_sbuf_t buffer = tw_sched_buffer(sched, piece->n * elem_bytes);
    tw_task_t last = TW_TASK_NONE;
    while (done < piece->n) {
        size_t n = same_hops(d, at + done, piece->n - done, &any);
        piece_t range = {piece->first + done, n, at + done, TW_TASK_NONE};
        tw_task_t sum = sum_range(d, &range, tw_span_buffer(buffer, done * elem_bytes, n * elem_bytes), 1.0f);
        tw_sched_after(sched, sum, last);
        last = sum;
        done += n;
    }
    tw_task_t send = tw_sched_send(sched, peer, tw_span_buffer(buffer, 0, piece->n * elem_bytes));
    tw_sched_after(sched, send, last);
    return send;
}

/* Receive partial sums of the m shards that begin with the own one. */
static void receive_row(doubling_t *d, int peer, int m)
{
    tw_sched_t *sched = d->build->sched;
    size_t elem_bytes = d->build->in->elem_bytes;
    received_t *got = &d->got[d->n_got++];

    got->pieces = row(d, 0, m);
    got->buffer = tw_sched_buffer(sched, got->pieces.n_elems * elem_bytes);
    for (size_t i = 0; i < got->pieces.n_pieces; i++) {
        piece_t *piece = &got->pieces.piece[i];
        tw_span_t to = tw_span_buffer(got->buffer, piece->at * elem_bytes, piece->n * elem_bytes);
        piece->task = tw_sched_recv(sched, peer, to);
    }
}

static void halve_hop(doubling_t *d, int hop)
{
    int distance = 1 << hop, m = shards_of_hop(d, distance);
    size_t at = row(d, 0, distance).n_elems;

    d->sent[hop] = row(d, distance, m);
    for (size_t i = 0; i < d->sent[hop].n_pieces; i++) {
        piece_t *piece = &d->sent[hop].piece[i];
        piece->task = send_piece(d, peer_at(d, distance), piece, at + piece->at);
    }
    receive_row(d, peer_at(d, -distance), m);
}

/* first: of the elements of `out` among all. */
static void sum_own(doubling_t *d, size_t first)
{
    for (size_t i = 0; i < d->own.n_pieces; i++) {
        piece_t *piece = &d->own.piece[i];
        tw_span_t out = tw_span_view(d->build->out, piece->first - first, piece->n);
        piece->task = sum_range(d, piece, out, d->build->factor);
    }
}

/* ---- doubling ------------------------------------------------------------------------------------------ */

/* Needs d->own, its tasks set; what halving sent of the other shards is overwritten once it is sent. */
static void double_hop(doubling_t *d, int hop)
{
    tw_sched_t *sched = d->build->sched;
    const tw_view_t *out = d->build->out;
    int distance = 1 << hop, m = shards_of_hop(d, distance);
    pieces_t send = row(d, 0, m);

    d->have[0] = d->own;
    for (size_t i = 0; i < send.n_pieces; i++) {
        const piece_t *piece = &send.piece[i];
        tw_span_t from = tw_span_view(out, piece->first, piece->n);
        tw_task_t task = tw_sched_send(sched, peer_at(d, -distance), from);
        for (int h = 0; h <= hop; h++) {
            after_overlapping(d, task, &d->have[h], piece->first, piece->n);
        }
    }
    d->have[hop + 1] = row(d, distance, m);
    for (size_t i = 0; i < d->have[hop + 1].n_pieces; i++) {
        piece_t *piece = &d->have[hop + 1].piece[i];
        piece->task = tw_sched_recv(sched, peer_at(d, distance), tw_span_view(out, piece->first, piece->n));
        if (i < d->sent[hop].n_pieces) {
            tw_sched_after(sched, piece->task, d->sent[hop].piece[i].task);
        }
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/* The own shard, from in to out; returns a task that ends when it is there, or TW_TASK_NONE. */
static tw_task_t copy_own(const tw_build_t *build)
{
    size_t n = build->in->n_elems, first = build->out_first[build->topo->rank];
    size_t n_chunks = build->in_place ? 0 : tw_chunk_count(build, n);
    tw_task_t *copies = tw_sched_alloc(build->sched, (n_chunks + 1) * sizeof(*copies));

    for (size_t c = 0; copies && c < n_chunks; c++) {
        size_t at = c * build->chunk_elems, run = tw_chunk_elems(build, n, c);
        copies[c] = tw_work_copy(build->sched, tw_span_view(build->in, at, run),
                                 tw_span_view(build->out, first + at, run));
    }
    if (!copies || n_chunks < 2) {
        return copies && n_chunks > 0 ? copies[0] : TW_TASK_NONE;
    }
    tw_task_t all = tw_sched_join(build->sched);
    for (size_t c = 0; c < n_chunks; c++) {
        tw_sched_after(build->sched, all, copies[c]);
    }
    return all;
}

static size_t count_slices(const tw_build_t *build, const size_t *first)
{
    size_t most = 0;

    for (int r = 0; r < build->topo->world; r++) {
        most = first[r + 1] - first[r] > most ? first[r + 1] - first[r] : most;
    }
    return tw_chunk_count(build, most);
}

/* own: the task that its own piece waits for. */
static tw_status_t begin_slice(doubling_t *d, tw_task_t own)
{
    tw_sched_t *sched = d->build->sched;
    size_t n_hops = (size_t)tw_log2_ceil(d->build->topo->world);

    d->sent = tw_sched_alloc(sched, (n_hops + 1) * sizeof(*d->sent));
    d->got = tw_sched_alloc(sched, (n_hops + 1) * sizeof(*d->got));
    d->have = tw_sched_alloc(sched, (n_hops + 1) * sizeof(*d->have));
    d->own = row(d, 0, 1);
    if (!d->sent || !d->got || !d->have || !d->own.piece) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < d->own.n_pieces; i++) {
        d->own.piece[i].task = own;
    }
    return TW_OK;
}

/** What is done with each slice. */
typedef struct work {
    int halves, doubles;
    const size_t *first; /**< [W + 1] of the shards */
    size_t out_first;    /**< the element of all that `out` begins with */
    tw_task_t own;       /**< that the own shard waits for */
} work_t;

/* Halving's hops come first, from the longest to the shortest; then doubling's, the other way round. */
static void run_hop(doubling_t *d, const work_t *work, int hop, int n_hops)
{
    int n_halve = work->halves ? n_hops : 0;

    if (hop < n_halve) {
        halve_hop(d, n_halve - 1 - hop);
    } else {
        double_hop(d, hop - n_halve);
    }
    if (hop == n_halve - 1) {
        sum_own(d, work->out_first);
    }
}

static void run_alone(doubling_t *d, const work_t *work)
{
    if (work->halves) {
        sum_own(d, work->out_first);
    }
}

static void run(const tw_build_t *build, const work_t *work)
{
    size_t n = count_slices(build, work->first), c;
    int n_hops = tw_log2_ceil(build->topo->world), all = n_hops * (work->halves + work->doubles);
    doubling_t *slices = tw_sched_alloc(build->sched, (n + 1) * sizeof(*slices));

    for (size_t slice = 0; slices && slice < n; slice++) {
        doubling_t *d = &slices[slice];
        *d = (doubling_t){.build = build, .first = work->first, .slice = slice, .n_slices = n};
        if (begin_slice(d, work->own) != TW_OK) {
            return; /* it sticks */
        }
    }
    for (size_t round = 0; slices && n > 0 && round < n + (size_t)all * TW_HOP_ROUNDS; round++) {
        tw_sched_next_round(build->sched);
        for (int hop = 0; hop < all; hop++) {
            if (tw_hop_chunk(round, hop, n, &c)) {
                run_hop(&slices[c], work, hop, n_hops);
            }
        }
        if (all == 0 && round < n) {
            run_alone(&slices[round], work);
        }
    }
}

void tw_build_doubling(const tw_build_t *build)
{
    run(build, &(work_t){.doubles = 1, .first = build->out_first, .own = copy_own(build)});
}

void tw_build_halving(const tw_build_t *build)
{
    run(build, &(work_t){.halves = 1,
                         .first = build->in_first,
                         .out_first = build->in_first[build->topo->rank],
                         .own = TW_TASK_NONE});
}

void tw_build_halving_doubling(const tw_build_t *build)
{
    run(build, &(work_t){.halves = 1, .doubles = 1, .first = build->in_first, .own = TW_TASK_NONE});
}
