/* Keeps replicas up to date: sends the changes of all units in order, several units at a time. A unit's sync
 * begins when its masters are updated and hpZ has room for it. Only a gather of that unit waits for it.
 *
 * Cost for a million weights of this rank with N nodes. A lossless delta takes about 2.5 ms + 1.3 ms * (N -
 * 1) of a core: it encodes at 0.7 to 1 GB/s of bf16, and decodes the other nodes' changes at 1.3 to 1.9 GB/s.
 * On the wire 0.25 MB (2 bits a weight) take 2 ms at 1 Gb/s, while other units are computed; plain ZeRO-3
 * sends 4 MB. What cannot overlap is the root's sync before the first block: twice the link's latency,
 * once for the lengths and once for the message. */
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

/** Note that the next unit's sync is done. Its replica is not needed until it is gathered, and its previous
 *  changes are not needed until the next sync, so both may leave memory. */
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

/** Return a unit's up-to-date masters: on the device if is_near, else in host memory. */
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
        if (sync->kind != TW_HPZ_FULL) { /* the full sync after a load is not part of training's peak */
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
