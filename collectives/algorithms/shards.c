#include "collectives/algorithms/shards.h"

/* Shard r of a view; where the view is one shard, that is its rank's. */
static tw_span_t shard_span(const tw_build_t *build, const tw_view_t *view, const size_t *first, int r)
{
    if (first) {
        return tw_span_view(view, first[r], first[r + 1] - first[r]);
    }
    return tw_span_view(view, 0, r == build->topo->rank ? view->n_elems : 0);
}

tw_shard_t *tw_shards_create(const tw_build_t *build)
{
    int world = build->topo->world;
    tw_shard_t *shards = tw_sched_alloc(build->sched, (size_t)world * sizeof(*shards));

    for (int r = 0; r < world && shards; r++) {
        tw_shard_t *shard = &shards[r];
        shard->in = shard_span(build, build->in, build->in_first, r);
        shard->out = shard_span(build, build->out, build->out_first, r);
        shard->n_elems = shard->in.n > shard->out.n ? shard->in.n : shard->out.n;
        shard->n_chunks = tw_chunk_count(build, shard->n_elems);
        shard->task = tw_sched_alloc(build->sched, (shard->n_chunks + 1) * sizeof(*shard->task));
        shard->partial = tw_sched_alloc(build->sched, (shard->n_chunks + 1) * sizeof(*shard->partial));
        if (!shard->task || !shard->partial) {
            return NULL;
        }
        for (size_t c = 0; c < shard->n_chunks; c++) {
            shard->task[c] = TW_TASK_NONE;
        }
    }
    return shards;
}

size_t tw_shards_most_chunks(const tw_build_t *build, const tw_shard_t *shards)
{
    size_t most = 0;

    for (int r = 0; r < build->topo->world; r++) {
        most = shards[r].n_chunks > most ? shards[r].n_chunks : most;
    }
    return most;
}

void tw_shards_turn(const tw_build_t *build, tw_shard_t *shards)
{
    if (shards) {
        shards[build->topo->rank].in = shards[build->topo->rank].out;
    }
}

static tw_span_t chunk_of(const tw_build_t *build, const tw_shard_t *shard, tw_span_t span, size_t c)
{
    span.first += c * build->chunk_elems;
    span.n = tw_chunk_elems(build, shard->n_elems, c);
    return span;
}

tw_span_t tw_shard_in(const tw_build_t *build, const tw_shard_t *shard, size_t c)
{
    return chunk_of(build, shard, shard->in, c);
}

tw_span_t tw_shard_out(const tw_build_t *build, const tw_shard_t *shard, size_t c)
{
    return chunk_of(build, shard, shard->out, c);
}

size_t tw_shard_chunk_bytes(const tw_build_t *build, const tw_shard_t *shard, size_t c)
{
    return tw_chunk_elems(build, shard->n_elems, c) * build->in->elem_bytes;
}

tw_span_t tw_shard_scratch(const tw_build_t *build, const tw_shard_t *shard, size_t c)
{
    size_t bytes = tw_shard_chunk_bytes(build, shard, c);

    return tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
}

void tw_build_allgather(const tw_build_t *build, tw_phase_t gather)
{
    tw_shard_t *shards = tw_shards_create(build);

    if (!shards) {
        return;
    }
    gather(build, shards);
    tw_build_copy(build, 0, build->out_first[build->topo->rank], build->in->n_elems);
}

void tw_build_reduce_scatter(const tw_build_t *build, tw_phase_t reduce)
{
    tw_shard_t *shards = tw_shards_create(build);

    if (shards) {
        reduce(build, shards);
    }
}

void tw_build_allreduce(const tw_build_t *build, tw_phase_t reduce, tw_phase_t gather)
{
    tw_shard_t *shards = tw_shards_create(build);

    if (!shards) {
        return;
    }
    reduce(build, shards);
    tw_shards_turn(build, shards);
    gather(build, shards);
}
