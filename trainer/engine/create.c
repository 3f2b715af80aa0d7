/* Makes and destroys an engine. */
#include <stdlib.h>
#include <string.h>

#include "trainer/device/replicas.h"
#include "trainer/engine/calls.h"

/* ---- hpZ ----------------------------------------------------------------------------------------------- */

static void *take_replicas(void *ctx, size_t n_bytes)
{
    return tw_engine_alloc(ctx, TW_ENGINE_WEIGHTS, n_bytes, 1, "replicas");
}

static void *take_near_replicas(void *ctx, size_t n_bytes)
{
    return tw_engine_alloc_near(ctx, TW_ENGINE_WEIGHTS, n_bytes, "replicas (thinwire.replicas is device)");
}

static void *take_near_changes(void *ctx, size_t n_bytes)
{
    return tw_engine_alloc_near(ctx, TW_ENGINE_MOVING, n_bytes,
                                "changes of replicas (thinwire.replicas is device)");
}

/** Set params so that replicas are on the model's device. */
static tw_status_t place_near(tw_engine_t *engine, tw_hpz_params_t *params)
{
    const tw_device_replicas_params_t near = {
        .model = engine->model, .take = take_near_changes, .ctx = engine};
    size_t host_bytes = tw_device_replicas_host_bytes();
    TW_TRY(tw_device_replicas_create(&near, &engine->replicas));
    params->take = take_near_replicas;
    params->memory = tw_device_replicas_memory(engine->replicas);
    engine->homes[TW_ENGINE_MOVING].bytes += host_bytes;
    engine->memory_bytes += host_bytes;
    return TW_OK;
}

static tw_status_t create_hpz(tw_engine_t *engine)
{
    const tw_train_options_t *options = engine->options;
    tw_hpz_tensor_t *tensors = calloc(engine->n_tensors, sizeof(*tensors));
    engine->names =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*engine->names), "names");
    tw_hpz_params_t params = {.coll = engine->coll,
                              .place = engine->place,
                              .tensors = tensors,
                              .n_tensors = engine->n_tensors,
                              .names = engine->names,
                              .replicas = engine->has_replicas,
                              .fp32_replicas = engine->weight_type == TW_TYPE_FP32,
                              .delta = engine->codecs.delta,
                              .seed = (uint64_t)options->seed,
                              .lag_bound =
                                  tw_train_is_rounded(&engine->codecs.delta) ? options->lag_bound : 0,
                              .lag_plain = options->lag_plain,
                              .sync_elems = (size_t)options->allgather_bucket,
                              .take = take_replicas,
                              .take_ctx = engine};
    if (!engine->names) {
        free(tensors);
        return TW_ERR_NO_MEMORY;
    }
    TW_FAIL_IF(!tensors, TW_ERR_NO_MEMORY, "rank %d: out of memory for %zu tensors", engine->rank,
               engine->n_tensors);
    for (size_t t = 0; t < engine->n_tensors; t++) {
        engine->names[t] = engine->tensors[t].name;
        tensors[t] = (tw_hpz_tensor_t){.n_elems = engine->tensors[t].n_elems,
                                       .unit = engine->tensors[t].unit,
                                       .unquantized = engine->tensors[t].n_dims < 2,
                                       .row_elems = tw_engine_row_elems(&engine->tensors[t]),
                                       .frozen = engine->groups[t].is_frozen};
    }
    tw_status_t status = engine->has_near_replicas ? place_near(engine, &params) : TW_OK;
    status = status == TW_OK ? tw_hpz_create(&params, &engine->hpz) : status;
    status =
        status == TW_OK && engine->exponents ? tw_hpz_exponents_set(engine->hpz, engine->exponents) : status;
    if (status == TW_ERR_UNSUPPORTED && engine->has_near_replicas) {
        tw_error("rank %d: thinwire.replicas is device, which cannot be here; host can", engine->rank);
    }
    if (status == TW_OK && engine->codecs.has_delta && !engine->is_planned) {
        engine->homes[TW_ENGINE_MOVING].bytes += tw_hpz_sync_bytes(engine->hpz, TW_HPZ_SYNC_COUNT, 0);
    }
    free(tensors);
    return status;
}

/* ---- slots and operations ------------------------------------------------------------------------------ */

/** Return the most segments that a unit's operation can have: hpz makes at most one per rank and tensor. */
static size_t max_segments(const tw_engine_t *engine, const tw_engine_unit_t *unit)
{
    return unit->n_tensors * (size_t)engine->world;
}

static tw_status_t slot_init(tw_engine_t *engine, tw_engine_slot_t *slot, size_t unit, size_t n_elems,
                             tw_type_t type, const char *what)
{
    slot->elems = tw_engine_alloc(engine, TW_ENGINE_MOVING, n_elems, tw_type_bytes(type), what);
    return slot->elems ? tw_engine_ops_init(engine, &slot->ops, max_segments(engine, &engine->units[unit]))
                       : TW_ERR_NO_MEMORY;
}

/** Allocate a slot for gathered units. If replicas are on the model's device, the slot has a buffer there.
 *  With a delta that is its only buffer, as all gathers are from replicas. */
static tw_status_t gather_slot(tw_engine_t *engine, tw_engine_slot_t *slot, size_t unit)
{
    static const char what[] = "gathered weights";
    size_t n_elems = engine->units[unit].n_elems, n_bytes = n_elems * tw_type_bytes(engine->weight_type);
    if (engine->has_near_replicas) {
        slot->near = tw_engine_alloc_near(engine, TW_ENGINE_MOVING, n_bytes, what);
    }
    if (engine->has_near_replicas && engine->codecs.has_delta) {
        return slot->near ? tw_engine_ops_init(engine, &slot->ops, max_segments(engine, &engine->units[unit]))
                          : TW_ERR_NO_MEMORY;
    }
    return engine->has_near_replicas && !slot->near
               ? TW_ERR_NO_MEMORY
               : slot_init(engine, slot, unit, n_elems, engine->weight_type, what);
}

static void pin_slot(tw_engine_t *engine, const tw_engine_slot_t *slot, size_t unit)
{
    if (slot->elems) {
        tw_engine_pin(engine, slot->elems, engine->units[unit].n_elems * tw_type_bytes(engine->weight_type));
    }
}

static tw_status_t gather_slots(tw_engine_t *engine)
{
    tw_status_t status = gather_slot(engine, &engine->root_slot, TW_MODEL_ROOT);
    engine->n_block_slots = tw_engine_block_slots(engine->options, engine->model);
    engine->block_slots = tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_block_slots,
                                          sizeof(*engine->block_slots), "gathered weights");
    if (!engine->block_slots) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < engine->n_block_slots && status == TW_OK; i++) {
        status = gather_slot(engine, &engine->block_slots[i], 1);
    }
    for (size_t i = 0; i < engine->n_block_slots && status == TW_OK; i++) {
        pin_slot(engine, &engine->block_slots[i], 1);
    }
    if (status == TW_OK) {
        pin_slot(engine, &engine->root_slot, TW_MODEL_ROOT);
    }
    return status;
}

/** Allocate the slots that gradients are reduced from. If the root is larger than a slice, it has no slot;
 *  its slices use the blocks' slots. */
static tw_status_t reduce_slots(tw_engine_t *engine)
{
    size_t most = tw_reduce_slice_elems(engine), root = engine->units[TW_MODEL_ROOT].n_elems,
           block = engine->units[1].n_elems < most ? engine->units[1].n_elems : most;
    tw_status_t status = TW_OK;
    if (root <= most) {
        status = slot_init(engine, &engine->root_reduce_slot, TW_MODEL_ROOT, root, engine->grad_type,
                           "gradients on their way");
    }
    for (size_t i = 0; i < TW_ENGINE_REDUCE_SLOTS && status == TW_OK; i++) {
        status = slot_init(engine, &engine->reduce_slots[i], 1, root > most ? most : block, engine->grad_type,
                           "gradients on their way");
    }
    return status;
}

static tw_status_t unit_ops(tw_engine_t *engine)
{
    tw_status_t status = TW_OK;
    for (size_t u = 0; u < engine->n_units && status == TW_OK; u++) {
        tw_engine_unit_t *unit = &engine->units[u];
        status = tw_engine_ops_init(engine, &unit->gather, max_segments(engine, unit));
        status =
            status == TW_OK ? tw_engine_ops_init(engine, &unit->reduce, max_segments(engine, unit)) : status;
    }
    return status;
}

static tw_status_t moving(tw_engine_t *engine)
{
    size_t most = 0;
    for (size_t u = 0; u < engine->n_units; u++) {
        most = engine->units[u].n_tensors > most ? engine->units[u].n_tensors : most;
    }
    engine->weight_ptrs =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, most, sizeof(*engine->weight_ptrs), "pointers");
    engine->grad_ptrs =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, most, sizeof(*engine->grad_ptrs), "pointers");
    engine->segments = tw_engine_alloc(engine, TW_ENGINE_MOVING, most, sizeof(*engine->segments), "segments");
    if (!engine->weight_ptrs || !engine->grad_ptrs || !engine->segments) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = unit_ops(engine);
    if (status == TW_OK && engine->stage == 3) {
        status = gather_slots(engine);
    }
    if (status == TW_OK && engine->stage >= 2) {
        status = reduce_slots(engine);
    }
    return status;
}

/* ---- what is computed with ----------------------------------------------------------------------------- */

/** Allocate the activations that blocks save for backward. With recomputation all blocks share one buffer. */
static tw_status_t take_saved(tw_engine_t *engine, size_t saved_bytes)
{
    engine->saved = tw_engine_alloc(engine, TW_ENGINE_ACTIVATIONS, engine->n_layer, sizeof(*engine->saved),
                                    "activations");
    for (size_t i = 0; i < engine->n_layer && engine->saved; i++) {
        int shares = engine->options->recompute && i > 0;
        engine->saved[i] =
            shares ? engine->saved[0]
                   : tw_engine_alloc_near(engine, TW_ENGINE_ACTIVATIONS, saved_bytes, "activations");
        if (!engine->saved[i]) {
            return TW_ERR_NO_MEMORY;
        }
    }
    return engine->saved ? TW_OK : TW_ERR_NO_MEMORY;
}

/** Count the memory that tw_model_reserve allocates: scratch, and for a device also host memory. */
static void count_model(tw_engine_t *engine, const tw_model_sizes_t *sizes)
{
    int is_on_device = tw_model_is_on_device(engine->model);
    engine->memory_bytes += is_on_device ? sizes->host_bytes : sizes->scratch_bytes;
    engine->homes[TW_ENGINE_MOVING].bytes += is_on_device ? sizes->host_bytes : 0;
    engine->homes[TW_ENGINE_SCRATCH].bytes += sizes->scratch_bytes;
    engine->homes[TW_ENGINE_SCRATCH].gpu_bytes += is_on_device ? sizes->scratch_bytes : 0;
}

static tw_status_t activations(tw_engine_t *engine)
{
    size_t batch = (size_t)engine->options->micro_batch, sequence = (size_t)engine->options->sequence;
    tw_model_sizes_t sizes = tw_model_sizes_get(engine->model, batch, sequence);
    engine->tokens =
        tw_engine_alloc(engine, TW_ENGINE_ACTIVATIONS, batch * sequence, sizeof(*engine->tokens), "tokens");
    engine->targets =
        tw_engine_alloc(engine, TW_ENGINE_ACTIVATIONS, batch * sequence, sizeof(*engine->targets), "tokens");
    if (!engine->tokens || !engine->targets) {
        return TW_ERR_NO_MEMORY;
    }
    if (engine->options->document_mask && engine->options->document_token >= 0) {
        engine->documents = tw_engine_alloc(engine, TW_ENGINE_ACTIVATIONS, batch * sequence,
                                            sizeof(*engine->documents), "documents");
        if (!engine->documents) {
            return TW_ERR_NO_MEMORY;
        }
    }
    tw_status_t status = tw_inputs_init(engine, sizes.x_elems);
    status = status == TW_OK ? take_saved(engine, sizes.saved_bytes) : status;
    count_model(engine, &sizes);
    return status;
}

/* ---- create and destroy -------------------------------------------------------------------------------- */

static tw_status_t engine_load(tw_engine_t *engine)
{
    tw_engine_totals_t begin = tw_engine_totals_get(engine);
    tw_status_t status = tw_engine_refresh(engine);
    tw_engine_aside_end(engine, TW_ENGINE_LOAD, &begin);
    return status;
}

static tw_status_t first_weights(tw_engine_t *engine)
{
    for (size_t t = 0; t < engine->n_tensors; t++) {
        const tw_engine_piece_t *piece = &engine->pieces[t];
        tw_model_init(engine->model, t, piece->first, piece->n_elems, (uint64_t)engine->options->seed,
                      piece->master);
        tw_engine_put_away(engine, piece->master, piece->n_elems * sizeof(*piece->master));
    }
    TW_TRY(engine_load(engine));
    return tw_near_load(engine);
}

tw_status_t tw_engine_take(tw_engine_t *engine)
{
    TW_TRY(tw_groups_init(engine));
    TW_TRY(tw_loss_init(engine));
    TW_TRY(tw_fp8_init(engine));
    TW_TRY(create_hpz(engine));
    TW_TRY(tw_engine_partition(engine));
    TW_TRY(tw_near_init(engine));
    TW_TRY(moving(engine));
    TW_TRY(activations(engine));
    TW_TRY(tw_threads_init(engine));
    TW_TRY(tw_update_init(engine));
    TW_TRY(tw_outliers_init(engine));
    TW_TRY(tw_muon_init(engine));
    TW_TRY(tw_frozen_init(engine));
    tw_sample_init(engine);
    return TW_OK;
}

static tw_status_t engine_init(tw_engine_t *engine)
{
    TW_TRY(tw_engine_take(engine));
    TW_TRY(tw_engine_check_device(engine));
    TW_TRY(tw_model_reserve(engine->model, (size_t)engine->options->micro_batch,
                            (size_t)engine->options->sequence));
    tw_coll_counters_get(engine->coll, &engine->base);
    return first_weights(engine);
}

void tw_engine_describe(tw_engine_t *engine, const tw_engine_params_t *params)
{
    engine->options = params->options;
    engine->model = params->model;
    engine->data = params->data;
    engine->coll = params->coll;
    engine->hooks = params->hooks;
    engine->stage = (int)params->options->stage;
    engine->weight_type = tw_model_weight_type(params->model);
    engine->grad_type =
        params->options->communication == TW_TRAIN_COMMUNICATION_FP32 ? TW_TYPE_FP32 : TW_TYPE_BF16;
    int may_round = engine->grad_type == TW_TYPE_BF16 && params->options->accumulation == 1;
    engine->sum_type = tw_model_round_gradients(params->model, may_round) ? TW_TYPE_BF16 : TW_TYPE_FP32;
    engine->has_replicas = params->options->hpz == TW_TRAIN_HPZ_ON;
    engine->has_near_replicas = engine->has_replicas &&
                                params->options->replicas == TW_TRAIN_REPLICAS_DEVICE &&
                                tw_model_is_on_device(params->model);
    engine->codecs = params->options->codecs;
    engine->n_units = tw_model_n_units(params->model);
    engine->n_layer = engine->n_units - 1;
    engine->tensors = tw_model_tensors(params->model, &engine->n_tensors);
    tw_engine_find_homes(engine);
}

tw_status_t tw_engine_create(const tw_engine_params_t *params, tw_engine_t **out)
{
    tw_engine_t *engine = calloc(1, sizeof(*engine));
    TW_FAIL_IF(!engine, TW_ERR_NO_MEMORY, "out of memory for an engine");
    tw_engine_resident_init(engine);
    tw_engine_describe(engine, params);
    engine->rank = tw_coll_rank(params->coll);
    engine->world = tw_coll_size(params->coll);
    tw_status_t status = engine_init(engine);
    if (status != TW_OK) {
        tw_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return TW_OK;
}

/** Wait for gathers that are still in flight, in case a failure interrupted a walk. */
static void give_up_walk(tw_engine_t *engine)
{
    tw_engine_wait(engine, &engine->root_slot.ops);
    for (size_t i = 0; i < engine->n_block_slots; i++) {
        tw_engine_wait(engine, &engine->block_slots[i].ops);
    }
    tw_muon_give_up(engine);
    tw_engine_drain(engine);
}

void tw_engine_cleanup(tw_engine_t *engine)
{
    tw_update_cleanup(engine);
    tw_near_cleanup(engine);
    tw_hpz_destroy(engine->hpz); /* must come before its replicas' memory is freed */
    tw_device_replicas_destroy(engine->replicas);
    tw_engine_free_all(engine);
}

void tw_engine_destroy(tw_engine_t *engine)
{
    if (!engine) {
        return;
    }
    if (engine->units) {
        give_up_walk(engine); /* operations in flight use memory that is freed below */
    }
    tw_engine_cleanup(engine);
    free(engine);
}

/* ---- queries ------------------------------------------------------------------------------------------- */

const tw_engine_piece_t *tw_engine_pieces(const tw_engine_t *engine, size_t *n_pieces)
{
    *n_pieces = engine->n_tensors;
    return engine->pieces;
}

tw_status_t tw_engine_loaded(tw_engine_t *engine, uint64_t step, double recent_loss)
{
    engine->steps_done = step;
    engine->recent_loss = recent_loss;
    return engine_load(engine);
}

tw_status_t tw_engine_bring_state(tw_engine_t *engine)
{
    return tw_near_load(engine);
}

double tw_engine_recent_loss(const tw_engine_t *engine)
{
    return engine->recent_loss;
}

uint64_t tw_engine_steps_done(const tw_engine_t *engine)
{
    return engine->steps_done;
}

tw_engine_notices_t tw_engine_heard(const tw_engine_t *engine)
{
    return engine->notices;
}
