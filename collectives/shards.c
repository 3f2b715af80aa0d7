#include "collectives/shards.h"

#include <string.h>

/** Shard r of what is read, or written; where that is one shard, it is its rank's. */
static tw_span_t shard_span(const tw_host_run_t *run, int is_out, int r)
{
    const tw_flows_t *flows = run->flows;
    const tw_view_t *view = run->views[is_out];
    const size_t *first = run->firsts[is_out];
    int world = run->topo->world, owner = flows->of == TW_FLOWS_ROOT ? run->args->root : run->topo->rank;

    if (flows->by_pair && is_out != (r >= world)) { /* what goes to each rank, then what comes from each */
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

    if (run->op) {
        shard->first_chunk = run->op->grid->shards[r].first_chunk;
        shard->n_chunks = run->op->grid->shards[r].n_chunks;
    } else {
        for (int is_out = 0; is_out < 2; is_out++) {
            shard->spans[is_out] = shard_span(run, is_out, r);
            size_t n = shard->spans[is_out].n;
            shard->n_elems = n > shard->n_elems ? n : shard->n_elems;
        }
        shard->n_chunks = (shard->n_elems + run->chunk_elems - 1) / run->chunk_elems;
        shard->n_chunks += shard->n_chunks == 0 && run->flows->merges; /* a row may have empty ones */
    }
    run->n_chunks = shard->n_chunks > run->n_chunks ? shard->n_chunks : run->n_chunks;
}

/** A chunk in the tensors. */
static tw_host_cell_t user_cell(const tw_host_run_t *run, const tw_host_shard_t *shard, int is_out, size_t c)
{
    tw_span_t span = shard->spans[is_out];

    if (run->op) {
        span = tw_qop_span(run->op, is_out, shard->first_chunk + c);
    } else {
        size_t left = shard->n_elems - c * run->chunk_elems;
        span.first += c * run->chunk_elems;
        span.n = left < run->chunk_elems ? left : run->chunk_elems;
    }
    return (tw_host_cell_t){span, TW_TASK_NONE, !is_out};
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
    memset(tasks, 0xff, n_tasks * sizeof(*tasks)); /* TW_TASK_NONE */
    for (int r = 0; r < run->first->n_owners; r++) {
        tw_host_shard_t *shard = &run->shards[r];
        shard->sent[0] = shard->sent[1] = TW_TASK_NONE;
        shard->read = tasks;
        shard->cells = cells;
        for (size_t c = 0; c < shard->n_chunks; c++) {
            cells[0] = user_cell(run, shard, 1, c);
            cells[1] = user_cell(run, shard, 0, c);
            cells += shard->n_cells;
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

/** [W + 1] where the shards of all ranks begin in the segments of an all-reduce; of those that own none, they
 *  are empty. NULL: out of memory. */
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

/** For the grid, whose shards are cut from each segment: the plain operation's, which are cut from the whole.
 *  Else the sums would be made in another order, and have other bits. */
static tw_status_t give_counts(const tw_host_run_t *run)
{
    tw_coll_args_t *args = run->args;
    size_t world = (size_t)run->topo->world, n = args->n_segments, begin = 0;
    tw_coll_segment_t *segments = tw_sched_alloc(run->sched, (n + 1) * sizeof(*segments));
    size_t *counts = tw_sched_alloc(run->sched, (n * world + 1) * sizeof(*counts));
    const size_t *first = run->firsts[0];

    if (!segments || !counts) {
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
    for (int is_out = 0; is_out < 2 && !run->args->codec; is_out++) {
        run->views[is_out] = tw_request_view(run->request, is_out, &run->firsts[is_out]);
        TW_TRY(run->views[is_out] ? TW_OK : TW_ERR_NO_MEMORY);
    }
    if (run->args->op == TW_COLL_ALLREDUCE && run->flows->of != TW_FLOWS_WHOLES) {
        run->firsts[0] = run->firsts[1] = split_evenly(run);
        TW_TRY(run->firsts[0] ? TW_OK : TW_ERR_NO_MEMORY);
    }
    if (run->args->codec) {
        TW_TRY(run->flows->recodes ? give_counts(run) : TW_OK);
        TW_TRY(tw_qop_create(run->request, run->args, run->chunk_elems * elem_bytes, &run->op));
    }
    TW_TRY(get_ops(run, kept));
    run->shards = tw_sched_alloc(run->sched, (size_t)run->first->n_owners * sizeof(*run->shards));
    if (!run->shards) {
        return TW_ERR_NO_MEMORY;
    }
    return create_shards(run);
}
