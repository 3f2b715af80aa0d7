/* Predicted beside measured. */
#include <string.h>

#include "trainer/plan/job.h"

static tw_status_t print_job(const tw_plan_job_t *job, FILE *out)
{
    double token_sec;
    TW_TRY(tw_plan_job_fit(job, &token_sec));
    for (size_t i = 0; i < job->n_points; i++) {
        const tw_plan_point_t *point = &job->points[i];
        tw_plan_job_time_t time;
        TW_TRY(tw_plan_job_predict(job, point, token_sec, &time));
        double measured = tw_plan_point_tokens(job, point) / point->tokens_per_sec;
        fprintf(out, "| %s | %d x %d | %.3g s | %.3g s | %+.1f %%%s | %.0f %% |\n", job->name, point->n_nodes,
                job->gpus_per_node, measured, time.step_sec, 100.0 * (time.step_sec / measured - 1.0),
                point->why ? " *" : "", 100.0 * time.compute_sec / time.step_sec);
    }
    return TW_OK;
}

/* A note's words, in lines of at most so many characters. */
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

static void print_notes(const tw_plan_job_t *job, FILE *out)
{
    if (job->note) {
        print_words(job->note, fprintf(out, "- %s:", job->name), out);
    }
    for (size_t i = 0; i < job->n_points; i++) {
        const tw_plan_point_t *point = &job->points[i];
        if (point->why) {
            int column = fprintf(out, "- \\* %s, %d x %d:", job->name, point->n_nodes, job->gpus_per_node);
            print_words(point->why, column, out);
        }
    }
}

tw_status_t tw_plan_print_points(const tw_plan_jobs_t *jobs, FILE *out)
{
    fprintf(out, "| job | nodes x GPUs | step, measured | predicted | error | computing |\n"
                 "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < tw_plan_jobs_count(jobs); i++) {
        TW_TRY(print_job(tw_plan_jobs_get(jobs, i), out));
    }
    fprintf(out, "\n");
    for (size_t i = 0; i < tw_plan_jobs_count(jobs); i++) {
        print_notes(tw_plan_jobs_get(jobs, i), out);
    }
    return TW_OK;
}
