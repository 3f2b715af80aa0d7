#include "collectives/program/ops.h"

#include <stdlib.h>

/** What this rank has of an owner's chunk. */
typedef struct value {
    int cell;
    tw_form_t form;
} value_t;

typedef struct maker {
    const tw_ops_params_t *params;
    const tw_phase_t *phase;
    tw_ops_t *ops;
    value_t *values;  /**< of the phase: [world][n_values] one owner after the other */
    int *first_value; /**< [world] of an owner in `values` */
    value_t result;   /**< of the own shard: what is spread */
    int result_tick;  /**< of all owners' */
    int is_spread;
    tw_status_t status;
} maker_t;

static value_t *value_at(const maker_t *m, const tw_step_t *step, int value)
{
    return &m->values[m->first_value[step->owner] + value];
}

static value_t input_of(const maker_t *m, const tw_step_t *step, int input)
{
    int value = m->phase->inputs[step->first_input + input];

    if (value != TW_STEP_OWN) {
        return *value_at(m, step, value);
    }
    return m->is_spread ? m->result : (value_t){TW_CELL_SRC, TW_FORM_PLAIN};
}

/* ---- emitting ------------------------------------------------------------------------------------------ */

static tw_op_t *emit(maker_t *m, const tw_op_t *op)
{
    tw_ops_t *ops = m->ops;

    if (!tw_grow(&ops->ops, &ops->max_ops, ops->n_ops + 1, sizeof(*ops->ops))) {
        m->status = TW_ERR_NO_MEMORY;
        return NULL;
    }
    ops->ops[ops->n_ops] = *op;
    return &ops->ops[ops->n_ops++];
}

static value_t new_cell(const maker_t *m, int owner, tw_form_t form)
{
    return (value_t){m->ops->n_cells[owner]++, form};
}

static void convert(maker_t *m, int owner, value_t from, value_t to, tw_seed_t seed, int tick)
{
    (void)emit(m, &(tw_op_t){.kind = TW_OP_CONVERT,
                             .tick = tick,
                             .owner = owner,
                             .from_owner = owner,
                             .in = from.form,
                             .out = to.form,
                             .from = from.cell,
                             .to = to.cell,
                             .seed = seed});
}

/** A value in another form, or no longer in the tensors. */
static value_t convert_to(maker_t *m, int owner, value_t from, tw_form_t form, int tick)
{
    value_t to = from;

    if (from.form != form || (m->params->stages != TW_STAGE_NONE && from.cell < 0)) {
        to = new_cell(m, owner, form);
        convert(m, owner, from, to, TW_SEED_RANK, tick);
    }
    return to;
}

/** The sum of values in one form, which are in m->ops->inputs behind the others. */
static void emit_sum(maker_t *m, const tw_step_t *step, tw_form_t in, value_t to, tw_seed_t seed)
{
    (void)emit(m, &(tw_op_t){.kind = TW_OP_SUM,
                             .tick = step->tick,
                             .owner = step->owner,
                             .in = in,
                             .out = to.form,
                             .to = to.cell,
                             .first_input = m->ops->n_inputs,
                             .n_inputs = step->n_inputs,
                             .n_partial = step->n_partial,
                             .is_last = step->is_last,
                             .seed = seed});
    m->ops->n_inputs += step->n_inputs;
}

/* ---- moves --------------------------------------------------------------------------------------------- */

static tw_form_t form_of(const maker_t *m, const tw_step_t *step)
{
    const tw_topo_t *topo = m->params->topo;
    const tw_move_t move = {.coding = m->params->coding,
                            .has_inner = m->params->has_inner,
                            .is_spread = m->is_spread,
                            .is_sum = step->is_sum,
                            .crosses = topo->node[step->peer] != topo->node[topo->rank]};

    return tw_form_of_move(m->params->flows, &move);
}

static int tick_of(const maker_t *m, const tw_step_t *step)
{
    return step->tick + (m->is_spread ? m->result_tick : 0);
}

static void send_value(maker_t *m, const tw_step_t *step, value_t from)
{
    (void)emit(m, &(tw_op_t){.kind = TW_OP_SEND,
                             .tick = tick_of(m, step),
                             .owner = step->owner,
                             .from_owner = step->owner,
                             .peer = step->peer,
                             .in = from.form,
                             .out = from.form,
                             .from = from.cell});
}

static void send(maker_t *m, const tw_step_t *step)
{
    value_t from = input_of(m, step, 0);
    int is_own = from.cell == TW_CELL_SRC, n_before = m->ops->n_ops;

    if (!m->is_spread) {
        from = convert_to(m, step->owner, from, form_of(m, step), is_own ? 0 : step->tick - 1);
    }
    if (m->ops->n_ops > n_before) {
        m->ops->ops[n_before].for_send = is_own;
    }
    send_value(m, step, from);
}

/** A shard is where it belongs at the end: all at once. */
static void deliver(maker_t *m, int owner, value_t from)
{
    convert(m, owner, from, (value_t){TW_CELL_DST, TW_FORM_PLAIN}, TW_SEED_OP, m->ops->n_ticks - 1);
}

static value_t receive(maker_t *m, const tw_step_t *step)
{
    tw_form_t form = form_of(m, step);
    int is_straight = m->is_spread && form == TW_FORM_PLAIN && m->params->stages != TW_STAGE_ALL;
    value_t to = is_straight ? (value_t){TW_CELL_DST, form} : new_cell(m, step->owner, form);

    (void)emit(m, &(tw_op_t){.kind = TW_OP_RECV,
                             .tick = tick_of(m, step),
                             .owner = step->owner,
                             .peer = step->peer,
                             .in = form,
                             .out = form,
                             .to = to.cell});
    if (m->is_spread && !is_straight) {
        deliver(m, step->owner, to);
    } else if (form == TW_FORM_PACKED) { /* sums see it as it is */
        to = convert_to(m, step->owner, to, TW_FORM_PLAIN, step->tick + 1);
    }
    return to;
}

/** What goes to each rank, and what comes from it; the own one is copied. */
static tw_status_t exchange(maker_t *m)
{
    int world = m->params->topo->world, rank = m->params->topo->rank;
    const value_t src = {TW_CELL_SRC, TW_FORM_PLAIN};

    m->is_spread = 1;
    for (int i = 0; i < world; i++) {
        int to = (rank + i) % world;
        const tw_step_t step = {.kind = TW_STEP_SEND, .owner = to, .peer = to, .tick = 1};
        value_t own = convert_to(m, to, src, form_of(m, &step), 0);
        if (to != rank) {
            send_value(m, &step, own);
            continue;
        }
        deliver(m, world + rank, own);
        if (m->status == TW_OK) {
            m->ops->ops[m->ops->n_ops - 1].from_owner = rank;
        }
    }
    for (int i = 1; i < world; i++) {
        int from = (rank + world - i) % world;
        (void)receive(m, &(tw_step_t){.kind = TW_STEP_RECV, .owner = world + from, .peer = from, .tick = 1});
    }
    m->ops->first_op[++m->ops->n_hops] = m->ops->n_ops;
    return m->status;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

static void take_inputs(maker_t *m, const tw_step_t *step, tw_form_t form)
{
    for (int i = 0; i < step->n_inputs; i++) {
        value_t input = convert_to(m, step->owner, input_of(m, step, i), form, 0);
        m->ops->inputs[m->ops->n_inputs + i] = input.cell;
    }
}

/** The result: in the tensors, or in the form in which it is spread, or both. */
static void add_last(maker_t *m, const tw_step_t *step, tw_form_t in)
{
    const tw_ops_params_t *params = m->params;
    int is_blocks = params->coding == TW_CODING_BLOCKS, spreads = params->flows->spread != NULL;
    tw_form_t form = !spreads || params->coding == TW_CODING_NONE ? TW_FORM_PLAIN
                     : is_blocks                                  ? TW_FORM_CODEC
                                                                  : TW_FORM_PACKED;
    int is_straight = form == TW_FORM_PLAIN && !(spreads && params->stages == TW_STAGE_ALL);
    const value_t dst = {TW_CELL_DST, TW_FORM_PLAIN};
    tw_step_t last = *step;

    take_inputs(m, step, in);
    if (tw_form_encodes_twice(params->flows, params->topo, params->coding)) {
        value_t sum = new_cell(m, step->owner, TW_FORM_CODEC);
        last.is_last = 0;
        emit_sum(m, &last, in, sum, TW_SEED_NODE);
        last.is_last = last.n_inputs = 1;
        m->ops->inputs[m->ops->n_inputs] = sum.cell;
        in = TW_FORM_CODEC;
    }
    m->result = is_straight ? dst : new_cell(m, step->owner, form);
    if (form == TW_FORM_PACKED || (form == TW_FORM_CODEC && params->rounds_sums)) {
        emit_sum(m, &last, in, dst, TW_SEED_OP); /* what the others of a reduce-scatter would encode */
        convert(m, step->owner, dst, m->result, TW_SEED_OP, step->tick);
    } else {
        emit_sum(m, &last, in, m->result, TW_SEED_OP);
    }
}

/** A single contribution that is quantized is not a sum. */
static void add_up(maker_t *m, const tw_step_t *step)
{
    const tw_ops_params_t *params = m->params;
    int is_blocks = params->coding == TW_CODING_BLOCKS;
    tw_form_t in =
        tw_form_of_inputs(params->flows, params->topo, params->coding, params->has_inner, step->is_last);

    if (step->is_last) {
        add_last(m, step, in);
    } else if (is_blocks && step->n_inputs == 1) {
        *value_at(m, step, step->value) = input_of(m, step, 0);
    } else {
        value_t sum = new_cell(m, step->owner, is_blocks ? TW_FORM_CODEC : TW_FORM_PLAIN);
        if (step->n_inputs > 1) {
            take_inputs(m, step, in);
        } else { /* multiplied, if at all */
            m->ops->inputs[m->ops->n_inputs] = input_of(m, step, 0).cell;
        }
        *value_at(m, step, step->value) = sum;
        emit_sum(m, step, in, sum, TW_SEED_NODE);
    }
}

/* ---- phases -------------------------------------------------------------------------------------------- */

/** The own shard as it is spread. What lost something on the way is decoded here, too: everybody has the same
 *  bits. */
static void begin_spread(maker_t *m)
{
    const tw_ops_params_t *params = m->params;
    int rank = params->topo->rank, is_blocks = params->coding == TW_CODING_BLOCKS;

    if (!params->flows->reduce) {
        const value_t src = {TW_CELL_SRC, TW_FORM_PLAIN};
        m->result = convert_to(m, rank, src,
                               params->coding == TW_CODING_NONE ? TW_FORM_PLAIN
                               : is_blocks                      ? TW_FORM_CODEC
                                                                : TW_FORM_PACKED,
                               0);
        if (!is_blocks && params->flows->of == TW_FLOWS_SHARDS) {
            deliver(m, rank, src);
        }
    }
    if (is_blocks || (params->flows->reduce && m->result.form == TW_FORM_PLAIN && m->result.cell >= 0)) {
        deliver(m, rank, m->result);
    }
}

static tw_status_t begin_phase(maker_t *m, const tw_phase_t *phase, int is_spread)
{
    int world = m->params->topo->world, n_values = 0;

    m->phase = phase;
    m->is_spread = is_spread;
    for (int r = 0; r < world; r++) {
        m->first_value[r] = n_values;
        n_values += phase->n_values[r];
    }
    free(m->values);
    m->values = calloc((size_t)n_values + 1, sizeof(*m->values));
    return m->values ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t make_phase(maker_t *m, const tw_phase_t *phase, int is_spread)
{
    int n_hops = is_spread && phase->n_hops == 0 ? 1 : phase->n_hops;
    TW_TRY(begin_phase(m, phase, is_spread));
    if (is_spread) {
        begin_spread(m);
    }
    for (int hop = 0, s = 0; hop < n_hops; hop++) {
        for (; s < phase->n_steps && phase->steps[s].hop == hop; s++) {
            const tw_step_t *step = &phase->steps[s];
            if (step->kind == TW_STEP_SEND) {
                send(m, step);
            } else if (step->kind == TW_STEP_RECV) {
                *value_at(m, step, step->value) = receive(m, step);
            } else {
                add_up(m, step);
            }
        }
        m->ops->first_op[++m->ops->n_hops] = m->ops->n_ops;
    }
    return m->status;
}

/* ---- what is kept -------------------------------------------------------------------------------------- */

static void destroy(tw_ops_t *ops)
{
    if (ops) {
        free(ops->ops);
        free(ops->inputs);
        free(ops->first_op);
        free(ops->n_cells);
    }
    free(ops);
}

static tw_ops_t *alloc_ops(const tw_program_t *program, int n_owners)
{
    const tw_phase_t *reduce = &program->reduce;
    size_t n_hops = (size_t)(reduce->n_hops + program->spread.n_hops);
    tw_ops_t *ops = calloc(1, sizeof(*ops));

    if (!ops) {
        return NULL;
    }
    /* each sum's, and of one that is encoded twice, that one */
    ops->inputs = calloc((size_t)(reduce->n_inputs + reduce->n_steps) + 1, sizeof(*ops->inputs));
    ops->first_op = calloc(n_hops + 2, sizeof(*ops->first_op));
    ops->n_cells = calloc((size_t)n_owners, sizeof(*ops->n_cells));
    ops->n_owners = n_owners;
    if (!ops->inputs || !ops->first_op || !ops->n_cells) {
        destroy(ops);
        return NULL;
    }
    return ops;
}

static tw_status_t make_all(maker_t *m, const tw_program_t *program)
{
    const tw_flows_t *flows = m->params->flows;

    m->result_tick = flows->reduce ? program->reduce.n_ticks - 1 : 0;
    m->ops->n_ticks = m->result_tick + (flows->spread ? program->spread.n_ticks : 0) + 1;
    if (flows->by_pair) {
        return exchange(m);
    }
    TW_TRY(make_phase(m, &program->reduce, 0));
    m->ops->n_reduce_hops = m->ops->n_hops;
    return flows->spread ? make_phase(m, &program->spread, 1) : TW_OK;
}

static tw_status_t make(const tw_program_t *program, const tw_ops_params_t *params, tw_ops_t **out)
{
    int world = params->topo->world;
    maker_t m = {.params = params,
                 .ops = alloc_ops(program, params->flows->by_pair ? 2 * world : world),
                 .first_value = calloc((size_t)world, sizeof(*m.first_value))};
    tw_status_t status = m.ops && m.first_value ? make_all(&m, program) : TW_ERR_NO_MEMORY;

    free(m.values);
    free(m.first_value);
    if (status != TW_OK) {
        destroy(m.ops);
        return status;
    }
    *out = m.ops;
    return TW_OK;
}

tw_status_t tw_ops_get(tw_kept_program_t *kept, const tw_ops_params_t *params, const tw_ops_t **out)
{
    int index = (((int)params->coding * 2 + !!params->has_inner) * 2 + !!params->rounds_sums) * 3 +
                (int)params->stages;
    tw_status_t status = TW_OK;

    if (!kept->program) {
        status = tw_program_create(params->topo, params->flows, &kept->program);
    }
    if (status == TW_OK && !kept->ops[index]) {
        status = make(kept->program, params, &kept->ops[index]);
    }
    if (status != TW_OK) {
        tw_error("out of memory planning an operation");
    }
    *out = kept->ops[index];
    return status;
}

void tw_ops_cleanup(tw_kept_program_t *kept)
{
    tw_program_destroy(kept->program);
    for (int i = 0; i < TW_OPS_KINDS; i++) {
        destroy(kept->ops[i]);
    }
}
