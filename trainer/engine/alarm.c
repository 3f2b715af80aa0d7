/* Finds bad steps: a norm that is not finite, a loss or norm that jumps. Stops, or skips the step. Stops if
 * the norm is 0. Reports lagging replicas. */
#include <math.h>
#include <stdlib.h>

#include "trainer/engine/calls.h"

/* Weight of a new loss in the moving mean. The mean thus covers about the last 20 steps. */
#define RECENT_SHARE 0.05

/* ---- which tensor was not finite first ----------------------------------------------------------------- */

static int is_vector(const tw_engine_t *engine, size_t tensor)
{
    return engine->tensors[tensor].n_dims < 2;
}

/* Layers of the root. There is an OUTPUT only if the output layer is not tied to the embedding. */
typedef enum root_layer { OUTPUT, NORM, EMBEDDINGS } root_layer_t;

static root_layer_t root_layer_of(const tw_engine_t *engine, size_t tensor)
{
    size_t first = engine->units[TW_MODEL_ROOT].first_tensor;
    if (is_vector(engine, tensor)) {
        return NORM;
    }
    return tensor > first && is_vector(engine, tensor - 1) ? OUTPUT : EMBEDDINGS;
}

static size_t add_root_layer(const tw_engine_t *engine, root_layer_t layer, size_t *order, size_t n)
{
    const tw_engine_unit_t *root = &engine->units[TW_MODEL_ROOT];
    for (size_t t = root->first_tensor; t < root->first_tensor + root->n_tensors; t++) {
        if (root_layer_of(engine, t) == layer) {
            order[n++] = t;
        }
    }
    return n;
}

/** Write all tensors to order [n_tensors] in backward's order: the root's output layer and norm, the blocks'
 *  tensors from the last to the first, the embeddings. Values that are not finite spread in this order. */
static void backward_order(const tw_engine_t *engine, size_t *order)
{
    const tw_engine_unit_t *root = &engine->units[TW_MODEL_ROOT];
    size_t n = add_root_layer(engine, OUTPUT, order, 0);
    n = add_root_layer(engine, NORM, order, n);
    for (size_t t = engine->n_tensors; t-- > root->first_tensor + root->n_tensors;) {
        order[n++] = t;
    }
    (void)add_root_layer(engine, EMBEDDINGS, order, n);
}

static int are_weights_finite(const tw_engine_piece_t *piece)
{
    for (size_t i = 0; i < piece->n_elems; i++) {
        if (!isfinite(piece->master[i])) {
            return 0;
        }
    }
    return 1;
}

static int is_gradient_finite(const tw_engine_t *engine, size_t tensor)
{
    const tw_engine_unit_t *unit = &engine->units[engine->tensors[tensor].unit];
    tw_norm_t norm = {{0}, 0};
    tw_norm_add(&norm, engine->grad_type,
                tw_engine_grad_at(engine, unit->shard_grads, engine->piece_offsets[tensor]),
                engine->pieces[tensor].n_elems);
    return norm.n_nonfinite == 0;
}

/** Return the first tensor of this rank's shards that is not finite. Weights come first, as they spoil all
 *  gradients: the result is a weight's tensor (below n_tensors), or n_tensors + a gradient's index in
 *  `order`, or UINT64_MAX if all values are finite. */
static uint64_t find_nonfinite(const tw_engine_t *engine, const size_t *order)
{
    for (size_t t = 0; t < engine->n_tensors; t++) {
        if (!are_weights_finite(&engine->pieces[t])) {
            return t;
        }
    }
    for (size_t i = 0; i < engine->n_tensors; i++) {
        if (!is_gradient_finite(engine, order[i])) {
            return engine->n_tensors + i;
        }
    }
    return UINT64_MAX;
}

/** Return the lowest rank with the least result of find_nonfinite. all [world]: the ranks' results. */
static size_t first_of(const uint64_t *all, int world)
{
    size_t first = 0;
    for (int r = 1; r < world; r++) {
        first = all[r] < all[first] ? (size_t)r : first;
    }
    return first;
}

/** Log the tensor that is not finite. For a weight log an error, as skipping the step would not help. */
static void say_nonfinite(const tw_engine_t *engine, uint64_t own, const size_t *order)
{
    int is_weight = own < engine->n_tensors, stops = engine->options->bad_step == TW_TRAIN_BAD_STOP;
    size_t tensor = is_weight ? (size_t)own : own < UINT64_MAX ? order[own - engine->n_tensors] : 0;
    unsigned long long step = engine->steps_done + 1;
    const char *name = engine->tensors[tensor].name;
    if (is_weight || stops) {
        tw_error("rank %d: step %llu: the %s of %s is not finite", engine->rank, step,
                 is_weight ? "weight" : "gradient", name);
    } else {
        tw_warn("rank %d: step %llu: the gradient of %s is not finite", engine->rank, step, name);
    }
}

/** Find the first tensor of all ranks that is not finite; the rank that has it logs it. *is_weight is 1 if it
 *  is a weight. Collective, after the exchange told all ranks of a gradient that is not finite. */
static tw_status_t name_nonfinite(const tw_engine_t *engine, int *is_weight)
{
    size_t *order = calloc(engine->n_tensors, sizeof(*order));
    uint64_t own = UINT64_MAX, *all = calloc((size_t)engine->world, sizeof(*all));
    if (order) {
        backward_order(engine, order);
        own = find_nonfinite(engine, order);
    }
    tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = (size_t)engine->world * sizeof(*all)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t status = all ? tw_coll_run(engine->coll, &args) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        size_t first = first_of(all, engine->world);
        *is_weight = all[first] < engine->n_tensors;
        if (order && first == (size_t)engine->rank) {
            say_nonfinite(engine, own, order);
        }
    }
    free(order);
    free(all);
    return status;
}

/* ---- what is wrong ------------------------------------------------------------------------------------- */

#define WHY_BYTES 160

/** Return 1 if a step is bad, with the reason in why [WHY_BYTES]. All ranks get the same result. */
static int is_bad_step(const tw_engine_t *engine, const tw_engine_report_t *report, double norm, char *why)
{
    const tw_train_options_t *o = engine->options;
    double loss = report->loss, recent = engine->recent_loss;
    double loss_z = tw_outliers_z(engine, TW_ENGINE_LOSS, loss),
           norm_z = tw_outliers_z(engine, TW_ENGINE_NORM, norm);
    if (report->norm.n_nonfinite > 0) {
        snprintf(why, WHY_BYTES, "the gradient is not finite");
    } else if (!isfinite(loss)) {
        snprintf(why, WHY_BYTES, "the loss is not finite");
    } else if (o->loss_jump > 0 && recent > 0 && loss > o->loss_jump * recent) {
        snprintf(why, WHY_BYTES,
                 "the loss jumped from about %.4g to %.4g: more than thinwire.loss_jump %g times", recent,
                 loss, o->loss_jump);
    } else if (o->loss_z > 0 && loss_z > o->loss_z) {
        snprintf(why, WHY_BYTES,
                 "the loss %.4g is %.3g deviations above the last ones: more than thinwire.loss_z %g", loss,
                 loss_z, o->loss_z);
    } else if (o->norm_z > 0 && norm_z > o->norm_z) {
        snprintf(why, WHY_BYTES,
                 "the gradient's norm %.4g is %.3g deviations above the last ones: more than "
                 "thinwire.norm_z %g",
                 norm, norm_z, o->norm_z);
    } else {
        return 0;
    }
    return 1;
}

/** Return the error that stops training. All ranks return it; only rank 0 logs why. */
static tw_status_t stop(const tw_engine_t *engine, const char *why)
{
    if (engine->rank == 0) {
        tw_error("rank 0: step %llu: %s", (unsigned long long)engine->steps_done + 1, why);
    }
    return TW_ERR_MISMATCH;
}

/** Let a bad step pass with a warning, or stop if there were too many. */
static tw_status_t pass_over(tw_engine_t *engine, const char *why)
{
    const tw_train_options_t *o = engine->options;
    engine->outliers.n_bad++;
    if (engine->outliers.n_bad > (uint64_t)o->bad_steps_most) {
        char more[WHY_BYTES + 64];
        snprintf(more, sizeof(more), "%s; there were %lld bad steps before it (thinwire.bad_steps_most)", why,
                 (long long)o->bad_steps_most);
        return stop(engine, more);
    }
    if (engine->rank == 0) {
        tw_warn("rank 0: step %llu: %s: %s", (unsigned long long)engine->steps_done + 1, why,
                o->bad_step == TW_TRAIN_BAD_SKIP ? "skipped" : "back to the last checkpoint");
    }
    return TW_OK;
}

static tw_status_t alarm_judge(tw_engine_t *engine, const tw_engine_report_t *report, const char *why)
{
    int is_weight = 0, is_nonfinite = report->norm.n_nonfinite > 0;
    TW_TRY(is_nonfinite ? tw_near_store(engine) : TW_OK); /* the masters are checked in host memory */
    TW_TRY(is_nonfinite ? name_nonfinite(engine, &is_weight) : TW_OK);
    if (engine->options->bad_step != TW_TRAIN_BAD_STOP && !is_weight) {
        return pass_over(engine, why);
    }
    return is_nonfinite ? TW_ERR_MISMATCH : stop(engine, why);
}

/** Warn of this rank's blocks that lag behind their masters after the last deltas. The first time it always
 *  warns, then only at steps that are printed. */
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
                engine->options->lag_plain ? "; they are sent plain now" : "");
    }
    engine->lag_blocks = counters.lag_blocks;
}

tw_status_t tw_engine_alarm(tw_engine_t *engine, const tw_engine_report_t *report, double norm, int *is_bad)
{
    char why[WHY_BYTES];
    double loss = report->loss;
    *is_bad = is_bad_step(engine, report, norm, why);
    report_lag(engine);
    TW_TRY(*is_bad ? alarm_judge(engine, report, why) : TW_OK);
    if (norm == 0 && !*is_bad) {
        return stop(engine, "the gradient is zero: nothing is learnt");
    }
    tw_outliers_add(engine, loss, norm);
    if (!*is_bad) {
        engine->outliers.n_bad = engine->options->bad_step == TW_TRAIN_BAD_SKIP ? 0 : engine->outliers.n_bad;
        engine->recent_loss = engine->recent_loss > 0
                                  ? engine->recent_loss + RECENT_SHARE * (loss - engine->recent_loss)
                                  : loss;
    }
    return TW_OK;
}
