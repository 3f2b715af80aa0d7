/* The fault campaign's command line. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/faults/faults.h"
#include "flags/flags.h"

enum { KEY_SEED = 256, KEY_FIRST, KEY_JSON, KEY_RANK_FD };

static const struct argp_option option_list[] = {
    {.name = "n",
     .key = 'n',
     .arg = "N",
     .doc = "Runs, each with one fault, or two in a quarter of them (default: 200)"},
    {.name = "seed",
     .key = KEY_SEED,
     .arg = "S",
     .doc = "Seed of what fails where and when (default: of the clock, and said)"},
    {.name = "first",
     .key = KEY_FIRST,
     .arg = "I",
     .doc = "The first run; --first 17 -n 1 repeats run 17 of a seed (default: 0)"},
    {.name = "nodes", .key = 'N', .arg = "N", .doc = "Nodes of the cluster in a box (default: 3)"},
    {.name = "ranks-per-node", .key = 'r', .arg = "L", .doc = "Ranks on each node (default: 2)"},
    {.name = "json",
     .key = KEY_JSON,
     .arg = "FILE",
     .doc = "Write each run as a JSON object (default: do not)"},
    {.name = "rank-fd", .key = KEY_RANK_FD, .arg = "FD", .flags = OPTION_HIDDEN},
    {0},
};

static const char doc[] = "Lets ranks and links of real jobs fail at random moments, and sees whether those "
                          "who are left end in time, name who has "
                          "failed, and have right results until then.\v"
                          "Kinds: kill, stop, exit (of a rank); down, flap, loss (of a node's link). Phases: "
                          "rendezvous, creation, operation, between "
                          "operations, destroy, after rank 0 has left. TW_PEER_TIMEOUT and TW_JOIN_TIMEOUT "
                          "are 2s unless set; ranks must have ended "
                          "4 s after TW_PEER_TIMEOUT. Of a run that is not ok, the ranks' log is shown. The "
                          "exit code is 0 when all are ok.\n\n"
                          "hang_sec is the time from the last fault to the last rank's end, named_by whom "
                          "each rank that failed names.";

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    tw_fault_options_t *options = state->input;
    switch (key) {
    case 'n':
        options->n_runs = (uint64_t)tw_flag_int(state, "n", arg, 1, 1000000);
        return 0;
    case KEY_SEED:
        options->seed = (uint64_t)tw_flag_int(state, "seed", arg, 0, INT64_MAX);
        return 0;
    case KEY_FIRST:
        options->first = (uint64_t)tw_flag_int(state, "first", arg, 0, INT64_MAX);
        return 0;
    case 'N':
        options->n_nodes = (int)tw_flag_int(state, "nodes", arg, 1, TW_FAULTS_MAX_RANKS);
        return 0;
    case 'r':
        options->ranks_per_node = (int)tw_flag_int(state, "ranks-per-node", arg, 1, TW_FAULTS_MAX_RANKS);
        return 0;
    case KEY_JSON:
        options->json = arg;
        return 0;
    case KEY_RANK_FD:
        options->rank_fd = (int)tw_flag_int(state, "rank-fd", arg, 0, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is '%s'?", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (options->n_nodes * options->ranks_per_node < 2 ||
            options->n_nodes * options->ranks_per_node > TW_FAULTS_MAX_RANKS) {
            argp_error(state, "a job of 2 to %d ranks is needed", TW_FAULTS_MAX_RANKS);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void add(tw_fault_totals_t *totals, const tw_fault_verdict_t *verdict)
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
            add(totals, &verdict);
            status = tw_fault_report_run(json, &plan, &story, &verdict);
        }
    }
    return status;
}

static int run_campaign(const tw_fault_options_t *options)
{
    tw_fault_totals_t totals = {0};
    FILE *json = NULL;
    /* What is not set is set so that a fault costs seconds. */
    setenv("TW_PEER_TIMEOUT", "2s", 0);
    setenv("TW_JOIN_TIMEOUT", "2s", 0);
    if (options->json && !(json = fopen(options->json, "we"))) {
        tw_error("%s: cannot write: %s", options->json, strerror(errno));
        return 1;
    }
    printf("# seed %llu, %d nodes of %d ranks\n", (unsigned long long)options->seed, options->n_nodes,
           options->ranks_per_node);
    tw_status_t status = run_all(options, json, &totals);
    tw_fault_report_totals(&totals);
    if (json && fclose(json) != 0 && status == TW_OK) {
        tw_error("%s: cannot write: %s", options->json, strerror(errno));
        status = TW_ERR_IO;
    }
    return status != TW_OK || totals.n_bad > 0;
}

int main(int argc, char **argv)
{
    const struct argp parser = {.options = option_list, .parser = parse_option, .doc = doc};
    tw_fault_options_t options = {
        .n_runs = 200, .seed = (uint64_t)time(NULL), .n_nodes = 3, .ranks_per_node = 2, .rank_fd = -1};
    tw_flags_parse(&parser, argc, argv, 0, &options);
    if (options.rank_fd >= 0) {
        tw_fault_plan_t plan;
        tw_fault_plan_make(&plan, options.seed, options.first, options.n_nodes, options.ranks_per_node);
        return tw_fault_rank_main(&plan, options.rank_fd);
    }
    return run_campaign(&options);
}
