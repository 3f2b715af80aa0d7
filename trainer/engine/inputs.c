/* Keeps layers' inputs, which backward needs again. On the device they stay where they were computed. If they
 * are kept in host memory or a file, they are copied there, and copied back when backward needs them. Then
 * the device has three buffers, near[]: forward uses [0] and [1] in turn, and inputs are copied back to [2].
 *
 * x[unit] is the output of a unit and the input of the next unit. The last unit's output, in near[0], is not
 * kept: its gradient overwrites it. With recomputation near[1] takes recomputed outputs, which are not used.
 *
 * tw_model_finish returns the errors of copies. */
#include "trainer/engine/calls.h"

static int are_away(const tw_engine_t *engine)
{
    return engine->homes[TW_ENGINE_INPUTS].place != TW_TRAIN_NONE;
}

static size_t x_bytes(const tw_engine_t *engine)
{
    const tw_train_options_t *o = engine->options;
    return tw_model_sizes_get(engine->model, (size_t)o->micro_batch, (size_t)o->sequence).x_elems *
           sizeof(float);
}

/** Allocate x[0 .. n_layer - 1] as one block of memory. */
static tw_status_t take_inputs(tw_engine_t *engine, size_t x_elems)
{
    size_t n = tw_size_mul(engine->n_layer, x_elems);
    float *all =
        are_away(engine)
            ? tw_engine_alloc(engine, TW_ENGINE_INPUTS, n, sizeof(float), "layers' inputs")
            : tw_engine_alloc_near(engine, TW_ENGINE_INPUTS, tw_size_mul(n, sizeof(float)), "layers' inputs");
    for (size_t u = 0; u < engine->n_layer && all; u++) {
        engine->x[u] = all + u * x_elems;
    }
    return all ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t tw_inputs_init(tw_engine_t *engine, size_t x_elems)
{
    size_t n_layer = engine->n_layer, n_near = are_away(engine) ? 3 : engine->options->recompute ? 2 : 1;
    engine->x = tw_engine_alloc(engine, TW_ENGINE_ACTIVATIONS, n_layer + 1, sizeof(*engine->x), "pointers");
    if (!engine->x || take_inputs(engine, x_elems) != TW_OK) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_near; i++) {
        engine->near[i] = tw_engine_alloc_near(engine, TW_ENGINE_ACTIVATIONS,
                                               tw_size_mul(x_elems, sizeof(float)), "activations");
        if (!engine->near[i]) {
            return TW_ERR_NO_MEMORY;
        }
    }
    engine->x[n_layer] = engine->near[0];
    return TW_OK;
}

float *tw_inputs_output(const tw_engine_t *engine, size_t unit)
{
    return are_away(engine) ? engine->near[(engine->n_layer - unit) % 2] : engine->x[unit];
}

void tw_inputs_keep(tw_engine_t *engine, size_t unit)
{
    if (are_away(engine) && unit < engine->n_layer) {
        (void)tw_model_copy(engine->model, engine->x[unit], tw_inputs_output(engine, unit), x_bytes(engine));
        tw_engine_put_away(engine, engine->x[unit], x_bytes(engine));
    }
}

const float *tw_inputs_get(tw_engine_t *engine, size_t unit)
{
    if (!are_away(engine)) {
        return engine->x[unit - 1];
    }
    if (unit > 1) {
        tw_engine_fetch(engine, engine->x[unit - 2], x_bytes(engine));
    }
    (void)tw_model_copy(engine->model, engine->near[2], engine->x[unit - 1], x_bytes(engine));
    tw_engine_put_away(engine, engine->x[unit - 1], x_bytes(engine));
    return engine->near[2];
}
