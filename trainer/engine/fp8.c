/* model.gather=fp8: all ranks compute with blocks' matrices whose values are e4m3 numbers times a power of
 * two. After each update of the masters, ranks agree on each matrix's power. The rounded values are stored as
 * bf16. Masters and moments are not rounded. */
#include <math.h>
#include <stdlib.h>

#include "quant/e4m3.h"
#include "trainer/engine/calls.h"

/* A rank sends the exponent that its piece of a tensor needs, plus this; 0 for a tensor that is not fp8. */
#define TOLD 128

tw_status_t tw_fp8_init(tw_engine_t *engine)
{
    if (engine->options->gather != TW_TRAIN_GATHER_FP8) {
        return TW_OK;
    }
    engine->exponents =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, engine->n_tensors, sizeof(*engine->exponents), "exponents");
    for (size_t t = 0; t < engine->n_tensors && engine->exponents; t++) {
        engine->exponents[t] = tw_engine_is_fp8(engine->options, &engine->tensors[t]) ? 0 : TW_HPZ_BF16;
    }
    return engine->exponents ? TW_OK : TW_ERR_NO_MEMORY;
}

typedef struct fp8_call {
    const tw_engine_t *engine;
    uint8_t *told; /* [n_tensors] exponents that this rank sends */
    size_t first;  /* the first tensor that the call handles */
} fp8_call_t;

static void find_exponent(void *ctx, size_t tensor, int thread)
{
    const fp8_call_t *call = ctx;
    const tw_engine_piece_t *piece = &call->engine->pieces[tensor];
    float amax = 0;
    (void)thread;
    if (call->engine->exponents[tensor] == TW_HPZ_BF16) {
        return;
    }
    for (size_t i = 0; i < piece->n_elems; i++) {
        float size = fabsf(piece->master[i]);
        amax = size > amax ? size : amax;
    }
    call->told[tensor] = (uint8_t)(tw_quant_e4m3_exponent(amax) + TOLD);
}

tw_status_t tw_fp8_agree(tw_engine_t *engine)
{
    size_t n = engine->n_tensors, world = (size_t)engine->world;
    if (!engine->exponents) {
        return TW_OK;
    }
    uint8_t *told = calloc(world + 1, n), *all = told + n;
    TW_FAIL_IF(!told, TW_ERR_NO_MEMORY, "rank %d: out of memory for the exponents of %zu tensors",
               engine->rank, n);
    tw_pool_run(tw_model_pool(engine->model), n, find_exponent,
                &(fp8_call_t){.engine = engine, .told = told});
    tw_coll_segment_t segment = {.src = told, .dst = all, .n_elems = world * n};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t status = tw_engine_run(engine, &args);
    for (size_t t = 0; t < n && status == TW_OK; t++) {
        uint8_t most = 0;
        for (size_t r = 0; r < world; r++) {
            most = all[r * n + t] > most ? all[r * n + t] : most;
        }
        engine->exponents[t] = most > 0 ? (int8_t)(most - TOLD) : TW_HPZ_BF16;
    }
    free(told);
    return status;
}

static void round_piece(void *ctx, size_t index, int thread)
{
    const fp8_call_t *call = ctx;
    const tw_engine_t *engine = call->engine;
    size_t t = call->first + index;
    (void)thread;
    if (engine->exponents[t] != TW_HPZ_BF16) {
        const tw_engine_unit_t *unit = &engine->units[engine->tensors[t].unit];
        tw_quant_e4m3_round(engine->pieces[t].master, engine->exponents[t],
                            tw_engine_weight_at(engine, unit->shard, engine->piece_offsets[t]),
                            engine->pieces[t].n_elems);
    }
}

void tw_fp8_round(const tw_engine_t *engine, size_t unit)
{
    const tw_engine_unit_t *of = &engine->units[unit];
    if (engine->exponents) {
        tw_pool_run(tw_model_pool(engine->model), of->n_tensors, round_piece,
                    &(fp8_call_t){.engine = engine, .first = of->first_tensor});
    }
}
