/* Reports the campaign: a line for each run, and the sums. */
#include "tests/faults/faults.h"

#include <stddef.h>

#include <jansson.h>

#include "bench/columns.h"

/* ---- cells --------------------------------------------------------------------------------------------- */

/** Write the kinds of the plan's faults, as "kill+flap". */
static void format_kinds(const tw_fault_plan_t *plan, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s%s%s", tw_fault_kind_name(plan->faults[0].kind),
             plan->n_faults > 1 ? "+" : "",
             plan->n_faults > 1 ? tw_fault_kind_name(plan->faults[1].kind) : "");
}

static int world_of(const tw_fault_plan_t *plan)
{
    return plan->n_nodes * plan->ranks_per_node;
}

static json_t *list_victims(const tw_fault_plan_t *plan)
{
    json_t *list = json_array();
    for (int i = 0; i < plan->n_faults; i++) {
        json_array_append_new(list, json_integer(plan->faults[i].rank));
    }
    return list;
}

/** List whom each rank named, as {"1": 3, "2": 3}: a rank, null for none, or a list of missing ranks. */
static json_t *list_names(const tw_fault_plan_t *plan, const tw_fault_story_t *story)
{
    json_t *names = json_object();
    for (int r = 0; r < world_of(plan); r++) {
        const tw_fault_record_t *end = &story->ends[r];
        char key[16];
        json_t *list = json_array();
        for (int named = 0; named < world_of(plan); named++) {
            if (end->named >> named & 1) {
                json_array_append_new(list, json_integer(named));
            }
        }
        snprintf(key, sizeof(key), "%d", r);
        if (!story->is_lost[r] && story->has_ended[r] && end->status != TW_OK) {
            json_t *value = json_array_size(list) == 0   ? json_null()
                            : json_array_size(list) == 1 ? json_incref(json_array_get(list, 0))
                                                         : json_incref(list);
            json_object_set_new(names, key, value);
        }
        json_decref(list);
    }
    return names;
}

/* ---- columns ------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, run;
    char kind[32], ranks[32];
    const char *phase, *note;
    json_t *victims, *named_by;
    double hang_sec;
    int ok, n_hangs, n_wrong_names, n_wrong_results, n_left_over;
} row_t;

static const bench_column_t columns[] = {
    {"seed", NULL, NULL, BENCH_INT64, BENCH_AT(seed), 0},
    {"run", "run", "%6lld", BENCH_INT64, BENCH_AT(run), 0},
    {"kind", "kind", "%-9s", BENCH_TEXT, BENCH_AT(kind), 0},
    {"phase", "phase", "%-11s", BENCH_STRING, BENCH_AT(phase), 0},
    {NULL, "victims", "%-9s", BENCH_TEXT, BENCH_AT(ranks), 0},
    {"victims", NULL, NULL, BENCH_JSON, BENCH_AT(victims), 0},
    {"named_by", NULL, NULL, BENCH_JSON, BENCH_AT(named_by), 0},
    {"hang_sec", "hang (s)", "%8.2f", BENCH_DOUBLE, BENCH_AT(hang_sec), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, BENCH_AT(ok), 0},
    {"hangs", NULL, NULL, BENCH_INT, BENCH_AT(n_hangs), 0},
    {"wrong_names", NULL, NULL, BENCH_INT, BENCH_AT(n_wrong_names), 0},
    {"wrong_results", NULL, NULL, BENCH_INT, BENCH_AT(n_wrong_results), 0},
    {"left_over", NULL, NULL, BENCH_INT, BENCH_AT(n_left_over), 0},
    {"note", NULL, NULL, BENCH_STRING, BENCH_AT(note), 0},
};

static const bench_table_t table = {columns, sizeof(columns) / sizeof(columns[0]), 1};

void tw_fault_report_head(const tw_fault_options_t *options)
{
    printf("# seed %llu, %d nodes of %d ranks\n", (unsigned long long)options->seed, options->n_nodes,
           options->ranks_per_node);
    bench_table_head(&table);
}

tw_status_t tw_fault_report_run(FILE *json, const tw_fault_plan_t *plan, const tw_fault_story_t *story,
                                const tw_fault_verdict_t *verdict)
{
    row_t row = {.seed = plan->seed,
                 .run = plan->index,
                 .phase = tw_fault_phase_name(plan->phase),
                 .victims = list_victims(plan),
                 .named_by = list_names(plan, story),
                 .note = verdict->why,
                 .hang_sec = verdict->hang_sec,
                 .ok = tw_fault_verdict_ok(verdict),
                 .n_hangs = verdict->n_hangs,
                 .n_wrong_names = verdict->n_wrong_names,
                 .n_wrong_results = verdict->n_wrong_results,
                 .n_left_over = verdict->n_left_over};
    format_kinds(plan, row.kind, sizeof(row.kind));
    snprintf(row.ranks, sizeof(row.ranks), plan->n_faults > 1 ? "%d, %d" : "%d", plan->faults[0].rank,
             plan->faults[plan->n_faults - 1].rank);
    char why[TW_FAULTS_TEXT_BYTES + 1];
    snprintf(why, sizeof(why), "%s%s", *verdict->why ? " " : "", verdict->why);
    tw_status_t status = bench_table_report(&table, &row, why, json);
    json_decref(row.victims);
    json_decref(row.named_by);
    return status;
}

void tw_fault_report_totals(const tw_fault_totals_t *totals)
{
    printf("%llu runs, %llu not ok: %llu hangs, %llu wrong names, %llu wrong results, %llu leftovers\n",
           (unsigned long long)totals->n_runs, (unsigned long long)totals->n_bad,
           (unsigned long long)totals->n_hangs, (unsigned long long)totals->n_wrong_names,
           (unsigned long long)totals->n_wrong_results, (unsigned long long)totals->n_left_over);
}
