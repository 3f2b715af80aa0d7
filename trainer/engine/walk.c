/* Walks through the units. In stage 3 each unit is gathered ahead of need into one of a few slots. A slot is
 * free again when the visit ends.
 *
 *  visits of a micro-batch:  root  1  2 ... n  root  n ... 2  1       (forward only: root  1 ... n  root)
 *  a unit comes from:
 *      stage 3           all ranks, at every visit
 *      hpZ               all ranks at the first visit after an update, which also fills the replica; later
 *                        the replicas of the node
 *      delta             the replicas of the node; replicas on the model's device fill slots there
 *      frozen tensors    the copies that groups.c gathered once; with a delta like other tensors
 *      stages 1 and 2    the gather that followed the update; a visit only waits for it */
#include <string.h>

#include "trainer/engine/calls.h"

static size_t unit_at(const tw_engine_t *engine, size_t visit)
{
    return tw_engine_visited(engine->n_layer, visit % engine->walk.period);
}

static tw_engine_slot_t *slot_of(tw_engine_t *engine, size_t unit, size_t n_blocks_before)
{
    return unit == TW_MODEL_ROOT ? &engine->root_slot
                                 : &engine->block_slots[n_blocks_before % engine->n_block_slots];
}

/* ---- advice on files ----------------------------------------------------------------------------------- */

/** Give advice on the memory that a unit is gathered from: its shard and replica. */
static void advise_shard(const tw_engine_t *engine, size_t index,
                         void (*advise)(const tw_engine_t *, const void *, size_t))
{
    const tw_engine_unit_t *unit = &engine->units[index];
    if (unit->shard) {
        advise(engine, unit->shard, unit->shard_elems * tw_type_bytes(engine->weight_type));
    }
    if (engine->has_replicas) {
        advise(engine, tw_hpz_replica(engine->hpz, (int)index),
               tw_sync_replica_elems(engine, index) * tw_type_bytes(engine->weight_type));
    }
}

/* ---- posting gathers ----------------------------------------------------------------------------------- */

static tw_status_t ask_world(tw_engine_t *engine, size_t index, tw_engine_slot_t *slot)
{
    tw_engine_unit_t *unit = &engine->units[index];
    tw_coll_args_t args;
    tw_hpz_gather_args(engine->hpz, (int)index, engine->weight_type, unit->shard, slot->elems, &args);
    tw_engine_encode(engine, &engine->codecs.weights, &args);
    args.seed = (uint64_t)engine->options->seed;
    args.step = (uint32_t)engine->version;
    slot->filled = slot->elems;
    if (engine->kept && tw_groups_leave_out(engine, &args) == 0) {
        return TW_OK;
    }
    return tw_engine_post(engine, &slot->ops, &args, INT64_MAX, &unit->planned_gather);
}

static tw_status_t ask_node(tw_engine_t *engine, size_t index, tw_engine_slot_t *slot)
{
    tw_coll_request_t *request;
    tw_status_t status = tw_sync_need(engine, index);
    slot->filled = engine->has_near_replicas ? slot->near : slot->elems;
    if (status == TW_OK) {
        status = tw_hpz_gather_post(engine->hpz, (int)index, engine->version, slot->filled, &request);
    }
    return status == TW_OK ? tw_engine_note(engine, &slot->ops, request) : status;
}

static int is_in_node(const tw_engine_t *engine, size_t unit)
{
    return engine->codecs.has_delta ||
           (engine->has_replicas && tw_hpz_version(engine->hpz, (int)unit) == engine->version);
}

/** Return 1 if the next gather may be posted: a slot is free, and the weights that it reads are ready. */
static int may_ask(const tw_engine_t *engine)
{
    const tw_engine_walk_t *walk = &engine->walk;
    if (walk->asked == walk->n_visits) {
        return 0;
    }
    size_t unit = unit_at(engine, walk->asked);
    if (unit == TW_MODEL_ROOT ? walk->root_asked > walk->root_left
                              : walk->block_asked - walk->block_left >= engine->n_block_slots) {
        return 0;
    }
    if (walk->asked == walk->at || !engine->has_replicas) {
        return 1;
    }
    /* without a delta, a second visit can use the replica only after the first visit has filled it */
    int is_second = walk->asked % walk->period > engine->n_layer;
    return engine->codecs.has_delta ? unit < engine->sync.done : !is_second || is_in_node(engine, unit);
}

static tw_status_t ask_ahead(tw_engine_t *engine)
{
    tw_engine_walk_t *walk = &engine->walk;
    tw_status_t status = TW_OK;
    while (status == TW_OK && may_ask(engine)) {
        size_t unit = unit_at(engine, walk->asked);
        tw_engine_slot_t *slot = slot_of(engine, unit, walk->block_asked);
        status = is_in_node(engine, unit) ? ask_node(engine, unit, slot) : ask_world(engine, unit, slot);
        *(unit == TW_MODEL_ROOT ? &walk->root_asked : &walk->block_asked) += 1;
        walk->asked++;
        if (walk->asked < walk->n_visits) {
            advise_shard(engine, unit_at(engine, walk->asked), tw_engine_fetch);
        }
    }
    return status;
}

/* ---- visiting ------------------------------------------------------------------------------------------ */

void tw_walk_begin(tw_engine_t *engine, size_t n_micros, int forward_only)
{
    size_t period = (forward_only ? 1 : 2) * engine->n_layer + 2;
    engine->walk = (tw_engine_walk_t){.n_visits = n_micros * period, .period = period};
}

void tw_walk_point_at(tw_engine_t *engine, size_t unit, const void *whole)
{
    size_t first = engine->units[unit].first_tensor;
    for (size_t t = 0; t < engine->units[unit].n_tensors; t++) {
        size_t at = tw_hpz_full_piece(tw_hpz_layout(engine->hpz), first + t).offset;
        engine->weight_ptrs[t] = tw_engine_weight_at(engine, whole, at);
    }
}

tw_status_t tw_walk_enter(tw_engine_t *engine)
{
    tw_engine_walk_t *walk = &engine->walk;
    size_t unit = unit_at(engine, walk->at);
    if (engine->stage < 3) {
        tw_walk_point_at(engine, unit, engine->units[unit].weights);
        return tw_engine_wait(engine, &engine->units[unit].gather);
    }
    tw_engine_slot_t *slot = slot_of(engine, unit, walk->block_left);
    tw_status_t status = tw_sync_advance(engine);
    if (status == TW_OK && walk->asked == walk->at) {
        status = ask_ahead(engine);
    }
    status = status == TW_OK ? tw_engine_wait(engine, &slot->ops) : status;
    if (status == TW_OK && engine->has_replicas && !is_in_node(engine, unit)) {
        tw_frozen_copy(engine, unit, slot->elems);
        status = tw_hpz_store(engine->hpz, (int)unit, slot->elems, engine->version);
    }
    tw_walk_point_at(engine, unit, slot->filled);
    tw_frozen_point_at(engine, unit);
    return status == TW_OK ? ask_ahead(engine) : status;
}

void tw_walk_leave(tw_engine_t *engine)
{
    tw_engine_walk_t *walk = &engine->walk;
    size_t unit = unit_at(engine, walk->at);
    *(unit == TW_MODEL_ROOT ? &walk->root_left : &walk->block_left) += 1;
    if (engine->stage == 3) {
        advise_shard(engine, unit, tw_engine_put_away);
    }
    walk->at++;
}

static tw_status_t copy_weights(tw_engine_t *engine, void *to, const void *from, size_t n_bytes)
{
    if (engine->has_near_replicas) {
        return tw_model_copy(engine->model, to, from, n_bytes);
    }
    memcpy(to, from, n_bytes);
    return TW_OK;
}

tw_status_t tw_walk_all(tw_engine_t *engine, void *whole)
{
    tw_walk_begin(engine, 1, 1);
    engine->walk.n_visits = engine->n_units;
    for (size_t u = 0; u < engine->n_units; u++) {
        TW_TRY(tw_walk_enter(engine));
        for (size_t t = 0; t < engine->units[u].n_tensors && whole; t++) {
            size_t n_elems = engine->tensors[engine->units[u].first_tensor + t].n_elems;
            TW_TRY(copy_weights(engine, whole, engine->weight_ptrs[t],
                                n_elems * tw_type_bytes(engine->weight_type)));
            whole = tw_engine_weight_at(engine, whole, n_elems);
        }
        tw_walk_leave(engine);
    }
    return TW_OK;
}

tw_status_t tw_engine_drain(tw_engine_t *engine)
{
    tw_status_t status = tw_reduce_finish(engine, NULL);
    for (size_t u = 0; u < engine->n_units && status == TW_OK; u++) {
        status = tw_engine_wait(engine, &engine->units[u].gather);
    }
    return status == TW_OK ? tw_sync_need(engine, engine->n_units - 1) : status;
}
