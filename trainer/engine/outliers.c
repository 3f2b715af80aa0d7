/* Keeps losses and norms of the last steps, and computes how far a new one is from them (its z-score). llm.c
 * has such a window, too, but includes the new value in it; here the window holds only earlier values. */
#include <math.h>

#include "trainer/engine/calls.h"

tw_status_t tw_outliers_init(tw_engine_t *engine)
{
    const tw_train_options_t *o = engine->options;
    tw_engine_outliers_t *outliers = &engine->outliers;
    if (o->loss_z <= 0 && o->norm_z <= 0) {
        return TW_OK;
    }
    size_t window = (size_t)o->z_window;
    double *values = tw_engine_alloc(engine, TW_ENGINE_MOVING, 4 * window, sizeof(*values), "losses");
    if (!values) {
        return TW_ERR_NO_MEMORY;
    }
    *outliers = (tw_engine_outliers_t){
        .losses = values, .norms = values + window, .past = values + 2 * window, .window = window};
    return TW_OK;
}

/** Return by how many standard deviations `value` is above the mean of values [n]. They are summed oldest
 *  first, so the result is the same on all ranks, and after a resume. */
static double z_of(const double *values, size_t n, double value)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += values[i];
    }
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        squares += (values[i] - mean) * (values[i] - mean);
    }
    double deviation = sqrt(squares / (double)n);
    return deviation > 0 ? (value - mean) / deviation : 0;
}

/** Write losses and norms into `past`, the oldest first. */
static void unroll(const tw_engine_outliers_t *outliers)
{
    size_t n = outliers->n, first = n < outliers->window ? 0 : outliers->at;
    for (size_t i = 0; i < n; i++) {
        outliers->past[i] = outliers->losses[(first + i) % outliers->window];
        outliers->past[n + i] = outliers->norms[(first + i) % outliers->window];
    }
}

double tw_outliers_z(const tw_engine_t *engine, tw_engine_outlier_t of, double value)
{
    const tw_engine_outliers_t *outliers = &engine->outliers;
    if (outliers->window == 0 || outliers->n < outliers->window) {
        return 0;
    }
    unroll(outliers);
    return z_of(outliers->past + of * outliers->n, outliers->n, value);
}

/** Outliers are added, too, so that a new level becomes normal. NaN and infinite values are ignored. */
void tw_outliers_add(tw_engine_t *engine, double loss, double norm)
{
    tw_engine_outliers_t *outliers = &engine->outliers;
    if (outliers->window == 0 || !isfinite(loss) || !isfinite(norm)) {
        return;
    }
    outliers->losses[outliers->at] = loss;
    outliers->norms[outliers->at] = norm;
    outliers->at = (outliers->at + 1) % outliers->window;
    outliers->n += outliers->n < outliers->window;
}

tw_engine_past_t tw_engine_past_get(tw_engine_t *engine)
{
    const tw_engine_outliers_t *outliers = &engine->outliers;
    if (outliers->window > 0) {
        unroll(outliers);
    }
    return (tw_engine_past_t){
        .passed_over = outliers->passed_over, .history = outliers->past, .n_history = 2 * outliers->n};
}

void tw_engine_past_set(tw_engine_t *engine, const tw_engine_past_t *past)
{
    size_t n = past->n_history / 2;
    engine->outliers.passed_over = past->passed_over;
    engine->outliers.n = engine->outliers.at = 0;
    for (size_t i = 0; i < n; i++) {
        tw_outliers_add(engine, past->history[i], past->history[n + i]);
    }
}

void tw_engine_pass_over(tw_engine_t *engine, uint64_t batches)
{
    engine->outliers.passed_over = batches;
}
