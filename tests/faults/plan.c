/* Chooses by chance what fails in a run. */
#include "tests/faults/faults.h"

#include <string.h>

/* A generator of random numbers that depend on the seed alone, so that a run can be repeated. */
typedef struct dice {
    uint64_t state;
} dice_t;

static uint64_t roll(dice_t *dice)
{
    uint64_t z = (dice->state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/** Return a random number from 0 to n - 1. */
static int pick(dice_t *dice, int n)
{
    return (int)(roll(dice) % (uint64_t)n);
}

static double between(dice_t *dice, double low, double high)
{
    return low + (high - low) * ((double)(roll(dice) >> 11) * 0x1p-53);
}

/* About how long each phase lasts: a fault comes at any time within it. */
static const double phase_sec[TW_FAULT_PHASE_COUNT] = {
    [TW_FAULT_RENDEZVOUS] = 0.3, [TW_FAULT_CREATION] = 0.15, [TW_FAULT_OPERATION] = 0.03,
    [TW_FAULT_BETWEEN] = 0.05,   [TW_FAULT_DESTROY] = 0.02,  [TW_FAULT_AFTER_FIRST] = 0.1,
};

const char *tw_fault_kind_name(tw_fault_kind_t kind)
{
    static const char *const names[TW_FAULT_KIND_COUNT] = {
        [TW_FAULT_KILL] = "kill", [TW_FAULT_STOP] = "stop", [TW_FAULT_EXIT] = "exit",
        [TW_FAULT_DOWN] = "down", [TW_FAULT_FLAP] = "flap", [TW_FAULT_LOSS] = "loss",
    };
    return names[kind];
}

const char *tw_fault_phase_name(tw_fault_phase_t phase)
{
    static const char *const names[TW_FAULT_PHASE_COUNT] = {
        [TW_FAULT_RENDEZVOUS] = "rendezvous", [TW_FAULT_CREATION] = "creation",
        [TW_FAULT_OPERATION] = "operation",   [TW_FAULT_BETWEEN] = "between",
        [TW_FAULT_DESTROY] = "destroy",       [TW_FAULT_AFTER_FIRST] = "after_first",
    };
    return names[phase];
}

int tw_fault_ends_rank(const tw_fault_t *fault)
{
    return fault->kind == TW_FAULT_KILL || fault->kind == TW_FAULT_STOP || fault->kind == TW_FAULT_EXIT;
}

int tw_fault_node_of(const tw_fault_plan_t *plan, int rank)
{
    return rank / plan->ranks_per_node;
}

static tw_fault_t make_fault(dice_t *dice, const tw_fault_plan_t *plan)
{
    int world = plan->n_nodes * plan->ranks_per_node, first = plan->phase == TW_FAULT_AFTER_FIRST;
    return (tw_fault_t){
        .kind = (tw_fault_kind_t)pick(dice, plan->n_nodes > 1 ? TW_FAULT_KIND_COUNT : TW_FAULT_DOWN),
        .rank = first + pick(dice, world - first),
        .delay_sec = between(dice, 0, phase_sec[plan->phase]),
        .down_sec = between(dice, 0.05, 3),
        .loss = pick(dice, 2) ? 1 : 0.01};
}

/** Return 1 if the two faults hit different ranks, or, if both are of links, different nodes. */
static int can_go_together(const tw_fault_plan_t *plan, const tw_fault_t *a, const tw_fault_t *b)
{
    int links = !tw_fault_ends_rank(a) && !tw_fault_ends_rank(b);
    return links ? tw_fault_node_of(plan, a->rank) != tw_fault_node_of(plan, b->rank) : a->rank != b->rank;
}

void tw_fault_plan_make(tw_fault_plan_t *plan, uint64_t seed, uint64_t index, int n_nodes, int ranks_per_node)
{
    int world = n_nodes * ranks_per_node;
    dice_t dice = {.state = seed * 0xd1342543de82ef95u + index};
    *plan = (tw_fault_plan_t){
        .seed = seed, .index = index, .n_nodes = n_nodes, .ranks_per_node = ranks_per_node, .n_faults = 1};
    /* At least two ranks must stay when rank 0 has left. */
    plan->phase = (tw_fault_phase_t)pick(&dice, world > 2 ? TW_FAULT_PHASE_COUNT : TW_FAULT_AFTER_FIRST);
    plan->at_op = 1 + pick(&dice, TW_FAULTS_OPS - 2);
    plan->exits_at_once = pick(&dice, 2);
    plan->faults[0] = make_fault(&dice, plan);
    if (pick(&dice, 4) == 0 && world > 3) {
        do {
            plan->faults[1] = make_fault(&dice, plan);
        } while (!can_go_together(plan, &plan->faults[0], &plan->faults[1]));
        if (pick(&dice, 2)) {
            plan->faults[1].delay_sec = plan->faults[0].delay_sec;
        }
        plan->n_faults = 2;
    }
}
