/* Gradients, reduced behind the backward pass: sums in fp32 become bf16 and travel while the next unit is computed. */
#include <string.h>

#include "trainer/engine/state.h"

void tw_reduce_begin(tw_engine_t *engine, size_t index, int is_first)
{
    tw_engine_unit_t *unit = &engine->units[index];
    for (size_t t = 0; t < unit->n_tensors; t++) {
        size_t offset = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), unit->first_tensor + t).offset;
        engine->grad_ptrs[t] = unit->grads32 + offset;
    }
    if (is_first) {
        memset(unit->grads32, 0, unit->n_elems * sizeof(*unit->grads32));
    }
}

/* Where the unit's gradients travel from, and the operations that do it. */
static uint16_t *leave_from(tw_engine_t *engine, tw_engine_unit_t *unit, tw_engine_ops_t **ops)
{
    if (engine->stage < 2) {
        *ops = &unit->reduce;
        return unit->grads16;
    }
    tw_engine_slot_t *slot = unit == engine->units
                                 ? &engine->root_reduce_slot
                                 : &engine->reduce_slots[engine->n_block_reduces++ % TW_ENGINE_REDUCE_SLOTS];
    *ops = &slot->ops;
    return slot->elems;
}

/* Stage 0: in place, a segment per tensor. */
static void allreduce_args(tw_engine_t *engine, const tw_engine_unit_t *unit, tw_coll_args_t *args)
{
    for (size_t t = 0; t < unit->n_tensors; t++) {
        tw_hpz_piece_t whole = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), unit->first_tensor + t);
        engine->segments[t] =
            (tw_coll_segment_t){.dst = unit->grads16 + whole.offset, .n_elems = whole.n_elems};
    }
    *args = (tw_coll_args_t){.op = TW_COLL_ALLREDUCE,
                             .type = TW_TYPE_BF16,
                             .segments = engine->segments,
                             .n_segments = unit->n_tensors};
}

static void reduce_args(tw_engine_t *engine, size_t index, const uint16_t *whole, tw_coll_args_t *args)
{
    const tw_train_options_t *options = engine->options;
    tw_engine_unit_t *unit = &engine->units[index];
    if (engine->stage == 0) {
        allreduce_args(engine, unit, args);
    } else {
        tw_hpz_reduce_args(engine->hpz, (int)index, TW_TYPE_BF16, whole, unit->part_grads, args);
    }
    args->reduction = TW_COLL_MEAN;
    args->seed = (uint64_t)options->seed;
    args->step = (uint32_t)engine->version;
    if (options->quantized_gradients) {
        args->codec = &engine->gradient_codec;
        args->inner_codec = options->gradient_inner == 1 ? &engine->inner_codec : NULL;
        args->force_codec = 1;
    }
}

tw_status_t tw_reduce_post(tw_engine_t *engine, size_t index)
{
    tw_engine_unit_t *unit = &engine->units[index];
    tw_engine_ops_t *ops;
    uint16_t *whole = leave_from(engine, unit, &ops);
    TW_TRY(tw_engine_wait(engine, ops));
    tw_coll_args_t args;
    tw_convert_from_fp32(TW_TYPE_BF16, unit->grads32, 1.0f, whole, unit->n_elems);
    reduce_args(engine, index, whole, &args);
    return tw_engine_post(engine, ops, &args, engine->options->reduce_bucket, &unit->planned_reduce);
}

tw_status_t tw_reduce_finish(tw_engine_t *engine)
{
    tw_status_t status = tw_engine_wait(engine, &engine->root_reduce_slot.ops);
    for (size_t i = 0; i < TW_ENGINE_REDUCE_SLOTS && status == TW_OK; i++) {
        status = tw_engine_wait(engine, &engine->reduce_slots[i].ops);
    }
    for (size_t u = 0; u < engine->n_units && status == TW_OK; u++) {
        status = tw_engine_wait(engine, &engine->units[u].reduce);
    }
    return status;
}
