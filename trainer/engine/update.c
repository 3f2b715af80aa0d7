/* Runs AdamW on this rank's shards, and sends the new weights to the other ranks. */
#include <stdatomic.h>

#include "trainer/device/optimizer.h"
#include "trainer/engine/calls.h"

/* Elements that a thread updates at a time. */
#define CHUNK_ELEMS ((size_t)1 << 16)

/* ---- AdamW --------------------------------------------------------------------------------------------- */

tw_status_t tw_update_init(tw_engine_t *engine)
{
    const tw_quant_codec_t codec = {.kind = TW_QUANT_INT8, .block = 2048};
    const tw_quant_params_t params = {.codec = codec, .mem = TW_MEM_HOST};
    size_t n = (size_t)tw_pool_threads(tw_model_pool(engine->model));
    if (engine->optimizer.device) {
        return TW_OK; /* the device runs AdamW */
    }
    engine->adamw = tw_engine_alloc(engine, TW_ENGINE_SCRATCH, n, sizeof(*engine->adamw), "AdamW's threads");
    tw_status_t status = engine->adamw ? TW_OK : TW_ERR_NO_MEMORY;
    for (size_t i = 0; i < n && status == TW_OK; i++) {
        status = tw_quant_create(&params, &engine->adamw[i]);
    }
    return status;
}

void tw_update_cleanup(tw_engine_t *engine)
{
    for (int i = 0; engine->adamw && i < tw_pool_threads(tw_model_pool(engine->model)); i++) {
        tw_quant_destroy(engine->adamw[i]);
    }
}

/* Arguments of a unit's update. Threads take chunks of the unit's pieces. */
typedef struct adamw_call {
    tw_engine_t *engine;
    const tw_engine_unit_t *unit;
    double lr;
    const float *grad_scale;
    atomic_int failed; /* the status of a thread that failed */
} adamw_call_t;

static size_t count_chunks(const tw_engine_t *engine, size_t tensor)
{
    return engine->groups[tensor].is_frozen || tw_muon_has(engine, tensor)
               ? 0
               : (engine->pieces[tensor].n_elems + CHUNK_ELEMS - 1) / CHUNK_ELEMS;
}

static void adamw_chunk(void *ctx, size_t chunk, int thread)
{
    adamw_call_t *call = ctx;
    tw_engine_t *engine = call->engine;
    const tw_quant_args_t args = {.type = TW_TYPE_BF16};
    size_t t = call->unit->first_tensor;
    for (; chunk >= count_chunks(engine, t); t++) {
        chunk -= count_chunks(engine, t);
    }
    const tw_engine_piece_t *piece = &engine->pieces[t];
    const tw_quant_adamw_t adamw = tw_groups_adamw(engine, t, call->lr, call->grad_scale);
    size_t at = chunk * CHUNK_ELEMS, left = piece->n_elems - at;
    const void *grads = tw_engine_grad_at(engine, call->unit->shard_grads, engine->piece_offsets[t] + at);
    const tw_quant_adamw_segment_t segment = {.grad = grads,
                                              .master = piece->master + at,
                                              .m = piece->m + at,
                                              .v = piece->v + at,
                                              .n_elems = left < CHUNK_ELEMS ? left : CHUNK_ELEMS};
    tw_status_t status = tw_quant_adamw_encode_delta(engine->adamw[thread], &args, &adamw, &segment, 1);
    if (status != TW_OK) {
        atomic_store(&call->failed, status);
    }
}

static tw_status_t adamw_unit(tw_engine_t *engine, const tw_engine_unit_t *unit, double lr,
                              const float *grad_scale)
{
    adamw_call_t call = {.engine = engine, .unit = unit, .lr = lr, .grad_scale = grad_scale, .failed = TW_OK};
    size_t n_chunks = 0;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        n_chunks += count_chunks(engine, t);
    }
    tw_pool_run(tw_model_pool(engine->model), n_chunks, adamw_chunk, &call);
    return (tw_status_t)atomic_load(&call.failed);
}

/* ---- the weights after it ------------------------------------------------------------------------------ */

static tw_status_t gather_whole(tw_engine_t *engine, size_t index, int is_update)
{
    uint64_t planned = TW_ENGINE_NOT_PLANNED;
    tw_engine_unit_t *unit = &engine->units[index];
    tw_coll_args_t args;
    tw_hpz_gather_args(engine->hpz, (int)index, engine->weight_type, unit->shard, unit->weights, &args);
    tw_engine_encode(engine, &engine->codecs.weights, &args);
    if (is_update && tw_groups_leave_out(engine, &args) == 0) {
        return TW_OK;
    }
    return tw_engine_post(engine, &unit->gather, &args, engine->options->allgather_bucket,
                          is_update ? &unit->planned_gather : &planned);
}

/** Publish a unit's new weights. With a delta, hand the masters to the sync. Otherwise round the masters into
 *  the shard; stages 1 and 2 then also begin to gather, while stage 3 gathers when a unit is needed. */
static tw_status_t update_publish(tw_engine_t *engine, size_t index, int is_update)
{
    tw_engine_unit_t *unit = &engine->units[index];
    if (engine->codecs.has_delta) {
        return tw_sync_ready(engine);
    }
    if (engine->weight_type != TW_TYPE_FP32 && (!is_update || !engine->optimizer.device)) {
        tw_engine_convert(engine, unit->master, engine->weight_type, unit->shard, unit->shard_elems);
        tw_fp8_round(engine, index);
    }
    return engine->stage == 1 || engine->stage == 2 ? gather_whole(engine, index, is_update) : TW_OK;
}

static tw_hpz_sync_t sync_kind(const tw_engine_t *engine)
{
    int64_t every = engine->options->sync_every;
    if (every > 0 && (engine->steps_done + 1) % (uint64_t)every == 0) {
        return TW_HPZ_FULL;
    }
    return tw_quant_form(&engine->codecs.delta) == TW_QUANT_CHANGE ? TW_HPZ_LOSSLESS : TW_HPZ_QUANTIZED;
}

/** Give advice on a unit's masters and moments. Do nothing if `index` is past the last unit. */
static void advise_state(const tw_engine_t *engine, size_t index,
                         void (*advise)(const tw_engine_t *, const void *, size_t))
{
    if (index < engine->n_units) {
        const tw_engine_unit_t *unit = &engine->units[index];
        size_t n_bytes = unit->shard_elems * sizeof(float);
        advise(engine, unit->master, n_bytes);
        advise(engine, unit->m, unit->moment_elems * sizeof(float));
        advise(engine, unit->v, unit->moment_elems * sizeof(float));
    }
}

/** Advise that a unit's masters, moments and (in stage 3) shard are not needed for now. */
static void put_away(const tw_engine_t *engine, size_t index)
{
    const tw_engine_unit_t *unit = &engine->units[index];
    advise_state(engine, index, tw_engine_put_away);
    if (engine->stage == 3 && unit->shard) {
        tw_engine_put_away(engine, unit->shard, unit->shard_elems * tw_type_bytes(engine->weight_type));
    }
}

static tw_status_t begin_unit(tw_engine_t *engine, size_t index, double lr, float grad_scale)
{
    advise_state(engine, index + 1, tw_engine_fetch);
    TW_TRY(adamw_unit(engine, &engine->units[index], lr, &grad_scale));
    return tw_muon_send(engine, index, grad_scale);
}

static tw_status_t publish_all(tw_engine_t *engine, int is_update)
{
    tw_status_t status = tw_fp8_agree(engine);
    for (size_t u = 0; u < engine->n_units && status == TW_OK; u++) {
        status = update_publish(engine, u, is_update);
        put_away(engine, u);
    }
    return status;
}

/** Finish Muon's update of a unit and publish its new weights. With gather=fp8 update_here publishes all
 *  units together, once all exponents are known. */
static tw_status_t end_unit(tw_engine_t *engine, size_t index, double lr)
{
    tw_status_t status = tw_muon_apply(engine, index, lr);
    status = status == TW_OK && !engine->exponents ? update_publish(engine, index, 1) : status;
    put_away(engine, index);
    return status;
}

/** Update all units on this processor. With Muon a unit's momenta and results are sent while other units are
 *  computed, so a unit's update ends two units after it began. */
static tw_status_t update_here(tw_engine_t *engine, double lr, float grad_scale)
{
    size_t n = engine->n_units, behind = engine->muon.owners ? TW_ENGINE_MUON_PLACES - 1 : 0;
    tw_status_t status = TW_OK;
    advise_state(engine, 0, tw_engine_fetch);
    for (size_t u = 0; u < n + behind && status == TW_OK; u++) {
        status = u < n ? begin_unit(engine, u, lr, grad_scale) : TW_OK;
        if (status == TW_OK && behind > 0 && u >= 1 && u <= n) {
            status = tw_muon_answer(engine, u - 1);
        }
        if (status == TW_OK && u >= behind) {
            status = end_unit(engine, u - behind, lr);
        }
    }
    return status == TW_OK && engine->exponents ? publish_all(engine, 1) : status;
}

static tw_status_t end_unit_near(tw_engine_t *engine, size_t index)
{
    TW_TRY(tw_device_optimizer_wait(engine->optimizer.device, index));
    TW_TRY(update_publish(engine, index, 1));
    put_away(engine, index);
    return TW_OK;
}

/** Update all units on a device. A unit's new weights are copied to the host while the next is computed. */
static tw_status_t update_near(tw_engine_t *engine, double lr, float grad_scale)
{
    TW_TRY(tw_near_begin(engine, grad_scale));
    for (size_t u = 0; u <= engine->n_units; u++) {
        TW_TRY(u < engine->n_units ? tw_near_step(engine, u, lr) : TW_OK);
        TW_TRY(u > 0 ? end_unit_near(engine, u - 1) : TW_OK);
    }
    return TW_OK;
}

tw_status_t tw_engine_update(tw_engine_t *engine, double lr, float grad_scale)
{
    engine->version++;
    tw_sync_start(engine, sync_kind(engine));
    engine->sync.is_near = engine->has_near_replicas && engine->optimizer.device;
    tw_status_t status =
        engine->optimizer.device ? update_near(engine, lr, grad_scale) : update_here(engine, lr, grad_scale);
    tw_engine_note_memory(engine);
    return status;
}

tw_status_t tw_engine_refresh(tw_engine_t *engine)
{
    tw_status_t status = tw_engine_drain(engine);
    engine->version++;
    tw_sync_start(engine, TW_HPZ_FULL);
    status = status == TW_OK ? publish_all(engine, 0) : status;
    status = status == TW_OK ? tw_engine_drain(engine) : status;
    status = status == TW_OK ? tw_frozen_gather(engine) : status;
    tw_engine_trim(); /* the full sync's message buffers are freed; training needs other sizes */
    return status;
}

tw_status_t tw_engine_sync(tw_engine_t *engine)
{
    int is_lossy = tw_train_is_rounded(&engine->codecs.delta);
    tw_status_t status = tw_engine_drain(engine);
    if (status == TW_OK && is_lossy) {
        tw_engine_totals_t begin = tw_engine_totals_get(engine);
        status = tw_engine_refresh(engine);
        tw_engine_aside_end(engine, TW_ENGINE_UPKEEP, &begin);
    }
    return status == TW_OK ? tw_near_store(engine) : status;
}
