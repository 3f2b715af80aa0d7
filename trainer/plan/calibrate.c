/* What a measured run says of this machine. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/plan/plan.h"

/* Steps before memory and connections are warm. */
#define WARM_UP 3

typedef struct measured {
    double *step_sec, *compute_sec;
    size_t n;
} measured_t;

static tw_status_t add_line(const char *path, const json_t *line, measured_t *measured)
{
    double step, wait;
    if (json_unpack((json_t *)(uintptr_t)line, "{s:F, s:F}", "step_sec", &step, "wait_sec", &wait) != 0) {
        tw_error("%s: a line without step_sec and wait_sec", path);
        return TW_ERR_FORMAT;
    }
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

static tw_status_t read_lines(const char *path, FILE *file, measured_t *measured)
{
    tw_status_t status = TW_OK;
    json_error_t error;
    json_t *line;
    for (size_t i = 0; status == TW_OK && (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error)); i++) {
        status = i < WARM_UP ? TW_OK : add_line(path, line, measured);
        json_decref(line);
    }
    if (status == TW_OK && measured->n == 0) {
        tw_error("%s: no more than %d steps of a run's --metrics", path, WARM_UP);
        return TW_ERR_FORMAT;
    }
    return status;
}

/* The rate at which the simulated step takes as long as the measured one; slower links take longer, so halving finds it. */
static tw_status_t fit_link(const tw_train_options_t *options, const tw_model_t *model,
                            tw_plan_cluster_t *cluster, double compute_sec, double step_sec)
{
    double nominal = isinf(cluster->link_bps) ? 100e9 : cluster->link_bps;
    double low = nominal / 64.0, high = nominal * 4.0;
    for (int i = 0; i < 60; i++) {
        tw_plan_time_t time;
        cluster->link_bps = (low + high) / 2.0;
        tw_status_t status = tw_plan_time_of(options, model, cluster, compute_sec, &time);
        if (status != TW_OK) {
            return status;
        }
        *(time.step_sec > step_sec ? &low : &high) = cluster->link_bps;
    }
    return TW_OK;
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
        status = fit_link(options, model, cluster, *compute_sec, tw_median(measured.step_sec, measured.n));
    }
    free(measured.step_sec);
    free(measured.compute_sec);
    return status;
}
