/* Keeps replicas up to date: it syncs the changes of all units, in order, as many at a time as there is room
 * for. A unit's sync begins when its masters are new and there is room; only who needs that unit waits for
 * it.
 *
 * Cost for a million weights of this rank, if nothing else waits. A lossless delta takes about 2.5 ms + 1.3
 * ms * (N - 1) of a core: it encodes at 0.7 to 1 GB/s of bf16, and decodes the other nodes' changes at 1.3 to
 * 1.9. On the wire, while other units are computed, 0.25 MB at 2 bits take 2 ms at 1 Gb/s; plain ZeRO-3 sends
 * 4 MB. Before the first layer the root's lengths and message remain: twice the link's latency. */
#include "trainer/device/optimizer.h"
#include "trainer/engine/calls.h"

void tw_sync_start(tw_engine_t *engine, tw_hpz_sync_t kind)
{
    engine->sync = (tw_engine_sync_t){.kind = kind};
}

size_t tw_sync_replica_elems(const tw_engine_t *engine, size_t unit)
{
    return tw_hpz_secondary_elems(tw_hpz_layout(engine->hpz), (int)unit, tw_hpz_local(engine->hpz));
}

/** Note that the next unit is synced. Nobody needs its replica until it is gathered, nor its previous changes
 *  until the next sync. */
static void sync_end(tw_engine_t *engine)
{
    int unit = (int)engine->sync.done++;
    size_t n_elems = tw_sync_replica_elems(engine, (size_t)unit);
    const uint8_t *states = tw_hpz_states(engine->hpz, unit);
    tw_engine_put_away(engine, tw_hpz_replica(engine->hpz, unit),
                       n_elems * tw_type_bytes(engine->weight_type));
    if (states) {
        tw_engine_put_away(engine, states, n_elems * sizeof(*states));
    }
}

/** Return a unit's masters, on the device if they are newest there. */
static const float *masters_of(const tw_engine_t *engine, size_t unit)
{
    return engine->sync.is_near ? tw_device_optimizer_masters(engine->optimizer.device, unit)
                                : engine->units[unit].master;
}

static tw_status_t sync_begin(tw_engine_t *engine)
{
    tw_engine_sync_t *sync = &engine->sync;
    tw_status_t status = TW_OK;
    while (sync->begun < sync->ready && status == TW_OK) {
        status = tw_hpz_sync_begin(engine->hpz, (int)sync->begun, sync->kind, masters_of(engine, sync->begun),
                                   engine->version);
        sync->begun += status == TW_OK;
        if (sync->kind != TW_HPZ_FULL) { /* the sync after a load does not count as training's */
            tw_engine_note_memory(engine);
        }
    }
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

static tw_status_t sync_advance(tw_engine_t *engine)
{
    tw_engine_sync_t *sync = &engine->sync;
    tw_status_t status = sync_begin(engine);
    while (sync->done < sync->begun && status == TW_OK) {
        status = tw_hpz_sync_test(engine->hpz, (int)sync->done);
        if (status == TW_OK) {
            sync_end(engine);
            status = sync_begin(engine);
        }
    }
    return status == TW_IN_PROGRESS ? TW_OK : status;
}

tw_status_t tw_sync_advance(tw_engine_t *engine)
{
    if (engine->sync.failed == TW_OK) {
        engine->sync.failed = sync_advance(engine);
    }
    return engine->sync.failed;
}

tw_status_t tw_sync_ready(tw_engine_t *engine)
{
    engine->sync.ready++;
    return tw_sync_advance(engine);
}

static tw_status_t sync_finish(tw_engine_t *engine)
{
    tw_engine_sync_t *sync = &engine->sync;
    double start = tw_time_sec();
    sync->failed = tw_hpz_sync_finish(engine->hpz, (int)sync->done);
    engine->wait_sec += tw_time_sec() - start;
    if (sync->failed == TW_OK) {
        sync_end(engine);
    }
    return tw_sync_advance(engine);
}

tw_status_t tw_sync_need(tw_engine_t *engine, size_t unit)
{
    const tw_engine_sync_t *sync = &engine->sync;
    tw_status_t status = tw_sync_advance(engine);
    while (sync->done <= unit && sync->done < sync->begun && status == TW_OK) {
        status = sync_finish(engine);
    }
    return status;
}
