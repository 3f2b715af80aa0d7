/* Simulates steps of a rank, in the engine's order (walk.c, reduce.c, sync.c and update.c in trainer/engine).
 * The first steps do not count, since each step leaves work to the next one. The result is the mean of many
 * steps of varied lengths, as real ones are: all later times change if a layer's weights arrive just after
 * they are needed instead of just before. */
#include <math.h>
#include <stdlib.h>

#include "trainer/engine/engine.h"
#include "trainer/plan/machine.h"
#include "trainer/plan/plan.h"

#define FIRST_STEPS 4
#define STEPS 64 /* even */
/* Units take more or less time than their mean by up to this share. */
#define VARIATION 0.2

/* The measured share of the update in norm and update together. */
#define UPDATE_SHARE 0.4

/* Seconds of a core that codecs take per parameter of a unit. Gather and reduce run on the progress thread,
 * sync runs on the compute thread. */
typedef struct codecs_work {
    double gather_encode, gather_decode, reduce_encode, reduce_decode;
    double sync_encode, sync_decode;
} codecs_work_t;

typedef struct timeline {
    const tw_train_options_t *options;
    const tw_plan_cluster_t *cluster;
    const tw_plan_traffic_t *traffic;
    tw_plan_machine_t machine;
    codecs_work_t codecs;
    int has_replicas;
    size_t n_layer, n_units, n_slots, n_visits; /* visits of one micro-batch */
    double *compute;                            /* [n_visits] seconds of a core */
    double *n_elems;                            /* [n_units] */
    tw_plan_op_t *gathers;                   /* [n_visits]; in stages 1 and 2 [n_units], after the update */
    tw_plan_op_t *reduces, *lengths, *syncs; /* [n_units] */
    tw_plan_op_t *momenta, *answers;         /* [n_units] Muon's exchanges, to the owners and back */
    double *muon_products;   /* [n_units] multiplications on a rank; 0: the unit has no matrix of Muon's */
    double muon_product_sec; /* seconds of a core for one multiplication */
    tw_plan_op_t report;
    size_t asked; /* visits of the micro-batch whose gathers are posted */
    /* how many of the `asked` visits, and of those before the current one, are of blocks, not of the root */
    size_t blocks_asked, blocks_left;
    /* numbers of units whose changes are in the replica, are sent, or are ready to send */
    size_t synced, sync_posted, sync_due;
    uint32_t random;
    /* variation of this step; the next step has the opposite, so that the mean is right */
    double variation;
} timeline_t;

static int is_backward(const timeline_t *tl, size_t visit)
{
    return visit > tl->n_layer;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static tw_plan_op_t op_of(const timeline_t *tl, const tw_plan_flow_t *flow)
{
    const tw_plan_cluster_t *cluster = tl->cluster;
    double n_nodes = cluster->n_nodes, ranks = n_nodes * cluster->ranks_per_node;
    double handling = flow->messages * cluster->message_sec +
                      flow->inter_node / ranks * cluster->inter_byte_sec +
                      flow->in_node / ranks * cluster->in_byte_sec;
    return (tw_plan_op_t){.send_sec = handling / 2.0,
                          .receive_sec = handling / 2.0,
                          .delay_sec = cluster->delay_sec,
                          .link_sec = flow->inter_node * 8.0 / (cluster->link_bps * n_nodes)};
}

static void timeline_post(timeline_t *tl, tw_plan_op_t *op, const tw_plan_flow_t *flow)
{
    *op = op_of(tl, flow);
    tw_plan_machine_post(&tl->machine, op);
}

/** Post a gather, from all ranks or from the replicas of the node. */
static void post_gather(timeline_t *tl, tw_plan_op_t *op, size_t unit, int is_first)
{
    const tw_plan_unit_t *plan = &tl->traffic->units[unit];
    int is_coded = is_first || !tl->has_replicas; /* a gather from replicas is plain */
    *op = op_of(tl, is_first ? &plan->gather : &plan->gather_again);
    if (is_coded) {
        op->send_sec += tl->codecs.gather_encode * tl->n_elems[unit];
        op->receive_sec += tl->codecs.gather_decode * tl->n_elems[unit];
    }
    if (tl->cluster->ranks_per_node > 1) {
        op->delay_sec += tl->n_elems[unit] * 16.0 / tl->cluster->in_node_bps;
    }
    tw_plan_machine_post(&tl->machine, op);
}

static void post_reduce(timeline_t *tl, size_t unit)
{
    tw_plan_op_t *op = &tl->reduces[unit];
    if (tl->options->stage >= 2 && unit != TW_MODEL_ROOT && unit + TW_ENGINE_REDUCE_SLOTS <= tl->n_layer) {
        tw_plan_machine_wait(&tl->machine, &tl->reduces[unit + TW_ENGINE_REDUCE_SLOTS]);
    }
    *op = op_of(tl, &tl->traffic->units[unit].reduce);
    op->send_sec += tl->codecs.reduce_encode * tl->n_elems[unit];
    op->receive_sec += tl->codecs.reduce_decode * tl->n_elems[unit];
    tw_plan_machine_post(&tl->machine, op);
}

/* ---- changes of replicas ------------------------------------------------------------------------------- */

/** Send changes whose lengths have arrived, in order, and apply changes that have arrived to the replicas. */
static void advance_syncs(timeline_t *tl)
{
    while (tl->sync_posted < tl->sync_due && tw_plan_op_is_done(&tl->lengths[tl->sync_posted])) {
        timeline_post(tl, &tl->syncs[tl->sync_posted], &tl->traffic->units[tl->sync_posted].sync);
        tl->sync_posted++;
    }
    while (tl->synced < tl->sync_posted && tw_plan_op_is_done(&tl->syncs[tl->synced])) {
        tw_plan_machine_compute(&tl->machine, tl->codecs.sync_decode * tl->n_elems[tl->synced]);
        tl->synced++;
    }
}

static void begin_sync(timeline_t *tl, size_t unit)
{
    tw_plan_machine_compute(&tl->machine, tl->codecs.sync_encode * tl->n_elems[unit]);
    if (tw_quant_form(&tl->options->codecs.delta) == TW_QUANT_CHANGE) {
        timeline_post(tl, &tl->lengths[unit], &tl->traffic->units[unit].lengths);
    }
    tl->sync_due++;
    advance_syncs(tl);
}

static void need_sync(timeline_t *tl, size_t unit)
{
    advance_syncs(tl);
    while (tl->synced <= unit && tl->synced < tl->sync_due) {
        const tw_plan_op_t *op =
            tl->synced < tl->sync_posted ? &tl->syncs[tl->synced] : &tl->lengths[tl->synced];
        tw_plan_machine_wait(&tl->machine, op);
        advance_syncs(tl);
    }
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/** Return 1 if the next gather can be posted: a slot is free, and the weights to gather are there. */
static int may_ask(const timeline_t *tl, size_t visit, int is_first_micro)
{
    size_t unit = tw_engine_visited(tl->n_layer, tl->asked);
    if (tl->asked == visit) {
        return 1;
    }
    if (unit == TW_MODEL_ROOT ? visit == 0 : tl->blocks_asked - tl->blocks_left >= tl->n_slots) {
        return 0;
    }
    /* the forward visit of this unit fills its replica, and has not come yet */
    int fills_later = is_first_micro && is_backward(tl, tl->asked) && unit > visit;
    return tl->options->codecs.has_delta ? unit < tl->synced : !tl->has_replicas || !fills_later;
}

static void ask_ahead(timeline_t *tl, size_t visit, int is_first_micro)
{
    while (tl->asked < tl->n_visits && may_ask(tl, visit, is_first_micro)) {
        size_t unit = tw_engine_visited(tl->n_layer, tl->asked);
        if (tl->options->codecs.has_delta) {
            need_sync(tl, unit);
        }
        post_gather(tl, &tl->gathers[tl->asked], unit, is_first_micro && !is_backward(tl, tl->asked));
        tl->blocks_asked += unit != TW_MODEL_ROOT;
        tl->asked++;
    }
}

static void timeline_enter(timeline_t *tl, size_t visit, int is_first_micro)
{
    if (tl->options->stage < 3) {
        tw_plan_machine_wait(&tl->machine, &tl->gathers[tw_engine_visited(tl->n_layer, visit)]);
        return;
    }
    advance_syncs(tl);
    if (tl->asked == visit) {
        ask_ahead(tl, visit, is_first_micro);
    }
    tw_plan_machine_wait(&tl->machine, &tl->gathers[visit]);
    ask_ahead(tl, visit, is_first_micro);
}

static double vary(timeline_t *tl, double sec)
{
    tl->random = tl->random * 1664525u + 1013904223u;
    return sec * (1.0 + tl->variation * ((double)(tl->random >> 8) * 0x1p-23 - 1.0));
}

static void timeline_micro_batch(timeline_t *tl, int is_first, int is_last)
{
    tl->asked = tl->blocks_asked = tl->blocks_left = 0;
    for (size_t visit = 0; visit < tl->n_visits; visit++) {
        size_t unit = tw_engine_visited(tl->n_layer, visit);
        timeline_enter(tl, visit, is_first);
        tw_plan_machine_compute(&tl->machine, vary(tl, tl->compute[visit]));
        tl->blocks_left += unit != TW_MODEL_ROOT;
        if (is_last && is_backward(tl, visit) && unit != TW_MODEL_ROOT) {
            post_reduce(tl, unit);
        }
    }
    if (is_last) {
        post_reduce(tl, TW_MODEL_ROOT);
    }
}

/* ---- a step -------------------------------------------------------------------------------------------- */

/** Return the seconds of norm and update together, per element. */
static double finish_elem_sec(const timeline_t *tl)
{
    double n_elems = 0.0;
    for (size_t unit = 0; unit < tl->n_units; unit++) {
        n_elems += tl->n_elems[unit];
    }
    return tl->cluster->update_sec / n_elems;
}

/** Wait for a unit's reduced gradients, and compute their part of the norm. */
static void take_norm(timeline_t *tl, size_t unit)
{
    tw_plan_machine_wait(&tl->machine, &tl->reduces[unit]);
    tw_plan_machine_compute(&tl->machine, (1.0 - UPDATE_SHARE) * finish_elem_sec(tl) * tl->n_elems[unit]);
}

static int is_muons(const timeline_t *tl, const tw_model_tensor_t *tensor)
{
    tw_train_group_t group;
    tw_status_t status = tw_train_group_of(tl->options->groups, tensor->name, &group);
    return status == TW_OK && tw_engine_is_muons(tl->options, tensor, group.is_frozen);
}

/** Count the multiplications for a unit's matrices: five times a = x x', a a, and their sum times x. A rank
 *  has an even share of them, or the largest matrix if that is more. */
static double count_muon_products(const timeline_t *tl, const tw_model_t *model, size_t unit)
{
    size_t n;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n);
    const tw_model_unit_t *of = tw_model_unit_get(model, unit);
    double world = tl->cluster->n_nodes * tl->cluster->ranks_per_node, all = 0.0, largest = 0.0;
    for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
        double rows = (double)tensors[t].shape[0], cols = (double)tensors[t].shape[1];
        double small = fmin(rows, cols), large = fmax(rows, cols);
        double one = is_muons(tl, &tensors[t]) ? 5.0 * small * small * (2.0 * large + small) : 0.0;
        all += one;
        largest = fmax(largest, one);
    }
    return fmax(largest, all / world);
}

static int has_momenta(const timeline_t *tl, size_t unit)
{
    return tl->muon_products[unit] > 0.0;
}

/** Post momenta one way. In stage 0 they only come from the owners; else half of the bytes go each way. */
static void post_momenta(timeline_t *tl, tw_plan_op_t *op, size_t unit)
{
    tw_plan_flow_t flow = tl->traffic->units[unit].muon;
    double share = tl->options->stage > 0 ? 0.5 : 1.0;
    flow = (tw_plan_flow_t){share * flow.inter_node, share * flow.in_node, share * flow.messages};
    timeline_post(tl, op, &flow);
}

static void answer_momenta(timeline_t *tl, size_t unit)
{
    if (has_momenta(tl, unit)) {
        tw_plan_machine_wait(&tl->machine, &tl->momenta[unit]);
        tw_plan_machine_compute(&tl->machine, tl->muon_product_sec * tl->muon_products[unit]);
        post_momenta(tl, &tl->answers[unit], unit);
    }
}

static void end_unit(timeline_t *tl, size_t unit)
{
    if (has_momenta(tl, unit)) {
        tw_plan_machine_wait(&tl->machine, &tl->answers[unit]);
    }
    if (tl->options->codecs.has_delta) {
        begin_sync(tl, unit);
    } else if (tl->options->stage == 1 || tl->options->stage == 2) {
        post_gather(tl, &tl->gathers[unit], unit, 1);
    }
}

/** Update all units. In stage 0 a rank updates whole units, though it computes the norm of a part only. With
 *  Muon a unit ends when two more units have begun. */
static void timeline_update(timeline_t *tl)
{
    double world = tl->cluster->n_nodes * tl->cluster->ranks_per_node;
    double elem_sec = UPDATE_SHARE * finish_elem_sec(tl) * (tl->options->stage == 0 ? world : 1.0);
    size_t behind = tl->options->optimizer == TW_TRAIN_MUON ? TW_ENGINE_MUON_PLACES - 1 : 0;
    tl->synced = tl->sync_posted = tl->sync_due = 0;
    for (size_t unit = 0; unit < tl->n_units + behind; unit++) {
        if (unit < tl->n_units) {
            tw_plan_machine_compute(&tl->machine, elem_sec * tl->n_elems[unit]);
        }
        if (unit < tl->n_units && has_momenta(tl, unit) && tl->options->stage > 0) {
            post_momenta(tl, &tl->momenta[unit], unit);
        }
        if (behind > 0 && unit >= 1 && unit <= tl->n_units) {
            answer_momenta(tl, unit - 1);
        }
        if (unit >= behind) {
            end_unit(tl, unit - behind);
        }
    }
}

static void one_step(timeline_t *tl)
{
    int64_t n_micros = tl->options->accumulation;
    for (int64_t micro = 0; micro < n_micros; micro++) {
        timeline_micro_batch(tl, micro == 0, micro + 1 == n_micros);
    }
    for (size_t unit = TW_MODEL_ROOT + 1; unit < tl->n_units; unit++) {
        take_norm(tl, unit);
    }
    take_norm(tl, TW_MODEL_ROOT); /* the root's gradients come last */
    timeline_post(tl, &tl->report, &tl->traffic->report);
    tw_plan_machine_wait(&tl->machine, &tl->report);
    timeline_update(tl);
}

/** Return the seconds of codecs in a step. A micro-batch has two gathers of each unit. Replicas serve all
 *  gathers except the step's first. */
static double codec_sec(const timeline_t *tl)
{
    const codecs_work_t *work = &tl->codecs;
    double n_gathers =
        tl->has_replicas || tl->options->stage < 3 ? 1.0 : 2.0 * (double)tl->options->accumulation;
    double n_elems = 0.0;
    for (size_t unit = 0; unit < tl->n_units; unit++) {
        n_elems += tl->n_elems[unit];
    }
    return n_elems * (n_gathers * (work->gather_encode + work->gather_decode) + work->reduce_encode +
                      work->reduce_decode + work->sync_encode + work->sync_decode);
}

static void timeline_run(timeline_t *tl, tw_plan_time_t *out)
{
    double begin = 0.0;
    uint32_t random = 1;
    for (int step = 0; step < FIRST_STEPS + STEPS; step++) {
        if (step == FIRST_STEPS) {
            begin = tl->machine.now;
            tl->machine.waited = 0.0;
        }
        random = step % 2 == 0 ? tl->random : random;
        tl->random = random;
        tl->variation = step % 2 == 0 ? VARIATION : -VARIATION;
        one_step(tl);
    }
    *out = (tw_plan_time_t){.step_sec = (tl->machine.now - begin) / STEPS,
                            .wait_sec = tl->machine.waited / STEPS,
                            .codec_sec = codec_sec(tl)};
}

/* ---- setting up ---------------------------------------------------------------------------------------- */

/** Divide the computing time over visits. A block takes two thirds of its time in the backward pass. The
 *  root's time is all for the head's products. */
static void share_compute(timeline_t *tl, const tw_model_t *model, double compute_sec)
{
    size_t sequence = (size_t)tl->options->sequence;
    double head = tw_model_unit_products(model, TW_MODEL_ROOT, sequence);
    double block = tw_model_unit_products(model, 1, sequence);
    double all = head + (double)tl->n_layer * block;
    double micro_sec = fmax(compute_sec - tl->cluster->update_sec, 0.0) / (double)tl->options->accumulation;
    if (tl->options->optimizer ==
        TW_TRAIN_MUON) { /* as fast as the model's products: one forward, two backward */
        double tokens = (double)(tl->options->micro_batch * tl->options->sequence);
        tl->muon_product_sec = micro_sec / (3.0 * all * tokens);
    }
    for (size_t visit = 0; visit < tl->n_visits; visit++) {
        double share = tw_engine_visited(tl->n_layer, visit) == TW_MODEL_ROOT
                           ? (visit > 0 ? head : 0.0)
                           : block * (is_backward(tl, visit) ? 2.0 : 1.0) / 3.0;
        tl->compute[visit] = micro_sec * share / all;
    }
}

/** Compute the work of codecs. A rank encodes its own shard of weights and changes, and the gradients that
 *  leave its node. It decodes all weights, and gradients and changes for its shard, but not its own lossless
 *  changes. */
static codecs_work_t codecs_work(const tw_train_options_t *o, const tw_plan_cluster_t *cluster)
{
    double n_nodes = cluster->n_nodes, ranks = n_nodes * cluster->ranks_per_node;
    tw_plan_speed_t weights = cluster->codecs[o->codecs.weights.kind];
    tw_plan_speed_t gradients = cluster->codecs[o->codecs.gradients.kind];
    tw_plan_speed_t delta = cluster->codecs[o->codecs.delta.kind];
    double n_decoded = tw_quant_form(&o->codecs.delta) == TW_QUANT_CHANGE ? n_nodes - 1.0 : n_nodes;
    return (codecs_work_t){.gather_encode = weights.encode_sec / ranks,
                           .gather_decode = weights.decode_sec,
                           .reduce_encode = gradients.encode_sec * n_nodes / ranks,
                           .reduce_decode = gradients.decode_sec * n_nodes / ranks,
                           .sync_encode = delta.encode_sec / ranks,
                           .sync_decode = delta.decode_sec * n_decoded / ranks};
}

static void timeline_init(timeline_t *tl, const tw_model_t *model, double *numbers, tw_plan_op_t *ops)
{
    const tw_plan_cluster_t *cluster = tl->cluster;
    tl->n_slots = tw_engine_block_slots(tl->options, model);
    tl->has_replicas = tl->options->hpz == TW_TRAIN_HPZ_ON;
    tl->machine.cores = cluster->cores > 0.0 ? cluster->cores / cluster->ranks_per_node : 1.0;
    /* 0 if the rate is infinite */
    tl->machine.burst_sec = cluster->link_burst_bytes * 8.0 / cluster->link_bps;
    tl->codecs = codecs_work(tl->options, cluster);
    tl->compute = numbers;
    tl->n_elems = numbers + tl->n_visits;
    tl->muon_products = tl->n_elems + tl->n_units;
    tl->gathers = ops;
    tl->reduces = ops + tl->n_visits;
    tl->lengths = tl->reduces + tl->n_units;
    tl->syncs = tl->lengths + tl->n_units;
    tl->momenta = tl->syncs + tl->n_units;
    tl->answers = tl->momenta + tl->n_units;
    for (size_t unit = 0; unit < tl->n_units; unit++) {
        tl->n_elems[unit] = (double)tw_model_unit_get(model, unit)->n_elems;
        tl->muon_products[unit] = count_muon_products(tl, model, unit);
    }
}

tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out)
{
    tw_plan_traffic_t traffic;
    TW_TRY(tw_plan_traffic_of(options, model, cluster, &traffic));
    size_t n_units = tw_model_n_units(model), n_visits = 2 * n_units, n_ops = n_visits + 5 * n_units;
    timeline_t tl = {.options = options,
                     .cluster = cluster,
                     .traffic = &traffic,
                     .n_layer = n_units - 1,
                     .n_units = n_units,
                     .n_visits = n_visits};
    double *numbers = calloc(n_visits + 2 * n_units, sizeof(*numbers));
    tw_plan_op_t *ops = calloc(n_ops, sizeof(*ops));
    tl.machine.under_way = calloc(n_ops + 1, sizeof(tw_plan_op_t *));
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (numbers && ops && tl.machine.under_way) {
        timeline_init(&tl, model, numbers, ops);
        share_compute(&tl, model, compute_sec);
        timeline_run(&tl, out);
        status = TW_OK;
    } else {
        tw_error("plan: out of memory");
    }
    free(tl.machine.under_way);
    free(ops);
    free(numbers);
    tw_plan_traffic_cleanup(&traffic);
    return status;
}
