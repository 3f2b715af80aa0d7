#include "collectives/program/program.h"

#include <stdlib.h>
#include <string.h>

/** What this rank has of a flow's value. */
typedef struct made {
    int value;    /**< of the owner's */
    int is_early; /**< made by an early step */
} made_t;

/** What all ranks know of a flow's operation. */
typedef struct note {
    int tick;
    int is_sum; /**< it is one, or moves one */
} note_t;

/** A phase that is being made. */
typedef struct maker {
    const tw_topo_t *topo;
    tw_phase_t *phase;
    tw_flow_t flow; /**< of one owner after the other */
    made_t *made;   /**< [max_made] by the flow's values; only of those that are made here */
    note_t *notes;  /**< [max_notes] by the flow's operations */
    size_t max_made, max_notes;
} maker_t;

static tw_status_t add_step(maker_t *m, tw_step_t step, const tw_value_t *inputs)
{
    tw_phase_t *phase = m->phase;

    if (!tw_grow(&phase->steps, &phase->max_steps, phase->n_steps + 1, sizeof(*phase->steps)) ||
        !tw_grow(&phase->inputs, &phase->max_inputs, phase->n_inputs + step.n_inputs,
                 sizeof(*phase->inputs))) {
        return TW_ERR_NO_MEMORY;
    }
    step.first_input = phase->n_inputs;
    for (int i = 0; i < step.n_inputs; i++) {
        phase->inputs[phase->n_inputs++] = inputs[i] < 0 ? TW_STEP_OWN : m->made[inputs[i]].value;
    }
    phase->steps[phase->n_steps++] = step;
    return TW_OK;
}

/** Is all that an operation needs there before its hop begins? */
static int is_early(const maker_t *m, const tw_flow_op_t *op)
{
    const tw_value_t *inputs = &m->flow.inputs[op->first_input];
    int early = 1;

    for (int i = 0; i < op->n_inputs && early; i++) {
        early = inputs[i] < 0 || m->flow.ops[inputs[i]].hop < op->hop || m->made[inputs[i]].is_early;
    }
    return early;
}

/** A move is in the tick after its input was made, or has come; a sum in the first one that has all of its
 *  inputs. */
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

static int is_partial(const maker_t *m, tw_value_t value)
{
    return value >= 0 && m->notes[value].is_sum;
}

static tw_status_t add_sum(maker_t *m, int owner, tw_value_t sum, tw_value_t result)
{
    const tw_flow_op_t *op = &m->flow.ops[sum];
    const tw_value_t *inputs = &m->flow.inputs[op->first_input];
    tw_step_t step = {.kind = TW_STEP_SUM,
                      .hop = op->hop,
                      .owner = owner,
                      .n_inputs = op->n_inputs,
                      .is_last = sum == result,
                      .is_early = is_early(m, op),
                      .tick = m->notes[sum].tick};

    while (step.n_partial < op->n_inputs && is_partial(m, inputs[step.n_partial])) {
        step.n_partial++;
    }
    step.value = m->phase->n_values[owner]++;
    m->made[sum] = (made_t){step.value, step.is_early};
    return add_step(m, step, inputs);
}

/** What this rank does of an owner's flow. */
static tw_status_t add_owner(maker_t *m, int owner, tw_value_t result)
{
    int rank = m->topo->rank;

    if (m->flow.status != TW_OK ||
        !tw_grow(&m->made, &m->max_made, m->flow.n_ops, sizeof(*m->made)) ||
        !tw_grow(&m->notes, &m->max_notes, m->flow.n_ops, sizeof(*m->notes))) {
        return TW_ERR_NO_MEMORY;
    }
    for (int i = 0; i < m->flow.n_ops; i++) {
        const tw_flow_op_t *op = &m->flow.ops[i];
        const tw_value_t *inputs = &m->flow.inputs[op->first_input];
        m->notes[i] = note_of(m, op);
        tw_step_t step = {
            .hop = op->hop, .owner = owner, .tick = m->notes[i].tick, .is_sum = m->notes[i].is_sum};
        m->phase->n_ticks = step.tick >= m->phase->n_ticks ? step.tick + 1 : m->phase->n_ticks;
        m->phase->n_hops = op->hop >= m->phase->n_hops ? op->hop + 1 : m->phase->n_hops;
        if (op->is_sum) {
            TW_TRY(op->at == rank ? add_sum(m, owner, i, result) : TW_OK);
        } else if (tw_flow_rank(&m->flow, inputs[0]) == rank) {
            step.kind = TW_STEP_SEND;
            step.peer = op->at;
            step.n_inputs = 1;
            step.is_early = is_early(m, op);
            TW_TRY(add_step(m, step, inputs));
        } else if (op->at == rank) {
            step.kind = TW_STEP_RECV;
            step.peer = tw_flow_rank(&m->flow, inputs[0]);
            step.value = m->phase->n_values[owner]++;
            m->made[i] = (made_t){step.value, 0};
            TW_TRY(add_step(m, step, NULL));
        }
    }
    return TW_OK;
}

/** The steps by hop, early ones first; else they keep their order. */
static tw_status_t sort_steps(tw_phase_t *phase)
{
    tw_step_t *sorted = calloc((size_t)phase->n_steps + 1, sizeof(*sorted));
    int n = 0;

    phase->first_step = calloc((size_t)phase->n_hops + 1, sizeof(*phase->first_step));
    if (!sorted || !phase->first_step) {
        free(sorted);
        return TW_ERR_NO_MEMORY;
    }
    for (int half = 0; half < 2 * phase->n_hops; half++) {
        for (int s = 0; s < phase->n_steps; s++) {
            if (2 * phase->steps[s].hop + !phase->steps[s].is_early == half) {
                sorted[n++] = phase->steps[s];
            }
        }
        phase->first_step[half / 2 + 1] = n;
    }
    free(phase->steps);
    phase->steps = sorted;
    return TW_OK;
}

static tw_status_t make_phase(const tw_topo_t *topo, tw_flow_reduce_t reduce, tw_flow_spread_t spread,
                              tw_phase_t *phase)
{
    maker_t m = {.topo = topo, .phase = phase, .flow = {.topo = topo}};
    int next = topo->node_first[topo->node[topo->rank] + 1];
    tw_status_t status;

    phase->n_ticks = 1;
    phase->n_values = calloc((size_t)topo->world, sizeof(*phase->n_values));
    status = phase->n_values ? TW_OK : TW_ERR_NO_MEMORY;
    for (int i = 0; i < topo->world && status == TW_OK && (reduce || spread); i++) {
        int owner = topo->ring[(next + i) % topo->world];
        tw_value_t result = tw_flow_own(owner);
        tw_flow_clear(&m.flow);
        if (reduce) {
            result = reduce(&m.flow, owner);
        } else {
            spread(&m.flow, owner, result);
        }
        status = add_owner(&m, owner, result);
    }
    tw_flow_cleanup(&m.flow);
    free(m.made);
    free(m.notes);
    return status == TW_OK ? sort_steps(phase) : status;
}

tw_status_t tw_program_create(const tw_topo_t *topo, const tw_flows_t *flows, tw_program_t **out)
{
    tw_program_t *program = calloc(1, sizeof(*program));
    tw_status_t status = program ? make_phase(topo, flows->reduce, NULL, &program->reduce) : TW_ERR_NO_MEMORY;

    if (status == TW_OK) {
        status = make_phase(topo, NULL, flows->spread, &program->spread);
    }
    if (status != TW_OK) {
        tw_program_destroy(program);
        program = NULL;
    }
    *out = program;
    return status;
}

static void free_phase(tw_phase_t *phase)
{
    free(phase->steps);
    free(phase->inputs);
    free(phase->first_step);
    free(phase->n_values);
}

void tw_program_destroy(tw_program_t *program)
{
    if (program) {
        free_phase(&program->reduce);
        free_phase(&program->spread);
    }
    free(program);
}
