#include "collectives/gpu/plan.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES ((size_t)256) /**< of every place in the workspace */

typedef struct planner planner_t;
typedef void (*stage_fn_t)(planner_t *planner, size_t round);

typedef struct stage {
    stage_fn_t fn;
    int is_wire;
} stage_t;

#define MAX_STAGES 8

/** Cells of equal size, one after another, at the same place of every slot. */
typedef struct area {
    size_t at, cell_bytes;
    size_t first_cell; /**< of a slot's */
} area_t;

struct planner {
    tw_gpu_plan_t *plan;
    const tw_topo_t *topo, *hops;
    const tw_coll_args_t *args;
    int rank, node, node_size; /**< own; in `hops` */
    int rounds_sums;
    int *owners; /**< [n_owners] whose node sums are made here */
    int n_owners;
    area_t out;    /**< [world] own pieces for other ranks of the node */
    area_t gather; /**< [n_owners][node_size] the node's pieces */
    area_t sums;   /**< [n_owners] the node's sums */
    area_t finish; /**< [n_nodes] all nodes' sums of the own chunk */
    area_t shard;  /**< [world] encoded shards */
    area_t packs;  /**< [n_owners] the node's sums, packed, for owners on other nodes */
    area_t comes;  /**< [n_nodes] packed sums for the own chunk */
    size_t slot_cells;
    stage_t stages[MAX_STAGES];
    size_t n_stages;
    tw_status_t status;
};

/* ---- places -------------------------------------------------------------------------------------------- */

static int gateway(const planner_t *p, int owner, int node)
{
    return tw_topo_gateway(p->hops, owner, node);
}

/** How a chunk goes from node to node, and inside. */
static tw_gpu_form_t form_of(const planner_t *p, size_t chunk)
{
    return tw_grid_codec(&p->plan->grid, chunk) ? TW_GPU_CODEC : TW_GPU_PLAIN;
}

static int is_lossless(const planner_t *p, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(&p->plan->grid, chunk);

    return codec && codec->lossless;
}

/** How a chunk is spread. */
static tw_gpu_form_t spread_of(const planner_t *p, size_t chunk)
{
    return is_lossless(p, chunk) ? TW_GPU_PACKED : form_of(p, chunk);
}

/** How a node's sum travels between this rank and a peer: packed, if it is lossless and leaves a node. */
static tw_gpu_form_t rail_of(const planner_t *p, size_t chunk, int peer)
{
    int leaves = p->topo->node[peer] != p->topo->node[p->rank];

    return is_lossless(p, chunk) && leaves ? TW_GPU_PACKED : form_of(p, chunk);
}

static tw_gpu_form_t inner_of(const planner_t *p, size_t chunk)
{
    return form_of(p, chunk) != TW_GPU_PLAIN && p->args->inner_codec ? TW_GPU_INNER : TW_GPU_PLAIN;
}

static size_t chunk_bytes(const planner_t *p, size_t chunk, tw_gpu_form_t form)
{
    int is_chunks = form == TW_GPU_CODEC || form == TW_GPU_PACKED;
    const tw_quant_codec_t *codec = is_chunks              ? tw_grid_chunk_codec(&p->plan->grid, chunk)
                                    : form == TW_GPU_INNER ? p->args->inner_codec
                                                           : NULL;

    return tw_grid_chunk_bytes(&p->plan->grid, chunk, codec, p->args->type);
}

/** The rank's chunk of this round; 0: it has none. */
static int find_chunk(const planner_t *p, int owner, size_t round, size_t *chunk)
{
    const tw_grid_shard_t *shard = &p->plan->grid.shards[owner];

    *chunk = shard->first_chunk + round;
    return round < shard->n_chunks;
}

static size_t align(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/** Room for any chunk in one of its forms. */
static size_t cell_bytes(const planner_t *p, tw_gpu_form_t (*form)(const planner_t *p, size_t chunk))
{
    size_t most = 0;

    for (size_t c = 0; c < p->plan->grid.n_chunks; c++) {
        size_t bytes = chunk_bytes(p, c, form(p, c));
        most = bytes > most ? bytes : most;
    }
    return align(most);
}

static area_t add_area(planner_t *p, size_t n_cells, size_t bytes)
{
    area_t area = {p->plan->slot_bytes, bytes, p->slot_cells};

    p->plan->slot_bytes += n_cells * bytes;
    p->slot_cells += n_cells;
    return area;
}

static size_t cell(const planner_t *p, const area_t *area, size_t index, size_t round)
{
    return round % p->plan->n_slots * p->plan->slot_bytes + area->at + index * area->cell_bytes;
}

/** Its number among all cells. */
static size_t cell_number(const planner_t *p, const area_t *area, size_t index, size_t round)
{
    return round % p->plan->n_slots * p->slot_cells + area->first_cell + index;
}

static size_t gather_cell(const planner_t *p, int owner_index, int local, size_t round)
{
    return cell(p, &p->gather, (size_t)owner_index * (size_t)p->node_size + (size_t)local, round);
}

/** Where the node's sum for an owner is made: the own one is where it will be added up. */
static size_t sum_cell(const planner_t *p, int owner_index, size_t round)
{
    if (p->owners[owner_index] == p->rank) {
        return cell(p, &p->finish, (size_t)p->node, round);
    }
    return cell(p, &p->sums, (size_t)owner_index, round);
}

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Room for one more; NULL: out of memory. */
static void *grow(planner_t *p, void *items, size_t n, size_t *max, size_t item_bytes)
{
    if (n < *max) {
        return items;
    }
    size_t wanted = *max > 0 ? 2 * *max : 64;
    void *larger = realloc(items, wanted * item_bytes);
    if (!larger) {
        tw_error("out of memory planning an operation");
        p->status = TW_ERR_NO_MEMORY;
        return NULL;
    }
    *max = wanted;
    return larger;
}

static void emit_compute(planner_t *p, tw_gpu_compute_t compute)
{
    tw_gpu_plan_t *plan = p->plan;
    void *items = p->status == TW_OK ? grow(p, plan->computes, plan->n_computes, &plan->max_computes,
                                            sizeof(*plan->computes))
                                     : NULL;
    if (items) {
        plan->computes = items;
        plan->computes[plan->n_computes++] = compute;
    }
}

static void emit_message(planner_t *p, tw_gpu_message_t message)
{
    tw_gpu_plan_t *plan = p->plan;
    void *items = p->status == TW_OK ? grow(p, plan->messages, plan->n_messages, &plan->max_messages,
                                            sizeof(*plan->messages))
                                     : NULL;
    if (!items) {
        return;
    }
    plan->messages = items;
    plan->messages[plan->n_messages++] = message;
    if (message.is_send && p->topo->node[message.peer] != p->topo->node[p->rank]) {
        plan->inter_node_bytes += message.bytes;
    }
}

static void emit_send(planner_t *p, int peer, size_t chunk, tw_gpu_form_t form, size_t at)
{
    emit_message(p, (tw_gpu_message_t){peer, 1, at, chunk_bytes(p, chunk, form), TW_GPU_NOT_PACKED});
}

static void emit_recv(planner_t *p, int peer, size_t chunk, tw_gpu_form_t form, size_t at)
{
    emit_message(p, (tw_gpu_message_t){peer, 0, at, chunk_bytes(p, chunk, form), TW_GPU_NOT_PACKED});
}

/** A cell of an area to a peer, or from it; packed if the form says so. */
static void emit_cell(planner_t *p, int peer, int is_send, size_t chunk, tw_gpu_form_t form,
                      const area_t *area, size_t index, size_t round)
{
    size_t packed = form == TW_GPU_PACKED ? cell_number(p, area, index, round) : TW_GPU_NOT_PACKED;
    size_t at = cell(p, area, index, round);

    emit_message(p, (tw_gpu_message_t){peer, is_send, at, chunk_bytes(p, chunk, form), packed});
}

static void emit_pack(planner_t *p, size_t chunk, size_t from, const area_t *area, size_t index, size_t round)
{
    emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                       .in = TW_GPU_PLAIN,
                                       .out = TW_GPU_PACKED,
                                       .from = from,
                                       .to = cell(p, area, index, round),
                                       .packed = cell_number(p, area, index, round)});
}

static void emit_unpack(planner_t *p, size_t chunk, const area_t *area, size_t index, size_t to, size_t round)
{
    emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                       .in = TW_GPU_PACKED,
                                       .out = TW_GPU_PLAIN,
                                       .from = cell(p, area, index, round),
                                       .to = to,
                                       .packed = cell_number(p, area, index, round)});
}

/** What a node's sum is multiplied with. That of an exact chunk travels on as it is, and on one node it is
 *  the result. */
static tw_gpu_factor_t inside_factor(const planner_t *p, size_t chunk)
{
    if (form_of(p, chunk) != TW_GPU_PLAIN || p->hops->max_local == 1) {
        return TW_GPU_FACTOR_NONE;
    }
    return p->hops->n_nodes == 1 ? TW_GPU_FACTOR_ALL : TW_GPU_FACTOR_SCALE;
}

/** What the sum over the nodes is multiplied with. */
static tw_gpu_factor_t outside_factor(const planner_t *p, size_t chunk)
{
    if (form_of(p, chunk) != TW_GPU_PLAIN || p->hops->max_local == 1) {
        return TW_GPU_FACTOR_ALL;
    }
    return p->hops->n_nodes == 1 ? TW_GPU_FACTOR_NONE : TW_GPU_FACTOR_REST;
}

/** What this rank puts in: src, encoded or packed. */
static void emit_own(planner_t *p, size_t chunk, tw_gpu_form_t form, tw_gpu_factor_t factor, size_t to)
{
    emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                       .in = TW_GPU_PLAIN,
                                       .out = form,
                                       .factor = factor,
                                       .seed = TW_GPU_SEED_RANK,
                                       .from = TW_GPU_USER,
                                       .to = to});
}

/* ---- stages -------------------------------------------------------------------------------------------- */

static void prepare_spread(planner_t *p, size_t round)
{
    size_t chunk;

    if (!find_chunk(p, p->rank, round, &chunk)) {
        return;
    }
    if (is_lossless(p, chunk)) {
        emit_pack(p, chunk, TW_GPU_USER, &p->shard, (size_t)p->rank, round);
    } else {
        emit_own(p, chunk, form_of(p, chunk), TW_GPU_FACTOR_NONE, cell(p, &p->shard, (size_t)p->rank, round));
    }
}

static int owner_index(const planner_t *p, int owner)
{
    for (int i = 0; i < p->n_owners; i++) {
        if (p->owners[i] == owner) {
            return i;
        }
    }
    return -1;
}

static void prepare_sums(planner_t *p, size_t round)
{
    for (int owner = 0; owner < p->hops->world && p->node_size > 1; owner++) {
        size_t chunk;
        if (!find_chunk(p, owner, round, &chunk)) {
            continue;
        }
        int index = owner_index(p, owner);
        emit_own(p, chunk, inner_of(p, chunk), TW_GPU_FACTOR_NONE,
                 index >= 0 ? gather_cell(p, index, p->hops->local[p->rank], round)
                            : cell(p, &p->out, (size_t)owner, round));
    }
}

static void node_hop(planner_t *p, size_t round)
{
    for (int owner = 0; owner < p->hops->world; owner++) {
        int index = owner_index(p, owner);
        size_t chunk;
        if (!find_chunk(p, owner, round, &chunk)) {
            continue;
        }
        if (index < 0) {
            emit_send(p, gateway(p, owner, p->node), chunk, inner_of(p, chunk),
                      cell(p, &p->out, (size_t)owner, round));
            continue;
        }
        for (int l = 0; l < p->node_size; l++) {
            int mate = tw_topo_rank_at(p->hops, p->node, l);
            if (mate != p->rank) {
                emit_recv(p, mate, chunk, inner_of(p, chunk), gather_cell(p, index, l, round));
            }
        }
    }
}

static void node_sum(planner_t *p, size_t round)
{
    for (int i = 0; i < p->n_owners; i++) {
        size_t chunk;
        if (!find_chunk(p, p->owners[i], round, &chunk)) {
            continue;
        }
        tw_gpu_factor_t factor = inside_factor(p, chunk);
        if (p->node_size == 1) { /* nothing to sum up */
            emit_own(p, chunk, form_of(p, chunk), factor, sum_cell(p, i, round));
        } else {
            emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                               .in = inner_of(p, chunk),
                                               .out = form_of(p, chunk),
                                               .n_inputs = p->node_size,
                                               .factor = factor,
                                               .seed = TW_GPU_SEED_NODE,
                                               .from = gather_cell(p, i, 0, round),
                                               .stride = p->gather.cell_bytes,
                                               .to = sum_cell(p, i, round)});
        }
        if (rail_of(p, chunk, p->owners[i]) == TW_GPU_PACKED) {
            emit_pack(p, chunk, sum_cell(p, i, round), &p->packs, (size_t)i, round);
        }
    }
}

static void rail_hop(planner_t *p, size_t round)
{
    size_t chunk;

    for (int i = 0; i < p->n_owners; i++) {
        int owner = p->owners[i];
        if (owner != p->rank && find_chunk(p, owner, round, &chunk)) {
            tw_gpu_form_t form = rail_of(p, chunk, owner);
            emit_cell(p, owner, 1, chunk, form, form == TW_GPU_PACKED ? &p->packs : &p->sums, (size_t)i,
                      round);
        }
    }
    for (int n = 0; n < p->hops->n_nodes; n++) {
        if (n != p->node && find_chunk(p, p->rank, round, &chunk)) {
            int peer = gateway(p, p->rank, n);
            tw_gpu_form_t form = rail_of(p, chunk, peer);
            emit_cell(p, peer, 0, chunk, form, form == TW_GPU_PACKED ? &p->comes : &p->finish, (size_t)n,
                      round);
        }
    }
}

/** What has come packed, to where it is added up. */
static void unpack_sums(planner_t *p, size_t chunk, size_t round)
{
    for (int n = 0; n < p->hops->n_nodes; n++) {
        if (n != p->node && rail_of(p, chunk, gateway(p, p->rank, n)) == TW_GPU_PACKED) {
            emit_unpack(p, chunk, &p->comes, (size_t)n, cell(p, &p->finish, (size_t)n, round), round);
        }
    }
}

static void finish_sum(planner_t *p, size_t round)
{
    int spreads = p->args->op == TW_COLL_ALLREDUCE;
    size_t chunk;

    if (!find_chunk(p, p->rank, round, &chunk)) {
        return;
    }
    int packs = is_lossless(p, chunk);
    int twice = spreads && (packs || (p->rounds_sums && form_of(p, chunk) != TW_GPU_PLAIN));
    size_t shard = spreads ? cell(p, &p->shard, (size_t)p->rank, round) : TW_GPU_USER;
    unpack_sums(p, chunk, round);
    emit_compute(p, (tw_gpu_compute_t){
                        .chunk = chunk,
                        .in = form_of(p, chunk),
                        .out = spreads && !twice ? form_of(p, chunk) : TW_GPU_PLAIN,
                        .n_inputs = p->hops->n_nodes,
                        .factor = outside_factor(p, chunk),
                        .seed = TW_GPU_SEED_OP,
                        .from = cell(p, &p->finish, 0, round),
                        .stride = p->finish.cell_bytes,
                        .to = twice ? TW_GPU_USER : shard,
                    });
    if (twice && packs) {
        emit_pack(p, chunk, TW_GPU_RESULT, &p->shard, (size_t)p->rank, round);
    } else if (twice) { /* what the others of a reduce-scatter would encode */
        emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                           .in = TW_GPU_PLAIN,
                                           .out = form_of(p, chunk),
                                           .seed = TW_GPU_SEED_OP,
                                           .from = TW_GPU_RESULT,
                                           .to = shard});
    }
}

static void spread_cell(planner_t *p, int peer, int is_send, size_t chunk, int owner, size_t round)
{
    emit_cell(p, peer, is_send, chunk, spread_of(p, chunk), &p->shard, (size_t)owner, round);
}

static void spread_rail(planner_t *p, size_t round)
{
    for (int owner = 0; owner < p->hops->world; owner++) {
        size_t chunk;
        if (!find_chunk(p, owner, round, &chunk)) {
            continue;
        }
        for (int n = 0; n < p->hops->n_nodes && owner == p->rank; n++) {
            if (n != p->node) {
                spread_cell(p, gateway(p, owner, n), 1, chunk, owner, round);
            }
        }
        if (p->hops->node[owner] != p->node && gateway(p, owner, p->node) == p->rank) {
            spread_cell(p, owner, 0, chunk, owner, round);
        }
    }
}

static void spread_node(planner_t *p, size_t round)
{
    for (int owner = 0; owner < p->hops->world; owner++) {
        int holder = p->hops->node[owner] == p->node ? owner : gateway(p, owner, p->node);
        size_t chunk;
        if (!find_chunk(p, owner, round, &chunk)) {
            continue;
        }
        if (holder != p->rank) {
            spread_cell(p, holder, 0, chunk, owner, round);
            continue;
        }
        for (int l = 1; l < p->node_size; l++) {
            int local = (p->hops->local[p->rank] + l) % p->node_size;
            spread_cell(p, tw_topo_rank_at(p->hops, p->node, local), 1, chunk, owner, round);
        }
    }
}

/** The own shard of what loses nothing: its sum is in dst already, or it is copied there. */
static void deliver_own(planner_t *p, size_t chunk)
{
    if (p->args->op == TW_COLL_ALLGATHER) {
        emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                           .in = TW_GPU_PLAIN,
                                           .out = TW_GPU_PLAIN,
                                           .from = TW_GPU_USER,
                                           .to = TW_GPU_USER});
    }
}

/** What was encoded with loss is decoded by its owner, too: everybody has the same bits. */
static void deliver(planner_t *p, size_t round)
{
    for (int owner = 0; owner < p->hops->world; owner++) {
        size_t chunk;
        if (!find_chunk(p, owner, round, &chunk)) {
            continue;
        }
        if (is_lossless(p, chunk) && owner == p->rank) {
            deliver_own(p, chunk);
        } else if (is_lossless(p, chunk)) {
            emit_unpack(p, chunk, &p->shard, (size_t)owner, TW_GPU_USER, round);
        } else {
            emit_compute(p, (tw_gpu_compute_t){.chunk = chunk,
                                               .in = form_of(p, chunk),
                                               .out = TW_GPU_PLAIN,
                                               .from = cell(p, &p->shard, (size_t)owner, round),
                                               .to = TW_GPU_USER});
        }
    }
}

static void add_stage(planner_t *p, stage_fn_t fn, int is_wire)
{
    p->stages[p->n_stages++] = (stage_t){fn, is_wire};
}

/** Stages that do nothing on any rank are left out. */
static void choose_stages(planner_t *p)
{
    int has_rails = p->hops->n_nodes > 1, has_mates = p->hops->max_local > 1;

    if (p->args->op == TW_COLL_ALLGATHER) {
        add_stage(p, prepare_spread, 0);
    } else {
        if (has_mates) {
            add_stage(p, prepare_sums, 0);
            add_stage(p, node_hop, 1);
        }
        add_stage(p, node_sum, 0);
        if (has_rails) {
            add_stage(p, rail_hop, 1);
        }
        add_stage(p, finish_sum, 0);
    }
    if (p->args->op == TW_COLL_REDUCE_SCATTER) {
        return;
    }
    if (has_rails) {
        add_stage(p, spread_rail, 1);
    }
    if (has_mates) {
        add_stage(p, spread_node, 1);
    }
    add_stage(p, deliver, 0);
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static tw_status_t find_owners(planner_t *p)
{
    p->owners = calloc((size_t)p->hops->world, sizeof(*p->owners));
    if (!p->owners) {
        tw_error("out of memory planning an operation");
        return TW_ERR_NO_MEMORY;
    }
    for (int owner = 0; owner < p->hops->world; owner++) {
        if (gateway(p, owner, p->node) == p->rank) {
            p->owners[p->n_owners++] = owner;
        }
    }
    return TW_OK;
}

static int has_lossless(const planner_t *p)
{
    int has = 0;

    for (size_t c = 0; c < p->plan->grid.n_chunks && !has; c++) {
        has = is_lossless(p, c);
    }
    return has;
}

static void lay_out(planner_t *p)
{
    size_t form_bytes = cell_bytes(p, form_of), inner_bytes = cell_bytes(p, inner_of), temp_elems = 0;
    size_t spread_bytes = cell_bytes(p, spread_of);
    size_t world = (size_t)p->hops->world, n_owners = (size_t)p->n_owners;
    int reduces = p->args->op != TW_COLL_ALLGATHER;

    if (reduces && p->node_size > 1) {
        p->out = add_area(p, world, inner_bytes);
        p->gather = add_area(p, n_owners * (size_t)p->node_size, inner_bytes);
    }
    if (reduces) {
        p->sums = add_area(p, n_owners, form_bytes);
        p->finish = add_area(p, (size_t)p->hops->n_nodes, form_bytes);
    }
    if (reduces && has_lossless(p)) {
        p->packs = add_area(p, n_owners, spread_bytes);
        p->comes = add_area(p, (size_t)p->hops->n_nodes, spread_bytes);
    }
    if (p->args->op != TW_COLL_REDUCE_SCATTER) {
        p->shard = add_area(p, world, spread_bytes);
    }
    /* A round's first computation comes after the last one of the round whose slot it takes: see
     * emit_ticks. */
    p->plan->n_slots = p->n_stages - 1;
    if (p->plan->n_slots > p->plan->n_rounds) {
        p->plan->n_slots = p->plan->n_rounds;
    }
    p->plan->n_cells = p->plan->n_slots * p->slot_cells;
    p->plan->temp_at = p->plan->n_slots * p->plan->slot_bytes;
    int needs_temp = reduces && p->node_size > 1 && p->args->codec && !p->args->inner_codec;
    for (size_t c = 0; c < p->plan->grid.n_chunks && needs_temp; c++) {
        size_t n = p->plan->grid.chunks[c].n_elems;
        temp_elems = n > temp_elems ? n : temp_elems;
    }
    p->plan->workspace_bytes = p->plan->temp_at + align(temp_elems * sizeof(float));
}

/** Later stages first: a round gives its slot away only after its last computation. */
static void emit_stages(planner_t *p, size_t tick, int is_wire)
{
    for (size_t s = p->n_stages; s-- > 0;) {
        if (p->stages[s].is_wire == is_wire && tick >= s && tick - s < p->plan->n_rounds) {
            p->stages[s].fn(p, tick - s);
        }
    }
}

static void emit_ticks(planner_t *p)
{
    tw_gpu_plan_t *plan = p->plan;

    plan->n_ticks = plan->n_rounds > 0 ? plan->n_rounds + p->n_stages - 1 : 0;
    plan->ticks = calloc(plan->n_ticks + 1, sizeof(*plan->ticks));
    if (!plan->ticks) {
        tw_error("out of memory planning an operation");
        p->status = TW_ERR_NO_MEMORY;
        return;
    }
    for (size_t t = 0; t < plan->n_ticks; t++) {
        tw_gpu_tick_t *tick = &plan->ticks[t];
        tick->first_compute = plan->n_computes;
        tick->first_message = plan->n_messages;
        emit_stages(p, t, 0);
        emit_stages(p, t, 1);
        tick->n_computes = plan->n_computes - tick->first_compute;
        tick->n_messages = plan->n_messages - tick->first_message;
    }
}

tw_status_t tw_gpu_plan_init(tw_gpu_plan_t *plan, const tw_gpu_plan_params_t *params)
{
    const tw_topo_t *hops = params->hops;
    int rank = params->topo->rank;
    planner_t p = {
        .plan = plan,
        .topo = params->topo,
        .hops = hops,
        .args = params->args,
        .rank = rank,
        .rounds_sums = params->rounds_sums,
        .node = hops->node[rank],
        .node_size = tw_topo_node_size(hops, hops->node[rank]),
    };

    memset(plan, 0, sizeof(*plan));
    p.status = tw_grid_init(&plan->grid, params->args, params->topo->world, params->chunk_bytes);
    if (p.status == TW_OK) {
        p.status = find_owners(&p);
    }
    if (p.status == TW_OK) {
        plan->n_rounds = plan->grid.shard_chunks;
        choose_stages(&p);
        lay_out(&p);
        emit_ticks(&p);
    }
    free(p.owners);
    if (p.status != TW_OK) {
        tw_gpu_plan_cleanup(plan);
    }
    return p.status;
}

void tw_gpu_plan_cleanup(tw_gpu_plan_t *plan)
{
    tw_grid_cleanup(&plan->grid);
    free(plan->computes);
    free(plan->messages);
    free(plan->ticks);
    memset(plan, 0, sizeof(*plan));
}
