/** The engine for host memory: an operation is chosen, and its program becomes tasks, messages over the
 *  transport and computations, chunk by chunk.
 *
 *  A reduce-scatter turns everybody's `in` of a shard into the owner's `out`; an all-gather turns the owner's
 *  `in` into everybody's `out`; an all-reduce is one after the other, the owner's result between them. Where
 *  an owner has the whole tensor, that is its shard. What is plain travels from and to the caller's memory;
 *  in other forms a chunk is in a buffer of its own, which is sent on as it is. */
#include <string.h>

#include "collectives/communicator.h"
#include "collectives/quantized/operation.h"
#include "collectives/schedule/run.h"

/** A chunk in a form. */
typedef struct cell {
    tw_span_t span;
    tw_task_t task; /**< that makes it */
    int is_src;     /**< it is `in` */
} cell_t;

typedef struct shard {
    size_t first_chunk; /**< of the grid */
    tw_span_t in, out;  /**< without one */
    size_t n_elems, n_chunks;
    tw_task_t sent[2];         /**< the last messages of even and of odd chunks that the owner was given */
    tw_task_t *read, *written; /**< [n_chunks] the last to read `in`; who writes `out` */
    cell_t *cells;             /**< [n_chunks][most cells of the owner] */
    size_t n_cells;
} shard_t;

typedef struct run {
    const tw_build_t *build;
    const tw_flows_t *flows;
    const tw_ops_t *ops[TW_N_CODINGS]; /**< NULL: no chunk is coded so */
    const tw_ops_t *first;             /**< any of them; all have the same hops */
    tw_qop_t *op;                      /**< NULL: all is plain */
    shard_t *shards;                   /**< [n_owners of the ops] */
    size_t n_chunks;                   /**< most of a shard */
    int swaps;                         /**< an all-to-all in place: all is read before anything is written, */
    tw_task_t all_read;                /**< by this task and those before it */
    int n_shards, n_before; /**< where not all ranks own one: shards, and those of ranks before this one */
    tw_span_t *row;         /**< what is left of the buffer of a row, which what is made takes; NULL: none */
} run_t;

/* ---- chunks -------------------------------------------------------------------------------------------- */

static size_t index_of(const run_t *run, int owner, size_t c)
{
    return run->shards[owner].first_chunk + c;
}

static const tw_ops_t *ops_of(const run_t *run, int owner, size_t c)
{
    return run->ops[run->op ? tw_grid_coding(run->op->grid, index_of(run, owner, c)) : TW_CODING_NONE];
}

static tw_span_t cut(const run_t *run, int owner, tw_span_t span, size_t c)
{
    span.first += c * run->build->chunk_elems;
    span.n = tw_chunk_elems(run->build, run->shards[owner].n_elems, c);
    return span;
}

static tw_span_t in_of(const run_t *run, int owner, size_t c)
{
    return run->op ? tw_qop_in(run->op, index_of(run, owner, c)) : cut(run, owner, run->shards[owner].in, c);
}

static tw_span_t out_of(const run_t *run, int owner, size_t c)
{
    return run->op ? tw_qop_out(run->op, index_of(run, owner, c))
                   : cut(run, owner, run->shards[owner].out, c);
}

static tw_span_t make_buffer(const run_t *run, int owner, size_t c, tw_form_t form)
{
    if (run->op) {
        return tw_qop_buffer(run->op, index_of(run, owner, c), form);
    }
    size_t bytes = tw_chunk_elems(run->build, run->shards[owner].n_elems, c) * run->build->in->elem_bytes;
    if (run->row) {
        run->row->first += bytes;
        return tw_span_buffer(run->row->buffer, run->row->first - bytes, bytes);
    }
    return tw_span_buffer(tw_sched_buffer(run->build->sched, bytes), 0, bytes);
}

/** Shard r of what is read, or written; where that is one shard, it is its rank's. */
static tw_span_t shard_span(const run_t *run, int is_out, int r)
{
    const tw_build_t *build = run->build;
    const tw_flows_t *flows = run->flows;
    const tw_view_t *view = is_out ? build->out : build->in;
    const size_t *first = is_out ? build->out_first : build->in_first;
    int owner = flows->of == TW_FLOWS_ROOT ? build->args->root : build->topo->rank;

    if (flows->by_pair) { /* what goes to each rank, then what comes from each */
        first += is_out && r >= build->topo->world ? r - build->topo->world : r;
        int is_there = is_out == (r >= build->topo->world);
        return tw_span_view(view, is_there ? first[0] : 0, is_there ? first[1] - first[0] : 0);
    }
    if (flows->of == TW_FLOWS_SOME) {
        int n = run->n_shards, end = run->n_before + tw_flows_owns(flows, build->topo, r);
        size_t at = tw_coll_shard_offset(view->n_elems, n, run->n_before);
        return tw_span_view(view, at, tw_coll_shard_offset(view->n_elems, n, end) - at);
    }
    if (first && flows->of == TW_FLOWS_SHARDS) {
        return tw_span_view(view, first[r], first[r + 1] - first[r]);
    }
    return tw_span_view(view, 0, flows->of == TW_FLOWS_WHOLES || r == owner ? view->n_elems : 0);
}

static void find_chunks(run_t *run, int r)
{
    const tw_build_t *build = run->build;
    shard_t *shard = &run->shards[r];

    if (run->op) {
        shard->first_chunk = run->op->grid->shards[r].first_chunk;
        shard->n_chunks = run->op->grid->shards[r].n_chunks;
    } else {
        shard->in = shard_span(run, 0, r);
        shard->out = shard_span(run, 1, r);
        shard->n_elems = shard->in.n > shard->out.n ? shard->in.n : shard->out.n;
        shard->n_chunks = tw_chunk_count(build, shard->n_elems);
        shard->n_chunks += shard->n_chunks == 0 && run->flows->merges; /* a row may have empty ones */
        run->n_before += tw_flows_owns(run->flows, build->topo, r);
    }
    run->n_chunks = shard->n_chunks > run->n_chunks ? shard->n_chunks : run->n_chunks;
}

static tw_status_t create_shards(run_t *run)
{
    tw_sched_t *sched = run->build->sched;
    size_t n_tasks = 0, n_cells = 0;

    for (int r = 0; r < run->first->n_owners; r++) {
        shard_t *shard = &run->shards[r];
        find_chunks(run, r);
        for (int k = 0; k < TW_N_CODINGS; k++) {
            size_t n = run->ops[k] ? (size_t)run->ops[k]->n_cells[r] : 0;
            shard->n_cells = n > shard->n_cells ? n : shard->n_cells;
        }
        n_tasks += 2 * shard->n_chunks;
        n_cells += shard->n_chunks * shard->n_cells;
    }
    tw_task_t *tasks = tw_sched_alloc(sched, (n_tasks + 1) * sizeof(*tasks));
    cell_t *cells = tw_sched_alloc(sched, (n_cells + 1) * sizeof(*cells));
    if (!tasks || !cells) {
        return TW_ERR_NO_MEMORY;
    }
    memset(tasks, 0xff, n_tasks * sizeof(*tasks)); /* TW_TASK_NONE */
    for (int r = 0; r < run->first->n_owners; r++) {
        shard_t *shard = &run->shards[r];
        shard->sent[0] = shard->sent[1] = TW_TASK_NONE;
        shard->read = tasks;
        shard->written = tasks + shard->n_chunks;
        shard->cells = cells;
        tasks += 2 * shard->n_chunks;
        cells += shard->n_chunks * shard->n_cells;
    }
    return TW_OK;
}

static tw_status_t get_ops(run_t *run, tw_kept_program_t *kept)
{
    size_t n = run->op ? run->op->grid->n_chunks : 0;
    int is_there[TW_N_CODINGS] = {[TW_CODING_NONE] = n == 0};

    for (size_t c = 0; c < n; c++) {
        is_there[tw_grid_coding(run->op->grid, c)] = 1;
    }
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_params_t params = {.topo = run->build->topo,
                                        .flows = run->flows,
                                        .coding = (tw_coding_t)k,
                                        .has_inner = run->op && run->op->inner,
                                        .rounds_sums = run->build->rounds_sums,
                                        .stages = run->swaps ? TW_STAGE_SENT : TW_STAGE_NONE};
        if (is_there[k]) {
            TW_TRY(tw_ops_get(kept, &params, &run->ops[k]));
            run->first = run->ops[k];
        }
    }
    return TW_OK;
}

/** For the grid, whose shards are cut from each segment: the plain operation's, which are cut from the whole.
 *  Else the sums would be made in another order, and have other bits. */
static tw_status_t give_counts(const run_t *run, tw_build_t *build, tw_coll_args_t *args)
{
    size_t world = (size_t)build->topo->world, n = args->n_segments, begin = 0, n_elems = 0;
    int n_shards = tw_flows_count_shards(run->flows, build->topo);
    tw_coll_segment_t *segments = tw_sched_alloc(build->sched, (n + 1) * sizeof(*segments));
    size_t *counts = tw_sched_alloc(build->sched, (n * world + 1) * sizeof(*counts));

    if (!segments || !counts) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t s = 0; s < n; s++) {
        n_elems += args->segments[s].n_elems;
    }
    for (size_t s = 0; s < n; s++, counts += world) {
        size_t end = begin + args->segments[s].n_elems;
        int shard = 0;
        segments[s] = args->segments[s];
        segments[s].counts = counts;
        for (size_t r = 0; r < world; r++) {
            int owns = tw_flows_owns(run->flows, build->topo, (int)r);
            size_t from = tw_coll_shard_offset(n_elems, n_shards, shard);
            size_t to = tw_coll_shard_offset(n_elems, n_shards, shard + owns);
            from = from > begin ? from : begin;
            to = to < end ? to : end;
            counts[r] = to > from ? to - from : 0;
            shard += owns;
        }
        begin = end;
    }
    args->segments = segments;
    build->args = args;
    return TW_OK;
}

static tw_status_t create_grid(run_t *run)
{
    tw_build_t build = *run->build;
    tw_coll_args_t args = *build.args;

    if (run->flows->recodes) {
        TW_TRY(give_counts(run, &build, &args));
    }
    run->op = tw_qop_create(&build);
    return run->op ? TW_OK : TW_ERR_NO_MEMORY; /* or what sticks already */
}

static tw_status_t create(run_t *run, tw_kept_program_t *kept)
{
    if (!run->build->in) {
        TW_TRY(create_grid(run));
    }
    TW_TRY(get_ops(run, kept));
    run->n_shards = tw_flows_count_shards(run->flows, run->build->topo);
    run->shards = tw_sched_alloc(run->build->sched, (size_t)run->first->n_owners * sizeof(*run->shards));
    if (!run->shards) {
        return TW_ERR_NO_MEMORY;
    }
    return create_shards(run);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

static cell_t *cell_at(const run_t *run, int owner, size_t c, int cell)
{
    shard_t *shard = &run->shards[owner];

    return &shard->cells[c * shard->n_cells + (size_t)cell];
}

static cell_t read_cell(const run_t *run, int owner, size_t c, int cell)
{
    if (cell == TW_CELL_SRC) {
        return (cell_t){in_of(run, owner, c), TW_TASK_NONE, 1};
    }
    if (cell == TW_CELL_DST) {
        return (cell_t){out_of(run, owner, c), run->shards[owner].written[c], 0};
    }
    return *cell_at(run, owner, c, cell);
}

/** Where an op writes: a buffer of its own, or `out`. */
static tw_span_t make_room(const run_t *run, const tw_op_t *op, size_t c)
{
    if (op->to == TW_CELL_DST) {
        return out_of(run, op->owner, c);
    }
    return make_buffer(run, op->owner, c, op->out);
}

/** The task of an op that writes: nothing in the tensors is written before it is read. */
static void wrote(run_t *run, const tw_op_t *op, size_t c, tw_span_t span, tw_task_t task)
{
    shard_t *shard = &run->shards[op->owner];

    if (op->to == TW_CELL_DST) {
        tw_sched_after(run->build->sched, task, shard->read[c]);
        tw_sched_after(run->build->sched, task, run->all_read);
        shard->written[c] = task;
    } else {
        *cell_at(run, op->owner, c, op->to) = (cell_t){span, task, 0};
    }
}

/** A task needs a cell. */
static void reads(run_t *run, const tw_op_t *op, size_t c, tw_task_t task, const cell_t *from)
{
    tw_sched_after(run->build->sched, task, from->task);
    if (from->is_src) {
        run->shards[op->from_owner].read[c] = task;
    }
    if (from->is_src && run->swaps) {
        tw_sched_after(run->build->sched, task, run->all_read);
        run->all_read = task;
    }
}

/** Where codecs read or write. */
static tw_sbuf_t place_of(tw_span_t span, int is_src)
{
    return is_src ? TW_QOP_SRC : span.view ? TW_QOP_DST : span.buffer;
}

/** inputs: one, or those of a sum. */
static tw_task_t emit_coding(const run_t *run, const tw_op_t *op, size_t c, const cell_t *inputs,
                             tw_span_t to)
{
    int is_sum = op->kind == TW_OP_SUM, n = is_sum ? op->n_inputs : 1;
    tw_sbuf_t from[n];
    const tw_qop_work_t work = {.chunk = index_of(run, op->owner, c),
                                .is_sum = is_sum,
                                .in = op->in,
                                .out = op->out,
                                .from = from,
                                .n_from = n,
                                .to = place_of(to, 0),
                                .factor = op->is_last ? run->build->scale * run->build->factor : 1.0f,
                                .seed = op->seed};

    for (int i = 0; i < n; i++) {
        from[i] = place_of(inputs[i].span, inputs[i].is_src);
    }
    return tw_qop_emit(run->op, &work);
}

/** What is given to an owner is not encoded before its message of two chunks ago has been sent: one on the
 *  way and one that follows are enough, and encoding more would keep the processor from the messages. */
static void convert(run_t *run, const tw_op_t *op, size_t c)
{
    const cell_t from = read_cell(run, op->from_owner, c, op->from);
    tw_task_t task;

    if (op->from == TW_CELL_SRC && op->to == TW_CELL_DST && run->build->in_place) { /* a copy to itself */
        return;
    }
    tw_span_t to = make_room(run, op, c);
    if (op->in == op->out) {
        task = tw_work_copy(run->build->sched, from.span, to);
    } else {
        task = emit_coding(run, op, c, &from, to);
    }
    if (op->for_send) {
        tw_sched_after(run->build->sched, task, run->shards[op->owner].sent[c % 2]);
    }
    wrote(run, op, c, to, task);
    reads(run, op, c, task, &from);
}

/** What a message is of. */
static cell_t message_cell(const run_t *run, const tw_op_t *op, size_t c)
{
    return op->kind == TW_OP_SEND ? read_cell(run, op->from_owner, c, op->from)
                                  : (cell_t){make_room(run, op, c), TW_TASK_NONE, 0};
}

static tw_task_t emit_message(const run_t *run, const tw_op_t *op, tw_span_t span)
{
    return op->kind == TW_OP_SEND ? tw_sched_send(run->build->sched, op->peer, span)
                                  : tw_sched_recv(run->build->sched, op->peer, span);
}

static void note_message(run_t *run, const tw_op_t *op, size_t c, const cell_t *cell, tw_task_t task)
{
    if (op->kind == TW_OP_SEND) {
        reads(run, op, c, task, cell);
        run->shards[op->owner].sent[c % 2] = task;
    } else {
        wrote(run, op, c, cell->span, task);
    }
}

static void move(run_t *run, const tw_op_t *op, size_t c)
{
    const cell_t cell = message_cell(run, op, c);

    note_message(run, op, c, &cell, emit_message(run, op, cell.span));
}

/** Sums of sums have been scaled; the last one has the factor. An own contribution that is the first input
 *  changes places with the last one, where it is scaled. */
static tw_task_t add_plain(const run_t *run, const tw_op_t *op, const cell_t *inputs, tw_span_t to)
{
    const tw_build_t *build = run->build;
    int n = op->n_inputs, all_partial = op->n_partial == n;
    int swaps = build->scale != 1.0f && op->n_partial > 0 && inputs[0].is_src;
    tw_span_t spans[n];
    const tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = spans,
        .n_inputs = (size_t)n,
        .n_partial = all_partial ? 0 : (size_t)op->n_partial,
        .scale = all_partial ? 1.0f : build->scale,
        .factor = op->is_last ? build->factor : 1.0f,
        .limit = build->limit,
        .to = to,
    };

    for (int i = 0; i < n; i++) {
        spans[i] = inputs[i].span;
    }
    if (swaps) {
        spans[0] = inputs[n - 1].span;
        spans[n - 1] = inputs[0].span;
    }
    return tw_work_reduce(build->sched, &sum);
}

/** 1: a sum that is as it was. */
static int is_single(const run_t *run, const tw_op_t *op)
{
    int is_plain = op->in == TW_FORM_PLAIN && op->out == TW_FORM_PLAIN;

    return is_plain && op->n_inputs == 1 && !op->is_last && run->build->scale == 1.0f;
}

static void add_up(run_t *run, const tw_op_t *op, size_t c)
{
    const tw_build_t *build = run->build;
    int is_plain = op->in == TW_FORM_PLAIN && op->out == TW_FORM_PLAIN;
    cell_t inputs[op->n_inputs];

    for (int i = 0; i < op->n_inputs; i++) {
        inputs[i] = read_cell(run, op->owner, c, ops_of(run, op->owner, c)->inputs[op->first_input + i]);
    }
    if (is_single(run, op) && !run->row) {
        *cell_at(run, op->owner, c, op->to) = inputs[0];
        return;
    }
    tw_span_t to = make_room(run, op, c);
    tw_task_t task = is_plain ? add_plain(run, op, inputs, to) : emit_coding(run, op, c, inputs, to);
    int waits = op->is_last && build->aliased && run->flows->of == TW_FLOWS_WHOLES;
    for (int r = 0; waits && r < build->topo->world; r++) { /* for what is sent of `in`, which is `out` */
        tw_sched_after(build->sched, task, run->shards[r].read[c]);
    }
    wrote(run, op, c, to, task);
    for (int i = 0; i < op->n_inputs; i++) {
        reads(run, op, c, task, &inputs[i]);
    }
}

static void emit_op(run_t *run, const tw_op_t *op, size_t c)
{
    if (op->kind == TW_OP_CONVERT) {
        convert(run, op, c);
    } else if (op->kind == TW_OP_SUM) {
        add_up(run, op, c);
    } else {
        move(run, op, c);
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** Where all shards are short, what a rank sends to another in a hop is one row of them, in messages of as
 *  many as fit in a chunk; a row that goes round the end of the world is two. */
typedef struct row {
    int first, end; /**< ops of a message, and of the sums that it sends */
    size_t n_elems;
    int in_buffer; /**< some of it is added up here, or will be; else it is in the tensors */
} row_t;

/** The ops from `first` on that a message is of; none, if that op is of none. */
static row_t find_row(const run_t *run, int first, int end)
{
    const tw_op_t *ops = run->first->ops, *last = NULL;
    row_t row = {.first = first, .end = first};

    while (row.end < end) {
        const tw_op_t *sum = ops[row.end].kind == TW_OP_SUM && !ops[row.end].is_last ? &ops[row.end] : NULL;
        const tw_op_t *op = &ops[row.end + (sum != NULL)];
        size_t n_elems = row.n_elems + run->shards[op->owner].n_elems;
        int is_message = op->kind == TW_OP_SEND || op->kind == TW_OP_RECV;
        int follows = !last || (op->kind == last->kind && op->owner > last->owner);
        if (!is_message || !follows || (last && n_elems > run->build->chunk_elems)) {
            break;
        }
        row.in_buffer |= op->kind == TW_OP_RECV ? op->to >= 0 : sum && !is_single(run, sum);
        row.n_elems = n_elems;
        row.end = (int)(op - ops) + 1;
        last = op;
    }
    return row;
}

static void emit_row(run_t *run, const row_t *row)
{
    tw_sched_t *sched = run->build->sched;
    const tw_op_t *ops = &run->first->ops[row->first], *message = &ops[ops[0].kind == TW_OP_SUM];
    int n = row->end - row->first;
    size_t bytes = row->n_elems * run->build->in->elem_bytes;
    const tw_span_t buffer =
        tw_span_buffer(row->in_buffer ? tw_sched_buffer(sched, bytes) : TW_SBUF_NONE, 0, bytes);
    tw_span_t rest = buffer;

    run->row = row->in_buffer ? &rest : NULL;
    for (int i = 0; i < n; i++) {
        if (ops[i].kind == TW_OP_SUM) {
            add_up(run, &ops[i], 0);
        }
    }
    tw_span_t span = row->in_buffer ? buffer : message_cell(run, message, 0).span;
    span.n = row->in_buffer ? bytes : row->n_elems;
    if (run->build->args->op == TW_COLL_BARRIER) {
        span = tw_span_signal();
    }
    const tw_task_t task = emit_message(run, message, span);
    for (int i = 0; i < n; i++) {
        if (ops[i].kind != TW_OP_SUM) {
            const cell_t cell = message_cell(run, &ops[i], 0);
            note_message(run, &ops[i], 0, &cell, task);
        }
    }
    run->row = NULL;
}

static void emit_rows(run_t *run, int hop)
{
    const tw_ops_t *ops = run->first;
    int i = ops->first_op[hop], end = ops->first_op[hop + 1];

    while (i < end) {
        const row_t row = find_row(run, i, end);
        if (row.end > i) {
            emit_row(run, &row);
            i = row.end;
        } else {
            emit_op(run, &ops->ops[i++], 0);
        }
    }
}

/* ---- phases -------------------------------------------------------------------------------------------- */

/** What a hop has to do of chunk c of every shard. */
static void emit_hop(run_t *run, int hop, size_t c)
{
    if (run->flows->merges && run->n_chunks == 1) {
        emit_rows(run, hop);
        return;
    }
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_t *ops = run->ops[k];
        for (int i = ops ? ops->first_op[hop] : 0; ops && i < ops->first_op[hop + 1]; i++) {
            const tw_op_t *op = &ops->ops[i];
            if (c < run->shards[op->owner].n_chunks && ops_of(run, op->owner, c) == ops) {
                emit_op(run, op, c);
            }
        }
    }
}

/** 1 and the chunk that hop `hop` (from 0) has in a round; 0: it has none. */
static int hop_chunk(size_t round, int hop, size_t n_chunks, size_t *chunk)
{
    size_t delay = (size_t)hop * TW_HOP_ROUNDS;

    *chunk = round - delay;
    return round >= delay && *chunk < n_chunks;
}

/** Chunk after chunk, each a few rounds (schedule.h) behind the one before: what a hop sends on came in
 *  rounds ago. A result is spread in the round that makes it. */
static void pipeline(run_t *run, int n_hops)
{
    int n_reduce = run->first->n_reduce_hops;
    int last = n_hops > n_reduce && n_reduce > 0 ? n_hops - 2 : n_hops - 1;
    size_t n = run->n_chunks, c;

    for (size_t round = 0; n > 0 && round < n + (size_t)last * TW_HOP_ROUNDS; round++) {
        tw_sched_next_round(run->build->sched);
        for (int hop = 0; hop < n_hops; hop++) {
            if (hop_chunk(round, hop < n_reduce || n_reduce == 0 ? hop : hop - 1, n, &c)) {
                emit_hop(run, hop, c);
            }
        }
    }
}

/** What is plain, hop by hop, whatever is long there: nothing is kept but what is packed while it travels.
 *  From a root, chunk by chunk: a rank has nothing else to pass on. */
static void spread_plain(run_t *run)
{
    size_t first = (size_t)run->first->n_reduce_hops, n_hops = (size_t)run->first->n_hops - first;
    size_t n = run->n_chunks;
    int by_chunk = run->flows->of == TW_FLOWS_ROOT;

    for (size_t i = 0; i < n * n_hops; i++) {
        if (!by_chunk || i % n_hops == 0) {
            tw_sched_next_round(run->build->sched);
        }
        emit_hop(run, (int)(first + (by_chunk ? i % n_hops : i / n)), by_chunk ? i / n_hops : i % n);
    }
}

/** What is sent is put aside, chunk by chunk; then comes what is received. */
static void swap(run_t *run)
{
    for (int hop = 0; hop < run->first->n_hops; hop++) {
        for (size_t c = 0; c < run->n_chunks; c++) {
            emit_hop(run, hop, c);
        }
    }
}

/** Emit a program for every chunk. */
static void build_program(const tw_build_t *build, const tw_flows_t *flows, tw_kept_program_t *kept)
{
    run_t run = {
        .build = build, .flows = flows, .swaps = flows->by_pair && build->aliased, .all_read = TW_TASK_NONE};
    tw_status_t status = create(&run, kept);

    if (status != TW_OK) {
        tw_sched_fail(build->sched, status);
    } else if (run.swaps) {
        swap(&run);
    } else if (run.op || flows->of == TW_FLOWS_SOME || flows->merges) { /* links are busy both ways */
        pipeline(&run, run.first->n_hops);
    } else {
        if (run.first->n_reduce_hops > 0) {
            pipeline(&run, run.first->n_reduce_hops);
        }
        spread_plain(&run);
    }
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static tw_status_t build(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    TW_TRY(tw_check_begin_sched(request));
    size_t elem_bytes = tw_type_bytes(request->args.type);
    float scale = tw_coll_scale(&request->args, coll->topo.world);
    size_t chunk_elems = request->choice.chunk_bytes / elem_bytes;
    tw_coll_args_t args = request->args;
    const tw_algo_t *algo = tw_algo_get(request->choice.algo);
    if (!algo->info.quantized) { /* asked for, perhaps, but declined */
        args.codec = args.inner_codec = NULL;
    }
    tw_build_t build = {
        .sched = request->sched,
        .topo = &coll->topo,
        .args = &args,
        .tensors = request->tensors,
        .chunk_elems = chunk_elems > 0 ? chunk_elems : 1,
        .scale = scale,
        .factor = scale != 1.0f ? request->args.factor : tw_coll_factor(&request->args, coll->topo.world),
        .limit = tw_coll_limit(&request->args),
        .in_place = request->in_place,
        .aliased = request->aliased,
        .grid = &request->grid,
        .codecs = &coll->codecs,
        .rounds_sums = tw_coll_rounds_sums(coll, &request->args),
        .least_packed_bytes = request->choice.least_packed_bytes,
    };
    if (!args.codec) {
        build.in = tw_request_view(request, 0, &build.in_first);
        build.out = tw_request_view(request, 1, &build.out_first);
        TW_TRY(build.in && build.out ? TW_OK : TW_ERR_NO_MEMORY);
    }
    build_program(&build, &algo->flows, &coll->programs[request->choice.algo]);
    return tw_sched_seal(request->sched);
}

static tw_status_t request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    TW_TRY(tw_request_create(coll, args, &request));
    tw_status_t status = tw_request_choose(request);
    if (status == TW_OK) {
        status = build(request);
    }
    if (status != TW_OK) {
        tw_request_destroy(request);
        return status;
    }
    *out = request;
    return TW_OK;
}

static tw_status_t planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes)
{
    tw_coll_request_t *request;
    TW_TRY(request_create(coll, args, &request));
    *bytes = tw_check_inter_node_bytes(request);
    tw_request_destroy(request);
    return TW_OK;
}

static const tw_coll_algo_info_t *algo_get(size_t index)
{
    const tw_algo_t *algo = tw_algo_get(index);

    return algo ? &algo->info : NULL;
}

static size_t workspace_bytes(const tw_coll_t *coll)
{
    return tw_scratch_held_bytes(coll->scratch);
}

const tw_coll_engine_t tw_coll_host_engine = {
    .algo_get = algo_get,
    .request_create = request_create,
    .planned_bytes = planned_bytes,
    .workspace_bytes = workspace_bytes,
};
