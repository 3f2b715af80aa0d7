/* Bytes between nodes and inside them. Whatever moves, moves once to each other node, and inside a node once to each other rank:
 * the gathers' and reductions' hierarchies see to it. */
#include <stdlib.h>

#include "quant/quant.h"
#include "trainer/engine/engine.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/plan.h"

/* What each rank tells the next one of every operation, for them to see that they mean the same. */
#define SIGNATURE_BYTES 32.0

typedef struct counting {
    const tw_train_options_t *options;
    const tw_plan_cluster_t *cluster;
    const tw_hpz_layout_t *layout;
    const tw_model_tensor_t *tensors;
} counting_t;

/* All ranks' pieces of a unit. codec NULL: as bf16; tensors of one dimension always are. */
static double pieces_bytes(const counting_t *counting, int unit, const tw_quant_codec_t *codec)
{
    size_t first, n = tw_hpz_layout_tensors(counting->layout, unit, &first);
    const tw_plan_cluster_t *cluster = counting->cluster;
    double bytes = 0.0;
    for (size_t t = first; t < first + n; t++) {
        for (int rank = 0; rank < cluster->n_nodes * cluster->ranks_per_node; rank++) {
            size_t n_elems = tw_hpz_primary_piece(counting->layout, t, rank / cluster->ranks_per_node,
                                                  rank % cluster->ranks_per_node)
                                 .n_elems;
            int is_plain = !codec || counting->tensors[t].n_dims < 2;
            bytes += (double)(is_plain ? 2 * n_elems : tw_quant_encoded_bytes(codec, n_elems));
        }
    }
    return bytes;
}

/* Each to all other nodes. */
static double unit_bytes(const counting_t *counting, int unit, const tw_quant_codec_t *codec)
{
    return pieces_bytes(counting, unit, codec) * (counting->cluster->n_nodes - 1);
}

/* Signatures that leave a node: of an operation of all ranks one, of one along the rails every one. */
static double world_signatures(const tw_plan_cluster_t *cluster)
{
    return cluster->n_nodes > 1 ? SIGNATURE_BYTES * cluster->n_nodes : 0.0;
}

static double rail_signatures(const tw_plan_cluster_t *cluster)
{
    return world_signatures(cluster) * cluster->ranks_per_node;
}

static double gather_bytes(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    const tw_quant_codec_t codec = {.bits = 8, .block = (int)o->weight_block};
    return unit_bytes(counting, unit, o->quantized_weights ? &codec : NULL) +
           world_signatures(counting->cluster);
}

static double reduce_bytes(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    const tw_quant_codec_t codec = {.bits = (int)o->gradient_bits, .block = (int)o->gradient_block};
    double bytes = unit_bytes(counting, unit, o->quantized_gradients ? &codec : NULL);
    double times = o->stage == 0 ? 2.0 : 1.0; /* stage 0 hands the sums round as well */
    return times * bytes + world_signatures(counting->cluster);
}

static double sync_bytes(const counting_t *counting, int unit)
{
    static const int blocks[] = {[2] = 64, [4] = 128, [8] = 2048};
    const tw_train_options_t *o = counting->options;
    const tw_plan_cluster_t *cluster = counting->cluster;
    double signatures = rail_signatures(cluster);
    if (o->delta_exact) { /* lengths first, which the bits a parameter include */
        return unit_bytes(counting, unit, NULL) * cluster->delta_bits / 16.0 + 2.0 * signatures;
    }
    const tw_quant_codec_t codec = {.bits = (int)o->delta_bits,
                                    .block =
                                        (int)(o->delta_block > 0 ? o->delta_block : blocks[o->delta_bits])};
    return o->delta_bits > 0 ? unit_bytes(counting, unit, &codec) + signatures : 0.0;
}

static tw_plan_unit_t plan_unit(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    int has_delta = o->delta_bits > 0 || o->delta_exact;
    tw_plan_unit_t plan = {.reduce = reduce_bytes(counting, unit)};
    if (has_delta) {
        plan.sync = sync_bytes(counting, unit);
    } else if (o->stage > 0) {
        plan.gather = gather_bytes(counting, unit);
        plan.gather_again = o->stage == 3 && o->hpz != TW_TRAIN_HPZ_ON ? plan.gather : 0.0;
    }
    return plan;
}

/* ---- inside the nodes ------------------------------------------------------------------------------------------ */

/* Signatures that stay in a node: of an operation of all ranks, and of one of each node's ranks. */
static double world_signatures_within(const tw_plan_cluster_t *cluster)
{
    int n_ranks = cluster->n_nodes * cluster->ranks_per_node;
    int leave = cluster->n_nodes > 1 ? cluster->n_nodes : 0;
    return n_ranks > 1 ? SIGNATURE_BYTES * (n_ranks - leave) : 0.0;
}

static double node_signatures(const tw_plan_cluster_t *cluster)
{
    return cluster->ranks_per_node > 1 ? SIGNATURE_BYTES * cluster->n_nodes * cluster->ranks_per_node : 0.0;
}

/* Each node's ranks hand all of it round among them, from a gather over all ranks or from their replicas. */
static double gather_within(const counting_t *counting, int unit, int from_replicas)
{
    const tw_train_options_t *o = counting->options;
    const tw_plan_cluster_t *cluster = counting->cluster;
    const tw_quant_codec_t codec = {.bits = 8, .block = (int)o->weight_block};
    int is_quantized = o->quantized_weights && !from_replicas;
    return cluster->n_nodes * (cluster->ranks_per_node - 1) *
               pieces_bytes(counting, unit, is_quantized ? &codec : NULL) +
           (from_replicas ? node_signatures(cluster) : world_signatures_within(cluster));
}

/* Exact, or in 8 bits where thinwire.gradient_inner says so; where there is no other node, as between nodes. */
static double reduce_within(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    const tw_plan_cluster_t *cluster = counting->cluster;
    int is_alone = cluster->n_nodes == 1;
    const tw_quant_codec_t codec = {.bits = is_alone ? (int)o->gradient_bits : 8,
                                    .block = (int)o->gradient_block};
    int is_quantized = o->quantized_gradients && (is_alone || o->gradient_inner == 1);
    double times = o->stage == 0 ? 2.0 : 1.0;
    return times * cluster->n_nodes * (cluster->ranks_per_node - 1) *
               pieces_bytes(counting, unit, is_quantized ? &codec : NULL) +
           world_signatures_within(cluster);
}

/* Gathers of a unit in a step: forward and backward in each micro-batch of stage 3, of which hpZ's first is over all ranks. */
static double gathers_within(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    int has_delta = o->delta_bits > 0 || o->delta_exact;
    double times = o->stage == 3 ? 2.0 * (double)o->accumulation : o->stage > 0 ? 1.0 : 0.0;
    double over_all = o->hpz != TW_TRAIN_HPZ_ON ? times : has_delta ? 0.0 : 1.0;
    return over_all * gather_within(counting, unit, 0) +
           (times - over_all) * gather_within(counting, unit, 1);
}

static double step_bytes_within(const counting_t *counting, size_t n_units)
{
    const tw_plan_cluster_t *cluster = counting->cluster;
    double n_ranks = cluster->n_nodes * cluster->ranks_per_node;
    double bytes =
        cluster->n_nodes * (cluster->ranks_per_node - 1) * n_ranks * (double)tw_engine_report_bytes() +
        world_signatures_within(cluster);
    for (size_t u = 0; u < n_units; u++) {
        bytes += gathers_within(counting, (int)u) + reduce_within(counting, (int)u);
    }
    return bytes;
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */

static double step_bytes(const tw_train_options_t *o, const tw_plan_traffic_t *traffic)
{
    double bytes = traffic->report;
    for (size_t u = 0; u < traffic->n_units; u++) {
        const tw_plan_unit_t *unit = &traffic->units[u];
        /* without replicas every micro-batch gathers anew */
        double passes = o->stage == 3 && o->hpz != TW_TRAIN_HPZ_ON ? (double)o->accumulation : 1.0;
        bytes += passes * (unit->gather + unit->gather_again) + unit->reduce + unit->sync;
    }
    return bytes;
}

tw_status_t tw_plan_traffic_of(const tw_train_options_t *o, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out)
{
    tw_hpz_layout_t *layout;
    size_t n_tensors, n_units = tw_model_n_units(model);
    tw_plan_traffic_t traffic = {.n_units = n_units, .units = calloc(n_units, sizeof(*traffic.units))};
    if (!traffic.units) {
        tw_error("plan: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_plan_layout(model, cluster, &layout);
    if (status != TW_OK) {
        free(traffic.units);
        return status;
    }
    counting_t counting = {o, cluster, layout, tw_model_tensors(model, &n_tensors)};
    for (size_t u = 0; u < n_units; u++) {
        traffic.units[u] = plan_unit(&counting, (int)u);
    }
    traffic.in_node = step_bytes_within(&counting, n_units);
    tw_hpz_layout_destroy(layout);
    traffic.report = (double)(cluster->n_nodes * cluster->ranks_per_node) * (cluster->n_nodes - 1) *
                         (double)tw_engine_report_bytes() +
                     world_signatures(cluster);
    traffic.inter_node = step_bytes(o, &traffic);
    *out = traffic;
    return TW_OK;
}

void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic)
{
    free(traffic->units);
    *traffic = (tw_plan_traffic_t){0};
}
