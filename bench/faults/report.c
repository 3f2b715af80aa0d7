/* What the campaign says: a line for each run, and the sums. */
#include "bench/faults/faults.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

/** "kill+flap" */
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

/** {"1": 3, "2": 3}: a rank, null for nobody, or a list of those who are missing. */
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

static tw_status_t write_json(FILE *file, const tw_fault_plan_t *plan, const tw_fault_story_t *story,
                              const tw_fault_verdict_t *verdict)
{
    char kinds[32];
    format_kinds(plan, kinds, sizeof(kinds));
    json_t *line = json_object();
    json_object_set_new(line, "seed", json_integer((json_int_t)plan->seed));
    json_object_set_new(line, "run", json_integer((json_int_t)plan->index));
    json_object_set_new(line, "kind", json_string(kinds));
    json_object_set_new(line, "phase", json_string(tw_fault_phase_name(plan->phase)));
    json_object_set_new(line, "victims", list_victims(plan));
    json_object_set_new(line, "named_by", list_names(plan, story));
    json_object_set_new(line, "hang_sec",
                        isfinite(verdict->hang_sec) ? json_real(verdict->hang_sec) : json_null());
    json_object_set_new(line, "ok", json_boolean(tw_fault_verdict_ok(verdict)));
    json_object_set_new(line, "hangs", json_integer(verdict->n_hangs));
    json_object_set_new(line, "wrong_names", json_integer(verdict->n_wrong_names));
    json_object_set_new(line, "wrong_results", json_integer(verdict->n_wrong_results));
    json_object_set_new(line, "left_over", json_integer(verdict->n_left_over));
    json_object_set_new(line, "note", json_string(verdict->why));
    int wrong = json_dumpf(line, file, JSON_COMPACT | JSON_REAL_PRECISION(6)) != 0 ||
                fputc('\n', file) == EOF || fflush(file) != 0;
    json_decref(line);
    if (wrong) {
        tw_error("cannot write the lines of JSON: %s", strerror(errno));
        return TW_ERR_IO;
    }
    return TW_OK;
}

tw_status_t tw_fault_report_run(FILE *json, const tw_fault_plan_t *plan, const tw_fault_story_t *story,
                                const tw_fault_verdict_t *verdict)
{
    char kinds[32], victims[32];
    format_kinds(plan, kinds, sizeof(kinds));
    snprintf(victims, sizeof(victims), plan->n_faults > 1 ? "ranks %d, %d" : "rank %d", plan->faults[0].rank,
             plan->faults[plan->n_faults - 1].rank);
    printf("%6llu  %-9s  %-11s  %-11s  %5.2f s  %s%s\n", (unsigned long long)plan->index, kinds,
           tw_fault_phase_name(plan->phase), victims, verdict->hang_sec,
           tw_fault_verdict_ok(verdict) ? "ok" : "NOT OK: ", verdict->why);
    fflush(stdout);
    return json ? write_json(json, plan, story, verdict) : TW_OK;
}

void tw_fault_report_totals(const tw_fault_totals_t *totals)
{
    printf("%llu runs, %llu not ok: %llu hangs, %llu wrong names, %llu wrong results, %llu leftovers\n",
           (unsigned long long)totals->n_runs, (unsigned long long)totals->n_bad,
           (unsigned long long)totals->n_hangs, (unsigned long long)totals->n_wrong_names,
           (unsigned long long)totals->n_wrong_results, (unsigned long long)totals->n_left_over);
}
