/* Judges whether the ranks that were left reacted to a failure rightly. */
#include "tests/faults/faults.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- the story ----------------------------------------------------------------------------------------- */

void tw_fault_story_add(tw_fault_story_t *story, const tw_fault_plan_t *plan, const tw_fault_record_t *record)
{
    if (record->rank < 0 || record->rank >= plan->n_nodes * plan->ranks_per_node ||
        record->fault >= plan->n_faults) {
        return;
    }
    if (record->fault < 0) {
        story->has_ended[record->rank] = 1;
        story->ends[record->rank] = *record;
        return;
    }
    story->fault_sec = fmax(story->fault_sec, record->at_sec);
    story->is_lost[record->rank] |= tw_fault_ends_rank(&plan->faults[record->fault]);
}

int tw_fault_story_open(const tw_fault_story_t *story, const tw_fault_plan_t *plan)
{
    int n = 0;
    for (int r = 0; r < plan->n_nodes * plan->ranks_per_node; r++) {
        n += !story->is_lost[r] && !story->has_ended[r];
    }
    return n;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static int is_link_fault_at(const tw_fault_plan_t *plan, int node)
{
    for (int i = 0; i < plan->n_faults; i++) {
        if (!tw_fault_ends_rank(&plan->faults[i]) && tw_fault_node_of(plan, plan->faults[i].rank) == node) {
            return 1;
        }
    }
    return 0;
}

/** Return 1 if this node can reach no other one. To its ranks it looks the same whether its own link failed
 *  or all others' did. */
static int is_cut_off(const tw_fault_plan_t *plan, int node)
{
    for (int other = 0; other < plan->n_nodes; other++) {
        if (other != node && !is_link_fault_at(plan, node) && !is_link_fault_at(plan, other)) {
            return 0;
        }
    }
    return plan->n_nodes > 1;
}

/** Return 1 if rank `by` may say that rank `named` has failed. Behind a failed link no rank knows which side
 *  failed. */
static int is_true(const tw_fault_plan_t *plan, int by, int named)
{
    const int node = tw_fault_node_of(plan, by), there = tw_fault_node_of(plan, named);
    for (int i = 0; i < plan->n_faults; i++) {
        if (named == plan->faults[i].rank) {
            return 1;
        }
    }
    return is_link_fault_at(plan, node) || is_link_fault_at(plan, there) ||
           (node == there && is_cut_off(plan, node));
}

/** Return 1 if the rank's own link failed before it could meet the others: it blames its device then. */
static int blames_itself(const tw_fault_plan_t *plan, const tw_fault_record_t *end)
{
    return is_link_fault_at(plan, tw_fault_node_of(plan, end->rank)) && plan->phase == TW_FAULT_RENDEZVOUS;
}

static int all_true(const tw_fault_plan_t *plan, const tw_fault_record_t *end)
{
    for (int r = 0; r < plan->n_nodes * plan->ranks_per_node; r++) {
        if ((end->named >> r & 1) && !is_true(plan, end->rank, r)) {
            return 0;
        }
    }
    return end->named != 0 || blames_itself(plan, end);
}

/** Return 1 if the ranks that are left must all name the same rank: no link has failed, and all had met. */
static int must_agree(const tw_fault_plan_t *plan)
{
    for (int i = 0; i < plan->n_faults; i++) {
        if (!tw_fault_ends_rank(&plan->faults[i])) {
            return 0;
        }
    }
    return plan->phase != TW_FAULT_RENDEZVOUS;
}

/* ---- the verdict --------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void complain(tw_fault_verdict_t *verdict, const char *format,
                                                           ...)
{
    va_list args;
    va_start(args, format);
    if (verdict->why[0] == '\0') {
        vsnprintf(verdict->why, sizeof(verdict->why), format, args);
    }
    va_end(args);
}

static void judge_name(const tw_fault_plan_t *plan, const tw_fault_record_t *end, uint64_t *agreed,
                       tw_fault_verdict_t *verdict)
{
    if (!all_true(plan, end)) {
        verdict->n_wrong_names++;
        complain(verdict,
                 end->named ? "rank %d blames a rank that has not failed, in %s"
                            : "rank %d blames nobody, in %s",
                 end->rank, end->where);
    } else if (must_agree(plan) && *agreed != 0 && end->named != *agreed) {
        verdict->n_wrong_names++;
        complain(verdict, "rank %d blames another rank than the others do", end->rank);
    } else {
        *agreed = end->named;
    }
}

int tw_fault_verdict_ok(const tw_fault_verdict_t *verdict)
{
    return verdict->n_hangs + verdict->n_wrong_names + verdict->n_wrong_results + verdict->n_left_over == 0;
}

void tw_fault_judge(const tw_fault_plan_t *plan, const tw_fault_story_t *story, tw_fault_verdict_t *verdict)
{
    double since_sec = story->fault_sec > 0 ? story->fault_sec : story->start_sec;
    uint64_t agreed = 0;
    *verdict = (tw_fault_verdict_t){.n_left_over = story->n_left_over};
    for (int r = 0; r < plan->n_nodes * plan->ranks_per_node; r++) {
        const tw_fault_record_t *end = &story->ends[r];
        if (story->is_lost[r]) {
            continue;
        }
        double sec = story->has_ended[r] ? end->at_sec - since_sec : INFINITY;
        verdict->hang_sec = fmax(verdict->hang_sec, sec);
        if (sec > story->limit_sec) {
            verdict->n_hangs++;
            complain(verdict, "rank %d had not ended %g s after the fault", r, story->limit_sec);
        }
        if (story->has_ended[r] && end->status != TW_OK) {
            judge_name(plan, end, &agreed, verdict);
        }
        if (story->has_ended[r] && end->n_wrong > 0) {
            verdict->n_wrong_results++;
            complain(verdict, "rank %d has %llu wrong elements", r, (unsigned long long)end->n_wrong);
        }
    }
    if (story->n_left_over > 0) {
        complain(verdict, "%d processes are left over", story->n_left_over);
    }
}
