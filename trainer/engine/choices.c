/* Derives from the options how a step runs: sizes of operations, which tensors are special, the order of
 * units. The engine and the planner (trainer/plan) both call it. */
#include "trainer/engine/engine.h"

size_t tw_engine_visited(size_t n_layer, size_t visit)
{
    if (visit == 0 || visit == n_layer + 1) {
        return TW_MODEL_ROOT;
    }
    return visit <= n_layer ? visit : 2 * n_layer + 2 - visit;
}

size_t tw_engine_block_slots(const tw_train_options_t *o, const tw_model_t *model)
{
    size_t root = tw_model_unit_get(model, TW_MODEL_ROOT)->n_elems;
    size_t block = tw_model_unit_get(model, 1)->n_elems, n_layer = tw_model_n_units(model) - 1;
    size_t ahead = (size_t)o->prefetch_elems / block, live = (size_t)o->max_live_elems;
    size_t most = live > root + block ? (live - root) / block : 1;
    size_t n = 1 + (ahead > 0 ? ahead : 1);
    n = n < most ? n : most;
    return n < n_layer ? n : n_layer;
}

static int is_of_layers(const tw_model_tensor_t *tensor)
{
    return tensor->n_dims == 2 && tensor->unit != TW_MODEL_ROOT;
}

int tw_engine_is_muons(const tw_train_options_t *o, const tw_model_tensor_t *tensor, int is_frozen)
{
    return o->optimizer == TW_TRAIN_MUON && is_of_layers(tensor) && !is_frozen;
}

int tw_engine_is_fp8(const tw_train_options_t *o, const tw_model_tensor_t *tensor)
{
    return o->gather == TW_TRAIN_GATHER_FP8 && is_of_layers(tensor);
}

int tw_engine_begins_bucket(size_t *held, size_t n_elems, int64_t bucket)
{
    int begins = *held == TW_ENGINE_NO_BUCKET || *held + n_elems > (size_t)bucket;
    *held = begins ? n_elems : *held + n_elems;
    return begins;
}

size_t tw_engine_reduce_slice_step(const tw_train_options_t *o)
{
    return tw_hpz_slice_step(0, &o->codecs.gradients);
}

size_t tw_engine_reduce_slice_most(const tw_train_options_t *o, int world)
{
    size_t most = (size_t)o->reduce_bucket / (size_t)world, step = tw_engine_reduce_slice_step(o);
    return most > step ? most : step;
}
