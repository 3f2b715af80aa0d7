/* AdamW and its state on the model's device. Checkpoints read and write masters and moments in host memory.
 * So the state is copied from the device before a save, and to it after a load; at other times its pages in
 * host memory are given back to the system. Two cases need masters in host memory after each step: a delta
 * whose replicas are there, and fp32 weights, which are the masters. Each step then copies masters there. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/cuda/optimizer.h"
#include "trainer/device/optimizer.h"
#include "trainer/engine/calls.h"

/** Return 1 if the optimizer's state is to be on the model's device. engine->homes must be set. */
static int near_is_wanted(const tw_engine_t *engine)
{
    return tw_model_is_on_device(engine->model) && engine->homes[TW_ENGINE_OPTIMIZER].place == TW_TRAIN_NONE;
}

/** Return 1 if a step makes masters, not bf16 weights: for a delta, or because fp32 weights are masters. */
static int leaves_masters(const tw_engine_t *engine)
{
    return engine->codecs.has_delta || engine->weight_type == TW_TYPE_FP32;
}

/** Return 1 if masters are copied to host memory in each step. */
static int takes_masters(const tw_engine_t *engine)
{
    return leaves_masters(engine) && !(engine->codecs.has_delta && engine->has_near_replicas);
}

static void *near_take(void *ctx, size_t n_bytes)
{
    return tw_engine_alloc_near(ctx, TW_ENGINE_OPTIMIZER, n_bytes, "the optimizer");
}

/** Pin the memory that each step copies: reduced gradients, and new masters or weights. A shard in a file is
 *  not pinned, as pinning would keep all of it in memory. */
static void pin_news(tw_engine_t *engine)
{
    const tw_engine_unit_t *first = &engine->units[TW_MODEL_ROOT];
    size_t n_elems = 0, grad_bytes = tw_type_bytes(engine->grad_type);
    int is_in_file = engine->homes[TW_ENGINE_WEIGHTS].place == TW_TRAIN_NVME;
    for (size_t u = 0; u < engine->n_units; u++) {
        n_elems += engine->units[u].shard_elems;
    }
    tw_engine_pin(engine, first->shard_grads, n_elems * grad_bytes);
    if (engine->codecs.has_delta && takes_masters(engine)) {
        tw_engine_pin(engine, first->master, n_elems * sizeof(*first->master));
    } else if (engine->stage > 0 && !is_in_file &&
               /* in stage 0 the shard is the whole unit, which is pinned already */
               !engine->codecs.has_delta) {
        tw_engine_pin(engine, first->shard, n_elems * tw_type_bytes(engine->weight_type));
    }
}

tw_status_t tw_near_init(tw_engine_t *engine)
{
    size_t most = 0;
    if (!near_is_wanted(engine)) {
        return TW_OK;
    }
    tw_device_shard_t *shards = calloc(engine->n_units, sizeof(*shards));
    TW_FAIL_IF(!shards, TW_ERR_NO_MEMORY, "rank %d: out of memory for the optimizer's units", engine->rank);
    for (size_t u = 0; u < engine->n_units; u++) {
        const tw_engine_unit_t *unit = &engine->units[u];
        shards[u] = (tw_device_shard_t){.n_elems = unit->shard_elems, .n_moments = unit->moment_elems};
        most = unit->n_tensors > most ? unit->n_tensors : most;
    }
    const tw_device_optimizer_params_t params = {.model = engine->model,
                                                 .units = shards,
                                                 .n_units = engine->n_units,
                                                 .grad_type = engine->grad_type,
                                                 .leaves_masters = leaves_masters(engine),
                                                 .take = near_take,
                                                 .ctx = engine};
    tw_status_t status = tw_device_optimizer_create(&params, &engine->optimizer.device);
    free(shards);
    TW_TRY(status);
    engine->optimizer.pieces = tw_engine_alloc(engine, TW_ENGINE_MOVING, most,
                                               sizeof(*engine->optimizer.pieces), "pieces of a unit");
    pin_news(engine);
    return engine->optimizer.pieces ? TW_OK : TW_ERR_NO_MEMORY;
}

void tw_near_cleanup(tw_engine_t *engine)
{
    tw_device_optimizer_destroy(engine->optimizer.device);
    engine->optimizer.device = NULL;
}

/* ---- the state ----------------------------------------------------------------------------------------- */

static tw_device_state_copy_t copy_of(const tw_engine_unit_t *unit)
{
    return (tw_device_state_copy_t){.master = unit->master, .m = unit->m, .v = unit->v};
}

tw_status_t tw_near_load(tw_engine_t *engine)
{
    for (size_t u = 0; u < engine->n_units && engine->optimizer.device; u++) {
        const tw_device_state_copy_t copy = copy_of(&engine->units[u]);
        TW_TRY(tw_device_optimizer_load(engine->optimizer.device, u, &copy));
    }
    engine->optimizer.is_here = 1;
    return TW_OK;
}

/** In stage 0 all ranks have the same state, so only rank 0 copies it. */
tw_status_t tw_near_store(tw_engine_t *engine)
{
    if (engine->stage == 0 && engine->rank > 0) {
        return TW_OK;
    }
    for (size_t u = 0; u < engine->n_units && engine->optimizer.device && !engine->optimizer.is_here; u++) {
        const tw_device_state_copy_t copy = copy_of(&engine->units[u]);
        TW_TRY(tw_device_optimizer_store(engine->optimizer.device, u, &copy));
    }
    engine->optimizer.is_here = 1;
    return TW_OK;
}

/** Give the pages that lie wholly in a range back to the system. They read as zeros afterwards. */
static void near_give_back(void *start, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)start + page - 1) / page * page,
              end = ((uintptr_t)start + n_bytes) / page * page;
    if (end > first) {
        /* If this fails the pages stay, which only costs memory. */
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}

/** Drop the copy of the state in host memory, as an update is about to change the state on the device. */
static void forget_state(tw_engine_t *engine)
{
    const tw_engine_unit_t *first = &engine->units[TW_MODEL_ROOT];
    size_t n_elems = 0, n_moments = 0;
    for (size_t u = 0; u < engine->n_units; u++) {
        n_elems += engine->units[u].shard_elems;
        n_moments += engine->units[u].moment_elems;
    }
    if (engine->optimizer.is_here) {
        near_give_back(first->m, n_moments * sizeof(*first->m));
        near_give_back(first->v, n_moments * sizeof(*first->v));
        near_give_back(first->master, takes_masters(engine) ? 0 : n_elems * sizeof(*first->master));
    }
    engine->optimizer.is_here = 0;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

tw_status_t tw_near_norm(tw_engine_t *engine, tw_norm_t *norm)
{
    uint64_t bins[2 * TW_CUDA_NORM_BINS];
    TW_TRY(tw_device_optimizer_bins(engine->optimizer.device, bins));
    tw_norm_add_bins(norm, bins, 0);
    tw_norm_add_bins(norm, bins + TW_CUDA_NORM_BINS, 32);
    return TW_OK;
}

tw_status_t tw_near_begin(tw_engine_t *engine, float grad_scale)
{
    forget_state(engine);
    return tw_device_optimizer_begin(engine->optimizer.device, grad_scale);
}

tw_status_t tw_near_step(tw_engine_t *engine, size_t index, double lr)
{
    const tw_engine_unit_t *unit = &engine->units[index];
    const tw_device_news_t news = {.weights = leaves_masters(engine) ? NULL : unit->shard,
                                   .masters = takes_masters(engine) ? unit->master : NULL};
    tw_device_piece_t *pieces = engine->optimizer.pieces;
    size_t n = 0;
    for (size_t t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        const tw_engine_piece_t *piece = &engine->pieces[t];
        if (!engine->groups[t].is_frozen) {
            pieces[n++] = (tw_device_piece_t){.first = engine->piece_offsets[t],
                                              .first_moment = (size_t)(piece->m - unit->m),
                                              .n_elems = piece->n_elems,
                                              .adamw = tw_groups_adamw(engine, t, lr, NULL)};
        }
    }
    return tw_device_optimizer_step(engine->optimizer.device, index, pieces, n, &news);
}
