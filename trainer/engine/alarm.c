/* When to stop: a norm that is zero or not finite, a loss that jumps. When to say that replicas lag. */
#include <math.h>
#include <stdlib.h>

#include "trainer/engine/state.h"

/* Of the moving mean: about the last 20 steps. */
#define RECENT_SHARE 0.05

/* ---- where it began ------------------------------------------------------------------------------------ */

static int is_vector(const tw_engine_t *engine, size_t tensor)
{
    return engine->tensors[tensor].n_dims < 2;
}

/* The root has embeddings, the last norm, and after it an output layer if that has weights of its own. */
typedef enum root_part { OUTPUT, NORM, EMBEDDINGS } root_part_t;

static root_part_t root_part_of(const tw_engine_t *engine, size_t tensor)
{
    size_t first = engine->units[TW_MODEL_ROOT].first_tensor;
    if (is_vector(engine, tensor)) {
        return NORM;
    }
    return tensor > first && is_vector(engine, tensor - 1) ? OUTPUT : EMBEDDINGS;
}

static size_t add_root_part(const tw_engine_t *engine, root_part_t part, size_t *order, size_t n)
{
    const tw_engine_unit_t *root = &engine->units[TW_MODEL_ROOT];
    for (size_t t = root->first_tensor; t < root->first_tensor + root->n_tensors; t++) {
        if (root_part_of(engine, t) == part) {
            order[n++] = t;
        }
    }
    return n;
}

/* The tensors in the order in which backward comes to them, into order [n_tensors]: the root's output layer
 * and norm, the blocks from the last one's last tensor on, the embeddings. What is not finite spreads that
 * way. */
static void backward_order(const tw_engine_t *engine, size_t *order)
{
    const tw_engine_unit_t *root = &engine->units[TW_MODEL_ROOT];
    size_t n = add_root_part(engine, OUTPUT, order, 0);
    n = add_root_part(engine, NORM, order, n);
    for (size_t t = engine->n_tensors; t-- > root->first_tensor + root->n_tensors;) {
        order[n++] = t;
    }
    (void)add_root_part(engine, EMBEDDINGS, order, n);
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
    tw_norm_add(&norm, unit->part_grads + engine->piece_offsets[tensor], engine->pieces[tensor].n_elems);
    return norm.n_nonfinite == 0;
}

/* Of this rank's parts: weights first (0 .. n_tensors - 1), as what is wrong with them is wrong everywhere,
 * then gradients as they come (n_tensors + place in the order); UINT64_MAX: all are finite. */
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

/* The first of any rank; the lowest of those that have it. */
static size_t first_of(const uint64_t *all, int n_ranks)
{
    size_t first = 0;
    for (int r = 1; r < n_ranks; r++) {
        first = all[r] < all[first] ? (size_t)r : first;
    }
    return first;
}

/* Collective: all ranks know that a gradient is not finite. One of them says where that began. */
static void name_nonfinite(const tw_engine_t *engine)
{
    size_t *order = calloc(engine->n_tensors, sizeof(*order));
    uint64_t own = UINT64_MAX, *all = calloc((size_t)engine->n_ranks, sizeof(*all));
    if (order) {
        backward_order(engine, order);
        own = find_nonfinite(engine, order);
    }
    tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = (size_t)engine->n_ranks * sizeof(*all)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t status = all ? tw_coll_run(engine->world, &args) : TW_ERR_NO_MEMORY;
    if (status == TW_OK && order && first_of(all, engine->n_ranks) == (size_t)engine->rank) {
        int is_weight = own < engine->n_tensors;
        size_t tensor = is_weight ? (size_t)own : own < UINT64_MAX ? order[own - engine->n_tensors] : 0;
        tw_error("rank %d: step %llu: the %s of %s is not finite", engine->rank,
                 (unsigned long long)engine->steps_done + 1, is_weight ? "weight" : "gradient",
                 engine->tensors[tensor].name);
    }
    free(order);
    free(all);
}

/* ---- alarms -------------------------------------------------------------------------------------------- */

/* What all ranks see is said by the first. */
static tw_status_t alarm_norm(const tw_engine_t *engine, const tw_engine_report_t *report, double norm)
{
    if (report->norm.n_nonfinite > 0) {
        name_nonfinite(engine);
        return TW_ERR_MISMATCH;
    }
    if (norm == 0) {
        if (engine->rank == 0) {
            tw_error("rank 0: step %llu: the gradient is zero: nothing is learnt",
                     (unsigned long long)engine->steps_done + 1);
        }
        return TW_ERR_MISMATCH;
    }
    return TW_OK;
}

static tw_status_t alarm_loss(const tw_engine_t *engine, double loss)
{
    double jump = engine->options->loss_jump, recent = engine->recent_loss;
    unsigned long long step = engine->steps_done + 1;
    int jumps = jump > 0 && recent > 0 && loss > jump * recent;
    if (isfinite(loss) && !jumps) {
        return TW_OK;
    }
    if (engine->rank == 0 && !isfinite(loss)) {
        tw_error("rank 0: step %llu: the loss is not finite", step);
    } else if (engine->rank == 0) {
        tw_error(
            "rank 0: step %llu: the loss jumped from about %.4g to %.4g: more than thinwire.loss_jump %g "
            "times",
            step, recent, loss, jump);
    }
    return TW_ERR_MISMATCH;
}

/* Blocks of this rank that the last deltas have left behind: said when it begins, and then as often as steps
 * are printed. */
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
    tw_status_t status = alarm_norm(engine, report, norm);
    report_lag(engine);
    if (status == TW_OK) {
        status = alarm_loss(engine, report->loss);
    }
    if (status == TW_OK) {
        engine->recent_loss = engine->recent_loss > 0
                                  ? engine->recent_loss + RECENT_SHARE * (report->loss - engine->recent_loss)
                                  : report->loss;
    }
    return status;
}
