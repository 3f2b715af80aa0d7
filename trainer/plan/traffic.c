/* Computes bytes between nodes and inside them. Gathers and reductions are hierarchical: data go once to each
 * other node, and inside a node once to each other rank. */
#include <stdlib.h>

#include "quant/quant.h"
#include "trainer/engine/engine.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/plan.h"

/* Bytes that each rank sends to the next one in every operation, to check that both run the same one. */
#define SIGNATURE_BYTES 32.0
/* Bytes that each rank sends to every other rank before an all-to-all, to announce sizes. */
#define PAIR_BYTES 16.0

typedef struct counting {
    const tw_train_options_t *options;
    const tw_plan_cluster_t *cluster;
    const tw_hpz_layout_t *layout;
    const tw_model_tensor_t *tensors;
    size_t n_tensors;
    const unsigned char *frozen; /* [n_tensors] 1: the tensor is not sent; NULL: all are sent */
    const tw_train_codecs_t *codecs;
    /* bytes of a plain element; bits of an element in the lossless codec */
    double plain_bytes, lossless_bits;
} counting_t;

/* The part of a unit that one operation sends. */
typedef struct cut {
    int unit;
    tw_hpz_slice_t slice;
} cut_t;

static size_t unit_end(const counting_t *counting, int unit)
{
    return tw_hpz_primary_elems(counting->layout, unit, 0, 0);
}

static cut_t whole(const counting_t *counting, int unit)
{
    return (cut_t){unit, {0, unit_end(counting, unit)}};
}

static size_t piece_elems(const counting_t *counting, const cut_t *cut, size_t tensor, int rank)
{
    if (counting->frozen && counting->frozen[tensor]) {
        return 0;
    }
    int n_local = counting->cluster->ranks_per_node;
    return tw_hpz_slice_piece(counting->layout, tensor, rank / n_local, rank % n_local, cut->slice).n_elems;
}

/** Return the bytes of an encoded piece. For the lossless codec they are an estimate. */
static double piece_bytes(const counting_t *counting, const tw_quant_codec_t *codec, size_t n_elems)
{
    if (tw_quant_form(codec) == TW_QUANT_MESSAGE) {
        return (double)n_elems * counting->lossless_bits / 8.0;
    }
    return (double)tw_quant_encoded_bytes(codec, n_elems);
}

/** Return the encoded bytes of all ranks' pieces. If codec is NULL, all are plain. With a lossy codec,
 *  tensors of one dimension are plain. */
static double pieces_bytes(const counting_t *counting, const cut_t *cut, const tw_quant_codec_t *codec)
{
    size_t first, n = tw_hpz_layout_tensors(counting->layout, cut->unit, &first);
    const tw_plan_cluster_t *cluster = counting->cluster;
    double bytes = 0.0;
    for (size_t t = first; t < first + n; t++) {
        for (int rank = 0; rank < cluster->n_nodes * cluster->ranks_per_node; rank++) {
            size_t n_elems = piece_elems(counting, cut, t, rank);
            int is_plain = !codec || (counting->tensors[t].n_dims < 2 && tw_train_is_rounded(codec));
            bytes +=
                is_plain ? counting->plain_bytes * (double)n_elems : piece_bytes(counting, codec, n_elems);
        }
    }
    return bytes;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static int world_of(const tw_plan_cluster_t *cluster)
{
    return cluster->n_nodes * cluster->ranks_per_node;
}

/** Return the flow of an operation's signatures. Each rank sends and receives one. One leaves each node. */
static tw_plan_flow_t world_signatures(const tw_plan_cluster_t *cluster)
{
    int world = world_of(cluster), leave = cluster->n_nodes > 1 ? cluster->n_nodes : 0;
    return (tw_plan_flow_t){.inter_node = SIGNATURE_BYTES * leave,
                            .in_node = world > 1 ? SIGNATURE_BYTES * (world - leave) : 0.0,
                            .messages = world > 1 ? 2.0 : 0.0};
}

/** Return the flow of all ranks' pieces, gathered or reduced. Between nodes, `between` bytes go to or come
 *  from each other node. Inside every node, `within` bytes go to or come from each other rank. One rank of
 *  each node sends and receives a piece. */
static tw_plan_flow_t world_pieces(const tw_plan_cluster_t *cluster, double between, double within)
{
    double others = cluster->n_nodes - 1, mates = cluster->ranks_per_node - 1, n_nodes = cluster->n_nodes;
    return (tw_plan_flow_t){.inter_node = between * others,
                            .in_node = within * n_nodes * mates,
                            .messages = 2.0 * others + 2.0 * n_nodes * mates};
}

static tw_plan_flow_t traffic_sum_of(const tw_plan_flow_t *a, const tw_plan_flow_t *b)
{
    return (tw_plan_flow_t){a->inter_node + b->inter_node, a->in_node + b->in_node,
                            a->messages + b->messages};
}

static tw_plan_flow_t times(const tw_plan_flow_t *flow, double factor)
{
    return (tw_plan_flow_t){factor * flow->inter_node, factor * flow->in_node, factor * flow->messages};
}

/** Return the flow of a cut in n_ops operations, which send each piece n_passes times (an all-reduce twice).
 *  NULL for a codec: plain. A block codec has quantized and plain tensors in separate messages. */
static tw_plan_flow_t world_flow(const counting_t *counting, const cut_t *cut,
                                 const tw_quant_codec_t *between, const tw_quant_codec_t *within,
                                 double n_ops, double n_passes)
{
    const tw_plan_cluster_t *cluster = counting->cluster;
    tw_plan_flow_t pieces =
        world_pieces(cluster, pieces_bytes(counting, cut, between), pieces_bytes(counting, cut, within));
    tw_plan_flow_t signatures = world_signatures(cluster);
    pieces = times(&pieces, n_passes);
    signatures = times(&signatures, n_ops);
    pieces.messages *= (tw_quant_form(between) == TW_QUANT_BLOCKS ? 2.0 : 1.0) * n_ops;
    return traffic_sum_of(&pieces, &signatures);
}

/** Count the operations for a whole unit. A bucket's segments are tensors, or, if a rank's pieces are not
 *  contiguous (by_tensor 0), the tensors' pieces. */
static double count_buckets(const counting_t *counting, int unit, int by_tensor, int64_t bucket)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(counting->layout, unit, &first), n_ops = 0;
    size_t held = TW_ENGINE_NO_BUCKET;
    size_t n_pieces = by_tensor ? 1 : (size_t)world_of(counting->cluster);
    cut_t all = whole(counting, unit);
    for (size_t i = 0; i < n_tensors * n_pieces; i++) {
        size_t tensor = first + i / n_pieces;
        int travels = !counting->frozen || !counting->frozen[tensor];
        size_t n_elems = !travels    ? 0
                         : by_tensor ? tw_hpz_full_piece(counting->layout, tensor).n_elems
                                     : piece_elems(counting, &all, tensor, (int)(i % n_pieces));
        n_ops += n_elems > 0 && tw_engine_begins_bucket(&held, n_elems, bucket);
    }
    return (double)n_ops;
}

static int is_rank_major(const tw_plan_cluster_t *cluster)
{
    return cluster->n_nodes == 1 || cluster->ranks_per_node == 1;
}

/** Return 1 if any of the unit's tensors is sent. */
static int any_travels(const counting_t *counting, int unit)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(counting->layout, unit, &first);
    int any = !counting->frozen;
    for (size_t t = first; t < first + n_tensors && !any; t++) {
        any = !counting->frozen[t];
    }
    return any;
}

/** Return the flow of a gather from all ranks. Stage 3 gathers a unit in one operation. */
static tw_plan_flow_t gather_flow(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    const tw_quant_codec_t *codec = tw_train_codec(&counting->codecs->weights);
    cut_t all = whole(counting, unit);
    counting_t weights = *counting;
    if (o->stage == 3 && !o->keep_frozen) {
        weights.frozen = NULL;
    }
    double n_ops = o->stage == 3
                       ? any_travels(&weights, unit)
                       : count_buckets(counting, unit, is_rank_major(counting->cluster), o->allgather_bucket);
    const tw_quant_codec_t *within =
        tw_quant_form(codec) == TW_QUANT_MESSAGE && counting->cluster->n_nodes == 1 ? NULL : codec;
    return world_flow(&weights, &all, codec, within, n_ops, 1.0);
}

/** Return the flow of a gather from replicas: the ranks of each node exchange the whole unit. */
static tw_plan_flow_t replicas_flow(const counting_t *counting, int unit)
{
    const tw_plan_cluster_t *cluster = counting->cluster;
    double mates = cluster->ranks_per_node - 1;
    double signatures = mates > 0.0 ? SIGNATURE_BYTES * world_of(cluster) : 0.0;
    cut_t all = whole(counting, unit);
    counting_t replicas = *counting;
    replicas.frozen = NULL;
    return (tw_plan_flow_t){.in_node =
                                cluster->n_nodes * mates * pieces_bytes(&replicas, &all, NULL) + signatures,
                            .messages = mates > 0.0 ? 2.0 * mates + 2.0 : 0.0};
}

/** Return the flow of reducing a cut. Inside a node gradients are plain, or int8 if thinwire.gradient_inner
 *  says so. On a single node they have the codec between nodes. Stage 0 also sends the sums to all ranks. */
static tw_plan_flow_t reduce_cut(const counting_t *counting, const cut_t *cut, double n_ops)
{
    const tw_train_options_t *o = counting->options;
    int is_fp32 = o->communication == TW_TRAIN_COMMUNICATION_FP32;
    counting_t gradients = *counting;
    gradients.plain_bytes = is_fp32 ? 4.0 : 2.0;
    gradients.lossless_bits =
        tw_quant_usual_bits(&counting->codecs->gradients, is_fp32 ? TW_TYPE_FP32 : TW_TYPE_BF16);
    const tw_quant_codec_t *between = tw_train_codec(&counting->codecs->gradients),
                           *within = tw_train_codec(&counting->codecs->inner);
    if (counting->cluster->n_nodes == 1 && tw_quant_form(between) != TW_QUANT_MESSAGE) {
        within = between;
    }
    return world_flow(&gradients, cut, between, within, n_ops, o->stage == 0 ? 2.0 : 1.0);
}

/** Return the flow of reducing a unit. From stage 2 on, a unit larger than a bucket is reduced in slices. */
static tw_plan_flow_t reduce_flow(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    int world = world_of(counting->cluster);
    size_t most = tw_engine_reduce_slice_most(o, world), step = tw_engine_reduce_slice_step(o);
    cut_t cut = {.unit = unit};
    tw_plan_flow_t flow = {0};
    if (o->stage < 2 || tw_hpz_full_elems(counting->layout, unit) <= most * (size_t)world) {
        int by_tensor = o->stage == 0 || is_rank_major(counting->cluster);
        cut = whole(counting, unit);
        return reduce_cut(counting, &cut, count_buckets(counting, unit, by_tensor, o->reduce_bucket));
    }
    while (cut.slice.end < unit_end(counting, unit)) {
        cut.slice = tw_hpz_slice_next(counting->layout, unit, cut.slice.end, most, step);
        double n_ops = pieces_bytes(counting, &cut, NULL) > 0.0;
        tw_plan_flow_t one = reduce_cut(counting, &cut, n_ops);
        flow = traffic_sum_of(&flow, &one);
    }
    return flow;
}

/** Return the flow of an operation between one rank of each node (a rail). All signatures leave nodes. */
static tw_plan_flow_t rail_flow(const tw_plan_cluster_t *cluster, double bytes)
{
    double others = cluster->n_nodes - 1;
    double signatures = others > 0.0 ? SIGNATURE_BYTES * world_of(cluster) : 0.0;
    return (tw_plan_flow_t){.inter_node = bytes * others + signatures,
                            .messages = others > 0.0 ? 2.0 * others + 2.0 : 0.0};
}

/** Returns the bytes of all ranks' lossless changes. Changes of fp8 weights are shorter. */
static double change_bytes(const counting_t *counting, const cut_t *cut)
{
    size_t first, n = tw_hpz_layout_tensors(counting->layout, cut->unit, &first);
    double n_elems = 0.0;
    for (size_t t = first; t < first + n; t++) {
        int is_fp8 = tw_engine_is_fp8(counting->options, &counting->tensors[t]);
        for (int rank = 0; rank < world_of(counting->cluster); rank++) {
            n_elems += (is_fp8 ? TW_PLAN_FP8_SHARE : 1.0) * (double)piece_elems(counting, cut, t, rank);
        }
    }
    return n_elems * counting->cluster->delta_bits / 8.0;
}

/** Returns the flow of a cut's changes. cluster->delta_bits counts the lengths of lossless ones, too. */
static tw_plan_flow_t sync_cut(const counting_t *counting, const cut_t *cut, const tw_quant_codec_t *codec)
{
    const tw_plan_cluster_t *cluster = counting->cluster;
    double bytes = tw_quant_form(codec) == TW_QUANT_CHANGE ? change_bytes(counting, cut)
                                                           : pieces_bytes(counting, cut, codec);
    return rail_flow(cluster, bytes);
}

/** Plan a unit's sync, in slices if the buffer is smaller than the unit. Lossless changes also send the
 *  lengths of each slice. */
static void plan_sync(const counting_t *counting, int unit, tw_plan_unit_t *plan)
{
    const tw_train_options_t *o = counting->options;
    const tw_quant_codec_t codec = counting->codecs->delta;
    size_t step = tw_hpz_slice_step(0, &codec);
    size_t most = tw_hpz_sync_slice_most(counting->layout, unit, 0, (size_t)o->allgather_bucket, step);
    cut_t cut = {.unit = unit};
    tw_plan_flow_t lengths = rail_flow(counting->cluster, 0.0);
    while (cut.slice.end < unit_end(counting, unit)) {
        cut.slice = tw_hpz_slice_next(counting->layout, unit, cut.slice.end, most, step);
        tw_plan_flow_t one = sync_cut(counting, &cut, &codec);
        plan->sync = traffic_sum_of(&plan->sync, &one);
        plan->lengths = tw_quant_form(&codec) == TW_QUANT_CHANGE ? traffic_sum_of(&plan->lengths, &lengths)
                                                                 : plan->lengths;
    }
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

static int is_muons(const counting_t *counting, size_t tensor)
{
    int is_frozen = counting->frozen && counting->frozen[tensor];
    return tw_engine_is_muons(counting->options, &counting->tensors[tensor], is_frozen);
}

/** Return the bytes of an element of a momentum. Momenta are sent without loss, and encoded if gradients are.
 *  Encoded bytes are an estimate. */
static double momentum_bytes(const counting_t *counting)
{
    const tw_quant_codec_t lossless = {.kind = TW_QUANT_LOSSLESS};
    int is_encoded = tw_train_codec(&counting->codecs->gradients) && counting->cluster->n_nodes > 1;
    return is_encoded ? tw_quant_usual_bits(&lossless, TW_TYPE_BF16) / 8.0 : 2.0;
}

/** Return the flow of a matrix's pieces to its owner and back. */
static tw_plan_flow_t matrix_flow(const counting_t *counting, size_t tensor, int owner)
{
    int n_local = counting->cluster->ranks_per_node;
    cut_t all = whole(counting, counting->tensors[tensor].unit);
    tw_plan_flow_t flow = {0};
    for (int rank = 0; rank < world_of(counting->cluster); rank++) {
        double elems = 2.0 * (double)piece_elems(counting, &all, tensor, rank);
        flow.inter_node += rank / n_local != owner / n_local ? momentum_bytes(counting) * elems : 0.0;
        flow.in_node += rank / n_local == owner / n_local && rank != owner ? 2.0 * elems : 0.0;
    }
    return flow;
}

/** Return the flow of the sizes that pairs of ranks exchange before the two all-to-alls. */
static tw_plan_flow_t pairs_flow(const tw_plan_cluster_t *cluster)
{
    double world = world_of(cluster), within = world * (cluster->ranks_per_node - 1);
    double between = world * (world - 1) - within;
    return (tw_plan_flow_t){.inter_node = 2.0 * PAIR_BYTES * between,
                            .in_node = 2.0 * PAIR_BYTES * within,
                            .messages = 8.0 * (world - 1)}; /* half of the messages carry the pieces */
}

/** Return the flow of momenta. Ranks own matrices in turn, as in the engine. In stage 0, owners send them to
 *  all ranks in one operation. */
static tw_plan_flow_t muon_flow(const counting_t *counting, int unit)
{
    size_t first, n = tw_hpz_layout_tensors(counting->layout, unit, &first);
    int owner = 0, is_stage_0 = counting->options->stage == 0;
    tw_plan_flow_t flow = {0}, signatures = world_signatures(counting->cluster);
    double elems = 0.0;
    for (size_t t = 0; t < first + n; t++) {
        if (is_muons(counting, t) && t >= first) {
            tw_plan_flow_t one = matrix_flow(counting, t, owner % world_of(counting->cluster));
            flow = traffic_sum_of(&flow, &one);
            elems += (double)counting->tensors[t].n_elems;
        }
        owner += is_muons(counting, t);
    }
    if (elems == 0.0) {
        return flow;
    }
    tw_plan_flow_t all = world_pieces(counting->cluster, momentum_bytes(counting) * elems, 2.0 * elems),
                   pairs = pairs_flow(counting->cluster);
    signatures = times(&signatures, is_stage_0 ? 1.0 : 2.0);
    flow = traffic_sum_of(&flow, &pairs);
    return traffic_sum_of(is_stage_0 ? &all : &flow, &signatures);
}

static tw_plan_unit_t plan_unit(const counting_t *counting, int unit)
{
    const tw_train_options_t *o = counting->options;
    int has_delta = o->codecs.has_delta, has_replicas = o->hpz == TW_TRAIN_HPZ_ON;
    tw_plan_unit_t plan = {.reduce = reduce_flow(counting, unit), .muon = muon_flow(counting, unit)};
    if (has_delta) {
        plan_sync(counting, unit, &plan);
    }
    if (o->stage > 0) {
        plan.gather = has_delta ? replicas_flow(counting, unit) : gather_flow(counting, unit);
    }
    if (o->stage == 3) {
        plan.gather_again = has_replicas ? replicas_flow(counting, unit) : plan.gather;
    }
    return plan;
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static tw_plan_flow_t unit_flow(const tw_plan_unit_t *unit, const tw_train_options_t *o)
{
    double n_again = o->stage == 3 ? 2.0 * (double)o->accumulation - 1.0 : 0.0;
    tw_plan_flow_t again = times(&unit->gather_again, n_again), flow = traffic_sum_of(&unit->gather, &again);
    flow = traffic_sum_of(&flow, &unit->reduce);
    flow = traffic_sum_of(&flow, &unit->muon);
    flow = traffic_sum_of(&flow, &unit->lengths);
    return traffic_sum_of(&flow, &unit->sync);
}

/** Returns the flow of n_bytes that each rank sends to all others. */
static tw_plan_flow_t report_flow(const tw_plan_cluster_t *cluster, size_t n_bytes)
{
    double bytes = world_of(cluster) * (double)n_bytes;
    tw_plan_flow_t pieces = world_pieces(cluster, bytes, bytes), signatures = world_signatures(cluster);
    return traffic_sum_of(&pieces, &signatures);
}

static void plan_units(const counting_t *counting, tw_plan_traffic_t *traffic)
{
    traffic->report = report_flow(counting->cluster, tw_engine_report_bytes());
    if (counting->options->gather == TW_TRAIN_GATHER_FP8) {
        tw_plan_flow_t exponents = report_flow(counting->cluster, counting->n_tensors);
        traffic->report = traffic_sum_of(&traffic->report, &exponents);
    }
    traffic->step = traffic->report;
    for (size_t u = 0; u < traffic->n_units; u++) {
        traffic->units[u] = plan_unit(counting, (int)u);
        tw_plan_flow_t flow = unit_flow(&traffic->units[u], counting->options);
        traffic->step = traffic_sum_of(&traffic->step, &flow);
    }
}

static tw_status_t find_frozen(const tw_train_options_t *o, const tw_model_tensor_t *tensors,
                               unsigned char *frozen, size_t n)
{
    tw_train_group_t group;
    for (size_t t = 0; t < n; t++) {
        TW_TRY(tw_train_group_of(o->groups, tensors[t].name, &group));
        frozen[t] = group.is_frozen != 0;
    }
    return TW_OK;
}

tw_status_t tw_plan_traffic_of(const tw_train_options_t *o, const tw_model_t *model,
                               const tw_plan_cluster_t *cluster, tw_plan_traffic_t *out)
{
    tw_hpz_layout_t *layout;
    size_t n_tensors, n_units = tw_model_n_units(model);
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    tw_plan_traffic_t traffic = {.n_units = n_units, .units = calloc(n_units, sizeof(*traffic.units))};
    unsigned char *frozen = calloc(n_tensors, sizeof(*frozen));
    tw_status_t status = traffic.units && frozen ? TW_OK : TW_ERR_NO_MEMORY;
    if (status != TW_OK) {
        tw_error("plan: out of memory");
    }
    status = status == TW_OK ? find_frozen(o, tensors, frozen, n_tensors) : status;
    status = status == TW_OK ? tw_plan_layout(model, cluster, &layout) : status;
    if (status == TW_OK) {
        const counting_t counting = {o,
                                     cluster,
                                     layout,
                                     tensors,
                                     n_tensors,
                                     *o->groups ? frozen : NULL,
                                     &o->codecs,
                                     o->bf16 ? 2.0 : 4.0,
                                     TW_PLAN_LOSSLESS_WEIGHT_BITS +
                                         tw_quant_lossless_usual_bits(o->bf16 ? TW_TYPE_BF16 : TW_TYPE_FP32) -
                                         tw_quant_lossless_usual_bits(TW_TYPE_BF16)};
        plan_units(&counting, &traffic);
        tw_hpz_layout_destroy(layout);
        *out = traffic;
    } else {
        free(traffic.units);
    }
    free(frozen);
    return status;
}

void tw_plan_traffic_cleanup(tw_plan_traffic_t *traffic)
{
    free(traffic->units);
    *traffic = (tw_plan_traffic_t){0};
}
