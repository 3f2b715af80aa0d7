/* Counts the memory of a planned engine: one for a rank of a cluster that need not exist. It is made by the
 * same calls as in a run, so it counts the same memory, but its tensors are never allocated (memory.c). */
#include "trainer/engine/calls.h"

static void read_homes(const tw_engine_t *engine, tw_engine_memory_t *out)
{
    for (int holding = 0; holding < TW_ENGINE_HOLDING_COUNT; holding++) {
        const tw_engine_home_t *home = &engine->homes[holding];
        int is_file = home->place == TW_TRAIN_NVME;
        out->gpu[holding] = home->gpu_bytes;
        out->files[holding] = is_file ? home->bytes - home->gpu_bytes : 0;
        out->host[holding] = is_file ? 0 : home->bytes - home->gpu_bytes;
    }
    out->host[TW_ENGINE_WEIGHTS] += tw_hpz_memory_bytes(engine->hpz);
}

static void read_syncs(const tw_engine_t *engine, double delta_bits, tw_engine_memory_t *out)
{
    if (engine->codecs.has_delta) {
        tw_hpz_sync_t kind =
            tw_quant_form(&engine->codecs.delta) == TW_QUANT_CHANGE ? TW_HPZ_LOSSLESS : TW_HPZ_QUANTIZED;
        out->first_sync = tw_hpz_sync_bytes(engine->hpz, TW_HPZ_FULL, 0);
        out->sync = tw_hpz_sync_bytes(engine->hpz, kind, delta_bits);
    }
}

tw_status_t tw_engine_memory_of(const tw_train_options_t *options, tw_model_t *model,
                                const tw_hpz_place_t *place, double delta_bits, tw_engine_memory_t *out)
{
    tw_engine_t engine = {.is_planned = 1,
                          .place = *place,
                          .rank = place->rank,
                          .world = place->n_nodes * place->ranks_per_node};
    const tw_engine_params_t params = {.options = options, .model = model};
    tw_engine_describe(&engine, &params);
    tw_status_t status = tw_engine_take(&engine);
    *out = (tw_engine_memory_t){0};
    if (status == TW_OK) {
        read_homes(&engine, out);
        read_syncs(&engine, delta_bits, out);
    }
    tw_engine_cleanup(&engine);
    return status;
}
