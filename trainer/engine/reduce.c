/* Reduces gradients during the backward pass. A unit's fp32 sums are rounded to bf16, unless gradients are
 * sent as fp32, and are reduced while the next unit is computed. In stages 2 and 3 they are sent from slots,
 * which do not grow with the model: a unit larger than a bucket is reduced in slices. */
#include <string.h>

#include "trainer/device/optimizer.h"
#include "trainer/engine/calls.h"

/** Return 1 if backward computes a tensor's gradient. For frozen matrices it does not: that saves a
 *  product. */
static int is_wanted(const tw_engine_t *engine, size_t tensor)
{
    return !engine->groups[tensor].is_frozen || engine->tensors[tensor].n_dims < 2;
}

/** Return the address of element i of a unit's sums. */
static void *sum_at(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t i)
{
    return (char *)unit->sums + i * tw_type_bytes(engine->sum_type);
}

/** Copy n sums, from element i of the unit on, to `to` in the type in which gradients are sent. */
static void reduce_leave(const tw_engine_t *engine, const tw_engine_unit_t *unit, size_t i, void *to,
                         size_t n)
{
    if (engine->sum_type == engine->grad_type) {
        tw_engine_copy(engine, sum_at(engine, unit, i), to, n * tw_type_bytes(engine->grad_type));
    } else {
        tw_engine_convert(engine, sum_at(engine, unit, i), engine->grad_type, to, n);
    }
}

void tw_reduce_begin(tw_engine_t *engine, size_t index, int is_first)
{
    tw_engine_unit_t *unit = &engine->units[index];
    for (size_t t = 0; t < unit->n_tensors; t++) {
        size_t tensor = unit->first_tensor + t;
        size_t offset = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), tensor).offset;
        engine->grad_ptrs[t] = is_wanted(engine, tensor) ? sum_at(engine, unit, offset) : NULL;
    }
    if (is_first && engine->sum_type == TW_TYPE_FP32) { /* the model overwrites bf16 sums: no need to zero */
        tw_engine_clear(engine, unit->sums, unit->n_elems);
    }
}

static tw_engine_slot_t *next_slot(tw_engine_t *engine)
{
    return &engine->reduce_slots[engine->n_reduces++ % TW_ENGINE_REDUCE_SLOTS];
}

/** Return the buffer that the unit's gradients are sent from, and in *ops the list for its operations. */
static void *leave_from(tw_engine_t *engine, tw_engine_unit_t *unit, tw_engine_ops_t **ops)
{
    if (engine->stage < 2) {
        *ops = &unit->reduce;
        return unit->sent_grads;
    }
    tw_engine_slot_t *slot = unit == engine->units ? &engine->root_reduce_slot : next_slot(engine);
    *ops = &slot->ops;
    return slot->elems;
}

/* ---- arguments of reductions --------------------------------------------------------------------------- */

/** Fill in the arguments of stage 0's all-reduce: in place, a segment per tensor. */
static void allreduce_args(tw_engine_t *engine, const tw_engine_unit_t *unit, tw_coll_args_t *args)
{
    size_t n = 0;
    for (size_t t = 0; t < unit->n_tensors; t++) {
        tw_hpz_piece_t whole = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), unit->first_tensor + t);
        /* add_norm reads frozen tensors' gradients, too: they must be zeros */
        if (engine->groups[unit->first_tensor + t].is_frozen) {
            memset(tw_engine_grad_at(engine, unit->sent_grads, whole.offset), 0,
                   whole.n_elems * tw_type_bytes(engine->grad_type));
            continue;
        }
        engine->segments[n++] =
            (tw_coll_segment_t){.dst = tw_engine_grad_at(engine, unit->sent_grads, whole.offset),
                                .n_elems = whole.n_elems,
                                .unquantized = engine->tensors[unit->first_tensor + t].n_dims < 2,
                                .row_elems = tw_engine_row_elems(&engine->tensors[unit->first_tensor + t])};
    }
    *args = (tw_coll_args_t){
        .op = TW_COLL_ALLREDUCE, .type = engine->grad_type, .segments = engine->segments, .n_segments = n};
}

static void add_reduction(const tw_engine_t *engine, tw_coll_args_t *args)
{
    const tw_train_options_t *options = engine->options;
    args->reduction = TW_COLL_MEAN;
    args->seed = (uint64_t)options->seed;
    args->step = (uint32_t)engine->version;
    args->inner_codec = tw_train_codec(&engine->codecs.inner);
    tw_engine_encode(engine, &engine->codecs.gradients, args);
}

/* ---- slices -------------------------------------------------------------------------------------------- */

size_t tw_reduce_slice_elems(const tw_engine_t *engine)
{
    return tw_engine_reduce_slice_most(engine->options, engine->world) * (size_t)engine->world;
}

/** Copy a slice's elements from unit->sums to the slice's slot. */
static void fill_slice(const tw_engine_t *engine, const tw_engine_unit_t *unit, const tw_coll_args_t *args)
{
    for (size_t i = 0; i < args->n_segments; i++) {
        const tw_coll_segment_t *segment = &args->segments[i];
        size_t whole = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), segment->tensor).offset;
        reduce_leave(engine, unit, whole + segment->first_elem, (void *)(uintptr_t)segment->src,
                     segment->n_elems);
    }
}

static tw_status_t post_slice(tw_engine_t *engine, size_t index, tw_hpz_slice_t slice)
{
    tw_engine_unit_t *unit = &engine->units[index];
    tw_engine_slot_t *slot = next_slot(engine);
    uint64_t planned = TW_ENGINE_NOT_PLANNED;
    tw_coll_args_t args;
    TW_TRY(tw_engine_wait(engine, &slot->ops));
    tw_hpz_reduce_slice_args(engine->hpz, (int)index, slice, engine->grad_type, slot->elems,
                             unit->shard_grads, &args);
    if (tw_groups_leave_out(engine, &args) == 0) {
        return TW_OK;
    }
    fill_slice(engine, unit, &args);
    tw_loss_gradients(engine, &args);
    add_reduction(engine, &args);
    return tw_engine_post(engine, &slot->ops, &args, INT64_MAX, &planned);
}

/** Post a unit's reduction slice by slice. As many slices are in flight as there are slots, so no second
 *  buffer of the unit's size is needed. */
static tw_status_t post_slices(tw_engine_t *engine, size_t index)
{
    const tw_hpz_layout_t *layout = tw_hpz_layout(engine->hpz);
    size_t end = tw_hpz_primary_elems(layout, (int)index, 0, 0);
    size_t most = tw_engine_reduce_slice_most(engine->options, engine->world);
    size_t step = tw_engine_reduce_slice_step(engine->options);
    tw_hpz_slice_t slice = {0, 0};
    tw_status_t status = TW_OK;
    while (slice.end < end && status == TW_OK) {
        slice = tw_hpz_slice_next(layout, (int)index, slice.end, most, step);
        status = post_slice(engine, index, slice);
    }
    return status;
}

/* ---- a unit's reduction -------------------------------------------------------------------------------- */

tw_status_t tw_reduce_post(tw_engine_t *engine, size_t index)
{
    tw_engine_unit_t *unit = &engine->units[index];
    tw_engine_ops_t *ops;
    if (engine->stage >= 2 && unit->n_elems > tw_reduce_slice_elems(engine)) {
        return post_slices(engine, index);
    }
    void *whole = leave_from(engine, unit, &ops);
    TW_TRY(tw_engine_wait(engine, ops));
    tw_coll_args_t args;
    reduce_leave(engine, unit, 0, whole, unit->n_elems);
    if (engine->stage == 0) {
        allreduce_args(engine, unit, &args);
        if (args.n_segments == 0) {
            return TW_OK;
        }
    } else {
        tw_hpz_reduce_args(engine->hpz, (int)index, engine->grad_type, whole, unit->shard_grads, &args);
        if (tw_groups_leave_out(engine, &args) == 0) {
            return TW_OK;
        }
    }
    tw_loss_gradients(engine, &args);
    add_reduction(engine, &args);
    return tw_engine_post(engine, ops, &args, engine->options->reduce_bucket, &unit->planned_reduce);
}

/** Add elements first .. first + n - 1 of a unit's shard to the norm. */
static tw_status_t reduce_count(tw_engine_t *engine, size_t index, size_t first, size_t n, tw_norm_t *norm)
{
    if (engine->optimizer.device) {
        return tw_device_optimizer_norm(engine->optimizer.device, index, first, n);
    }
    tw_engine_add_norm(engine, norm, tw_engine_grad_at(engine, engine->units[index].shard_grads, first), n);
    return TW_OK;
}

/** Add this rank's shard of a unit's gradients to the norm. In stage 0, where each rank has all gradients,
 *  add only the part that would be its shard, so that each element counts once. norm may be NULL. */
static tw_status_t add_norm(tw_engine_t *engine, size_t index, tw_norm_t *norm)
{
    const tw_hpz_layout_t *layout = tw_hpz_layout(engine->hpz);
    const tw_engine_unit_t *unit = &engine->units[index];
    if (!norm) {
        return TW_OK;
    }
    TW_TRY(engine->optimizer.device
               ? tw_device_optimizer_gradients(engine->optimizer.device, index, unit->shard_grads)
               : TW_OK);
    if (engine->stage > 0) {
        return reduce_count(engine, index, 0, unit->shard_elems, norm);
    }
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        tw_hpz_piece_t own =
            tw_hpz_primary_piece(layout, t, tw_hpz_node(engine->hpz), tw_hpz_local(engine->hpz));
        TW_TRY(reduce_count(engine, index, engine->piece_offsets[t] + own.first, own.n_elems, norm));
    }
    return TW_OK;
}

/** Wait for the blocks' gradients and add them to the norm, while the root's, posted last, are reduced. */
static tw_status_t finish_blocks(tw_engine_t *engine, tw_norm_t *norm)
{
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < TW_ENGINE_REDUCE_SLOTS && status == TW_OK; i++) {
        status = tw_engine_wait(engine, &engine->reduce_slots[i].ops);
    }
    for (size_t u = TW_MODEL_ROOT + 1; u < engine->n_units && status == TW_OK; u++) {
        TW_TRY(tw_engine_wait(engine, &engine->units[u].reduce));
        TW_TRY(add_norm(engine, u, norm));
    }
    return status;
}

tw_status_t tw_reduce_finish(tw_engine_t *engine, tw_norm_t *norm)
{
    double begin = tw_engine_processor_get(tw_model_pool(engine->model)).compute_sec;
    TW_TRY(finish_blocks(engine, norm));
    double norm_sec = tw_engine_processor_get(tw_model_pool(engine->model)).compute_sec - begin;
    TW_TRY(tw_engine_wait(engine, &engine->root_reduce_slot.ops));
    TW_TRY(tw_engine_wait(engine, &engine->units[TW_MODEL_ROOT].reduce));
    engine->reduced_compute_sec =
        tw_engine_processor_get(tw_model_pool(engine->model)).compute_sec - norm_sec;
    TW_TRY(add_norm(engine, TW_MODEL_ROOT, norm));
    return engine->optimizer.device && norm ? tw_near_norm(engine, norm) : TW_OK;
}
