/* A step on a rank's processor and its node's link, each doing one thing after the other. Some steps go by, so that what one
 * leaves behind for the next is seen; the last one counts. */
#include <stdlib.h>

#include "trainer/plan/layout.h"
#include "trainer/plan/plan.h"

#define STEPS 4

/* What moving a parameter of a unit costs a rank's processor: seconds a parameter. */
typedef struct work {
    double gather, gather_again, reduce, sync_out, sync_in;
} work_t;

typedef struct timeline {
    const tw_train_options_t *options;
    const tw_plan_traffic_t *traffic;
    size_t n_layer, n_slots, n_visits; /* visits of one micro-batch */
    double *compute;                   /* [n_visits] seconds */
    double inter_sec, in_sec; /* a byte of all ranks' on the link; an element gathered inside the node */
    double *n_elems;          /* [n_units] */
    work_t work;
    double *arrived;          /* [n_visits] when its weights are there */
    double *synced;           /* [n_units] when the unit's changes, or weights, have come */
    double *applied;          /* [n_units] 1: they are in the replica */
    double now, link, waited; /* processor, link free from, idle so far */
} timeline_t;

static size_t unit_at(const timeline_t *tl, size_t visit)
{
    return visit == 0 || visit == tl->n_layer + 1 ? TW_MODEL_ROOT
           : visit <= tl->n_layer                 ? visit
                                                  : 2 * tl->n_layer + 2 - visit;
}

static int is_again(const timeline_t *tl, size_t visit)
{
    return visit > tl->n_layer;
}

/* The link takes what is asked of it in turn. Returns when it is done. */
static double transfer(timeline_t *tl, double asked_at, double bytes)
{
    double begin = tl->link > asked_at ? tl->link : asked_at;
    tl->link = bytes > 0.0 ? begin + bytes * tl->inter_sec : tl->link;
    return bytes > 0.0 ? tl->link : asked_at;
}

static void wait_until(timeline_t *tl, double when)
{
    if (when > tl->now) {
        tl->waited += when - tl->now;
        tl->now = when;
    }
}

static void work_for(timeline_t *tl, double sec_per_elem, size_t unit)
{
    tl->now += sec_per_elem * tl->n_elems[unit];
}

/* Gathers are asked for when the visit n_slots - 1 before theirs begins, or at the beginning. */
static void ask(timeline_t *tl, size_t visit, int is_first_micro)
{
    size_t unit = unit_at(tl, visit);
    const tw_plan_unit_t *plan = &tl->traffic->units[unit];
    double bytes = is_again(tl, visit) ? plan->gather_again : plan->gather;
    if (tl->options->stage < 3) {
        tl->arrived[visit] = tl->synced[unit];
        return;
    }
    if (!is_first_micro && tl->options->hpz == TW_TRAIN_HPZ_ON) {
        bytes = 0.0;
    }
    if (tl->synced[unit] > 0.0 && !tl->applied[unit]) { /* a replica is gathered once its changes are in it */
        wait_until(tl, tl->synced[unit]);
        work_for(tl, tl->work.sync_in, unit);
        tl->applied[unit] = 1.0;
    }
    tl->arrived[visit] = transfer(tl, tl->now, bytes) + tl->n_elems[unit] * tl->in_sec;
}

/* Ahead of need: nobody waits for changes. */
static int may_ask(const timeline_t *tl, size_t visit)
{
    return tl->options->stage < 3 || tl->synced[unit_at(tl, visit)] <= tl->now;
}

static void reduce(timeline_t *tl, size_t unit)
{
    work_for(tl, tl->work.reduce, unit);
    transfer(tl, tl->now, tl->traffic->units[unit].reduce);
}

static void micro_batch(timeline_t *tl, int is_first, int is_last)
{
    size_t asked = 0;
    for (size_t visit = 0; visit < tl->n_visits; visit++) {
        size_t unit = unit_at(tl, visit);
        while (asked < tl->n_visits && asked < visit + tl->n_slots &&
               (asked == visit || may_ask(tl, asked))) {
            ask(tl, asked++, is_first);
        }
        wait_until(tl, tl->arrived[visit]);
        work_for(tl, is_again(tl, visit) ? tl->work.gather_again : tl->work.gather, unit);
        tl->now += tl->compute[visit];
        if (is_last && is_again(tl, visit) && unit != TW_MODEL_ROOT) {
            reduce(tl, unit);
        }
    }
    if (is_last) {
        reduce(tl, TW_MODEL_ROOT);
    }
}

static void one_step(timeline_t *tl)
{
    int64_t n_micros = tl->options->accumulation;
    for (int64_t micro = 0; micro < n_micros; micro++) {
        micro_batch(tl, micro == 0, micro + 1 == n_micros);
    }
    wait_until(tl, transfer(tl, tl->now, tl->traffic->report));
    wait_until(tl, tl->link); /* the norm needs all gradients */
    for (size_t u = 0; u < tl->traffic->n_units; u++) {
        const tw_plan_unit_t *unit = &tl->traffic->units[u];
        double bytes = unit->sync + (tl->options->stage < 3 ? unit->gather : 0.0);
        work_for(tl, tl->work.sync_out, u);
        tl->synced[u] = transfer(tl, tl->now, bytes);
        tl->applied[u] = unit->sync > 0.0 ? 0.0 : 1.0;
    }
}

/* Blocks take two thirds of their time backwards; the root's is the head's products. */
static void share_compute(timeline_t *tl, const tw_model_t *model, double compute_sec)
{
    const tw_model_config_t *config = tw_model_config_get(model);
    double head = (double)config->vocab_size * (double)config->n_embd, c = (double)config->n_embd;
    double block = 12.0 * c * c + c * (double)tl->options->sequence;
    double all = head + (double)tl->n_layer * block;
    double micro_sec = compute_sec / (double)tl->options->accumulation;
    for (size_t visit = 0; visit < tl->n_visits; visit++) {
        double part = unit_at(tl, visit) == TW_MODEL_ROOT ? (visit > 0 ? head : 0.0)
                                                          : block * (is_again(tl, visit) ? 2.0 : 1.0) / 3.0;
        tl->compute[visit] = micro_sec * part / all;
    }
}

static void run(timeline_t *tl, tw_plan_time_t *out)
{
    double begin = 0.0;
    for (int step = 0; step < STEPS; step++) {
        begin = tl->now;
        tl->waited = 0.0;
        one_step(tl);
    }
    *out = (tw_plan_time_t){.step_sec = tl->now - begin, .wait_sec = tl->waited};
}

/* Codecs take the same time for what goes out and for what comes in on each rank's own part and on those of the others. */
static work_t work_of(const tw_train_options_t *o, const tw_plan_cluster_t *cluster)
{
    double n_nodes = cluster->n_nodes, ranks = n_nodes * cluster->ranks_per_node,
           pass = cluster->handling_sec;
    const tw_plan_speed_t *weights = &cluster->codecs[TW_PLAN_INT8];
    const tw_plan_speed_t *gradients = &cluster->codecs[o->gradient_bits == 8 ? TW_PLAN_INT8 : TW_PLAN_INT4];
    const tw_plan_speed_t *delta = &cluster->codecs[o->delta_exact       ? TW_PLAN_EXACT
                                                    : o->delta_bits == 2 ? TW_PLAN_INT2
                                                    : o->delta_bits == 4 ? TW_PLAN_INT4
                                                                         : TW_PLAN_INT8];
    work_t work = {.gather = o->stage > 0 ? pass : 0.0,
                   .gather_again = o->stage == 3 ? pass : 0.0,
                   .reduce = o->stage > 0 ? pass : 2.0 * pass};
    if (o->quantized_weights) {
        double quantized = weights->encode_sec / ranks + weights->decode_sec;
        work.gather += quantized;
        work.gather_again += o->hpz == TW_TRAIN_HPZ_ON ? 0.0 : quantized;
    }
    if (o->quantized_gradients) {
        work.reduce += (gradients->encode_sec + gradients->decode_sec) * n_nodes / ranks;
    }
    if (o->delta_exact || o->delta_bits > 0) {
        work.sync_out = delta->encode_sec / ranks;
        work.sync_in = delta->decode_sec * n_nodes / ranks;
    }
    return work;
}

static void timeline_init(timeline_t *tl, const tw_model_t *model, const tw_plan_cluster_t *cluster,
                          double *memory)
{
    size_t n_units = tw_model_n_units(model);
    tl->n_slots = tw_plan_block_slots(tl->options, tw_model_unit_get(model, TW_MODEL_ROOT)->n_elems,
                                      tw_model_unit_get(model, 1)->n_elems, tl->n_layer);
    tl->inter_sec = 8.0 / (cluster->link_bps * cluster->n_nodes);
    tl->in_sec = cluster->ranks_per_node > 1 ? 16.0 / cluster->in_node_bps : 0.0;
    tl->compute = memory;
    tl->arrived = memory + tl->n_visits;
    tl->synced = memory + 2 * tl->n_visits;
    tl->applied = tl->synced + n_units;
    tl->n_elems = tl->applied + n_units;
    tl->work = work_of(tl->options, cluster);
    for (size_t u = 0; u < n_units; u++) {
        tl->n_elems[u] = (double)tw_model_unit_get(model, u)->n_elems;
    }
}

tw_status_t tw_plan_time_of(const tw_train_options_t *options, const tw_model_t *model,
                            const tw_plan_cluster_t *cluster, double compute_sec, tw_plan_time_t *out)
{
    tw_plan_traffic_t traffic;
    tw_status_t status = tw_plan_traffic_of(options, model, cluster, &traffic);
    if (status != TW_OK) {
        return status;
    }
    size_t n_units = tw_model_n_units(model), n_layer = n_units - 1;
    timeline_t tl = {
        .options = options, .traffic = &traffic, .n_layer = n_layer, .n_visits = 2 * n_layer + 2};
    double *memory = calloc(2 * tl.n_visits + 3 * n_units, sizeof(*memory));
    if (memory) {
        timeline_init(&tl, model, cluster, memory);
        share_compute(&tl, model, compute_sec);
        run(&tl, out);
    } else {
        tw_error("plan: out of memory");
        status = TW_ERR_NO_MEMORY;
    }
    free(memory);
    tw_plan_traffic_cleanup(&traffic);
    return status;
}
