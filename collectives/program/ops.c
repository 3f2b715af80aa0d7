/** Derives a rank's ops from flows. Each owner's flow is walked once, and this rank's part of it becomes ops
 *  with their forms. Then the ops of each hop are put together. */
#include "collectives/program/ops.h"

#include <stdlib.h>
#include <string.h>

#define LAST_TICK (-1) /**< stands for the last tick until its number is known */

/** A value of an owner's chunk that this rank has. */
typedef struct value {
    int cell;
    tw_form_t form;
    int is_early; /**< 1: the value needs nothing that this rank receives in the value's hop */
} value_t;

/** What every rank computes alike about one operation of a flow. */
typedef struct note {
    int tick;
    int is_sum; /**< 1: the operation makes a sum, or moves one */
} note_t;

/** One step of this rank in a flow. All ranks compute the same `tick`: for a move the one after the tick in
 *  which its input gets ready, for a sum the one in which its inputs do. For contributions that is tick 0. */
typedef struct step {
    int owner, tick;
    int peer;   /**< for a move */
    int is_sum; /**< for a move, 1: it moves a sum; 0: one rank's contribution */
    const tw_value_t *inputs;
    int n_inputs, n_partial; /**< number of inputs; number of those that are received sums */
    int is_last;             /**< 1: the sum is the result */
} step_t;

typedef struct maker {
    const tw_ops_params_t *params;
    tw_ops_t *ops;
    tw_flow_t flow;  /**< the flow of one owner after another */
    value_t *values; /**< [max_values], by operation of the flow; set only for operations at this rank */
    note_t *notes;   /**< [max_notes], by operation of the flow */
    size_t max_values, max_notes;
    value_t result;    /**< the value of the own shard that is spread */
    int n_ticks;       /**< ticks of this phase, for all owners */
    int first_tick;    /**< first tick of this phase */
    int hop, is_early; /**< of the ops that are emitted next */
    int is_spread;
    tw_status_t status;
} maker_t;

static const value_t src = {.cell = TW_CELL_SRC, .form = TW_FORM_PLAIN, .is_early = 1};
static const value_t dst = {.cell = TW_CELL_DST, .form = TW_FORM_PLAIN};

static value_t input_of(const maker_t *m, const step_t *step, int input)
{
    tw_value_t value = step->inputs[input];
    if (value >= 0) {
        return m->values[value];
    }
    return m->is_spread ? m->result : src;
}

/* ---- emitting ------------------------------------------------------------------------------------------ */

static void emit(maker_t *m, const tw_op_t *op)
{
    tw_ops_t *ops = m->ops;
    if (!tw_grow(&ops->ops, &ops->max_ops, ops->n_ops + 1, sizeof(*ops->ops))) {
        m->status = TW_ERR_NO_MEMORY;
        return;
    }
    ops->ops[ops->n_ops] = *op;
    ops->ops[ops->n_ops].hop = m->hop;
    ops->ops[ops->n_ops++].is_early = m->is_early;
}

static value_t new_cell(const maker_t *m, int owner, tw_form_t form)
{
    return (value_t){.cell = m->ops->n_cells[owner]++, .form = form};
}

static void ops_convert(maker_t *m, int owner, value_t from, value_t to, tw_seed_t seed, int tick)
{
    emit(m, &(tw_op_t){.kind = TW_OP_CONVERT,
                       .tick = tick,
                       .owner = owner,
                       .from_owner = owner,
                       .in = from.form,
                       .out = to.form,
                       .from = from.cell,
                       .to = to.cell,
                       .seed = seed});
}

/** Convert a value to another form. With stages, also copy it out of the tensors into a cell. */
static value_t convert_to(maker_t *m, int owner, value_t from, tw_form_t form, int tick)
{
    value_t to = from;
    if (from.form != form || (m->params->stages != TW_STAGE_NONE && from.cell < 0)) {
        to = new_cell(m, owner, form);
        ops_convert(m, owner, from, to, TW_SEED_RANK, tick);
    }
    return to;
}

/** Emit the sum of values in one form. Their cells have been appended to m->ops->inputs. */
static void emit_sum(maker_t *m, const step_t *step, tw_form_t in, value_t to, tw_seed_t seed)
{
    emit(m, &(tw_op_t){.kind = TW_OP_SUM,
                       .tick = step->tick,
                       .owner = step->owner,
                       .from_owner = step->owner,
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

static tw_form_t ops_form_of(const maker_t *m, const step_t *step)
{
    const tw_topo_t *topo = m->params->topo;
    const tw_move_t move = {.coding = m->params->coding,
                            .has_inner = m->params->has_inner,
                            .is_spread = m->is_spread,
                            .is_sum = step->is_sum,
                            .crosses = topo->node[step->peer] != topo->node[topo->rank]};
    return tw_form_of_move(m->params->flows, &move);
}

static void send_value(maker_t *m, const step_t *step, value_t from)
{
    emit(m, &(tw_op_t){.kind = TW_OP_SEND,
                       .tick = m->first_tick + step->tick,
                       .owner = step->owner,
                       .from_owner = step->owner,
                       .peer = step->peer,
                       .in = from.form,
                       .out = from.form,
                       .from = from.cell});
}

static void send(maker_t *m, const step_t *step)
{
    value_t from = input_of(m, step, 0);
    int is_own = from.cell == TW_CELL_SRC, n_before = m->ops->n_ops;
    if (!m->is_spread) {
        from = convert_to(m, step->owner, from, ops_form_of(m, step), is_own ? 0 : step->tick - 1);
    }
    if (m->ops->n_ops > n_before) {
        m->ops->ops[n_before].for_send = is_own;
    }
    send_value(m, step, from);
}

/** Put a shard's final value into the caller's tensor, in the last tick. */
static void deliver(maker_t *m, int owner, value_t from)
{
    ops_convert(m, owner, from, dst, TW_SEED_OP, LAST_TICK);
}

static value_t ops_receive(maker_t *m, const step_t *step)
{
    tw_form_t form = ops_form_of(m, step);
    int is_straight = m->is_spread && form == TW_FORM_PLAIN && m->params->stages != TW_STAGE_ALL;
    value_t to = is_straight ? dst : new_cell(m, step->owner, form);
    emit(m, &(tw_op_t){.kind = TW_OP_RECV,
                       .tick = m->first_tick + step->tick,
                       .owner = step->owner,
                       .peer = step->peer,
                       .in = form,
                       .out = form,
                       .to = to.cell});
    if (m->is_spread && !is_straight) {
        deliver(m, step->owner, to);
    } else if (form == TW_FORM_PACKED) { /* sums need plain values */
        to = convert_to(m, step->owner, to, TW_FORM_PLAIN, step->tick + 1);
    }
    return to;
}

/** Sort the ops from `first` on by hop; in a hop the early ones come first. Otherwise the order stays. */
static tw_status_t end_phase(maker_t *m, int first, int n_hops)
{
    tw_ops_t *ops = m->ops;
    int n = ops->n_ops - first, sorted = first;
    tw_op_t *phase = malloc(((size_t)n + 1) * sizeof(*phase));
    if (!phase ||
        !tw_grow(&ops->first_op, &ops->max_hops, ops->n_hops + n_hops + 1, sizeof(*ops->first_op))) {
        free(phase);
        return TW_ERR_NO_MEMORY;
    }
    if (n > 0) {
        memcpy(phase, &ops->ops[first], (size_t)n * sizeof(*phase));
    }
    for (int half = 0; half < 2 * n_hops; half++) {
        if (half % 2 == 0) {
            ops->first_op[ops->n_hops++] = sorted;
        }
        for (int i = 0; i < n; i++) {
            if (2 * phase[i].hop + !phase[i].is_early == half) {
                ops->ops[sorted++] = phase[i];
            }
        }
    }
    ops->first_op[ops->n_hops] = sorted;
    free(phase);
    return m->status;
}

/** The ticks of a spread without moves, before the one in which a rank decodes its own shard. A packed shard
 *  waits for one more: the host has to learn the message's length. */
static int spread_ticks(const maker_t *m)
{
    return tw_form_of_coding(m->params->coding) == TW_FORM_PACKED ? 2 : 1;
}

/** Emit an all-to-all: a send to and a receive from each rank, and a copy of the own part. */
static tw_status_t ops_exchange(maker_t *m)
{
    int world = m->params->topo->world, rank = m->params->topo->rank;
    value_t own = src;
    m->is_spread = 1;
    m->n_ticks = world > 1 ? 2 : spread_ticks(m);
    for (int i = 0; i < world; i++) {
        int to = (rank + i) % world;
        const step_t step = {.owner = to, .peer = to, .tick = 1};
        value_t value = convert_to(m, to, src, ops_form_of(m, &step), 0);
        if (to == rank) {
            own = value;
        } else {
            send_value(m, &step, value);
        }
    }
    /* In place, nothing is written before all data to send was copied aside, in an earlier hop. */
    m->hop = m->params->stages == TW_STAGE_SENT;
    deliver(m, world + rank, own);
    if (m->status == TW_OK) {
        m->ops->ops[m->ops->n_ops - 1].from_owner = rank;
    }
    for (int i = 1; i < world; i++) {
        int from = (rank + world - i) % world;
        (void)ops_receive(m, &(step_t){.owner = world + from, .peer = from, .tick = 1});
    }
    return end_phase(m, 0, 1 + m->hop);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

static void take_inputs(maker_t *m, const step_t *step, tw_form_t form)
{
    for (int i = 0; i < step->n_inputs; i++) {
        value_t input = convert_to(m, step->owner, input_of(m, step, i), form, 0);
        m->ops->inputs[m->ops->n_inputs + i] = input.cell;
    }
}

/** Emit the last sum: into the tensors, into the form in which it is spread, or both. */
static void add_last(maker_t *m, const step_t *step, tw_form_t in)
{
    const tw_ops_params_t *params = m->params;
    int spreads = params->flows->spread != NULL;
    tw_form_t form = spreads ? tw_form_of_coding(params->coding) : TW_FORM_PLAIN;
    int is_straight = form == TW_FORM_PLAIN && !(spreads && params->stages == TW_STAGE_ALL);
    step_t last = *step;
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
        /* a reduce-scatter followed by an all-gather would encode this rounded sum */
        emit_sum(m, &last, in, dst, TW_SEED_OP);
        ops_convert(m, step->owner, dst, m->result, TW_SEED_OP, step->tick);
    } else {
        emit_sum(m, &last, in, m->result, TW_SEED_OP);
    }
}

/** Emit a sum, and return its value. A single quantized contribution is returned itself, without a sum. */
static value_t add_up(maker_t *m, const step_t *step)
{
    const tw_ops_params_t *params = m->params;
    int is_blocks = params->coding == TW_CODING_BLOCKS;
    tw_form_t in =
        tw_form_of_inputs(params->flows, params->topo, params->coding, params->has_inner, step->is_last);
    if (!tw_grow(&m->ops->inputs, &m->ops->max_inputs, m->ops->n_inputs + step->n_inputs + 1,
                 sizeof(*m->ops->inputs))) {
        m->status = TW_ERR_NO_MEMORY;
        return src;
    }
    if (step->is_last) {
        add_last(m, step, in);
        return m->result;
    }
    if (is_blocks && step->n_inputs == 1) {
        return input_of(m, step, 0);
    }
    value_t sum = new_cell(m, step->owner, is_blocks ? TW_FORM_CODEC : TW_FORM_PLAIN);
    if (step->n_inputs > 1) {
        take_inputs(m, step, in);
    } else { /* the only contribution is multiplied by the scale */
        m->ops->inputs[m->ops->n_inputs] = input_of(m, step, 0).cell;
    }
    emit_sum(m, step, in, sum, TW_SEED_NODE);
    return sum;
}

/* ---- flows --------------------------------------------------------------------------------------------- */

/** Whether all inputs of an operation are ready before its hop begins. */
static int is_early(const maker_t *m, const tw_flow_op_t *op)
{
    const tw_value_t *inputs = &m->flow.inputs[op->first_input];
    int early = 1;
    for (int i = 0; i < op->n_inputs && early; i++) {
        early = inputs[i] < 0 || m->flow.ops[inputs[i]].hop < op->hop || m->values[inputs[i]].is_early;
    }
    return early;
}

/** Compute an operation's tick. A move is in the tick after its input was made or has come. A sum is in the
 *  first tick that has all inputs. */
static note_t note_of(const maker_t *m, const tw_flow_op_t *op)
{
    const tw_value_t *inputs = &m->flow.inputs[op->first_input];
    note_t note = {.tick = !op->is_sum, .is_sum = op->is_sum};
    for (int i = 0; i < op->n_inputs; i++) {
        const note_t *input = inputs[i] < 0 ? NULL : &m->notes[inputs[i]];
        int has_come = input && !m->flow.ops[inputs[i]].is_sum;
        int ready = (input ? input->tick : 0) + (has_come || !op->is_sum);
        note.tick = ready > note.tick ? ready : note.tick;
        note.is_sum |= input && input->is_sum;
    }
    return note;
}

/** Take operation i of an owner's flow: emit this rank's part of it. */
static void take_op(maker_t *m, int owner, int i, int is_last)
{
    const tw_flow_op_t *op = &m->flow.ops[i];
    int rank = m->params->topo->rank;
    step_t step = {.owner = owner,
                   .tick = m->notes[i].tick,
                   .peer = op->at,
                   .is_sum = m->notes[i].is_sum,
                   .inputs = &m->flow.inputs[op->first_input],
                   .n_inputs = op->n_inputs,
                   .is_last = is_last};
    int sends = !op->is_sum && tw_flow_rank(&m->flow, step.inputs[0]) == rank;
    m->hop = op->hop;
    m->is_early = (sends || (op->is_sum && op->at == rank)) && is_early(m, op);
    if (sends) {
        send(m, &step);
    } else if (!op->is_sum && op->at == rank) {
        step.peer = tw_flow_rank(&m->flow, step.inputs[0]);
        m->values[i] = ops_receive(m, &step);
    } else if (op->at == rank) {
        for (int k = 0; k < op->n_inputs; k++) {
            step.n_partial += step.inputs[k] >= 0 && m->notes[step.inputs[k]].is_sum;
        }
        m->values[i] = add_up(m, &step);
    }
    if (op->at == rank) {
        m->values[i].is_early = m->is_early;
    }
}

/** Append this rank's part of an owner's flow to the program. */
static tw_status_t take_flow(maker_t *m, int owner, tw_value_t result, int *n_hops)
{
    if (m->flow.status != TW_OK || !tw_grow(&m->values, &m->max_values, m->flow.n_ops, sizeof(*m->values)) ||
        !tw_grow(&m->notes, &m->max_notes, m->flow.n_ops, sizeof(*m->notes))) {
        return TW_ERR_NO_MEMORY;
    }
    for (int i = 0; i < m->flow.n_ops; i++) {
        const tw_flow_op_t *op = &m->flow.ops[i];
        m->notes[i] = note_of(m, op);
        m->n_ticks = m->notes[i].tick >= m->n_ticks ? m->notes[i].tick + 1 : m->n_ticks;
        *n_hops = op->hop >= *n_hops ? op->hop + 1 : *n_hops;
        take_op(m, owner, i, i == result);
    }
    return m->status;
}

/* ---- phases -------------------------------------------------------------------------------------------- */

/** Begin to spread the own shard. If the codec loses values, the owner decodes the shard, too, so that all
 *  ranks have the same bits. */
static void begin_spread(maker_t *m)
{
    const tw_ops_params_t *params = m->params;
    int rank = params->topo->rank, loses = tw_coding_loses(params->coding);
    m->hop = 0;
    m->is_early = 1;
    if (!tw_flows_owns(params->flows, params->topo, rank)) {
        return;
    }
    if (!params->flows->reduce) {
        m->result = convert_to(m, rank, src, tw_form_of_coding(params->coding), 0);
        if (!loses && params->flows->of == TW_FLOWS_SHARDS) {
            deliver(m, rank, src);
            /* the shard in the tensor, beside the others of its row */
            m->result = params->flows->merges ? dst : m->result;
        }
    }
    if (loses || (params->flows->reduce && m->result.form == TW_FORM_PLAIN && m->result.cell >= 0)) {
        deliver(m, rank, m->result);
    }
}

/** Make the ops of a phase. The owners of the next node come first, those of the own node last. With
 *  in_order, all ranks take the owners in one order. With merges: in the order of ranks, from this one on. */
static tw_status_t make_phase(maker_t *m, int is_spread)
{
    const tw_topo_t *topo = m->params->topo;
    const tw_flows_t *flows = m->params->flows;
    int next = flows->in_order ? 0 : topo->node_first[topo->node[topo->rank] + 1];
    int first = m->ops->n_ops, n_hops = is_spread;
    m->is_spread = is_spread;
    m->n_ticks = is_spread ? spread_ticks(m) : 1;
    if (is_spread) {
        begin_spread(m);
    }
    for (int i = 0; i < topo->world; i++) {
        int owner = flows->merges ? (topo->rank + i) % topo->world : topo->ring[(next + i) % topo->world];
        tw_value_t result = tw_flow_own(owner);
        tw_flow_clear(&m->flow);
        if (!tw_flows_owns(flows, topo, owner)) {
            continue;
        }
        if (is_spread) {
            flows->spread(&m->flow, owner, result);
        } else {
            result = flows->reduce(&m->flow, owner);
        }
        TW_TRY(take_flow(m, owner, result, &n_hops));
    }
    return end_phase(m, first, n_hops);
}

static tw_status_t make_all(maker_t *m)
{
    const tw_flows_t *flows = m->params->flows;
    tw_ops_t *ops = m->ops;
    if (flows->by_pair) {
        TW_TRY(ops_exchange(m));
    } else if (flows->reduce) {
        TW_TRY(make_phase(m, 0));
        m->first_tick = m->n_ticks - 1;
        ops->n_reduce_hops = ops->n_hops;
    }
    if (flows->spread && !flows->by_pair) {
        TW_TRY(make_phase(m, 1));
    }
    ops->n_ticks = m->first_tick + (flows->spread ? m->n_ticks : 0) + 1;
    for (int i = 0; i < ops->n_ops; i++) {
        tw_op_t *op = &ops->ops[i];
        op->tick = op->tick == LAST_TICK ? ops->n_ticks - 1 : op->tick;
    }
    return TW_OK;
}

/* ---- what is kept -------------------------------------------------------------------------------------- */

static void ops_destroy(tw_ops_t *ops)
{
    if (ops) {
        free(ops->ops);
        free(ops->inputs);
        free(ops->first_op);
        free(ops->n_cells);
    }
    free(ops);
}

tw_status_t tw_ops_create(const tw_ops_params_t *params, tw_ops_t **out)
{
    int n_owners = params->topo->world * (params->flows->by_pair ? 2 : 1);
    maker_t m = {.params = params, .flow = {.topo = params->topo}, .ops = calloc(1, sizeof(*m.ops))};
    tw_status_t status = m.ops ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        m.ops->n_owners = n_owners;
        m.ops->n_cells = calloc((size_t)n_owners, sizeof(*m.ops->n_cells));
        status = m.ops->n_cells ? make_all(&m) : TW_ERR_NO_MEMORY;
    }
    tw_flow_cleanup(&m.flow);
    free(m.values);
    free(m.notes);
    if (status != TW_OK) {
        tw_error("out of memory planning an operation");
        ops_destroy(m.ops);
        return status;
    }
    *out = m.ops;
    return TW_OK;
}

void tw_ops_cleanup(tw_kept_program_t *kept)
{
    for (int i = 0; i < TW_OPS_KINDS; i++) {
        ops_destroy(kept->ops[i]);
    }
}
