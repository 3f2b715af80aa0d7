#include "trainer/plan/machine.h"

#include <math.h>

int tw_plan_op_is_done(const tw_plan_op_t *op)
{
    return op->stage == TW_PLAN_OP_IDLE;
}

void tw_plan_machine_post(tw_plan_machine_t *machine, tw_plan_op_t *op)
{
    op->stage = TW_PLAN_OP_SENDING;
    op->ready = machine->now;
    op->left = op->send_sec;
    machine->under_way[machine->n_under_way++] = op;
}

static void remove_op(tw_plan_machine_t *machine, const tw_plan_op_t *op)
{
    size_t kept = 0;
    for (size_t i = 0; i < machine->n_under_way; i++) {
        if (machine->under_way[i] != op) {
            machine->under_way[kept++] = machine->under_way[i];
        }
    }
    machine->n_under_way = kept;
}

/** Return the operation that the progress thread works on next, or NULL if there is none. */
static tw_plan_op_t *next_op(const tw_plan_machine_t *machine)
{
    tw_plan_op_t *first = NULL;
    for (size_t i = 0; i < machine->n_under_way; i++) {
        tw_plan_op_t *op = machine->under_way[i];
        first = !first || op->ready < first->ready ? op : first;
    }
    return first;
}

/** Put an operation on the link, behind earlier ones. Returns the time when the link has carried it. */
static double carry(tw_plan_machine_t *machine, const tw_plan_op_t *op)
{
    if (op->link_sec <= 0.0) {
        return machine->now;
    }
    machine->link_free = fmax(machine->link_free, machine->now - machine->burst_sec) + op->link_sec;
    return fmax(machine->link_free, machine->now);
}

static void end_stage(tw_plan_machine_t *machine, tw_plan_op_t *op)
{
    if (op->stage == TW_PLAN_OP_SENDING) {
        op->stage = TW_PLAN_OP_RECEIVING;
        op->ready = carry(machine, op) + op->delay_sec;
        op->left = op->receive_sec;
    } else {
        op->stage = TW_PLAN_OP_IDLE;
        remove_op(machine, op);
    }
}

/** Return the share of a core, at most 1, that each of n busy threads gets. */
static double speed(const tw_plan_machine_t *machine, int n_threads)
{
    return fmin(1.0, machine->cores / n_threads);
}

/** Let the compute thread run alone, at most until the time `until`. Returns the seconds left to compute. */
static double compute_alone(tw_plan_machine_t *machine, double sec, double until)
{
    double takes = sec / speed(machine, 1), has = until - machine->now;
    if (takes <= has) {
        machine->now += takes;
        return 0.0;
    }
    machine->now = until;
    return sec - has * speed(machine, 1);
}

/** Let both threads run until either ends its work, which is a stage of `op` for the progress thread. Returns
 *  the seconds left to compute. */
static double compute_beside(tw_plan_machine_t *machine, double sec, tw_plan_op_t *op)
{
    double both = fmin(sec, op->left);
    machine->now += both / speed(machine, 2);
    op->left -= both;
    op->ready = machine->now;
    if (op->left <= 0.0) {
        end_stage(machine, op);
    }
    return sec - both;
}

void tw_plan_machine_compute(tw_plan_machine_t *machine, double sec)
{
    while (sec > 0.0) {
        tw_plan_op_t *op = next_op(machine);
        if (op && op->ready <= machine->now) {
            sec = compute_beside(machine, sec, op);
        } else {
            sec = compute_alone(machine, sec, op ? op->ready : INFINITY);
        }
    }
}

void tw_plan_machine_wait(tw_plan_machine_t *machine, const tw_plan_op_t *op)
{
    double begin = machine->now;
    while (!tw_plan_op_is_done(op)) {
        tw_plan_op_t *next = next_op(machine);
        machine->now = fmax(machine->now, next->ready) + next->left / speed(machine, 1);
        end_stage(machine, next);
    }
    machine->waited += machine->now - begin;
}
