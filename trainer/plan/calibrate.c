/* What a measured run says of this machine. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/plan/plan.h"

/* Steps before memory and connections are warm. */
#define WARM_UP 3

/* The most that the box's links let through of their rate: the rest is headers. */
#define LINK_SHARE 0.945
/* Times what the handling of what moves explains that it may take itself. */
#define MOST_HANDLING 1.5

typedef struct measured {
    double *step_sec, *compute_sec;
    size_t n;
    double memory_bytes; /* the last line's; 0: it says nothing */
} measured_t;

static tw_status_t add_line(const char *path, const json_t *line, measured_t *measured)
{
    double step, wait;
    if (json_unpack((json_t *)(uintptr_t)line, "{s:F, s:F}", "step_sec", &step, "wait_sec", &wait) != 0) {
        tw_error("%s: a line without step_sec and wait_sec", path);
        return TW_ERR_FORMAT;
    }
    measured->memory_bytes = json_number_value(json_object_get(line, "memory_bytes"));
    size_t n = measured->n + 1;
    double *steps = realloc(measured->step_sec, n * sizeof(*steps));
    measured->step_sec = steps ? steps : measured->step_sec;
    double *computes = realloc(measured->compute_sec, n * sizeof(*computes));
    measured->compute_sec = computes ? computes : measured->compute_sec;
    if (!steps || !computes) {
        tw_error("%s: out of memory", path);
        return TW_ERR_NO_MEMORY;
    }
    steps[n - 1] = step;
    computes[n - 1] = step > wait ? step - wait : 0.0;
    measured->n = n;
    return TW_OK;
}

/* A bench's lines say of which set they are. */
static int is_plain(const json_t *line)
{
    const char *set = json_string_value(json_object_get(line, "set"));
    return !set || strcmp(set, "zero3") == 0;
}

static tw_status_t read_lines(const char *path, FILE *file, measured_t *measured)
{
    tw_status_t status = TW_OK;
    json_error_t error;
    json_t *line;
    size_t n = 0;
    while (status == TW_OK && (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error))) {
        if (is_plain(line)) {
            status = n++ < WARM_UP ? TW_OK : add_line(path, line, measured);
        }
        json_decref(line);
    }
    if (status == TW_OK && measured->n == 0) {
        tw_error("%s: no more than %d steps of a run's --metrics", path, WARM_UP);
        return TW_ERR_FORMAT;
    }
    return status;
}

typedef struct fit {
    const tw_train_options_t *options;
    const tw_model_t *model;
    tw_plan_cluster_t *cluster;
    double compute_sec, step_sec;
} fit_t;

/* Parameters that a rank gathers and reduces in a step. */
static double moved(const fit_t *fit)
{
    return (2.0 * (double)fit->options->accumulation + 1.0) * (double)tw_model_n_params(fit->model);
}

/* Of the time that handling takes, half shows as computing, which it disturbs: on cores that are shared. */
static double undisturbed_sec(const fit_t *fit)
{
    double rest = fit->compute_sec - 0.5 * fit->cluster->handling_sec * moved(fit);
    return rest > 0.0 ? rest : 0.0;
}

static tw_status_t simulate(const fit_t *fit, double *step_sec)
{
    tw_plan_time_t time;
    tw_status_t status = tw_plan_time_of(fit->options, fit->model, fit->cluster, undisturbed_sec(fit), &time);
    *step_sec = status == TW_OK ? time.step_sec : 0.0;
    return status;
}

/* Halve an interval of `value`, one of the cluster's, until the simulated step takes as long as the measured one. grows: with
 * the value. */
static tw_status_t halve(const fit_t *fit, double *value, double low, double high, int grows)
{
    for (int i = 0; i < 60; i++) {
        double step_sec;
        *value = (low + high) / 2.0;
        TW_TRY(simulate(fit, &step_sec));
        *((step_sec > fit->step_sec) == grows ? &high : &low) = *value;
    }
    return TW_OK;
}

/* What the link alone does not explain is the handling of what moves, as long as that is no longer itself than what it explains:
 * behind a slow link it hardly shows. What is left is a slower link; where the link explains too much, it is a faster one. */
static tw_status_t fit_step(const fit_t *fit)
{
    tw_plan_cluster_t *cluster = fit->cluster;
    double step_sec, nominal = cluster->link_bps, link = LINK_SHARE * nominal;
    cluster->handling_sec = 0.0;
    cluster->link_bps = link;
    tw_status_t status = simulate(fit, &step_sec);
    if (status != TW_OK) {
        return status;
    }
    int is_longer = step_sec < fit->step_sec;
    if (is_longer) {
        double most = MOST_HANDLING * (fit->step_sec - step_sec) / moved(fit);
        status = halve(fit, &cluster->handling_sec, 0.0, most, 1);
    }
    if (status == TW_OK && !isinf(nominal)) {
        status =
            halve(fit, &cluster->link_bps, is_longer ? link / 64.0 : link, is_longer ? link : 4.0 * link, 0);
    }
    return status;
}

/* What the run held besides what is counted. */
static tw_status_t fit_memory(const fit_t *fit, double measured_bytes)
{
    tw_plan_memory_t memory;
    tw_status_t status = tw_plan_memory_of(fit->options, fit->model, fit->cluster, &memory);
    if (status == TW_OK && measured_bytes > 0.0) {
        fit->cluster->besides_bytes += measured_bytes - tw_plan_memory_sum(&memory);
    }
    return status;
}

tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec)
{
    FILE *file = fopen(metrics, "re");
    if (!file) {
        int error = errno;
        tw_error("%s: cannot open: %s", metrics, strerror(error));
        return tw_status_from_errno(error);
    }
    measured_t measured = {0};
    tw_status_t status = read_lines(metrics, file, &measured);
    fclose(file);
    if (status == TW_OK) {
        *compute_sec = tw_median(measured.compute_sec, measured.n);
        const fit_t fit = {options, model, cluster, *compute_sec, tw_median(measured.step_sec, measured.n)};
        status = fit_step(&fit);
        *compute_sec = undisturbed_sec(&fit);
        status = status == TW_OK ? fit_memory(&fit, measured.memory_bytes) : status;
    }
    free(measured.step_sec);
    free(measured.compute_sec);
    return status;
}
