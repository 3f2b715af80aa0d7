/** The engine for host memory. It chooses how an operation is done, and turns the operation's program chunk
 *  by chunk into tasks: messages over the transport, and computations.
 *
 *  In a program, `in` is what is read and `out` what is written. A reduce-scatter turns all ranks' `in` of a
 *  shard into the owner's `out`. An all-gather turns the owner's `in` into all ranks' `out`. An all-reduce
 *  does both in a row. If an owner owns the whole tensor, its shard is the tensor. Plain data is sent from
 *  and received into the caller's memory. Chunks in other forms have buffers and are sent on unchanged. */
#include "collectives/shards.h"

/* ---- chunks -------------------------------------------------------------------------------------------- */

static size_t index_of(const tw_host_run_t *run, int owner, size_t c)
{
    return run->shards[owner].first_chunk + c;
}

static tw_host_cell_t *cell_at(const tw_host_run_t *run, int owner, size_t c, int cell)
{
    const tw_host_shard_t *shard = &run->shards[owner];
    return &shard->cells[c * shard->n_cells + (size_t)(cell - TW_CELL_DST)];
}

static tw_span_t make_buffer(const tw_host_run_t *run, const tw_op_t *op, size_t c)
{
    if (run->op) {
        return tw_qop_buffer(run->op, index_of(run, op->owner, c), op->out);
    }
    size_t bytes = cell_at(run, op->owner, c, TW_CELL_DST)->span.n * run->views[0]->elem_bytes;
    if (run->row) {
        run->row->first += bytes;
        return tw_span_buffer(run->row->buffer, run->row->first - bytes, bytes);
    }
    return tw_span_buffer(tw_sched_buffer(run->sched, bytes), 0, bytes);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

/** Choose where an op writes: a new buffer, or the target tensors. */
static tw_host_cell_t *host_make_room(const tw_host_run_t *run, const tw_op_t *op, size_t c)
{
    tw_host_cell_t *cell = cell_at(run, op->owner, c, op->to);
    if (op->to != TW_CELL_DST) {
        cell->span = make_buffer(run, op, c);
    }
    return cell;
}

/** Note the task that writes an op's result. A task that writes to a tensor waits for reads of that place. */
static void wrote(tw_host_run_t *run, const tw_op_t *op, size_t c, tw_task_t task)
{
    cell_at(run, op->owner, c, op->to)->task = task;
    if (op->to == TW_CELL_DST) {
        tw_sched_after(run->sched, task, run->shards[op->owner].read[c]);
        tw_sched_after(run->sched, task, run->all_read);
    }
}

/** Make a task wait for the task that writes a cell, and note that the task reads the cell. */
static void reads(tw_host_run_t *run, const tw_op_t *op, size_t c, tw_task_t task, const tw_host_cell_t *from)
{
    tw_sched_after(run->sched, task, from->task);
    if (from->is_src) {
        run->shards[op->from_owner].read[c] = task;
    }
    if (from->is_src && run->swaps) {
        tw_sched_after(run->sched, task, run->all_read);
        run->all_read = task;
    }
}

/** Returns the buffer, or the place in the tensors, at which a codec reads or writes a cell. */
static tw_sbuf_t host_place_of(const tw_host_cell_t *cell)
{
    return cell->is_src ? TW_QOP_SRC : cell->span.view ? TW_QOP_DST : cell->span.buffer;
}

/** Emit an encoding, a decoding or a sum by the codec. inputs: one cell, or the inputs of the sum. */
static tw_task_t emit_coding(const tw_host_run_t *run, const tw_op_t *op, size_t c,
                             const tw_host_cell_t *const *inputs, const tw_host_cell_t *to)
{
    int is_sum = op->kind == TW_OP_SUM, n = is_sum ? op->n_inputs : 1;
    tw_sbuf_t from[n];
    const tw_qop_work_t work = {.chunk = index_of(run, op->owner, c),
                                .is_sum = is_sum,
                                .in = op->in,
                                .out = op->out,
                                .from = from,
                                .n_from = n,
                                .to = host_place_of(to),
                                .factor = op->is_last ? run->scale * run->factor : 1.0f,
                                .seed = op->seed};
    for (int i = 0; i < n; i++) {
        from[i] = host_place_of(inputs[i]);
    }
    return tw_qop_emit(run->op, &work);
}

/** Convert a cell. Chunk c of a shard is prepared for sending only when chunk c - 2 of the shard was sent:
 *  encoding further ahead would keep the processor busy while messages wait. */
static void host_convert(tw_host_run_t *run, const tw_op_t *op, size_t c)
{
    const tw_host_cell_t *from = cell_at(run, op->from_owner, c, op->from);
    tw_task_t task;
    /* source and target are the same memory */
    if (op->from == TW_CELL_SRC && op->to == TW_CELL_DST && run->request->in_place) {
        return;
    }
    const tw_host_cell_t *to = host_make_room(run, op, c);
    if (op->in == op->out) {
        task = tw_work_copy(run->sched, from->span, to->span);
    } else {
        task = emit_coding(run, op, c, &from, to);
    }
    if (op->for_send) {
        tw_sched_after(run->sched, task, run->shards[op->owner].sent[c % 2]);
    }
    wrote(run, op, c, task);
    reads(run, op, c, task, from);
}

/** Returns the cell that an op sends, or makes room for the cell that it receives. */
static const tw_host_cell_t *message_cell(const tw_host_run_t *run, const tw_op_t *op, size_t c)
{
    return op->kind == TW_OP_SEND ? cell_at(run, op->from_owner, c, op->from) : host_make_room(run, op, c);
}

static tw_task_t emit_message(const tw_host_run_t *run, const tw_op_t *op, tw_span_t span)
{
    return op->kind == TW_OP_SEND ? tw_sched_send(run->sched, op->peer, span)
                                  : tw_sched_recv(run->sched, op->peer, span);
}

static void note_message(tw_host_run_t *run, const tw_op_t *op, size_t c, const tw_host_cell_t *cell,
                         tw_task_t task)
{
    if (op->kind == TW_OP_SEND) {
        reads(run, op, c, task, cell);
        run->shards[op->owner].sent[c % 2] = task;
    } else {
        wrote(run, op, c, task);
    }
}

static void host_move(tw_host_run_t *run, const tw_op_t *op, size_t c)
{
    const tw_host_cell_t *cell = message_cell(run, op, c);
    note_message(run, op, c, cell, emit_message(run, op, cell->span));
}

/** Emit a plain sum. Inputs that are sums have been scaled already; the last sum applies the factor. With a
 *  scale, inputs that are sums must come first. So if this rank's own contribution is first, it and the last
 *  input change places. */
static tw_task_t add_plain(const tw_host_run_t *run, const tw_op_t *op, const tw_host_cell_t *const *inputs,
                           const tw_host_cell_t *to)
{
    int n = op->n_inputs, all_partial = op->n_partial == n;
    int swaps = run->scale != 1.0f && op->n_partial > 0 && inputs[0]->is_src;
    tw_span_t spans[n];
    const tw_work_sum_t sum = {
        .type = run->args->type,
        .inputs = spans,
        .n_inputs = (size_t)n,
        .n_partial = all_partial ? 0 : (size_t)op->n_partial,
        .scale = all_partial ? 1.0f : run->scale,
        .factor = op->is_last ? run->factor : 1.0f,
        .limit = tw_coll_limit(run->args),
        .to = to->span,
    };
    for (int i = 0; i < n; i++) {
        spans[i] = inputs[i]->span;
    }
    if (swaps) {
        spans[0] = inputs[n - 1]->span;
        spans[n - 1] = inputs[0]->span;
    }
    return tw_work_reduce(run->sched, &sum);
}

/** Returns 1 if the sum has a single input and does not change it. */
static int is_single(const tw_host_run_t *run, const tw_op_t *op)
{
    int is_plain = op->in == TW_FORM_PLAIN && op->out == TW_FORM_PLAIN;
    return is_plain && op->n_inputs == 1 && !op->is_last && run->scale == 1.0f;
}

static void add_up(tw_host_run_t *run, const tw_ops_t *ops, const tw_op_t *op, size_t c)
{
    int is_plain = op->in == TW_FORM_PLAIN && op->out == TW_FORM_PLAIN;
    const tw_host_cell_t *inputs[op->n_inputs];
    for (int i = 0; i < op->n_inputs; i++) {
        inputs[i] = cell_at(run, op->owner, c, ops->inputs[op->first_input + i]);
    }
    if (is_single(run, op) && !run->row) {
        *cell_at(run, op->owner, c, op->to) = *inputs[0];
        return;
    }
    const tw_host_cell_t *to = host_make_room(run, op, c);
    tw_task_t task = is_plain ? add_plain(run, op, inputs, to) : emit_coding(run, op, c, inputs, to);
    int waits = op->is_last && run->request->aliased && run->flows->of == TW_FLOWS_WHOLES;
    /* wait for all reads of the memory that this sum overwrites */
    for (int r = 0; waits && r < run->topo->world; r++) {
        tw_sched_after(run->sched, task, run->shards[r].read[c]);
    }
    wrote(run, op, c, task);
    for (int i = 0; i < op->n_inputs; i++) {
        reads(run, op, c, task, inputs[i]);
    }
}

static void emit_op(tw_host_run_t *run, const tw_ops_t *ops, const tw_op_t *op, size_t c)
{
    if (op->kind == TW_OP_CONVERT) {
        host_convert(run, op, c);
    } else if (op->kind == TW_OP_SUM) {
        add_up(run, ops, op, c);
    } else {
        host_move(run, op, c);
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** The shards that a rank sends (or receives) in a hop are a row. If every shard is a single chunk, a row
 *  travels in messages of as many shards as fit in a chunk, and a new message begins where the row wraps
 *  round the end of the world. This is the part of a row that travels in one message. */
typedef struct row {
    int first, end; /**< ops that one message serves, with the sums that it sends */
    size_t n_elems;
    /** 1: a part of the row is in a buffer, as a sum of this rank; 0: all of it is in the tensors */
    int in_buffer;
} row_t;

/** Find the ops from `first` on that one message serves. There is none if the first op needs no message. */
static row_t find_row(const tw_host_run_t *run, int first, int end)
{
    const tw_op_t *ops = run->first->ops, *last = NULL;
    row_t row = {.first = first, .end = first};
    while (row.end < end) {
        const tw_op_t *sum = ops[row.end].kind == TW_OP_SUM && !ops[row.end].is_last ? &ops[row.end] : NULL;
        const tw_op_t *op = &ops[row.end + (sum != NULL)];
        size_t n_elems = row.n_elems + run->shards[op->owner].n_elems;
        int is_message = op->kind == TW_OP_SEND || op->kind == TW_OP_RECV;
        int follows = !last || (op->kind == last->kind && op->owner > last->owner);
        if (!is_message || !follows || (last && n_elems > run->chunk_elems)) {
            break;
        }
        row.in_buffer |= op->kind == TW_OP_RECV ? op->to >= 0 : sum && !is_single(run, sum);
        row.n_elems = n_elems;
        row.end = (int)(op - ops) + 1;
        last = op;
    }
    return row;
}

static void emit_row(tw_host_run_t *run, const row_t *row)
{
    const tw_op_t *ops = &run->first->ops[row->first], *message = &ops[ops[0].kind == TW_OP_SUM];
    int n = row->end - row->first;
    size_t bytes = row->n_elems * run->views[0]->elem_bytes;
    const tw_span_t buffer =
        tw_span_buffer(row->in_buffer ? tw_sched_buffer(run->sched, bytes) : TW_SBUF_NONE, 0, bytes);
    tw_span_t rest = buffer;
    run->row = row->in_buffer ? &rest : NULL;
    for (int i = 0; i < n; i++) {
        if (ops[i].kind == TW_OP_SUM) {
            add_up(run, run->first, &ops[i], 0);
        }
    }
    tw_span_t span = row->in_buffer ? buffer : message_cell(run, message, 0)->span;
    span.n = row->in_buffer ? bytes : row->n_elems;
    if (run->args->op == TW_COLL_BARRIER) {
        span = tw_span_signal();
    }
    const tw_task_t task = emit_message(run, message, span);
    for (int i = 0; i < n; i++) {
        if (ops[i].kind != TW_OP_SUM) {
            note_message(run, &ops[i], 0, message_cell(run, &ops[i], 0), task);
        }
    }
    run->row = NULL;
}

static void emit_rows(tw_host_run_t *run, int hop)
{
    const tw_ops_t *ops = run->first;
    int i = ops->first_op[hop], end = ops->first_op[hop + 1];
    while (i < end) {
        const row_t row = find_row(run, i, end);
        if (row.end > i) {
            emit_row(run, &row);
            i = row.end;
        } else {
            emit_op(run, ops, &ops->ops[i++], 0);
        }
    }
}

/* ---- phases -------------------------------------------------------------------------------------------- */

static int is_coded(const tw_host_run_t *run, int owner, size_t c, int coding)
{
    return !run->is_mixed || (int)tw_grid_coding(run->op->grid, index_of(run, owner, c)) == coding;
}

/** Emit the ops of one hop on chunk c of every shard. */
static void emit_hop(tw_host_run_t *run, int hop, size_t c)
{
    if (run->flows->merges && run->n_chunks == 1) {
        emit_rows(run, hop);
        return;
    }
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_t *ops = run->ops[k];
        for (int i = ops ? ops->first_op[hop] : 0; ops && i < ops->first_op[hop + 1]; i++) {
            const tw_op_t *op = &ops->ops[i];
            if (c < run->shards[op->owner].n_chunks && is_coded(run, op->owner, c, k)) {
                emit_op(run, ops, op, c);
            }
        }
    }
}

/** Get the chunk that hop `hop` (from 0) handles in a round. Returns 0 if there is none. */
static int hop_chunk(size_t round, int hop, size_t n_chunks, size_t *chunk)
{
    size_t delay = (size_t)hop * TW_HOP_ROUNDS;
    *chunk = round - delay;
    return round >= delay && *chunk < n_chunks;
}

/** Emit chunk after chunk. Each hop is TW_HOP_ROUNDS rounds behind the hop before, so that the chunk that it
 *  sends on has arrived meanwhile. A result is spread in the round in which it is made. */
static void pipeline(tw_host_run_t *run, int n_hops)
{
    int n_reduce = run->first->n_reduce_hops;
    int last = n_hops > n_reduce && n_reduce > 0 ? n_hops - 2 : n_hops - 1;
    size_t n = run->n_chunks, c;
    for (size_t round = 0; n > 0 && round < n + (size_t)last * TW_HOP_ROUNDS; round++) {
        tw_sched_next_round(run->sched);
        for (int hop = 0; hop < n_hops; hop++) {
            if (hop_chunk(round, hop < n_reduce || n_reduce == 0 ? hop : hop - 1, n, &c)) {
                emit_hop(run, hop, c);
            }
        }
    }
}

/** Emit the spreading of plain data, hop by hop. This needs no memory, except for copies of scattered data on
 *  its way. From a root, spreading goes chunk by chunk, since a rank has no other shard to pass on. */
static void spread_plain(tw_host_run_t *run)
{
    size_t first = (size_t)run->first->n_reduce_hops, n_hops = (size_t)run->first->n_hops - first;
    size_t n = run->n_chunks;
    int by_chunk = run->flows->of == TW_FLOWS_ROOT;
    for (size_t i = 0; i < n * n_hops; i++) {
        if (!by_chunk || i % n_hops == 0) {
            tw_sched_next_round(run->sched);
        }
        emit_hop(run, (int)(first + (by_chunk ? i % n_hops : i / n)), by_chunk ? i / n_hops : i % n);
    }
}

/** Emit an exchange in place. All data to send is copied aside first; then data is received. */
static void swap(tw_host_run_t *run)
{
    for (int hop = 0; hop < run->first->n_hops; hop++) {
        for (size_t c = 0; c < run->n_chunks; c++) {
            emit_hop(run, hop, c);
        }
    }
}

static void emit_all(tw_host_run_t *run)
{
    if (run->swaps) {
        swap(run);
    } else if (run->op || run->flows->of == TW_FLOWS_SOME ||
               run->flows->merges) { /* one pipeline of all hops uses links in both directions */
        pipeline(run, run->first->n_hops);
    } else {
        if (run->first->n_reduce_hops > 0) {
            pipeline(run, run->first->n_reduce_hops);
        }
        spread_plain(run);
    }
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static tw_status_t build(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    const tw_algo_t *algo = tw_algo_get(request->choice.algo);
    tw_coll_args_t args = request->args;
    float scale = tw_coll_scale(&args, coll->topo.world);
    TW_TRY(tw_check_begin_sched(request));
    if (!algo->info.quantized) { /* the caller may have given a codec, which was declined */
        args.codec = args.inner_codec = NULL;
    }
    tw_host_run_t run = {
        .request = request,
        .args = &args,
        .sched = request->sched,
        .topo = &coll->topo,
        .flows = &algo->flows,
        .scale = scale,
        .factor = scale != 1.0f ? args.factor : tw_coll_factor(&args, coll->topo.world),
        .swaps = algo->flows.by_pair && request->aliased,
        .all_read = TW_TASK_NONE,
    };
    TW_TRY(tw_host_run_init(&run, &coll->programs[request->choice.algo]));
    emit_all(&run);
    return tw_sched_seal(request->sched);
}

/** Choose how to do the operation, or take an earlier choice for equal arguments. Choosing takes a good part
 *  of a small operation's time. */
static tw_status_t host_choose(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    size_t n = coll->n_known < TW_COLL_KNOWN ? coll->n_known : TW_COLL_KNOWN;
    uint64_t key = tw_request_key(request);
    for (size_t i = 0; i < n; i++) {
        if (coll->known[i].key == key) {
            request->choice = coll->known[i].choice;
            return TW_OK;
        }
    }
    TW_TRY(tw_coll_choose(coll, &request->args, request->n_elems, &request->choice));
    coll->known[coll->n_known++ % TW_COLL_KNOWN] = (tw_coll_known_t){.key = key, .choice = request->choice};
    return TW_OK;
}

static tw_status_t request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    TW_TRY(tw_request_create(coll, args, &request));
    tw_status_t status = host_choose(request);
    status = status == TW_OK ? build(request) : status;
    if (status != TW_OK) {
        tw_request_destroy(request);
        return status;
    }
    *out = request;
    return TW_OK;
}

static tw_status_t host_planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes)
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

static size_t host_workspace_bytes(const tw_coll_t *coll)
{
    return tw_scratch_held_bytes(coll->scratch);
}

const tw_coll_engine_t tw_coll_host_engine = {
    .algo_get = algo_get,
    .request_create = request_create,
    .planned_bytes = host_planned_bytes,
    .workspace_bytes = host_workspace_bytes,
};
