/* Prints predicted and measured steps side by side. */
#include <string.h>

#include "trainer/plan/case.h"

static tw_status_t print_row(const tw_plan_case_t *given, FILE *out)
{
    double token_sec;
    TW_TRY(tw_plan_case_fit(given, &token_sec));
    for (size_t i = 0; i < given->n_points; i++) {
        const tw_plan_point_t *point = &given->points[i];
        tw_plan_case_time_t time;
        TW_TRY(tw_plan_case_predict(given, point, token_sec, &time));
        double measured = tw_plan_point_tokens(given, point) / point->tokens_per_sec;
        fprintf(out, "| %s | %d x %d | %.3g s | %.3g s | %+.1f %%%s | %.0f %% |\n", given->name,
                point->n_nodes, given->gpus_per_node, measured, time.step_sec,
                100.0 * (time.step_sec / measured - 1.0), point->why ? " *" : "",
                100.0 * time.compute_sec / time.step_sec);
    }
    return TW_OK;
}

/* Most characters of a line of notes. */
#define LINE 118

static void print_words(const char *text, int column, FILE *out)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column + 1 + length > LINE) {
            fprintf(out, "\n ");
            column = 1;
        }
        fprintf(out, " %.*s", length, text);
        column += 1 + length;
        text += length;
        text += strspn(text, " ");
    }
    fprintf(out, "\n");
}

static void print_notes(const tw_plan_case_t *given, FILE *out)
{
    if (given->note) {
        print_words(given->note, fprintf(out, "- %s:", given->name), out);
    }
    for (size_t i = 0; i < given->n_points; i++) {
        const tw_plan_point_t *point = &given->points[i];
        if (point->why) {
            int column =
                fprintf(out, "- \\* %s, %d x %d:", given->name, point->n_nodes, given->gpus_per_node);
            print_words(point->why, column, out);
        }
    }
}

tw_status_t tw_plan_print_points(const tw_plan_cases_t *cases, FILE *out)
{
    fprintf(out, "| case | nodes x GPUs | step, measured | predicted | error | computing |\n"
                 "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < cases->n; i++) {
        TW_TRY(print_row(&cases->list[i], out));
    }
    fprintf(out, "\n");
    for (size_t i = 0; i < cases->n; i++) {
        print_notes(&cases->list[i], out);
    }
    return TW_OK;
}
