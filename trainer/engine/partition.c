/* Decides which pieces of each unit this rank has, and allocates their memory. */
#include "trainer/engine/calls.h"

/** Return this rank's piece of a tensor: its elements, and their offset in the unit's shard. */
static tw_hpz_piece_t own_piece(const tw_engine_t *engine, size_t tensor)
{
    const tw_hpz_layout_t *layout = tw_hpz_layout(engine->hpz);
    return engine->stage == 0
               ? tw_hpz_full_piece(layout, tensor)
               : tw_hpz_primary_piece(layout, tensor, tw_hpz_node(engine->hpz), tw_hpz_local(engine->hpz));
}

static void unit_init(tw_engine_t *engine, size_t index)
{
    tw_engine_unit_t *unit = &engine->units[index];
    const tw_model_unit_t *info = tw_model_unit_get(engine->model, index);
    unit->first_tensor = info->first_tensor;
    unit->n_tensors = info->n_tensors;
    unit->n_elems = info->n_elems;
    unit->shard_elems = engine->stage == 0
                            ? unit->n_elems
                            : tw_hpz_primary_elems(tw_hpz_layout(engine->hpz), (int)index,
                                                   tw_hpz_node(engine->hpz), tw_hpz_local(engine->hpz));
    unit->planned_gather = unit->planned_reduce = TW_ENGINE_NOT_PLANNED;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        tw_hpz_piece_t piece = own_piece(engine, t);
        engine->pieces[t] = (tw_engine_piece_t){.tensor = t, .first = piece.first, .n_elems = piece.n_elems};
        engine->piece_offsets[t] = piece.offset;
        unit->moment_elems += engine->groups[t].is_frozen ? 0 : piece.n_elems;
    }
}

/** Allocate one block of memory for the shards of all units (is_shard), or for all whole units. */
static void *partition_take(tw_engine_t *engine, tw_engine_holding_t holding, int is_shard, size_t elem_bytes,
                            const char *what)
{
    size_t n = 0;
    for (size_t u = 0; u < engine->n_units; u++) {
        n += is_shard ? engine->units[u].shard_elems : engine->units[u].n_elems;
    }
    return tw_engine_alloc(engine, holding, n, elem_bytes, what);
}

/** Allocate moments in host memory. If the optimizer is on a device, they only serve checkpoints. */
static float *take_moments(tw_engine_t *engine, const char *what)
{
    size_t n = 0;
    for (size_t u = 0; u < engine->n_units; u++) {
        n += engine->units[u].moment_elems;
    }
    return tw_engine_alloc(engine, TW_ENGINE_OPTIMIZER, n, sizeof(float), what);
}

static void place_state(tw_engine_t *engine, tw_engine_unit_t *unit)
{
    size_t moment = 0;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        tw_engine_piece_t *piece = &engine->pieces[t];
        int is_frozen = engine->groups[t].is_frozen;
        piece->master = unit->master + engine->piece_offsets[t];
        piece->m = is_frozen ? NULL : unit->m + moment;
        piece->v = is_frozen ? NULL : unit->v + moment;
        moment += is_frozen ? 0 : piece->n_elems;
    }
}

static tw_status_t optimizer_state(tw_engine_t *engine)
{
    /* With fp32 weights, weights() sets unit->master. */
    int has_masters = engine->weight_type != TW_TYPE_FP32;
    float *master =
        has_masters ? partition_take(engine, TW_ENGINE_OPTIMIZER, 1, sizeof(float), "master weights") : NULL;
    float *m = take_moments(engine, "first moments");
    float *v = take_moments(engine, "second moments");
    if ((has_masters && !master) || !m || !v) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t u = 0; u < engine->n_units; u++) {
        tw_engine_unit_t *unit = &engine->units[u];
        unit->master = master;
        unit->m = m;
        unit->v = v;
        master = master ? master + unit->shard_elems : NULL;
        m += unit->moment_elems;
        v += unit->moment_elems;
    }
    return TW_OK;
}

static tw_status_t weights(tw_engine_t *engine)
{
    size_t bytes = tw_type_bytes(engine->weight_type);
    void *whole = NULL, *shard = NULL;
    int needs_shard = engine->stage > 0 && !engine->codecs.has_delta;
    if ((engine->stage < 3 && !(whole = partition_take(engine, TW_ENGINE_WEIGHTS, 0, bytes, "weights"))) ||
        (needs_shard && !(shard = partition_take(engine, TW_ENGINE_WEIGHTS, 1, bytes, "weights' shard")))) {
        return TW_ERR_NO_MEMORY;
    }
    if (whole) {
        tw_engine_pin(engine, whole, tw_model_n_params(engine->model) * bytes);
    }
    for (size_t u = 0; u < engine->n_units; u++) {
        tw_engine_unit_t *unit = &engine->units[u];
        unit->weights = whole;
        unit->shard = engine->stage == 0 ? whole : shard;
        unit->master = engine->weight_type == TW_TYPE_FP32 ? unit->shard : unit->master;
        whole = whole ? tw_engine_weight_at(engine, whole, unit->n_elems) : NULL;
        shard = shard ? tw_engine_weight_at(engine, shard, unit->shard_elems) : NULL;
    }
    return TW_OK;
}

static tw_status_t gradients(tw_engine_t *engine)
{
    size_t bytes = tw_type_bytes(engine->grad_type);
    void *whole = NULL, *shard = NULL;
    if ((engine->stage < 2 &&
         !(whole = partition_take(engine, TW_ENGINE_GRADIENTS, 0, bytes, "gradients"))) ||
        (engine->stage > 0 &&
         !(shard = partition_take(engine, TW_ENGINE_GRADIENTS, 1, bytes, "gradients' shard")))) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t u = 0; u < engine->n_units; u++) {
        tw_engine_unit_t *unit = &engine->units[u];
        unit->sent_grads = whole;
        unit->shard_grads = engine->stage == 0 ? whole : shard;
        whole = whole ? tw_engine_grad_at(engine, whole, unit->n_elems) : NULL;
        shard = shard ? tw_engine_grad_at(engine, shard, unit->shard_elems) : NULL;
    }
    return TW_OK;
}

/** Allocate the sums of gradients. With one micro-batch a step all blocks share a buffer, as a block's
 *  gradients are copied out before the next block's are computed. On a device blocks use two buffers in turn:
 *  one is copied out while the next block's gradients are computed. */
static tw_status_t sums(tw_engine_t *engine)
{
    size_t n_buffers = tw_engine_gradients_lag(engine) ? 2 : 1;
    for (size_t u = 0; u < engine->n_units; u++) {
        tw_engine_unit_t *unit = &engine->units[u];
        if (u > n_buffers && engine->options->accumulation == 1) {
            unit->sums = engine->units[u - n_buffers].sums;
            continue;
        }
        unit->sums = tw_engine_alloc(engine, TW_ENGINE_GRADIENTS, unit->n_elems,
                                     tw_type_bytes(engine->sum_type), "sums of gradients");
        if (!unit->sums) {
            return TW_ERR_NO_MEMORY;
        }
    }
    return TW_OK;
}

tw_status_t tw_engine_partition(tw_engine_t *engine)
{
    engine->units =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_units, sizeof(*engine->units), "units");
    engine->pieces =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*engine->pieces), "units");
    engine->piece_offsets =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(size_t), "units");
    if (!engine->units || !engine->pieces || !engine->piece_offsets) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t u = 0; u < engine->n_units; u++) {
        unit_init(engine, u);
    }
    TW_TRY(optimizer_state(engine));
    TW_TRY(weights(engine));
    for (size_t u = 0; u < engine->n_units; u++) {
        place_state(engine, &engine->units[u]);
    }
    TW_TRY(gradients(engine));
    return sums(engine);
}
