/* The fault campaign's command line. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/columns.h"
#include "flags/flags.h"
#include "tests/faults/faults.h"

static const char doc[] =
    "Lets ranks and links of real jobs fail at random moments, and sees whether those who are left end in "
    "time, name who has failed, and have right results until then.\v"
    "Kinds: kill, stop, exit (of a rank); down, flap, loss (of a node's link). Phases: rendezvous, creation, "
    "operation, between operations, destroy, after rank 0 has left. TW_PEER_TIMEOUT and TW_JOIN_TIMEOUT are "
    "2s unless set; ranks must have ended 4 s after TW_PEER_TIMEOUT. Of a run that is not ok, the ranks' log "
    "is shown. The exit code is 0 when all are ok.\n\n"
    "hang_sec is the time from the last fault to the last rank's end, named_by whom each rank that failed "
    "names.";

#define AT(member) offsetof(tw_fault_options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"n", "200", "N", "Runs, each with one fault, or two in a quarter of them", TW_CONFIG_INT,
               AT(n_runs), 1, 1e6, NULL},
     .letter = 'n'},
    {.field = {"seed", NULL, "S", "Seed of what fails where and when (default: of the clock, and said)",
               TW_CONFIG_INT, AT(seed), 0, INFINITY, NULL}},
    {.field = {"first", "0", "I", "The first run; --first 17 -n 1 repeats run 17 of a seed", TW_CONFIG_INT,
               AT(first), 0, INFINITY, NULL}},
    {.field = {"nodes", "3", "N", "Nodes of the cluster in a box", TW_CONFIG_INT32, AT(n_nodes), 1,
               TW_FAULTS_MAX_RANKS, NULL},
     .letter = 'N'},
    {.field = {"ranks-per-node", "2", "L", "Ranks on each node", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_FAULTS_MAX_RANKS, NULL},
     .letter = 'r'},
    {.field = {"json", NULL, "FILE", "Write each run as a JSON object (default: do not)", TW_CONFIG_STRING,
               AT(json), 0, 0, NULL}},
    {.field = {"rank-fd", "-1", "FD", NULL, TW_CONFIG_INT32, AT(rank_fd), -1, INT32_MAX, NULL}},
};

static void faults_check(struct argp_state *state, void *ctx)
{
    const tw_fault_options_t *options = ctx;
    if (options->n_nodes * options->ranks_per_node < 2 ||
        options->n_nodes * options->ranks_per_node > TW_FAULTS_MAX_RANKS) {
        argp_error(state, "a job of 2 to %d ranks is needed", TW_FAULTS_MAX_RANKS);
    }
}

static void faults_add(tw_fault_totals_t *totals, const tw_fault_verdict_t *verdict)
{
    totals->n_runs++;
    totals->n_bad += !tw_fault_verdict_ok(verdict);
    totals->n_hangs += (uint64_t)verdict->n_hangs;
    totals->n_wrong_names += (uint64_t)verdict->n_wrong_names;
    totals->n_wrong_results += (uint64_t)verdict->n_wrong_results;
    totals->n_left_over += (uint64_t)verdict->n_left_over;
}

static tw_status_t run_all(const tw_fault_options_t *options, FILE *json, tw_fault_totals_t *totals)
{
    tw_status_t status = TW_OK;
    for (uint64_t i = 0; i < options->n_runs && status == TW_OK; i++) {
        tw_fault_plan_t plan;
        tw_fault_story_t story;
        tw_fault_verdict_t verdict;
        tw_fault_plan_make(&plan, options->seed, options->first + i, options->n_nodes,
                           options->ranks_per_node);
        status = tw_fault_run(&plan, &story, &verdict);
        if (status == TW_OK) {
            faults_add(totals, &verdict);
            status = tw_fault_report_run(json, &plan, &story, &verdict);
        }
    }
    return status;
}

static int run_campaign(const tw_fault_options_t *options)
{
    tw_fault_totals_t totals = {0};
    FILE *json = NULL;
    /* Short time limits, unless the user has set some: a fault is to cost seconds. */
    setenv("TW_PEER_TIMEOUT", "2s", 0);
    setenv("TW_JOIN_TIMEOUT", "2s", 0);
    if (bench_json_open(options->json, BENCH_JSON_ANEW, &json) != TW_OK) {
        return 1;
    }
    tw_fault_report_head(options);
    tw_status_t status = run_all(options, json, &totals);
    tw_fault_report_totals(&totals);
    status = bench_json_close(options->json, json, status);
    return status != TW_OK || totals.n_bad > 0;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = doc,
                                     .check = faults_check};
    tw_fault_options_t options = {.seed = (uint64_t)time(NULL)};
    tw_flags_read(&flags, argc, argv, &options);
    if (options.rank_fd >= 0) {
        tw_fault_plan_t plan;
        tw_fault_plan_make(&plan, options.seed, options.first, options.n_nodes, options.ranks_per_node);
        return tw_fault_rank_main(&plan, options.rank_fd);
    }
    return run_campaign(&options);
}
