/* Replicas that follow the masters: the changes of all units, in order, as many under way as there is room
 * for. A unit's sync begins when its master is new and there is room; nobody waits for it but who needs that
 * unit.
 *
 * What is left of it when nothing else waits, for a million own weights: computing, coding at 0.7 to 1 GB/s
 * of bf16 and decoding the other nodes' at 1.3 to 1.9, about 2.5 ms + 1.3 ms * (N - 1) of a core for a
 * lossless delta; and on the wire, behind other computing, its bits: 0.25 MB at 2 bits, 2 ms at 1 Gb/s, where
 * plain ZeRO-3 sends 4 MB. Before the first layer there remain the root's lengths and message: two times the
 * link's latency. */
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

/** It is done: until the unit is gathered nobody needs its replica, and until the next sync nobody its
 *  previous changes. */
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

/** Where they are newest. */
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
        if (sync->kind != TW_HPZ_FULL) { /* a load's is not what training takes */
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
