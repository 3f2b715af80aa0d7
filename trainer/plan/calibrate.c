/* Derives a cluster's figures, which the planner computes with, from the metrics of a measured run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/input.h"
#include "trainer/plan/plan.h"

/* Steps at a run's beginning that are not used, since memory and connections are not warm yet. */
#define WARM_UP 3

/* Share of a link's rate that payload gets. Ethernet, IP and TCP with time stamps leave 1448 of 1514 bytes;
 * acknowledgements and messages' headers take the rest. */
#define LINK_SHARE 0.945
/* If a step waits for a smaller share of its time, it says little about the link. */
#define LEAST_WAIT 0.5
/* Least share of the given link rate, or of the given cores, that the fit considers. */
#define LEAST_LINK (1.0 / 64.0)
#define LEAST_CORES 0.5

enum { STEP_SEC, WAIT_SEC, COMPUTE_SEC, UPDATE_SEC, PROGRESS_SEC, EXCHANGE_SEC, N_TIMES };
static const char *const time_keys[N_TIMES] = {"step_sec",
                                               "wait_sec",
                                               "compute_processor_sec",
                                               "update_processor_sec",
                                               "progress_processor_sec",
                                               "exchange_processor_sec"};

typedef struct measured {
    double *times[N_TIMES]; /* [n] each */
    size_t n;
    double memory_bytes; /* largest memory_bytes of any line; 0: no line has one */
} measured_t;

/** Return how many threads share a time of computing. Older programs had one thread, and wrote no number. */
static double threads_of(const json_t *line, int which)
{
    double n = json_number_value(json_object_get(line, "threads"));
    return n > 1.0 && (which == COMPUTE_SEC || which == UPDATE_SEC) ? n : 1.0;
}

static tw_status_t add_time(const char *path, const json_t *line, int which, measured_t *measured)
{
    const json_t *value = json_object_get(line, time_keys[which]);
    double *times = realloc(measured->times[which], (measured->n + 1) * sizeof(*times));
    measured->times[which] = times ? times : measured->times[which];
    TW_FAIL_IF(!times, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    TW_FAIL_IF(!json_is_number(value), TW_ERR_FORMAT, "%s: a line without %s", path, time_keys[which]);
    times[measured->n] = json_number_value(value) / threads_of(line, which);
    return TW_OK;
}

static tw_status_t calibrate_add_line(const char *path, const json_t *line, measured_t *measured)
{
    for (int which = 0; which < N_TIMES; which++) {
        TW_TRY(add_time(path, line, which, measured));
    }
    measured->memory_bytes =
        fmax(measured->memory_bytes, json_number_value(json_object_get(line, "memory_bytes")));
    measured->n++;
    return TW_OK;
}

/** Return 1 if a line is a step of plain ZeRO-3. A bench's lines name their set; samples are no steps. */
static int calibrate_is_plain(const json_t *line)
{
    if (json_object_get(line, "sample")) {
        return 0;
    }
    const char *set = json_string_value(json_object_get(line, "set"));
    return !set || strcmp(set, "zero3") == 0;
}

static tw_status_t read_lines(const char *path, FILE *file, measured_t *measured)
{
    tw_status_t status = TW_OK;
    json_error_t error;
    json_t *line;
    json_int_t last = 0; /* step of the line before */
    size_t n = 0;        /* steps of this run so far; a bench's file has several runs */
    while (status == TW_OK && (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error))) {
        if (calibrate_is_plain(line)) {
            json_int_t step = json_integer_value(json_object_get(line, "step"));
            n = step < last ? 0 : n;
            last = step;
            status = n++ < WARM_UP ? TW_OK : calibrate_add_line(path, line, measured);
        }
        json_decref(line);
    }
    TW_FAIL_IF(status == TW_OK && measured->n == 0, TW_ERR_FORMAT,
               "%s: no more than %d steps of a run's --metrics", path, WARM_UP);
    return status;
}

typedef struct fit {
    const tw_train_options_t *options;
    const tw_model_t *model;
    tw_plan_cluster_t *cluster;
    double times[N_TIMES]; /* typical values, in seconds */
} fit_t;

/** Derive from the progress thread's time what a message takes, and a byte inside nodes and between them.
 *  The exchange of losses after a step sends few bytes, so its time is that of its messages. Bytes
 *  inside a node take the time that was measured for copies. Bytes between nodes take the rest. */
static void fit_moving(const fit_t *fit, const tw_plan_traffic_t *traffic)
{
    tw_plan_cluster_t *cluster = fit->cluster;
    const tw_plan_flow_t *step = &traffic->step, *report = &traffic->report;
    double ranks = cluster->n_nodes * cluster->ranks_per_node;
    cluster->message_sec = report->messages > 0.0 ? fit->times[EXCHANGE_SEC] / report->messages : 0.0;
    double rest = fmax(fit->times[PROGRESS_SEC] - step->messages * cluster->message_sec, 0.0);
    if (step->inter_node <= 0.0) {
        cluster->in_byte_sec = step->in_node > 0.0 ? rest * ranks / step->in_node : 0.0;
        return;
    }
    rest -= step->in_node / ranks * cluster->in_byte_sec;
    cluster->inter_byte_sec = fmax(rest, 0.0) * ranks / step->inter_node;
}

/** Fit a value by bisection, until the simulated step takes as long as the measured one. A larger value must
 *  make steps shorter. */
static tw_status_t fit_value(const fit_t *fit, double *value, double low, double high)
{
    for (int i = 0; i < 60; i++) {
        tw_plan_time_t time;
        *value = (low + high) / 2.0;
        TW_TRY(tw_plan_time_of(fit->options, fit->model, fit->cluster, fit->times[COMPUTE_SEC], &time));
        *(time.step_sec > fit->times[STEP_SEC] ? &low : &high) = *value;
    }
    return TW_OK;
}

/** Fit what limits a step: the link's rate if it mostly waits, else the cores that the ranks get. */
static tw_status_t fit_waiting(const fit_t *fit)
{
    tw_plan_cluster_t *cluster = fit->cluster;
    double nominal = cluster->link_bps, cores = cluster->cores;
    int has_link = cluster->n_nodes > 1 && !isinf(nominal);
    if (has_link && fit->times[WAIT_SEC] >= LEAST_WAIT * fit->times[STEP_SEC]) {
        return fit_value(fit, &cluster->link_bps, LEAST_LINK * nominal, nominal);
    }
    cluster->link_bps = LINK_SHARE * nominal;
    return cores > 0.0 ? fit_value(fit, &cluster->cores, LEAST_CORES * cores, cores) : TW_OK;
}

/** Fit besides_bytes: the memory that the run held and that is not planned. */
static tw_status_t fit_memory(const fit_t *fit, double measured_bytes)
{
    tw_plan_memory_t memory;
    tw_status_t status = tw_plan_memory_of(fit->options, fit->model, fit->cluster, &memory);
    if (status == TW_OK && measured_bytes > 0.0) {
        fit->cluster->besides_bytes += measured_bytes - tw_plan_memory_sum(&memory);
    }
    return status;
}

static tw_status_t fit_all(const fit_t *fit, double measured_bytes)
{
    tw_plan_traffic_t traffic;
    TW_TRY(tw_plan_traffic_of(fit->options, fit->model, fit->cluster, &traffic));
    fit->cluster->update_sec = fit->times[UPDATE_SEC];
    fit_moving(fit, &traffic);
    tw_plan_traffic_cleanup(&traffic);
    TW_TRY(fit_waiting(fit));
    return fit_memory(fit, measured_bytes);
}

/** Return the median, or for the exchange a lower quantile: the progress thread is often still busy with
 *  earlier reductions when the exchange begins. */
static double typical(const measured_t *measured, int which)
{
    return tw_quantile(measured->times[which], measured->n, which == EXCHANGE_SEC ? 0.35 : 0.5);
}

tw_status_t tw_plan_calibrate(const char *metrics, const tw_train_options_t *options, const tw_model_t *model,
                              tw_plan_cluster_t *cluster, double *compute_sec)
{
    FILE *file = fopen(metrics, "re");
    if (!file) {
        return tw_input_failed(metrics, "open");
    }
    measured_t measured = {.n = 0};
    fit_t fit = {.options = options, .model = model, .cluster = cluster};
    tw_status_t status = read_lines(metrics, file, &measured);
    fclose(file);
    for (int which = 0; which < N_TIMES; which++) {
        fit.times[which] = status == TW_OK ? typical(&measured, which) : 0.0;
        free(measured.times[which]);
    }
    *compute_sec = fit.times[COMPUTE_SEC];
    return status == TW_OK ? fit_all(&fit, measured.memory_bytes) : status;
}
