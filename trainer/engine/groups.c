/* Groups of tensors with their own options: learning rate, decay, frozen. A frozen tensor sends no gradient,
 * has no moments, and has no new weights to gather. Operations on other tensors do not change. In stage 3
 * without a delta every rank gathers frozen tensors once and keeps them whole. */
#include <string.h>

#include "trainer/engine/calls.h"

tw_status_t tw_groups_init(tw_engine_t *engine)
{
    engine->groups =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*engine->groups), "groups");
    if (!engine->groups) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < engine->n_tensors; t++) {
        TW_TRY(tw_train_group_of(engine->options->groups, engine->tensors[t].name, &engine->groups[t]));
        engine->n_frozen += engine->groups[t].is_frozen != 0;
    }
    return TW_OK;
}

tw_quant_adamw_t tw_groups_adamw(const tw_engine_t *engine, size_t tensor, double lr, const float *grad_scale)
{
    const tw_train_options_t *options = engine->options;
    const tw_train_group_t *group = &engine->groups[tensor];
    double decay = engine->tensors[tensor].decay ? options->weight_decay : 0;
    return (tw_quant_adamw_t){.lr = lr * group->lr,
                              .beta1 = options->beta1,
                              .beta2 = options->beta2,
                              .eps = options->eps,
                              .weight_decay = group->decay >= 0 ? group->decay : decay,
                              .step = engine->steps_done + 1,
                              .grad_type = engine->grad_type,
                              .grad_scale = grad_scale};
}

size_t tw_groups_leave_out(const tw_engine_t *engine, tw_coll_args_t *args)
{
    /* args->segments is hpz's own array, which may be changed until its next call */
    tw_coll_segment_t *segments = (void *)(uintptr_t)args->segments;
    size_t n = 0;
    for (size_t i = 0; i < args->n_segments && engine->n_frozen > 0; i++) {
        if (!engine->groups[segments[i].tensor].is_frozen) {
            segments[n++] = segments[i];
        }
    }
    args->n_segments = engine->n_frozen > 0 ? n : args->n_segments;
    return args->n_segments;
}

/** Remove the segments of all tensors that are not frozen. Return how many segments are left. */
static size_t leave_frozen(const tw_engine_t *engine, tw_coll_args_t *args)
{
    tw_coll_segment_t *segments = (void *)(uintptr_t)args->segments;
    size_t n = 0;
    for (size_t i = 0; i < args->n_segments; i++) {
        if (engine->groups[segments[i].tensor].is_frozen) {
            segments[n++] = segments[i];
        }
    }
    return args->n_segments = n;
}

tw_status_t tw_frozen_init(tw_engine_t *engine)
{
    size_t n_elems = 0;
    if (engine->stage < 3 || engine->codecs.has_delta || !engine->options->keep_frozen ||
        engine->n_frozen == 0) {
        return TW_OK;
    }
    for (size_t t = 0; t < engine->n_tensors; t++) {
        n_elems += engine->groups[t].is_frozen ? engine->tensors[t].n_elems : 0;
    }
    void *at = tw_engine_alloc(engine, TW_ENGINE_WEIGHTS, n_elems, tw_type_bytes(engine->weight_type),
                               "frozen weights");
    engine->kept =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*engine->kept), "frozen weights");
    if (!at || !engine->kept) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < engine->n_tensors; t++) {
        engine->kept[t] = engine->groups[t].is_frozen ? at : NULL;
        at = engine->groups[t].is_frozen ? tw_engine_weight_at(engine, at, engine->tensors[t].n_elems) : at;
    }
    return TW_OK;
}

/** Gather a unit's frozen tensors through a slot of training, and copy them to engine->kept. No codec is
 *  used, so that they are exact. */
static tw_status_t gather_unit(tw_engine_t *engine, size_t index)
{
    const tw_engine_unit_t *unit = &engine->units[index];
    tw_engine_slot_t *slot = index == TW_MODEL_ROOT ? &engine->root_slot : &engine->block_slots[0];
    uint64_t planned = TW_ENGINE_NOT_PLANNED;
    tw_coll_args_t args;
    tw_hpz_gather_args(engine->hpz, (int)index, engine->weight_type, unit->shard, slot->elems, &args);
    if (leave_frozen(engine, &args) == 0) {
        return TW_OK;
    }
    TW_TRY(tw_engine_post(engine, &slot->ops, &args, INT64_MAX, &planned));
    TW_TRY(tw_engine_wait(engine, &slot->ops));
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        tw_hpz_piece_t whole = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), t);
        if (engine->kept[t]) {
            memcpy(engine->kept[t], tw_engine_weight_at(engine, slot->elems, whole.offset),
                   whole.n_elems * tw_type_bytes(engine->weight_type));
        }
    }
    return TW_OK;
}

tw_status_t tw_frozen_gather(tw_engine_t *engine)
{
    for (size_t u = 0; u < engine->n_units && engine->kept; u++) {
        TW_TRY(gather_unit(engine, u));
    }
    return TW_OK;
}

void tw_frozen_point_at(tw_engine_t *engine, size_t unit)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    for (size_t t = 0; t < of->n_tensors && engine->kept; t++) {
        const void *kept = engine->kept[of->first_tensor + t];
        engine->weight_ptrs[t] = kept ? kept : engine->weight_ptrs[t];
    }
}

void tw_frozen_copy(const tw_engine_t *engine, size_t unit, void *whole)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors && engine->kept; t++) {
        if (engine->kept[t]) {
            tw_hpz_piece_t piece = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), t);
            memcpy(tw_engine_weight_at(engine, whole, piece.offset), engine->kept[t],
                   piece.n_elems * tw_type_bytes(engine->weight_type));
        }
    }
}
