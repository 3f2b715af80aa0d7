/* When to stop: a norm that is zero or not finite, a loss that jumps. When to say that replicas lag. */
#include <math.h>

#include "trainer/engine/state.h"

/* Of the moving mean: about the last 20 steps. */
#define RECENT_SHARE 0.05

/* The first tensor here whose gradient has what is not finite. */
static const char *find_nonfinite(const tw_engine_t *engine)
{
    for (size_t u = 0; u < engine->n_units; u++) {
        const tw_engine_unit_t *unit = &engine->units[u];
        for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
            tw_norm_t norm = {{0}, 0};
            tw_norm_add(&norm, unit->part_grads + engine->piece_offsets[t], engine->pieces[t].n_elems);
            if (norm.n_nonfinite > 0) {
                return engine->tensors[t].name;
            }
        }
    }
    return NULL;
}

static tw_status_t alarm_norm(const tw_engine_t *engine, const tw_engine_report_t *report, double norm)
{
    unsigned long long step = engine->steps_done + 1;
    if (report->norm.n_nonfinite > 0) {
        const char *name = find_nonfinite(engine);
        if (name) {
            tw_error("rank %d: step %llu: the gradient of %s is not finite", engine->rank, step, name);
        } else {
            tw_error("rank %d: step %llu: a gradient is not finite on another rank, which names it",
                     engine->rank, step);
        }
        return TW_ERR_MISMATCH;
    }
    if (norm == 0) {
        tw_error("rank %d: step %llu: the gradient is zero: nothing is learnt", engine->rank, step);
        return TW_ERR_MISMATCH;
    }
    return TW_OK;
}

/* Blocks of this rank that the last deltas have left behind: said when it begins, and then as often as steps are printed. */
static void report_lag(tw_engine_t *engine)
{
    tw_hpz_counters_t counters;
    tw_hpz_counters_get(engine->hpz, &counters);
    uint64_t late = counters.lag_blocks - engine->lag_blocks;
    int is_due =
        engine->lag_blocks == 0 || engine->steps_done % (uint64_t)engine->options->steps_per_print == 0;
    if (late > 0 && is_due) {
        tw_warn("rank %d: step %llu: %llu blocks lag behind their masters by more than thinwire.lag_bound %g "
                "updates, most of all in %s: %.3g%s",
                engine->rank, (unsigned long long)engine->steps_done, (unsigned long long)late,
                engine->options->lag_bound, engine->tensors[counters.lag_tensor].name, counters.lag_max,
                engine->options->lag_exact ? "; they are sent exact now" : "");
    }
    engine->lag_blocks = counters.lag_blocks;
}

tw_status_t tw_engine_alarm(tw_engine_t *engine, const tw_engine_report_t *report, double norm)
{
    double jump = engine->options->loss_jump;
    unsigned long long step = engine->steps_done + 1;
    tw_status_t status = alarm_norm(engine, report, norm);
    report_lag(engine);
    if (status != TW_OK) {
        return status;
    }
    if (!isfinite(report->loss)) {
        tw_error("rank %d: step %llu: the loss is not finite", engine->rank, step);
        return TW_ERR_MISMATCH;
    }
    if (jump > 0 && engine->recent_loss > 0 && report->loss > jump * engine->recent_loss) {
        tw_error(
            "rank %d: step %llu: the loss jumped from about %.4g to %.4g: more than thinwire.loss_jump %g "
            "times",
            engine->rank, step, engine->recent_loss, report->loss, jump);
        return TW_ERR_MISMATCH;
    }
    engine->recent_loss = engine->recent_loss > 0
                              ? engine->recent_loss + RECENT_SHARE * (report->loss - engine->recent_loss)
                              : report->loss;
    return TW_OK;
}
