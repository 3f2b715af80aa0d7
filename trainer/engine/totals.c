/* Sums up bytes sent, bytes planned and time waited, in training and apart from it. */
#include "trainer/engine/calls.h"

tw_engine_totals_t tw_engine_totals_get(const tw_engine_t *engine)
{
    tw_hpz_counters_t hpz;
    tw_coll_counters_t coll;
    tw_hpz_counters_get(engine->hpz, &hpz);
    tw_coll_counters_get(engine->coll, &coll);
    return (tw_engine_totals_t){
        .inter_node_bytes = coll.inter_node_bytes - engine->base.inter_node_bytes + hpz.inter_node_bytes,
        .in_node_bytes = coll.in_node_bytes - engine->base.in_node_bytes + hpz.in_node_bytes,
        .planned_inter_node_bytes = engine->planned_bytes + hpz.planned_inter_node_bytes,
        .spared_inter_node_bytes = coll.inter_node_spared_bytes - engine->base.inter_node_spared_bytes,
        .delta_bytes = hpz.delta_bytes,
        .delta_elems = hpz.delta_elems,
        .wait_sec = engine->wait_sec};
}

void tw_engine_totals_add(tw_engine_totals_t *sum, const tw_engine_totals_t *more)
{
    sum->inter_node_bytes += more->inter_node_bytes;
    sum->in_node_bytes += more->in_node_bytes;
    sum->planned_inter_node_bytes += more->planned_inter_node_bytes;
    sum->spared_inter_node_bytes += more->spared_inter_node_bytes;
    sum->delta_bytes += more->delta_bytes;
    sum->delta_elems += more->delta_elems;
    sum->wait_sec += more->wait_sec;
}

tw_engine_totals_t tw_engine_totals_since(const tw_engine_totals_t *after, const tw_engine_totals_t *before)
{
    return (tw_engine_totals_t){
        .inter_node_bytes = after->inter_node_bytes - before->inter_node_bytes,
        .in_node_bytes = after->in_node_bytes - before->in_node_bytes,
        .planned_inter_node_bytes = after->planned_inter_node_bytes - before->planned_inter_node_bytes,
        .spared_inter_node_bytes = after->spared_inter_node_bytes - before->spared_inter_node_bytes,
        .delta_bytes = after->delta_bytes - before->delta_bytes,
        .delta_elems = after->delta_elems - before->delta_elems,
        .wait_sec = after->wait_sec - before->wait_sec};
}

void tw_engine_aside_end(tw_engine_t *engine, tw_engine_aside_t what, const tw_engine_totals_t *begin)
{
    tw_engine_totals_t end = tw_engine_totals_get(engine);
    tw_engine_totals_t spent = tw_engine_totals_since(&end, begin);
    tw_engine_totals_add(&engine->aside[what], &spent);
}

tw_engine_totals_t tw_engine_training_totals(const tw_engine_t *engine)
{
    tw_engine_totals_t totals = tw_engine_totals_get(engine);
    for (int what = 0; what < TW_ENGINE_ASIDE_COUNT; what++) {
        totals = tw_engine_totals_since(&totals, &engine->aside[what]);
    }
    return totals;
}

tw_engine_totals_t tw_engine_aside_totals(const tw_engine_t *engine, tw_engine_aside_t what)
{
    return engine->aside[what];
}
