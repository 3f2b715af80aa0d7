/** The engine for host memory: an operation is chosen, and its program becomes tasks, messages over the
 *  transport and computations, chunk by chunk.
 *
 *  A reduce-scatter turns everybody's `in` of a shard into the owner's `out`; an all-gather turns the owner's
 *  `in` into everybody's `out`; an all-reduce is one after the other, the owner's result between them. Where
 *  an owner has the whole tensor, that is its shard. What is plain travels from and to the caller's memory;
 *  in other forms a chunk is in a buffer of its own, which is sent on as it is. */
#include <string.h>
#include <xxhash.h>

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
    shard_t *shards;                   /**< [world] */
    size_t n_chunks;                   /**< most of a shard */
    int swaps;                         /**< an all-to-all in place: all is read before anything is written, */
    tw_task_t all_read;                /**< by this task and those before it */
    int first_owner, end_owner;        /**< whose ops are emitted */
    int *n_shares;                     /**< [world + 1] of the ranks before each; NULL: each has one */
    /** [2 * world] the last messages of even and of odd chunks that an owner was given */
    tw_task_t *sent;
    cell_t *inputs;     /**< [world + 1] of a sum */
    tw_span_t *spans;   /**< [world + 1] likewise */
    tw_sbuf_t *buffers; /**< [world + 1] likewise */
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
    return tw_span_buffer(tw_sched_buffer(run->build->sched, bytes), 0, bytes);
}

/** Shard r of a view; where the view is one shard, that is its rank's. */
static tw_span_t shard_span(const run_t *run, const tw_view_t *view, const size_t *first, int r)
{
    const tw_build_t *build = run->build;
    int owner = run->flows->of == TW_FLOWS_ROOT ? build->args->root : build->topo->rank;

    if (run->n_shares) {
        int n = run->n_shares[build->topo->world];
        size_t at = tw_coll_shard_offset(view->n_elems, n, run->n_shares[r]);
        return tw_span_view(view, at, tw_coll_shard_offset(view->n_elems, n, run->n_shares[r + 1]) - at);
    }
    if (first && run->flows->of == TW_FLOWS_SHARDS) {
        return tw_span_view(view, first[r], first[r + 1] - first[r]);
    }
    return tw_span_view(view, 0, run->flows->of == TW_FLOWS_WHOLES || r == owner ? view->n_elems : 0);
}

static void find_chunks(run_t *run, int r)
{
    const tw_build_t *build = run->build;
    shard_t *shard = &run->shards[r];

    if (run->op) {
        shard->first_chunk = run->op->grid->shards[r].first_chunk;
        shard->n_chunks = run->op->grid->shards[r].n_chunks;
    } else {
        shard->in = shard_span(run, build->in, build->in_first, r);
        shard->out = shard_span(run, build->out, build->out_first, r);
        shard->n_elems = shard->in.n > shard->out.n ? shard->in.n : shard->out.n;
        shard->n_chunks = tw_chunk_count(build, shard->n_elems);
    }
    run->n_chunks = shard->n_chunks > run->n_chunks ? shard->n_chunks : run->n_chunks;
}

static tw_status_t create_shard(run_t *run, int r)
{
    tw_sched_t *sched = run->build->sched;
    shard_t *shard = &run->shards[r];

    find_chunks(run, r);
    for (int k = 0; k < TW_N_CODINGS; k++) {
        size_t n_cells = run->ops[k] ? (size_t)run->ops[k]->n_cells[r] : 0;
        shard->n_cells = n_cells > shard->n_cells ? n_cells : shard->n_cells;
    }
    shard->read = tw_sched_alloc(sched, 2 * (shard->n_chunks + 1) * sizeof(*shard->read));
    shard->cells = tw_sched_alloc(sched, (shard->n_chunks * shard->n_cells + 1) * sizeof(*shard->cells));
    if (!shard->read || !shard->cells) {
        return TW_ERR_NO_MEMORY;
    }
    shard->written = shard->read + shard->n_chunks;
    for (size_t c = 0; c < 2 * shard->n_chunks; c++) {
        shard->read[c] = TW_TASK_NONE;
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

/** The owners before each rank, where not all ranks are. */
static tw_status_t count_shares(run_t *run)
{
    int world = run->build->topo->world;

    if (run->flows->of != TW_FLOWS_SOME) {
        return TW_OK;
    }
    run->n_shares = tw_sched_alloc(run->build->sched, ((size_t)world + 1) * sizeof(*run->n_shares));
    for (int r = 0; run->n_shares && r < world; r++) {
        run->n_shares[r + 1] = run->n_shares[r] + tw_flows_owns(run->flows, run->build->topo, r);
    }
    return run->n_shares ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t create(run_t *run, tw_kept_program_t *kept)
{
    tw_sched_t *sched = run->build->sched;
    size_t world = (size_t)run->build->topo->world;
    int in_grid = run->build->args->codec || run->flows->by_pair;

    TW_TRY(count_shares(run));
    run->op = in_grid ? tw_qop_create(run->build) : NULL;
    if (in_grid && !run->op) {
        return TW_ERR_NO_MEMORY; /* or what sticks already */
    }
    TW_TRY(get_ops(run, kept));
    run->end_owner = run->first->n_owners;
    run->shards = tw_sched_alloc(sched, (size_t)run->end_owner * sizeof(*run->shards));
    run->sent = tw_sched_alloc(sched, 2 * world * sizeof(*run->sent));
    run->inputs = tw_sched_alloc(sched, (world + 1) * sizeof(*run->inputs));
    run->spans = tw_sched_alloc(sched, (world + 1) * sizeof(*run->spans));
    run->buffers = tw_sched_alloc(sched, (world + 1) * sizeof(*run->buffers));
    if (!run->shards || !run->sent || !run->inputs || !run->spans || !run->buffers) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < 2 * world; i++) {
        run->sent[i] = TW_TASK_NONE;
    }
    for (int r = 0; r < run->end_owner; r++) {
        TW_TRY(create_shard(run, r));
    }
    return TW_OK;
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

static tw_sbuf_t buffer_of(const cell_t *cell, int index)
{
    return cell->is_src ? TW_QOP_SRC : index == TW_CELL_DST ? TW_QOP_DST : cell->span.buffer;
}

static tw_task_t *last_sent(const run_t *run, const tw_op_t *op, size_t c)
{
    return &run->sent[2 * op->owner + (int)(c % 2)];
}

/** What is given to an owner is not encoded before its message of two chunks ago has been sent: one on the
 *  way and one that follows are enough, and encoding more would keep the processor from the messages. */
static void convert(run_t *run, const tw_op_t *op, size_t c)
{
    const cell_t from = read_cell(run, op->from_owner, c, op->from);
    size_t chunk = index_of(run, op->owner, c);
    tw_task_t task;

    if (op->from == TW_CELL_SRC && op->to == TW_CELL_DST && run->build->in_place) { /* a copy to itself */
        return;
    }
    tw_span_t to = make_room(run, op, c);
    tw_sbuf_t place = op->to == TW_CELL_DST ? TW_QOP_DST : to.buffer;
    if (op->in == op->out) {
        task = tw_work_copy(run->build->sched, from.span, to);
    } else if (op->in == TW_FORM_PLAIN) {
        uint64_t seed = op->seed == TW_SEED_RANK ? run->op->own_seed : run->op->args.seed;
        task = tw_qop_encode(run->op, chunk, op->out, seed, buffer_of(&from, op->from), place);
    } else {
        task = tw_qop_decode(run->op, chunk, op->in, from.span.buffer, place);
    }
    if (op->for_send) {
        tw_sched_after(run->build->sched, task, *last_sent(run, op, c));
    }
    wrote(run, op, c, to, task);
    reads(run, op, c, task, &from);
}

static void move(run_t *run, const tw_op_t *op, size_t c)
{
    if (op->kind == TW_OP_SEND) {
        const cell_t from = read_cell(run, op->from_owner, c, op->from);
        tw_task_t task = tw_sched_send(run->build->sched, op->peer, from.span);
        reads(run, op, c, task, &from);
        *last_sent(run, op, c) = task;
    } else {
        tw_span_t to = make_room(run, op, c);
        wrote(run, op, c, to, tw_sched_recv(run->build->sched, op->peer, to));
    }
}

/** Sums of sums have been scaled; the last one has the factor. */
static tw_task_t add_plain(const run_t *run, const tw_op_t *op, tw_span_t to)
{
    const tw_build_t *build = run->build;
    int all_partial = op->n_partial == op->n_inputs;
    const tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = run->spans,
        .n_inputs = (size_t)op->n_inputs,
        .n_partial = all_partial ? 0 : (size_t)op->n_partial,
        .scale = all_partial ? 1.0f : build->scale,
        .factor = op->is_last ? build->factor : 1.0f,
        .limit = build->limit,
        .to = to,
    };

    for (int i = 0; i < op->n_inputs; i++) {
        run->spans[i] = run->inputs[i].span;
    }
    return tw_work_reduce(build->sched, &sum);
}

static tw_task_t add_encoded(const run_t *run, const tw_op_t *op, size_t c, tw_span_t to)
{
    const int *inputs = &ops_of(run, op->owner, c)->inputs[op->first_input];
    const tw_qop_sum_t sum = {.chunk = index_of(run, op->owner, c),
                              .form = op->in,
                              .from = run->buffers,
                              .n_from = op->n_inputs,
                              .factor = op->is_last ? run->build->scale * run->build->factor : 1.0f,
                              .seed = op->is_last ? run->op->args.seed : run->op->node_seed};

    for (int i = 0; i < op->n_inputs; i++) {
        run->buffers[i] = buffer_of(&run->inputs[i], inputs[i]);
    }
    return tw_qop_add(run->op, &sum, op->to == TW_CELL_DST ? TW_QOP_DST : to.buffer);
}

static void add_up(run_t *run, const tw_op_t *op, size_t c)
{
    const tw_build_t *build = run->build;
    const int *inputs = &ops_of(run, op->owner, c)->inputs[op->first_input];
    int is_plain = op->in == TW_FORM_PLAIN && op->out == TW_FORM_PLAIN;

    for (int i = 0; i < op->n_inputs; i++) {
        run->inputs[i] = read_cell(run, op->owner, c, inputs[i]);
    }
    if (is_plain && op->n_inputs == 1 && !op->is_last && build->scale == 1.0f) { /* nothing to add up */
        *cell_at(run, op->owner, c, op->to) = run->inputs[0];
        return;
    }
    tw_span_t to = make_room(run, op, c);
    tw_task_t task = is_plain ? add_plain(run, op, to) : add_encoded(run, op, c, to);
    int waits = op->is_last && build->aliased && run->flows->of == TW_FLOWS_WHOLES;
    for (int r = 0; waits && r < build->topo->world; r++) { /* for what is sent of `in`, which is `out` */
        tw_sched_after(build->sched, task, run->shards[r].read[c]);
    }
    wrote(run, op, c, to, task);
    for (int i = 0; i < op->n_inputs; i++) {
        reads(run, op, c, task, &run->inputs[i]);
    }
}

/** What a hop has to do of chunk c of every shard. */
static void emit_hop(run_t *run, int hop, size_t c)
{
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_t *ops = run->ops[k];
        for (int i = ops ? ops->first_op[hop] : 0; ops && i < ops->first_op[hop + 1]; i++) {
            const tw_op_t *op = &ops->ops[i];
            if (op->owner < run->first_owner || op->owner >= run->end_owner ||
                c >= run->shards[op->owner].n_chunks || ops_of(run, op->owner, c) != ops) {
                continue;
            }
            if (op->kind == TW_OP_CONVERT) {
                convert(run, op, c);
            } else if (op->kind == TW_OP_SUM) {
                add_up(run, op, c);
            } else {
                move(run, op, c);
            }
        }
    }
}

/* ---- phases -------------------------------------------------------------------------------------------- */

/** Chunk after chunk, each a few rounds behind the one before: what a hop sends on came in rounds ago. A
 *  result is spread in the round that makes it. */
static void pipeline(run_t *run, int n_hops)
{
    int n_reduce = run->first->n_reduce_hops;
    int last = n_hops > n_reduce && n_reduce > 0 ? n_hops - 2 : n_hops - 1;
    size_t n = run->n_chunks, c;

    for (size_t round = 0; n > 0 && round < n + (size_t)last * TW_HOP_ROUNDS; round++) {
        tw_sched_next_round(run->build->sched);
        for (int hop = 0; hop < n_hops; hop++) {
            if (tw_hop_chunk(round, hop < n_reduce || n_reduce == 0 ? hop : hop - 1, n, &c)) {
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
    int world = run->build->topo->world;

    for (int half = 0; half < 2; half++) {
        run->first_owner = half * world;
        run->end_owner = run->first_owner + world;
        for (size_t c = 0; c < run->n_chunks; c++) {
            emit_hop(run, 0, c);
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
    } else if (run.op || flows->of == TW_FLOWS_SOME) { /* links are busy both ways: up and down a tree */
        pipeline(&run, run.first->n_hops);
    } else {
        if (run.first->n_reduce_hops > 0) {
            pipeline(&run, run.first->n_reduce_hops);
        }
        spread_plain(&run);
    }
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

/** A hash of all arguments that tw_coll_choose looks at. */
static uint64_t key_of(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    int32_t rest[3] = {(int32_t)args->op, (int32_t)args->type, args->force_codec};
    uint64_t key = XXH3_64bits_withSeed(rest, sizeof(rest), request->shape);

    return args->algo ? XXH3_64bits_withSeed(args->algo, strlen(args->algo), key) : key;
}

/** The same question again gets the same answer at once: planning is a good part of a small operation. */
static tw_status_t choose_again(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    size_t n = coll->n_known < TW_COLL_KNOWN ? coll->n_known : TW_COLL_KNOWN;
    uint64_t key = key_of(request);

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

static tw_status_t build(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    TW_TRY(tw_check_begin_sched(request));
    size_t elem_bytes = tw_type_bytes(request->args.type);
    float scale = tw_coll_scale(&request->args, coll->topo.world);
    size_t chunk_elems = request->choice.chunk_bytes / elem_bytes;
    tw_coll_args_t args = request->args;
    if (!tw_algo_get(request->choice.algo)->info.quantized) { /* asked for, perhaps, but declined */
        args.codec = args.inner_codec = NULL;
    }
    tw_build_t build = {
        .sched = request->sched,
        .topo = &coll->topo,
        .args = &args,
        .in = &request->in,
        .out = &request->out,
        .in_first = request->in_first,
        .out_first = request->out_first,
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
    const tw_algo_t *algo = tw_algo_get(request->choice.algo);
    if (algo->build) {
        algo->build(&build);
    } else {
        build_program(&build, &algo->flows, &coll->programs[request->choice.algo]);
    }
    return tw_sched_seal(request->sched);
}

static tw_status_t request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    TW_TRY(tw_request_create(coll, args, &request));
    tw_status_t status = choose_again(request);
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
    const tw_topo_t *topo = &coll->topo;
    tw_coll_request_t *request;
    TW_TRY(request_create(coll, args, &request));
    *bytes = 0;
    for (int r = 0; r < topo->world; r++) {
        *bytes += topo->node[r] != topo->node[topo->rank] ? tw_sched_sent_bytes(request->sched, r) : 0;
    }
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
