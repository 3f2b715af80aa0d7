#include "collectives/shards.h"

#include <string.h>

/* ---- views --------------------------------------------------------------------------------------------- */

/** Append shard r to a view, segment by segment. If the operation has no shards, append all segments. next:
 *  [n_segments], address of the rest of each segment. */
static void append_shard(const tw_host_run_t *run, int is_out, int r, const char **next, tw_view_t *view)
{
    const tw_coll_args_t *args = run->args;
    int receives = is_out && args->op == TW_COLL_ALLTOALL;
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        const size_t *counts = receives ? segment->recv_counts : segment->counts;
        size_t n = counts ? counts[r] : segment->n_elems;
        tw_view_append(view, next[s], n);
        next[s] += n * view->elem_bytes;
    }
}

/** Append shard r of the grid to a view, in the order of its chunks. */
static void append_chunks(const tw_host_run_t *run, int is_out, int r, tw_view_t *view)
{
    const tw_grid_shard_t *shard = &run->op->grid->shards[r];
    tw_grid_placed_t piece;
    for (size_t c = 0; c < shard->n_chunks; c++) {
        tw_grid_walk_t walk =
            tw_grid_walk_start(run->op->grid, shard->first_chunk + c, run->request->tensors, run->args->type);
        while (tw_grid_walk_next(&walk, &piece)) {
            tw_view_append(view, is_out ? piece.at.dst : piece.at.src, piece.at.n_elems);
        }
    }
}

/** Make the view of the memory that the operation reads (in), or that it writes (out):
 *    all-gather                 in: own shard                   out: shard 0, shard 1, ...
 *    reduce-scatter             in: shard 0, shard 1, ...       out: own shard
 *    all-reduce, broadcast      in, out: the segments one after another (both are dst in a broadcast);
 *                               with a grid: shard 0, shard 1, ...
 *    all-to-all                 in: data for rank 0, 1, ...     out: data from rank 0, 1, ...
 *  In place, in and out share memory: see in_place and aliased. The view is in the schedule's memory. */
static tw_status_t make_view(tw_host_run_t *run, int is_out)
{
    const tw_coll_args_t *args = run->args;
    tw_coll_op_t own_only = is_out ? TW_COLL_REDUCE_SCATTER : TW_COLL_ALLGATHER;
    int is_sharded = args->op != own_only && (run->op || tw_coll_op_has_shards(args->op));
    int world = run->topo->world, begin = is_sharded ? 0 : run->topo->rank;
    int end = is_sharded ? world : begin + 1, behind = is_out && run->flows->by_pair ? world : 0;
    size_t n_extents = run->op ? run->op->grid->n_pieces : args->n_segments * (size_t)(end - begin);
    tw_view_t *view = tw_sched_alloc(run->sched, sizeof(*view));
    tw_view_extent_t *extents = tw_sched_alloc(run->sched, (n_extents + 1) * sizeof(*extents));
    const char **next = tw_sched_alloc(run->sched, (args->n_segments + 1) * sizeof(*next));
    size_t *first = tw_sched_alloc(run->sched, ((size_t)world + 1) * sizeof(*first));
    if (!view || !extents || !next || !first) {
        return TW_ERR_NO_MEMORY;
    }
    tw_view_init(view, tw_type_bytes(args->type), extents);
    for (size_t s = 0; s < args->n_segments; s++) {
        next[s] = is_out ? run->request->tensors[s].dst : run->request->tensors[s].src;
    }
    for (int r = begin; r < end; r++) {
        if (run->op) {
            append_chunks(run, is_out, behind + r, view);
        } else {
            append_shard(run, is_out, r, next, view);
        }
        first[r + 1] = view->n_elems;
    }
    run->views[is_out] = view;
    run->firsts[is_out] = is_sharded ? first : NULL;
    return TW_OK;
}

/* ---- shards -------------------------------------------------------------------------------------------- */

/** Returns the span of shard r in the view that is read, or written (is_out). A view of one shard holds that
 *  of this rank, or of the root. */
static tw_span_t shard_span(const tw_host_run_t *run, int is_out, int r)
{
    const tw_flows_t *flows = run->flows;
    const tw_view_t *view = run->views[is_out];
    const size_t *first = run->firsts[is_out];
    int world = run->topo->world, owner = flows->of == TW_FLOWS_ROOT ? run->args->root : run->topo->rank;
    /* in an all-to-all, shards 0 to W - 1 are only read, and the others only written */
    if (flows->by_pair && is_out != (r >= world)) {
        return tw_span_view(view, 0, 0);
    }
    if (first) {
        first += r % world;
        return tw_span_view(view, first[0], first[1] - first[0]);
    }
    return tw_span_view(view, 0, flows->of == TW_FLOWS_WHOLES || r == owner ? view->n_elems : 0);
}

static void find_chunks(tw_host_run_t *run, int r)
{
    tw_host_shard_t *shard = &run->shards[r];
    for (int is_out = 0; is_out < 2; is_out++) {
        shard->spans[is_out] = shard_span(run, is_out, r);
        size_t n = shard->spans[is_out].n;
        shard->n_elems = n > shard->n_elems ? n : shard->n_elems;
    }
    if (run->op) {
        shard->first_chunk = run->op->grid->shards[r].first_chunk;
        shard->n_chunks = run->op->grid->shards[r].n_chunks;
    } else {
        shard->n_chunks = (shard->n_elems + run->chunk_elems - 1) / run->chunk_elems;
        /* a message that merges the shards of several ranks needs a chunk of each, also of an empty one */
        shard->n_chunks += shard->n_chunks == 0 && run->flows->merges;
    }
    run->n_chunks = shard->n_chunks > run->n_chunks ? shard->n_chunks : run->n_chunks;
}

static size_t count_elems(const tw_host_run_t *run, const tw_host_shard_t *shard, size_t c)
{
    size_t left = shard->n_elems - c * run->chunk_elems;
    if (run->op) {
        return run->op->grid->chunks[shard->first_chunk + c].n_elems;
    }
    return left < run->chunk_elems ? left : run->chunk_elems;
}

/** Returns the cell of a chunk in the caller's tensors: the shard's elements `at` to `at + n - 1`. */
static tw_host_cell_t user_cell(const tw_host_shard_t *shard, int is_out, size_t at, size_t n)
{
    tw_span_t span = shard->spans[is_out];
    return (tw_host_cell_t){tw_span_view(span.view, span.first + at, n), TW_TASK_NONE, !is_out};
}

static tw_status_t create_shards(tw_host_run_t *run)
{
    size_t n_tasks = 0, n_cells = 0;
    for (int r = 0; r < run->first->n_owners; r++) {
        tw_host_shard_t *shard = &run->shards[r];
        find_chunks(run, r);
        for (int k = 0; k < TW_N_CODINGS; k++) {
            size_t n = run->ops[k] ? (size_t)run->ops[k]->n_cells[r] : 0;
            shard->n_cells = 2 + n > shard->n_cells ? 2 + n : shard->n_cells;
        }
        n_tasks += shard->n_chunks;
        n_cells += shard->n_chunks * shard->n_cells;
    }
    tw_task_t *tasks = tw_sched_alloc(run->sched, (n_tasks + 1) * sizeof(*tasks));
    tw_host_cell_t *cells = tw_sched_alloc(run->sched, (n_cells + 1) * sizeof(*cells));
    if (!tasks || !cells) {
        return TW_ERR_NO_MEMORY;
    }
    memset(tasks, 0xff, n_tasks * sizeof(*tasks)); /* every byte of TW_TASK_NONE is 0xff */
    for (int r = 0; r < run->first->n_owners; r++) {
        tw_host_shard_t *shard = &run->shards[r];
        shard->sent[0] = shard->sent[1] = TW_TASK_NONE;
        shard->read = tasks;
        shard->cells = cells;
        for (size_t c = 0, at = 0; c < shard->n_chunks; c++) {
            size_t n = count_elems(run, shard, c);
            cells[0] = user_cell(shard, 1, at, n);
            cells[1] = user_cell(shard, 0, at, n);
            cells += shard->n_cells;
            at += n;
        }
        tasks += shard->n_chunks;
    }
    return TW_OK;
}

static tw_status_t get_ops(tw_host_run_t *run, tw_kept_program_t *kept)
{
    size_t n = run->op ? run->op->grid->n_chunks : 0;
    int is_there[TW_N_CODINGS] = {[TW_CODING_NONE] = n == 0};
    for (size_t c = 0; c < n; c++) {
        is_there[tw_grid_coding(run->op->grid, c)] = 1;
    }
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_params_t params = {.topo = run->topo,
                                        .flows = run->flows,
                                        .coding = (tw_coding_t)k,
                                        .has_inner = run->op && run->op->inner,
                                        .rounds_sums = tw_coll_rounds_sums(run->request->coll, run->args),
                                        .stages = run->swaps ? TW_STAGE_SENT : TW_STAGE_NONE};
        if (is_there[k]) {
            TW_TRY(tw_ops_get(kept, &params, &run->ops[k]));
            run->is_mixed = run->first != NULL;
            run->first = run->ops[k];
        }
    }
    return TW_OK;
}

/** Find where the shards of all ranks begin in an all-reduce: [W + 1]. Ranks that own nothing have empty
 *  shards. Returns NULL if memory is out. */
static size_t *split_evenly(const tw_host_run_t *run)
{
    int world = run->topo->world, n_shards = tw_flows_count_shards(run->flows, run->topo), n_before = 0;
    size_t *first = tw_sched_alloc(run->sched, ((size_t)world + 1) * sizeof(*first));
    for (int r = 0; first && r < world; r++) {
        n_before += tw_flows_owns(run->flows, run->topo, r);
        first[r + 1] = tw_coll_shard_offset(run->request->n_elems, n_shards, n_before);
    }
    return first;
}

/** Give the grid the shards of the plain operation. These are cut from all segments together, while the grid
 *  would cut each segment. With other shards, sums would be made in another order and have other bits. */
static tw_status_t give_counts(const tw_host_run_t *run)
{
    tw_coll_args_t *args = run->args;
    size_t world = (size_t)run->topo->world, n = args->n_segments, begin = 0;
    tw_coll_segment_t *segments = tw_sched_alloc(run->sched, (n + 1) * sizeof(*segments));
    size_t *counts = tw_sched_alloc(run->sched, (n * world + 1) * sizeof(*counts));
    const size_t *first = split_evenly(run);
    if (!segments || !counts || !first) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t s = 0; s < n; s++, counts += world) {
        size_t end = begin + args->segments[s].n_elems;
        segments[s] = args->segments[s];
        segments[s].counts = counts;
        for (size_t r = 0; r < world; r++) {
            size_t from = first[r] > begin ? first[r] : begin;
            size_t to = first[r + 1] < end ? first[r + 1] : end;
            counts[r] = to > from ? to - from : 0;
        }
        begin = end;
    }
    args->segments = segments;
    return TW_OK;
}

tw_status_t tw_host_run_init(tw_host_run_t *run, tw_kept_program_t *kept)
{
    size_t elem_bytes = tw_type_bytes(run->args->type);
    run->chunk_elems = run->request->choice.chunk_bytes / elem_bytes;
    run->chunk_elems += run->chunk_elems == 0;
    if (run->args->codec) {
        TW_TRY(run->flows->recodes ? give_counts(run) : TW_OK);
        TW_TRY(tw_qop_create(run->request, run->args, run->chunk_elems * elem_bytes, &run->op));
    }
    TW_TRY(make_view(run, 0));
    TW_TRY(make_view(run, 1));
    if (!run->op && run->args->op == TW_COLL_ALLREDUCE && run->flows->of != TW_FLOWS_WHOLES) {
        run->firsts[0] = run->firsts[1] = split_evenly(run);
        TW_TRY(run->firsts[0] ? TW_OK : TW_ERR_NO_MEMORY);
    }
    TW_TRY(get_ops(run, kept));
    run->shards = tw_sched_alloc(run->sched, (size_t)run->first->n_owners * sizeof(*run->shards));
    if (!run->shards) {
        return TW_ERR_NO_MEMORY;
    }
    return create_shards(run);
}
