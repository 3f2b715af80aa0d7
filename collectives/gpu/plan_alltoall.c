/** Plans of an all-to-all: what goes to a rank of another node is encoded for it, what stays on a node goes
 *  as it is. A round is a chunk to every rank and one from every rank: PREPARE puts each where it is sent
 *  from, HOP sends them, DELIVER takes what has come to dst. In place, all that is sent is put aside first,
 *  and a round does not give its place to another one.
 *
 *  The grid has what is sent, the shards of the ranks in src, and behind that what comes, the shards of the
 *  ranks in dst. */
#include <stdlib.h>
#include <string.h>

#include "collectives/gpu/plan.h"

#define STAGES 3
#define ALIGN_BYTES ((size_t)256)

typedef struct exchange {
    tw_gpu_plan_t *plan;
    const tw_topo_t *topo;
    const tw_coll_args_t *args;
    tw_grid_shard_t *sent, *come; /**< [world] chunks of the grid to each rank, and from each */
    size_t cell_bytes;
    int in_place;
} exchange_t;

/** Cell of a rank in a round's slot; those of what comes behind those of what is sent. */
static size_t cell_number(const exchange_t *x, int rank, int comes, size_t round)
{
    size_t world = (size_t)x->topo->world, slot = round % x->plan->n_slots;

    return slot * 2 * world + (comes ? world : 0) + (size_t)rank;
}

static tw_form_t form_of(const exchange_t *x, int peer, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(&x->plan->grid, chunk);

    if (!codec || x->topo->node[peer] == x->topo->node[x->topo->rank]) {
        return TW_FORM_PLAIN;
    }
    return codec->lossless ? TW_FORM_PACKED : TW_FORM_CODEC;
}

static size_t bytes_of(const exchange_t *x, size_t chunk, tw_form_t form)
{
    const tw_grid_t *grid = &x->plan->grid;

    return tw_grid_chunk_bytes(grid, chunk, form != TW_FORM_PLAIN ? tw_grid_chunk_codec(grid, chunk) : NULL,
                               x->args->type);
}

/** The chunk of a round to a rank, or from it; 0: there is none. */
static int find_chunk(const tw_grid_shard_t *shards, int rank, size_t round, size_t *chunk)
{
    *chunk = shards[rank].first_chunk + round;
    return round < shards[rank].n_chunks;
}

/* ---- stages -------------------------------------------------------------------------------------------- */

static tw_gpu_compute_t *next_compute(const exchange_t *x)
{
    return &x->plan->computes[x->plan->n_computes++];
}

static void prepare(const exchange_t *x, size_t round)
{
    size_t chunk;

    for (int peer = 0; peer < x->topo->world; peer++) {
        if (find_chunk(x->sent, peer, round, &chunk)) {
            size_t cell = cell_number(x, peer, 0, round);
            *next_compute(x) = (tw_gpu_compute_t){.chunk = chunk,
                                                  .in = TW_FORM_PLAIN,
                                                  .out = form_of(x, peer, chunk),
                                                  .seed = TW_SEED_RANK,
                                                  .from = TW_GPU_USER,
                                                  .to = cell * x->cell_bytes,
                                                  .packed = cell};
        }
    }
}

static void deliver(const exchange_t *x, size_t round)
{
    size_t chunk;

    for (int peer = 0; peer < x->topo->world; peer++) {
        if (find_chunk(x->come, peer, round, &chunk)) {
            size_t cell = cell_number(x, peer, peer != x->topo->rank, round);
            *next_compute(x) = (tw_gpu_compute_t){.chunk = chunk,
                                                  .in = form_of(x, peer, chunk),
                                                  .out = TW_FORM_PLAIN,
                                                  .from = cell * x->cell_bytes,
                                                  .to = TW_GPU_USER,
                                                  .packed = cell};
        }
    }
}

static void add_message(const exchange_t *x, int peer, int is_send, size_t chunk, size_t round)
{
    tw_gpu_plan_t *plan = x->plan;
    size_t cell = cell_number(x, peer, !is_send, round);
    tw_form_t form = form_of(x, peer, chunk);
    const tw_gpu_message_t message = {
        .peer = peer,
        .is_send = is_send,
        .at = cell * x->cell_bytes,
        .bytes = bytes_of(x, chunk, form),
        .packed = form == TW_FORM_PACKED ? cell : TW_GPU_NOT_PACKED,
    };

    plan->messages[plan->n_messages++] = message;
    if (is_send && x->topo->node[peer] != x->topo->node[x->topo->rank]) {
        plan->inter_node_bytes += message.bytes;
    }
}

static void hop(const exchange_t *x, size_t round)
{
    int world = x->topo->world, rank = x->topo->rank;
    size_t chunk;

    for (int step = 1; step < world; step++) {
        int to = (rank + step) % world, from = (rank - step + world) % world;
        if (find_chunk(x->sent, to, round, &chunk)) {
            add_message(x, to, 1, chunk, round);
        }
        if (find_chunk(x->come, from, round, &chunk)) {
            add_message(x, from, 0, chunk, round);
        }
    }
}

/** In a tick: the last stage first, as a round gives its slot away only then. */
static void emit_tick(const exchange_t *x, size_t tick)
{
    void (*const stages[STAGES])(const exchange_t *, size_t) = {prepare, hop, deliver};
    tw_gpu_plan_t *plan = x->plan;
    tw_gpu_tick_t *at = &plan->ticks[tick];

    at->first_compute = plan->n_computes;
    at->first_message = plan->n_messages;
    for (size_t s = STAGES; s-- > 0;) {
        for (size_t round = 0; round < plan->n_rounds; round++) {
            if (tick == s + (x->in_place ? 0 : round)) {
                stages[s](x, round);
            }
        }
    }
    at->n_computes = plan->n_computes - at->first_compute;
    at->n_messages = plan->n_messages - at->first_message;
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static tw_status_t append(tw_grid_t *grid, const tw_grid_t *more)
{
    tw_grid_chunk_t *chunks = realloc(grid->chunks, (grid->n_chunks + more->n_chunks + 1) * sizeof(*chunks));
    grid->chunks = chunks ? chunks : grid->chunks;
    tw_grid_part_t *parts = realloc(grid->parts, (grid->n_parts + more->n_parts + 1) * sizeof(*parts));
    grid->parts = parts ? parts : grid->parts;
    if (!chunks || !parts) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t c = 0; c < more->n_chunks; c++) {
        chunks[grid->n_chunks + c] = more->chunks[c];
        chunks[grid->n_chunks + c].first_part += grid->n_parts;
    }
    for (size_t i = 0; i < more->n_parts; i++) {
        parts[grid->n_parts + i] = more->parts[i];
    }
    grid->n_chunks += more->n_chunks;
    grid->n_parts += more->n_parts;
    return TW_OK;
}

/** What comes, as its receiver sees it: the shards are what each rank sends here. */
static tw_status_t add_come(exchange_t *x, size_t chunk_bytes)
{
    size_t n = x->args->n_segments, first = x->plan->grid.n_chunks;
    tw_coll_segment_t *segments = calloc(n + 1, sizeof(*segments));
    tw_coll_args_t args = *x->args;
    tw_grid_t come = {0};
    tw_status_t status = segments ? TW_OK : TW_ERR_NO_MEMORY;

    for (size_t s = 0; s < n && segments; s++) {
        segments[s] = args.segments[s];
        segments[s].counts = segments[s].recv_counts;
    }
    args.segments = segments;
    if (status == TW_OK) {
        status = tw_grid_init(&come, &args, x->topo->world, chunk_bytes);
    }
    if (status == TW_OK) {
        status = append(&x->plan->grid, &come);
        size_t rounds = come.shard_chunks, most = x->plan->grid.shard_chunks;
        x->plan->n_rounds = rounds > most ? rounds : most;
        for (int r = 0; r < x->topo->world; r++) {
            x->come[r] = (tw_grid_shard_t){come.shards[r].first_chunk + first, come.shards[r].n_chunks};
        }
        tw_grid_cleanup(&come);
    }
    free(segments);
    return status;
}

static void lay_out(exchange_t *x)
{
    tw_gpu_plan_t *plan = x->plan;
    size_t most = 0;

    for (size_t c = 0; c < plan->grid.n_chunks; c++) {
        size_t plain = bytes_of(x, c, TW_FORM_PLAIN), encoded = bytes_of(x, c, TW_FORM_CODEC);
        size_t bytes = plain > encoded ? plain : encoded;
        most = bytes > most ? bytes : most;
    }
    x->cell_bytes = (most + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    plan->n_slots = x->in_place || plan->n_rounds < STAGES - 1 ? plan->n_rounds : STAGES - 1;
    plan->slot_bytes = 2 * (size_t)x->topo->world * x->cell_bytes;
    plan->n_cells = plan->n_slots * 2 * (size_t)x->topo->world;
    plan->temp_at = plan->workspace_bytes = plan->n_slots * plan->slot_bytes;
    plan->n_ticks = plan->n_rounds == 0 ? 0 : x->in_place ? STAGES : plan->n_rounds + STAGES - 1;
}

static tw_status_t emit(const exchange_t *x)
{
    tw_gpu_plan_t *plan = x->plan;

    /* a chunk is prepared, or delivered; it is sent, or comes */
    plan->max_computes = plan->max_messages = plan->grid.n_chunks;
    plan->computes = calloc(plan->max_computes + 1, sizeof(*plan->computes));
    plan->messages = calloc(plan->max_messages + 1, sizeof(*plan->messages));
    plan->ticks = calloc(plan->n_ticks + 1, sizeof(*plan->ticks));
    if (!plan->computes || !plan->messages || !plan->ticks) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < plan->n_ticks; t++) {
        emit_tick(x, t);
    }
    return TW_OK;
}

tw_status_t tw_gpu_plan_alltoall(tw_gpu_plan_t *plan, const tw_gpu_plan_params_t *params)
{
    size_t world = (size_t)params->topo->world;
    exchange_t x = {.plan = plan,
                    .topo = params->topo,
                    .args = params->args,
                    .in_place = params->in_place,
                    .come = calloc(world, sizeof(*x.come))};
    tw_status_t status = x.come ? TW_OK : TW_ERR_NO_MEMORY;

    memset(plan, 0, sizeof(*plan));
    if (status == TW_OK) {
        status = tw_grid_init(&plan->grid, params->args, params->topo->world, params->chunk_bytes);
    }
    if (status == TW_OK) {
        x.sent = plan->grid.shards;
        status = add_come(&x, params->chunk_bytes);
    }
    if (status == TW_OK) {
        lay_out(&x);
        status = emit(&x);
    }
    free(x.come);
    if (status != TW_OK) {
        tw_error("out of memory planning an all-to-all");
        tw_gpu_plan_cleanup(plan);
    }
    return status;
}
