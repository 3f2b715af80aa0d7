/* A training step: micro-batches, the norm, the update. */
#include <math.h>

#include "trainer/engine/calls.h"

#if TW_DATA_NO_TARGET != TW_MODEL_NO_TARGET
#error "one sign says that nothing is learned"
#endif

/* ---- a micro-batch ------------------------------------------------------------------------------------- */

/** Find where each token's document begins: it starts at thinwire.document_token. */
static void find_documents(tw_engine_t *engine)
{
    size_t seq_len = (size_t)engine->options->sequence, batch = (size_t)engine->options->micro_batch;
    int32_t start = 0;
    for (size_t i = 0; i < batch * seq_len; i++) {
        int32_t place = (int32_t)(i % seq_len);
        start = place == 0 || engine->tokens[i] == engine->options->document_token ? place : start;
        engine->documents[i] = start;
    }
    tw_model_set_documents(engine->model, engine->documents);
}

tw_status_t tw_engine_batch(tw_engine_t *engine, tw_data_split_t split, const tw_data_place_t *place)
{
    TW_TRY(tw_data_batch(engine->data, split, place, engine->tokens, engine->targets));
    if (engine->documents) {
        find_documents(engine);
    }
    return TW_OK;
}

static tw_data_place_t step_place_of(const tw_engine_t *engine, size_t micro)
{
    const tw_train_options_t *o = engine->options;
    return (tw_data_place_t){.seed = (uint64_t)o->seed,
                             .step = engine->steps_done + engine->outliers.passed_over,
                             .n_micros = (size_t)o->accumulation,
                             .micro = micro,
                             .world = (size_t)engine->world,
                             .rank = (size_t)engine->rank,
                             .batch = (size_t)o->micro_batch,
                             .seq_len = (size_t)o->sequence};
}

tw_status_t tw_engine_forward(tw_engine_t *engine, int is_training)
{
    int keeps = is_training && !engine->options->recompute;
    tw_status_t status = tw_walk_enter(engine);
    if (status == TW_OK) {
        status = tw_model_embed_forward(engine->model, engine->weight_ptrs, engine->tokens,
                                        tw_inputs_output(engine, 0));
        if (is_training) {
            tw_inputs_keep(engine, 0);
        }
        tw_walk_leave(engine);
    }
    for (size_t u = 1; u <= engine->n_layer && status == TW_OK; u++) {
        status = tw_walk_enter(engine);
        if (status == TW_OK) {
            tw_model_block_forward(engine->model, u, engine->weight_ptrs, tw_inputs_output(engine, u - 1),
                                   tw_inputs_output(engine, u), keeps ? engine->saved[u - 1] : NULL);
            if (is_training) {
                tw_inputs_keep(engine, u);
            }
            tw_walk_leave(engine);
        }
    }
    return status;
}

/** Compute the loss. The gradient of the last activation overwrites that activation. */
static tw_status_t head(tw_engine_t *engine, size_t micro, double *loss)
{
    float *top = engine->x[engine->n_layer];
    float scale = 1.0f / (float)engine->options->accumulation * (float)engine->mask_factor;
    tw_status_t status = tw_walk_enter(engine);
    if (status == TW_OK) {
        tw_reduce_begin(engine, TW_MODEL_ROOT, micro == 0);
        status = tw_model_head(engine->model, engine->weight_ptrs, top, engine->targets, scale, loss, top,
                               engine->grad_ptrs);
        tw_walk_leave(engine);
    }
    return status;
}

static tw_status_t block_backward(tw_engine_t *engine, size_t unit, size_t micro)
{
    void *saved = engine->saved[unit - 1];
    float *d = engine->x[engine->n_layer];
    TW_TRY(tw_walk_enter(engine));
    const float *x = tw_inputs_get(engine, unit);
    if (engine->options->recompute) {
        tw_model_block_forward(engine->model, unit, engine->weight_ptrs, x, engine->near[1], saved);
    }
    tw_reduce_begin(engine, unit, micro == 0);
    tw_model_block_backward(engine->model, unit, engine->weight_ptrs, x, saved, d, engine->grad_ptrs);
    tw_walk_leave(engine);
    return TW_OK;
}

/** Wait for a block's gradients and post their reduction. Do nothing if `unit` is above the last block. */
static tw_status_t step_leave(tw_engine_t *engine, size_t unit)
{
    if (unit > engine->n_layer) {
        return TW_OK;
    }
    TW_TRY(tw_model_finish_unit(engine->model, unit));
    return tw_reduce_post(engine, unit);
}

/** Run the backward pass. On a device, wait for a block's gradients only after the next block is enqueued:
 *  the device computes the next block while it copies these gradients to host memory. */
static tw_status_t step_backward(tw_engine_t *engine, size_t micro)
{
    int is_last = micro + 1 == (size_t)engine->options->accumulation;
    size_t lag = tw_engine_gradients_lag(engine) ? 1 : 0;
    for (size_t u = engine->n_layer; u > 0; u--) {
        TW_TRY(block_backward(engine, u, micro));
        TW_TRY(is_last ? step_leave(engine, u + lag) : TW_OK);
    }
    tw_reduce_begin(engine, TW_MODEL_ROOT, 0);
    tw_model_embed_backward(engine->model, engine->tokens, engine->x[engine->n_layer], engine->grad_ptrs);
    TW_TRY(is_last && lag > 0 ? step_leave(engine, 1) : TW_OK);
    TW_TRY(is_last ? tw_model_finish(engine->model) : TW_OK);
    return is_last ? tw_reduce_post(engine, TW_MODEL_ROOT) : TW_OK;
}

static tw_status_t step_micro_batch(tw_engine_t *engine, size_t micro, double *loss)
{
    tw_data_place_t place = step_place_of(engine, micro);
    double begin = tw_time_sec();
    tw_status_t status = tw_engine_batch(engine, TW_DATA_TRAIN, &place);
    status = status == TW_OK ? tw_engine_forward(engine, 1) : status;
    status = status == TW_OK ? head(engine, micro, loss) : status;
    double middle = tw_time_sec();
    engine->forward_sec += middle - begin;
    status = status == TW_OK ? step_backward(engine, micro) : status;
    engine->backward_sec += tw_time_sec() - middle;
    return status;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/** Set mask_factor. All ranks get the same value, as each counts the masks of the whole batch. */
static tw_status_t find_mask_factor(tw_engine_t *engine)
{
    const tw_data_place_t of = step_place_of(engine, 0);
    uint64_t n = of.n_micros * of.world * of.batch, n_targets;
    engine->mask_factor = 1.0;
    if (!tw_data_has_masks(engine->data)) {
        return TW_OK;
    }
    TW_TRY(tw_data_count_targets(engine->data, TW_DATA_TRAIN, &of, of.step * n, n, &n_targets));
    TW_FAIL_IF(n_targets == 0, TW_ERR_INVALID,
               "step %llu: of its %llu tokens none is learned (thinwire.loss_mask): larger batches or "
               "longer sequences have some",
               (unsigned long long)engine->steps_done + 1, (unsigned long long)(n * of.seq_len));
    engine->mask_factor = (double)(n * of.seq_len) / (double)n_targets;
    return TW_OK;
}

static tw_status_t gradients(tw_engine_t *engine, tw_engine_report_t *report)
{
    size_t n_micros = (size_t)engine->options->accumulation;
    tw_status_t status = find_mask_factor(engine);
    *report = (tw_engine_report_t){.loss = 0};
    engine->losses = (tw_engine_losses_t){.weights.squares = 0};
    tw_walk_begin(engine, n_micros, 0);
    for (size_t micro = 0; micro < n_micros && status == TW_OK; micro++) {
        double loss = 0;
        status = step_micro_batch(engine, micro, &loss);
        report->loss += loss / (double)n_micros * engine->mask_factor;
    }
    status = status == TW_OK ? tw_reduce_finish(engine, &report->norm) : status;
    if (status == TW_OK) {
        tw_loss_weights(engine);
        report->losses = engine->losses;
        report->totals = tw_engine_training_totals(engine);
        report->notices.any = engine->hooks.notices ? engine->hooks.notices(engine->hooks.ctx) : 0;
        status = tw_engine_exchange(engine, report);
        engine->notices = report->notices;
    }
    return status;
}

static float clip_scale(const tw_engine_t *engine, double norm)
{
    double clip = engine->options->clip;
    return clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
}

static void note_totals(const tw_engine_totals_t *totals, tw_trainer_step_t *out)
{
    out->wait_sec = totals->wait_sec;
    out->inter_node_bytes = totals->inter_node_bytes;
    out->in_node_bytes = totals->in_node_bytes;
    out->planned_inter_node_bytes = totals->planned_inter_node_bytes;
    out->delta_bits =
        totals->delta_elems > 0 ? 8.0 * (double)totals->delta_bytes / (double)totals->delta_elems : 0;
}

static void note_losses(const tw_engine_losses_t *losses, tw_trainer_step_t *out)
{
    int has_gradients = losses->gradients.n_values > 0, has_weights = losses->weights.n_values > 0;
    out->gradients_error = has_gradients ? tw_quant_loss_error(&losses->gradients) : NAN;
    out->gradients_zeroed = has_gradients ? tw_quant_loss_vanished(&losses->gradients) : NAN;
    out->weights_error = has_weights ? tw_quant_loss_error(&losses->weights) : NAN;
}

tw_status_t tw_engine_step(tw_engine_t *engine, tw_trainer_step_t *out)
{
    const tw_train_options_t *o = engine->options;
    tw_engine_processor_t processor = tw_engine_processor_get(tw_model_pool(engine->model));
    double begin = tw_time_sec(), lr = tw_train_lr(o, engine->steps_done + 1), norm = 0;
    int is_bad = 0;
    tw_engine_report_t report;
    engine->forward_sec = engine->backward_sec = 0;
    tw_status_t status = gradients(engine, &report);
    double update_begin = tw_time_sec();
    if (status == TW_OK) {
        norm = tw_norm_value(&report.norm, engine->grad_type);
        status = tw_engine_alarm(engine, &report, norm, &is_bad);
    }
    if (status == TW_OK && !is_bad && engine->hooks.before_update) {
        status = engine->hooks.before_update(engine->hooks.ctx);
    }
    if (status == TW_OK && !is_bad) {
        status = tw_engine_update(engine, lr, clip_scale(engine, norm));
    }
    if (status != TW_OK) {
        return status;
    }
    engine->steps_done++;
    double end = tw_time_sec();
    double update_compute_sec =
        tw_engine_processor_get(tw_model_pool(engine->model)).compute_sec - engine->reduced_compute_sec;
    processor = tw_engine_processor_since(tw_model_pool(engine->model), &processor);
    *out = (tw_trainer_step_t){.step = engine->steps_done,
                               .loss = report.loss,
                               .val_loss = NAN,
                               .lr = lr,
                               .grad_norm = norm,
                               .tokens = (uint64_t)(o->batch * o->sequence),
                               .step_sec = end - begin,
                               .forward_sec = engine->forward_sec,
                               .backward_sec = engine->backward_sec,
                               .update_sec = end - update_begin,
                               .compute_processor_sec = processor.compute_sec,
                               .progress_processor_sec = processor.progress_sec,
                               .update_processor_sec = update_compute_sec,
                               .exchange_processor_sec = engine->exchange_progress_sec,
                               .memory_bytes = engine->resident_most,
                               .is_bad = is_bad};
    tw_engine_totals_t spent = tw_engine_totals_since(&report.totals, &engine->reported);
    engine->reported = report.totals;
    note_totals(&spent, out);
    note_losses(&report.losses, out);
    return TW_OK;
}
