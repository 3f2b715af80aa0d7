/** Plain operations whose programs (program.h) become tasks, chunk by chunk.
 *
 *  A reduce-scatter turns everybody's `in` of a shard into the owner's `out`; an all-gather turns the owner's
 *  `in` into everybody's `out`; an all-reduce is one after the other, the owner's `out` between them. Where
 *  an owner has the whole tensor, that is its shard. */
#include "collectives/algorithms/algorithm.h"

/** What this rank has of a chunk. */
typedef struct value {
    tw_span_t span;
    tw_task_t task; /**< that makes it */
    int is_own;     /**< it is `in`, before it is reduced */
} value_t;

typedef struct shard {
    tw_span_t in, out;
    size_t n_elems, n_chunks;
    /** [n_chunks] of the own shard: who makes `in`, or the sum; of others: the last to read `in`, then who
     *  makes `out` */
    tw_task_t *task;
    value_t *values; /**< [n_chunks][n_values of the phase] */
} shard_t;

typedef struct run {
    const tw_build_t *build;
    const tw_flows_t *flows;
    const tw_phase_t *phase;
    shard_t *shards;  /**< [world] */
    size_t n_chunks;  /**< most of a shard */
    int is_spread;    /**< the phase spreads, else it reduces */
    tw_span_t *spans; /**< [world + 1] inputs of a sum */
} run_t;

/* ---- shards -------------------------------------------------------------------------------------------- */

/** Shard r of a view; where the view is one shard, that is its rank's. */
static tw_span_t shard_span(const run_t *run, const tw_view_t *view, const size_t *first, int r)
{
    const tw_build_t *build = run->build;
    int owner = run->flows->of == TW_FLOWS_ROOT ? build->args->root : build->topo->rank;

    if (first && run->flows->of == TW_FLOWS_SHARDS) {
        return tw_span_view(view, first[r], first[r + 1] - first[r]);
    }
    return tw_span_view(view, 0, run->flows->of == TW_FLOWS_WHOLES || r == owner ? view->n_elems : 0);
}

/** 0: out of memory; the error sticks to the schedule. */
static int create_shards(run_t *run)
{
    const tw_build_t *build = run->build;
    int world = build->topo->world;

    run->shards = tw_sched_alloc(build->sched, (size_t)world * sizeof(*run->shards));
    run->spans = tw_sched_alloc(build->sched, ((size_t)world + 1) * sizeof(*run->spans));
    for (int r = 0; r < world && run->shards; r++) {
        shard_t *shard = &run->shards[r];
        shard->in = shard_span(run, build->in, build->in_first, r);
        shard->out = shard_span(run, build->out, build->out_first, r);
        shard->n_elems = shard->in.n > shard->out.n ? shard->in.n : shard->out.n;
        shard->n_chunks = tw_chunk_count(build, shard->n_elems);
        shard->task = tw_sched_alloc(build->sched, (shard->n_chunks + 1) * sizeof(*shard->task));
        if (!shard->task) {
            return 0;
        }
        for (size_t c = 0; c < shard->n_chunks; c++) {
            shard->task[c] = TW_TASK_NONE;
        }
        run->n_chunks = shard->n_chunks > run->n_chunks ? shard->n_chunks : run->n_chunks;
    }
    return run->shards && run->spans;
}

static tw_span_t chunk_of(const tw_build_t *build, const shard_t *shard, tw_span_t span, size_t c)
{
    span.first += c * build->chunk_elems;
    span.n = tw_chunk_elems(build, shard->n_elems, c);
    return span;
}

static tw_span_t make_scratch(const tw_build_t *build, const shard_t *shard, size_t c)
{
    size_t bytes = tw_chunk_elems(build, shard->n_elems, c) * build->in->elem_bytes;

    return tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static value_t *value_at(const run_t *run, const tw_step_t *step, size_t c, int value)
{
    return &run->shards[step->owner].values[c * (size_t)run->phase->n_values[step->owner] + (size_t)value];
}

static value_t input_of(const run_t *run, const tw_step_t *step, size_t c, int input)
{
    const shard_t *shard = &run->shards[step->owner];
    int value = run->phase->inputs[step->first_input + input];

    if (value != TW_STEP_OWN) {
        return *value_at(run, step, c, value);
    }
    return (value_t){.span = chunk_of(run->build, shard, shard->in, c),
                     .task = run->is_spread ? shard->task[c] : TW_TASK_NONE,
                     .is_own = !run->is_spread};
}

static void send(const run_t *run, const tw_step_t *step, size_t c)
{
    tw_sched_t *sched = run->build->sched;
    value_t from = input_of(run, step, c, 0);
    tw_task_t task = tw_sched_send(sched, step->peer, from.span);

    tw_sched_after(sched, task, from.task);
    if (from.is_own) {
        run->shards[step->owner].task[c] = task;
    }
}

/** What is spread comes to where it belongs, once nothing there is read any more. */
static void receive(const run_t *run, const tw_step_t *step, size_t c)
{
    tw_sched_t *sched = run->build->sched;
    shard_t *shard = &run->shards[step->owner];
    value_t *value = value_at(run, step, c, step->value);

    value->span =
        run->is_spread ? chunk_of(run->build, shard, shard->out, c) : make_scratch(run->build, shard, c);
    value->task = tw_sched_recv(sched, step->peer, value->span);
    if (run->is_spread) {
        tw_sched_after(sched, value->task, shard->task[c]);
        shard->task[c] = value->task;
    }
}

/** Sums of sums have been scaled; the last one has the factor. */
static void add_up(const run_t *run, const tw_step_t *step, size_t c)
{
    const tw_build_t *build = run->build;
    shard_t *shard = &run->shards[step->owner];
    value_t *value = value_at(run, step, c, step->value), first = input_of(run, step, c, 0);
    int all_partial = step->n_partial == step->n_inputs, reads_own = 0;
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = run->spans,
        .n_inputs = (size_t)step->n_inputs,
        .n_partial = all_partial ? 0 : (size_t)step->n_partial,
        .scale = all_partial ? 1.0f : build->scale,
        .factor = step->is_last ? build->factor : 1.0f,
        .limit = build->limit,
    };

    if (step->n_inputs == 1 && sum.scale == 1.0f && !step->is_last) { /* nothing to do */
        *value = first;
        return;
    }
    value->span = step->is_last ? chunk_of(build, shard, shard->out, c) : make_scratch(build, shard, c);
    for (int i = 0; i < step->n_inputs; i++) {
        run->spans[i] = input_of(run, step, c, i).span;
    }
    sum.to = value->span;
    value->task = tw_work_reduce(build->sched, &sum);
    for (int i = 0; i < step->n_inputs; i++) {
        value_t input = input_of(run, step, c, i);
        tw_sched_after(build->sched, value->task, input.task);
        reads_own |= input.is_own;
    }
    int waits = step->is_last && build->aliased && run->flows->of == TW_FLOWS_WHOLES;
    for (int r = 0; waits && r < build->topo->world;
         r++) { /* for what is sent of `in`, which is `out`, too */
        tw_sched_after(build->sched, value->task, run->shards[r].task[c]);
    }
    if (reads_own || step->is_last) {
        shard->task[c] = value->task;
    }
}

/** What a hop has to do of chunk c of every shard. */
static void emit_hop(const run_t *run, int hop, size_t c)
{
    const tw_phase_t *phase = run->phase;

    for (int s = phase->first_step[hop]; s < phase->first_step[hop + 1]; s++) {
        const tw_step_t *step = &phase->steps[s];
        if (c >= run->shards[step->owner].n_chunks) {
            continue;
        }
        if (step->kind == TW_STEP_SEND) {
            send(run, step, c);
        } else if (step->kind == TW_STEP_RECV) {
            receive(run, step, c);
        } else {
            add_up(run, step, c);
        }
    }
}

/* ---- phases -------------------------------------------------------------------------------------------- */

static int begin(run_t *run, const tw_phase_t *phase, int is_spread)
{
    tw_sched_t *sched = run->build->sched;

    run->phase = phase;
    run->is_spread = is_spread;
    for (int r = 0; r < run->build->topo->world; r++) {
        shard_t *shard = &run->shards[r];
        size_t n = shard->n_chunks * (size_t)phase->n_values[r];
        shard->values = tw_sched_alloc(sched, (n + 1) * sizeof(*shard->values));
        if (!shard->values) {
            return 0;
        }
    }
    return 1;
}

/** Chunk after chunk, each a few rounds behind the one before: what a hop sends on came in rounds ago. */
static void reduce(run_t *run, const tw_phase_t *phase)
{
    size_t most_delay = phase->n_hops > 0 ? (size_t)(phase->n_hops - 1) * TW_HOP_ROUNDS : 0, c;

    if (!begin(run, phase, 0)) {
        return;
    }
    for (size_t round = 0; run->n_chunks > 0 && round < run->n_chunks + most_delay; round++) {
        tw_sched_next_round(run->build->sched);
        for (int hop = 0; hop < phase->n_hops; hop++) {
            if (tw_hop_chunk(round, hop, run->n_chunks, &c)) {
                emit_hop(run, hop, c);
            }
        }
    }
}

/** Hop by hop, whatever is long there: nothing is kept but what is packed while it travels. From a root,
 *  chunk by chunk: a rank has nothing else to pass on. */
static void spread(run_t *run, const tw_phase_t *phase)
{
    size_t n_hops = (size_t)phase->n_hops, n = run->n_chunks;
    int by_chunk = run->flows->of == TW_FLOWS_ROOT;

    if (!begin(run, phase, 1)) {
        return;
    }
    for (size_t i = 0; i < n * n_hops; i++) {
        if (!by_chunk || i % n_hops == 0) {
            tw_sched_next_round(run->build->sched);
        }
        emit_hop(run, (int)(by_chunk ? i % n_hops : i / n), by_chunk ? i / n_hops : i % n);
    }
}

void tw_build_program(const tw_build_t *build, const tw_flows_t *flows, const tw_program_t *program)
{
    int rank = build->topo->rank, reduces = program->reduce.n_steps > 0;
    run_t run = {.build = build, .flows = flows};

    if (!create_shards(&run)) {
        return;
    }
    if (reduces) {
        reduce(&run, &program->reduce);
    }
    if (build->args->op == TW_COLL_REDUCE_SCATTER) {
        return;
    }
    run.shards[rank].in = reduces ? run.shards[rank].out : run.shards[rank].in;
    spread(&run, &program->spread);
    if (build->args->op == TW_COLL_ALLGATHER) {
        tw_build_copy(build, 0, build->out_first[rank], build->in->n_elems);
    }
}

/* ---- the rows ------------------------------------------------------------------------------------------ */

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLGATHER, "ring",
                 "each shard travels from rank to rank, leaving each node once; W - 1 hops", 0},
        .flows = {.spread = tw_flow_spread_ring},
    },
    {
        .info =
            {TW_COLL_REDUCE_SCATTER, "ring",
             "partial sums travel from rank to rank, rounded to the tensor's type on each hop; W - 1 hops",
             0},
        .flows = {.reduce = tw_flow_reduce_ring},
        .owner_matters = 1,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "ring", "ring reduce-scatter, then ring all-gather; 2 (W - 1) hops", 0},
        .flows = {.reduce = tw_flow_reduce_ring, .spread = tw_flow_spread_ring},
        .owner_matters = 1,
    },
    {
        .info =
            {TW_COLL_ALLGATHER, "hierarchical",
             "shards travel from node to node, the ranks of a node share that work and spread them inside",
             0},
        .flows = {.spread = tw_flow_spread_hierarchical},
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "hierarchical",
                 "summed inside the node in fp32 in rank order, then from node to node, rounded on each hop",
                 0},
        .flows = {.reduce = tw_flow_reduce_hierarchical},
        .owner_matters = 1,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "hierarchical", "hierarchical reduce-scatter, then all-gather", 0},
        .flows = {.reduce = tw_flow_reduce_hierarchical, .spread = tw_flow_spread_hierarchical},
        .owner_matters = 1,
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "two_hop",
                 "summed in fp32 inside the node in rank order, rounded, then at the owner in node order; "
                 "the same bits for any owner",
                 0},
        .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1},
    },
    {
        .info = {TW_COLL_ALLREDUCE, "two_hop", "two-hop reduce-scatter, then hierarchical all-gather", 0},
        .flows = {.reduce = tw_flow_reduce_two_hop, .spread = tw_flow_spread_hierarchical, .nodes_first = 1},
    },
    {
        .info = {TW_COLL_ALLGATHER, "direct", "each rank sends its shard to every other rank; one hop", 0},
        .flows = {.spread = tw_flow_spread_direct},
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "direct",
                 "raw inputs go to the owner, who sums in fp32 in rank order and rounds once; one hop, the "
                 "most accurate",
                 0},
        .flows = {.reduce = tw_flow_reduce_direct},
    },
    {
        .info = {TW_COLL_ALLREDUCE, "direct",
                 "direct reduce-scatter, then all-gather; two hops, rounded once", 0},
        .flows = {.reduce = tw_flow_reduce_direct, .spread = tw_flow_spread_direct},
    },
    {
        .info = {TW_COLL_ALLREDUCE, "exchange",
                 "everybody sends everything to everybody and sums in fp32 in rank order; one hop, for tiny "
                 "tensors",
                 0},
        .flows = {.reduce = tw_flow_reduce_direct, .of = TW_FLOWS_WHOLES},
    },
    {
        .info = {TW_COLL_BROADCAST, "chain", "from rank to rank, chunk after chunk; for large tensors", 0},
        .flows = {.spread = tw_flow_spread_ring, .of = TW_FLOWS_ROOT},
    },
    {
        .info = {TW_COLL_BROADCAST, "binomial", "a binomial tree; log2(W) hops", 0},
        .flows = {.spread = tw_flow_spread_binomial, .of = TW_FLOWS_ROOT},
    },
};

const tw_algo_rows_t tw_shard_rows = {algos, sizeof(algos) / sizeof(algos[0])};
