/** Turns a program's ops (ops.h) into a plan: gives every op its tick and every cell its place in the
 *  workspace, and sends the chunks through the ticks in rounds. */
#include "collectives/gpu/plan.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/communicator.h"

#define ALIGN_BYTES ((size_t)256) /**< alignment of every place in the workspace */

/** The cells of the chunk of one owner, at the same place in every slot. A chunk has one coding, so the
 *  codings share the place. */
typedef struct area {
    size_t at, number;             /**< bytes and cells of all areas before this one */
    size_t *cell_at[TW_N_CODINGS]; /**< [cells], offsets from `at` in bytes */
} area_t;

typedef struct planner {
    tw_gpu_plan_t *plan;
    const tw_gpu_plan_params_t *params;
    const tw_topo_t *topo;
    const tw_ops_t *ops[TW_N_CODINGS]; /**< NULL: no chunk has this coding */
    /** largest chunk of each coding in each form, in bytes */
    size_t most_bytes[TW_N_CODINGS][TW_FORM_COUNT];
    area_t *areas;              /**< [n_owners] */
    size_t *memory;             /**< memory of all cell_at */
    size_t slot_cells, n_ticks; /**< cells and ticks of one round */
    int n_owners;
    tw_status_t status;
} planner_t;

/* ---- chunks -------------------------------------------------------------------------------------------- */

static size_t chunk_bytes(const planner_t *p, size_t chunk, tw_form_t form)
{
    const tw_grid_t *grid = &p->plan->grid;

    return tw_grid_chunk_bytes(grid, chunk, tw_grid_form_codec(grid, chunk, form), p->params->args->type);
}

/** Find the owner's chunk of this round, if it has this coding. Returns 0 if there is none. */
static int find_chunk(const planner_t *p, int owner, size_t round, int coding, size_t *chunk)
{
    const tw_grid_shard_t *shard = &p->plan->grid.shards[owner];

    *chunk = shard->first_chunk + round;
    return round < shard->n_chunks && (int)tw_grid_coding(&p->plan->grid, *chunk) == coding;
}

static size_t align(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static void measure_chunks(planner_t *p)
{
    for (size_t c = 0; c < p->plan->grid.n_chunks; c++) {
        tw_coding_t coding = tw_grid_coding(&p->plan->grid, c);
        int has_inner = coding == TW_CODING_BLOCKS && p->params->args->inner_codec;
        const tw_form_t has[] = {TW_FORM_PLAIN, tw_form_of_coding(coding),
                                 has_inner ? TW_FORM_INNER : TW_FORM_PLAIN};
        for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++) {
            size_t *most = &p->most_bytes[coding][has[i]], bytes = align(chunk_bytes(p, c, has[i]));
            *most = bytes > *most ? bytes : *most;
        }
    }
}

static tw_status_t get_ops(planner_t *p)
{
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_params_t params = {.topo = p->topo,
                                        .flows = p->params->flows,
                                        .coding = (tw_coding_t)k,
                                        .has_inner = p->params->args->inner_codec != NULL,
                                        .rounds_sums = p->params->rounds_sums,
                                        .stages = TW_STAGE_ALL};
        if (p->most_bytes[k][TW_FORM_PLAIN] > 0) {
            TW_TRY(tw_ops_get(p->params->kept, &params, &p->ops[k]));
            p->n_ticks = (size_t)p->ops[k]->n_ticks;
            p->n_owners = p->ops[k]->n_owners;
        }
    }
    return TW_OK;
}

/* ---- places -------------------------------------------------------------------------------------------- */

static tw_status_t create_areas(planner_t *p)
{
    size_t n_cells = 0, used = 0;

    for (int r = 0; r < p->n_owners; r++) {
        for (int k = 0; k < TW_N_CODINGS; k++) {
            n_cells += p->ops[k] ? (size_t)p->ops[k]->n_cells[r] : 0;
        }
    }
    p->areas = calloc((size_t)p->n_owners + 1, sizeof(*p->areas));
    p->memory = malloc((n_cells + 1) * sizeof(*p->memory));
    TW_FAIL_IF(!p->areas || !p->memory, TW_ERR_NO_MEMORY, "out of memory planning an operation");
    for (size_t i = 0; i < n_cells; i++) {
        p->memory[i] = SIZE_MAX;
    }
    for (int r = 0; r < p->n_owners; r++) {
        for (int k = 0; k < TW_N_CODINGS; k++) {
            p->areas[r].cell_at[k] = p->memory + used;
            used += p->ops[k] ? (size_t)p->ops[k]->n_cells[r] : 0;
        }
    }
    return TW_OK;
}

static void gpu_plan_place(const planner_t *p, int owner, int coding, int cell, tw_form_t form, size_t *bytes)
{
    size_t *at = cell >= 0 ? &p->areas[owner].cell_at[coding][cell] : NULL;

    if (at && *at == SIZE_MAX) {
        *at = *bytes;
        *bytes += p->most_bytes[coding][form];
    }
}

/** Place the cells of an owner's chunk, a sum's inputs side by side. Returns the bytes of all cells. */
static size_t place_cells(const planner_t *p, int owner, int coding)
{
    const tw_ops_t *ops = p->ops[coding];
    size_t bytes = 0;

    for (int sums = 1; sums >= 0; sums--) {
        for (int i = 0; i < ops->n_ops; i++) {
            const tw_op_t *op = &ops->ops[i];
            if (op->owner != owner) {
                continue;
            }
            for (int k = 0; sums && op->kind == TW_OP_SUM && k < op->n_inputs; k++) {
                gpu_plan_place(p, owner, coding, ops->inputs[op->first_input + k], op->in, &bytes);
            }
            if (!sums && op->kind != TW_OP_SEND) {
                gpu_plan_place(p, owner, coding, op->to, op->out, &bytes);
            }
        }
    }
    return bytes;
}

static void lay_out(planner_t *p)
{
    tw_gpu_plan_t *plan = p->plan;
    size_t temp_elems = 0;

    for (int r = 0; r < p->n_owners; r++) {
        size_t most_bytes = 0, most_cells = 0;
        for (int k = 0; k < TW_N_CODINGS; k++) {
            size_t bytes = p->ops[k] ? place_cells(p, r, k) : 0;
            size_t cells = p->ops[k] ? (size_t)p->ops[k]->n_cells[r] : 0;
            most_bytes = bytes > most_bytes ? bytes : most_bytes;
            most_cells = cells > most_cells ? cells : most_cells;
        }
        p->areas[r].at = plan->slot_bytes;
        p->areas[r].number = p->slot_cells;
        plan->slot_bytes += most_bytes;
        p->slot_cells += most_cells;
    }
    /* a round may take a slot in the tick in which another round leaves it: see emit_ticks */
    plan->n_slots = p->n_ticks > 1 ? p->n_ticks - 1 : 1;
    int keeps_all = plan->n_slots > plan->n_rounds || p->params->in_place;
    plan->n_slots = keeps_all ? plan->n_rounds : plan->n_slots;
    plan->n_cells = plan->n_slots * p->slot_cells;
    plan->temp_at = plan->n_slots * plan->slot_bytes;
    int needs_temp = p->params->flows->nodes_first && p->params->args->codec && !p->params->args->inner_codec;
    for (size_t c = 0; c < plan->grid.n_chunks && needs_temp; c++) {
        size_t n = plan->grid.chunks[c].n_elems;
        temp_elems = n > temp_elems ? n : temp_elems;
    }
    plan->workspace_bytes = plan->temp_at + align(temp_elems * sizeof(float));
}

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Make room for one more item. Returns 0 if memory is out. */
static int gpu_plan_grow(planner_t *p, void *items, size_t n, size_t *max, size_t item_bytes)
{
    if (p->status == TW_OK && !tw_grow(items, max, n + 1, item_bytes)) {
        tw_error("out of memory planning an operation");
        p->status = TW_ERR_NO_MEMORY;
    }
    return p->status == TW_OK;
}

/** One op of the program, on one chunk. */
typedef struct task {
    const tw_op_t *op;
    int coding;
    size_t chunk, round;
} task_t;

static size_t at(const planner_t *p, const task_t *task, int owner, int cell)
{
    const area_t *area = &p->areas[owner];
    size_t slot = task->round % p->plan->n_slots;

    return slot * p->plan->slot_bytes + area->at + area->cell_at[task->coding][cell];
}

/** Returns the number of a task's cell among the cells of the whole plan. */
static size_t number(const planner_t *p, const task_t *task, int cell)
{
    return task->round % p->plan->n_slots * p->slot_cells + p->areas[task->op->owner].number + (size_t)cell;
}

/** Returns the factor of a computation. If sums travel plain, each contribution is scaled, and the last sum
 *  applies the rest of the factor. A sum that is made in one step applies the whole factor. */
static float factor_of(const planner_t *p, const task_t *task)
{
    const tw_coll_args_t *args = p->params->args;
    const tw_op_t *op = task->op;
    float scale = task->coding == TW_CODING_BLOCKS ? 1.0f : tw_coll_scale(args, p->topo->world);

    if (op->kind != TW_OP_SUM) {
        return 1.0f;
    }
    if (!op->is_last) {
        return scale;
    }
    return op->n_partial > 0 && scale != 1.0f ? args->factor : tw_coll_factor(args, p->topo->world);
}

/** Emit a sum, or a computation with one input. */
static void emit_compute(planner_t *p, const task_t *task)
{
    const tw_op_t *op = task->op;
    tw_gpu_plan_t *plan = p->plan;
    int is_sum = op->kind == TW_OP_SUM;
    int from = is_sum ? p->ops[task->coding]->inputs[op->first_input] : op->from;

    if (!gpu_plan_grow(p, &plan->computes, plan->n_computes, &plan->max_computes, sizeof(*plan->computes))) {
        return;
    }
    plan->computes[plan->n_computes++] = (tw_gpu_compute_t){
        .chunk = task->chunk,
        .in = op->in,
        .out = op->out,
        .n_inputs = is_sum && from >= 0 ? op->n_inputs : 0,
        .factor = factor_of(p, task),
        .seed = op->seed,
        .from = from == TW_CELL_SRC   ? TW_GPU_USER
                : from == TW_CELL_DST ? TW_GPU_RESULT
                                      : at(p, task, is_sum ? op->owner : op->from_owner, from),
        .stride = is_sum ? p->most_bytes[task->coding][op->in] : 0,
        .to = op->to < 0 ? TW_GPU_USER : at(p, task, op->owner, op->to),
        .packed = op->out == TW_FORM_PACKED  ? number(p, task, op->to)
                  : op->in == TW_FORM_PACKED ? number(p, task, from)
                                             : 0,
    };
}

static void emit_message(planner_t *p, const task_t *task)
{
    const tw_op_t *op = task->op;
    tw_gpu_plan_t *plan = p->plan;
    int is_send = op->kind == TW_OP_SEND, cell = is_send ? op->from : op->to;
    const tw_gpu_message_t message = {
        .peer = op->peer,
        .is_send = is_send,
        .at = at(p, task, op->owner, cell),
        .bytes = chunk_bytes(p, task->chunk, op->out),
        .packed = op->out == TW_FORM_PACKED ? number(p, task, cell) : TW_GPU_NOT_PACKED,
    };

    if (!gpu_plan_grow(p, &plan->messages, plan->n_messages, &plan->max_messages, sizeof(*plan->messages))) {
        return;
    }
    plan->messages[plan->n_messages++] = message;
    if (is_send && p->topo->node[message.peer] != p->topo->node[p->topo->rank]) {
        plan->inter_node_bytes += message.bytes;
    }
}

/** Emit what a round does in one of its ticks. */
static void emit_round(planner_t *p, size_t tick, size_t round)
{
    for (int k = 0; k < TW_N_CODINGS; k++) {
        const tw_ops_t *ops = p->ops[k];
        for (int i = 0; ops && i < ops->n_ops; i++) {
            task_t task = {.op = &ops->ops[i], .coding = k, .round = round};
            if ((size_t)task.op->tick != tick || !find_chunk(p, task.op->owner, round, k, &task.chunk)) {
                continue;
            }
            if (task.op->kind == TW_OP_SEND || task.op->kind == TW_OP_RECV) {
                emit_message(p, &task);
            } else {
                emit_compute(p, &task);
            }
        }
    }
}

/** Emit tick `tick` of all rounds at once. In place, everything must be read before anything is written. */
static void emit_all_rounds(planner_t *p, size_t tick)
{
    for (size_t round = 0; round < p->plan->n_rounds; round++) {
        emit_round(p, tick, round);
    }
}

/** Emit all ticks. In each tick, rounds that began earlier come first. So the computations of a round that
 *  leaves a slot come before those of the round that takes the slot. */
static void emit_ticks(planner_t *p)
{
    tw_gpu_plan_t *plan = p->plan;

    size_t begins =
        /* number of ticks in which rounds begin */
        p->params->in_place && plan->n_rounds > 0 ? 1 : plan->n_rounds;

    plan->n_ticks = begins > 0 ? begins + p->n_ticks - 1 : 0;
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
        for (size_t s = p->n_ticks; s-- > 0;) {
            if (p->params->in_place && s == t) {
                emit_all_rounds(p, s);
            } else if (!p->params->in_place && t >= s && t - s < plan->n_rounds) {
                emit_round(p, s, t - s);
            }
        }
        tick->n_computes = plan->n_computes - tick->first_compute;
        tick->n_messages = plan->n_messages - tick->first_message;
    }
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

tw_status_t tw_gpu_plan_init(tw_gpu_plan_t *plan, const tw_gpu_plan_params_t *params)
{
    planner_t p = {.plan = plan, .params = params, .topo = params->topo};

    memset(plan, 0, sizeof(*plan));
    p.status = tw_grid_init(&plan->grid, params->args, params->topo->world, params->chunk_bytes);
    if (p.status == TW_OK) {
        plan->n_rounds = plan->grid.shard_chunks;
        measure_chunks(&p);
        p.status = get_ops(&p);
    }
    if (p.status == TW_OK) {
        p.status = create_areas(&p);
    }
    if (p.status == TW_OK) {
        lay_out(&p);
        emit_ticks(&p);
    }
    free(p.areas);
    free(p.memory);
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
