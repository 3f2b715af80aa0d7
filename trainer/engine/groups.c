/* Tensors that are trained otherwise than the rest. What is frozen has no gradient that travels, and no new
 * weights to be gathered; the others' operations are the same as without it. */
#include "trainer/engine/state.h"

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

size_t tw_groups_leave_out(const tw_engine_t *engine, tw_coll_args_t *args)
{
    tw_coll_segment_t *segments = (void *)(uintptr_t)args->segments; /* hpz's, until it is asked again */
    size_t n = 0;
    for (size_t i = 0; i < args->n_segments && engine->n_frozen > 0; i++) {
        if (!engine->groups[segments[i].tensor].is_frozen) {
            segments[n++] = segments[i];
        }
    }
    args->n_segments = engine->n_frozen > 0 ? n : args->n_segments;
    return args->n_segments;
}
