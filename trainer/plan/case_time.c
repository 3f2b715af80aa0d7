/* Simulates a step of a framework of sharded data parallelism: it gathers ahead, computes, and reduces. */
#include "trainer/plan/case.h"

#include <math.h>
#include <stdlib.h>

#include "trainer/plan/machine.h"

/* Most gathers that are posted before their layers are computed. Frameworks limit them to two. */
#define AHEAD 2
#define WEIGHT_BYTES 2.0

typedef struct walk {
    const tw_plan_case_t *given;
    const tw_plan_point_t *point;
    tw_plan_machine_t machine;
    tw_plan_op_t *gathers, *reduces; /* [2 * n_layers], [n_layers] */
    double network_sec, link_bytes;
} walk_t;

/* Seconds and bytes of an operation. */
typedef struct cost {
    double link_bytes, in_node_bytes; /* through a node's link, and through a GPU's link in the node */
    double latency_sec;
} cost_t;

double tw_plan_point_tokens(const tw_plan_case_t *given, const tw_plan_point_t *point)
{
    return point->n_nodes * given->gpus_per_node * point->micro_batch * point->accumulation * given->sequence;
}

/* ---- what operations cost ------------------------------------------------------------------------------ */

/** Return the cost of a gather, or of a reduce-scatter, of a tensor over all GPUs. */
static cost_t world_cost(const walk_t *w, double bytes)
{
    const tw_plan_case_t *given = w->given;
    double nodes = w->point->n_nodes, local = given->gpus_per_node, all = nodes * local;
    cost_t cost = {.link_bytes = bytes * (all - 1.0) / all,
                   .in_node_bytes = local > 1.0 ? bytes * (all - 1.0) / all : 0.0,
                   .latency_sec =
                       (nodes - 1.0) * given->link_latency_sec + (all - nodes) * given->in_latency_sec};
    if (given->algorithm == TW_PLAN_HIERARCHICAL) {
        cost.link_bytes = bytes * (nodes - 1.0) / nodes;
        cost.latency_sec = (nodes - 1.0) * given->link_latency_sec + (local - 1.0) * given->in_latency_sec;
    }
    cost.link_bytes = nodes > 1.0 ? cost.link_bytes : 0.0;
    return cost;
}

static cost_t twice(cost_t cost)
{
    return (cost_t){2.0 * cost.link_bytes, 2.0 * cost.in_node_bytes, 2.0 * cost.latency_sec};
}

static cost_t all_reduce_cost(const walk_t *w, double bytes)
{
    double nodes = w->point->n_nodes, local = w->given->gpus_per_node;
    cost_t cost = twice(world_cost(w, bytes));
    if (w->given->algorithm == TW_PLAN_TREE) {
        cost.link_bytes = nodes > 1.0 ? 2.0 * bytes : 0.0;
        cost.latency_sec =
            2.0 * (ceil(log2(nodes)) * w->given->link_latency_sec + (local - 1.0) * w->given->in_latency_sec);
    }
    return cost;
}

/** Return the cost of a gather, or of a reduce-scatter, inside each node only. */
static cost_t node_cost(const walk_t *w, double bytes)
{
    double local = w->given->gpus_per_node;
    return (cost_t){.in_node_bytes = bytes * (local - 1.0) / local,
                    .latency_sec = (local - 1.0) * w->given->in_latency_sec};
}

/** Return the cost of reducing to the shards of a node, and of the all-reduce between nodes after it. */
static cost_t replicas_cost(const walk_t *w, double bytes)
{
    double nodes = w->point->n_nodes;
    cost_t cost = node_cost(w, bytes);
    cost.link_bytes = 2.0 * bytes * (nodes - 1.0) / nodes;
    cost.latency_sec += 2.0 * (nodes - 1.0) * w->given->link_latency_sec;
    return cost;
}

static cost_t gather_cost(const walk_t *w, double bytes)
{
    switch ((tw_plan_sharding_t)w->given->sharding) {
    case TW_PLAN_SHARD_FULL:
        return world_cost(w, bytes);
    case TW_PLAN_SHARD_NODE:
        return node_cost(w, bytes);
    default:
        return (cost_t){0};
    }
}

static cost_t reduce_cost(const walk_t *w, double bytes)
{
    switch ((tw_plan_sharding_t)w->given->sharding) {
    case TW_PLAN_SHARD_FULL:
        return world_cost(w, bytes);
    case TW_PLAN_SHARD_NODE:
        return replicas_cost(w, bytes);
    default:
        return all_reduce_cost(w, bytes);
    }
}

/** Post an operation. Its chunks overlap in node and link, so the slower of the two counts. With shards
 *  inside a node, the two are separate operations, and their times add up. */
static void case_post(walk_t *w, tw_plan_op_t *op, cost_t cost)
{
    double link = cost.link_bytes / w->point->link_Bps, inside = cost.in_node_bytes / w->given->in_node_Bps;
    double sec = w->given->sharding == TW_PLAN_SHARD_NODE ? link + inside : fmax(link, inside);
    *op = (tw_plan_op_t){.link_sec = sec + cost.latency_sec};
    w->network_sec += op->link_sec;
    w->link_bytes += cost.link_bytes;
    tw_plan_machine_post(&w->machine, op);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/** Post the gather of a visit's weights. Layers are visited forwards, then backwards. */
static void case_ask(walk_t *w, int visit)
{
    double layer = WEIGHT_BYTES * w->given->n_params / w->given->n_layers;
    double again = WEIGHT_BYTES * w->given->regathered_params / w->given->n_layers;
    int is_backward = visit >= w->given->n_layers;
    double bytes = is_backward ? (w->given->reshard ? layer : 0.0) + again : layer;
    case_post(w, &w->gathers[visit], gather_cost(w, bytes));
}

static void case_micro_batch(walk_t *w, double compute_sec)
{
    int n = w->given->n_layers, asked = 0;
    double backward = w->given->recompute ? 3.0 : 2.0, unit = compute_sec / n / (1.0 + backward);
    double gradients = w->given->gradient_bytes * w->given->n_params / n;
    for (int visit = 0; visit < 2 * n; visit++) {
        for (; asked < 2 * n && asked <= visit + AHEAD - 1; asked++) {
            case_ask(w, asked);
        }
        tw_plan_machine_wait(&w->machine, &w->gathers[visit]);
        tw_plan_machine_compute(&w->machine, visit < n ? unit : backward * unit);
        if (visit >= n) {
            case_post(w, &w->reduces[visit - n], reduce_cost(w, gradients));
        }
    }
    for (int layer = 0; layer < n; layer++) { /* wait before the next micro-batch uses the same memory */
        tw_plan_machine_wait(&w->machine, &w->reduces[layer]);
    }
}

tw_status_t tw_plan_case_predict(const tw_plan_case_t *given, const tw_plan_point_t *point, double token_sec,
                                 tw_plan_case_time_t *out)
{
    size_t n = (size_t)given->n_layers;
    walk_t w = {.given = given, .point = point, .machine.cores = 2.0};
    tw_plan_op_t *ops = calloc(3 * n, sizeof(*ops));
    w.machine.under_way = calloc(3 * n, sizeof(tw_plan_op_t *));
    tw_status_t status = ops && w.machine.under_way ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        double micro_sec = token_sec * point->micro_batch * given->sequence;
        w.gathers = ops;
        w.reduces = ops + 2 * n;
        for (int i = 0; i < point->accumulation; i++) {
            case_micro_batch(&w, micro_sec);
        }
        *out = (tw_plan_case_time_t){.step_sec = w.machine.now,
                                     .compute_sec = micro_sec * point->accumulation,
                                     .network_sec = w.network_sec,
                                     .link_bytes = w.link_bytes};
    } else {
        tw_error("plan: out of memory");
    }
    free(w.machine.under_way);
    free(ops);
    return status;
}

/* ---- what is fitted ------------------------------------------------------------------------------------ */

/** Return the computing time of a token from FLOP/s: 6 FLOP for each parameter that it uses. Recomputation
 *  needs 2 more, but MFU and useful FLOP/s do not count them, so they are not counted here, either. */
static double token_sec_of_flops(const tw_plan_case_t *given)
{
    double flops = given->flops > 0.0 ? given->flops : given->mfu * given->peak_flops;
    return 6.0 * given->n_active / flops;
}

tw_status_t tw_plan_case_fit(const tw_plan_case_t *given, double *token_sec)
{
    const tw_plan_point_t *point = &given->fitted;
    if (point->n_nodes == 0) {
        *token_sec = token_sec_of_flops(given);
        return TW_OK;
    }
    double measured = tw_plan_point_tokens(given, point) / point->tokens_per_sec;
    double low = 0.0, high = measured / (point->micro_batch * point->accumulation * given->sequence);
    tw_plan_case_time_t time;
    TW_TRY(tw_plan_case_predict(given, point, 0.0, &time));
    TW_FAIL_IF(time.step_sec > measured, TW_ERR_CONFIG,
               "%s: fitted: a step of %.4g s is faster than the links allow, which take %.4g s", given->name,
               measured, time.step_sec);
    for (int i = 0; i < 50; i++) {
        *token_sec = (low + high) / 2.0;
        TW_TRY(tw_plan_case_predict(given, point, *token_sec, &time));
        *(time.step_sec > measured ? &high : &low) = *token_sec;
    }
    return TW_OK;
}

/* ---- codecs -------------------------------------------------------------------------------------------- */

/** Return the bits of an encoded weight, without its block's scale. */
static double code_bits(tw_quant_kind_t kind)
{
    const tw_quant_codec_t codec = {.kind = kind};
    const int bits = tw_quant_row_get(kind)->bits;
    return bits > 0                                           ? bits
           : tw_quant_loses(&codec) == TW_QUANT_LOSES_NOTHING ? TW_PLAN_LOSSLESS_WEIGHT_BITS
                                                              : tw_quant_usual_bits(&codec, TW_TYPE_BF16);
}

void tw_plan_case_codecs(const tw_plan_case_t *given, double delta_bits, tw_plan_speed_t *codecs)
{
    for (int c = TW_QUANT_PLAIN + 1; c < TW_QUANT_KINDS; c++) {
        int is_change = tw_quant_row_get((tw_quant_kind_t)c)->form == TW_QUANT_CHANGE;
        if (given->codec_memory_Bps > 0.0) {
            /* Each of these is read or written once: the weight, its code, and, for changes, the old weight
             * and the codec's state. */
            double bits = is_change ? delta_bits : code_bits((tw_quant_kind_t)c);
            double bytes = WEIGHT_BYTES + bits / 8.0 + (is_change ? WEIGHT_BYTES + 2.0 : 0.0);
            codecs[c].encode_sec = codecs[c].decode_sec = bytes / given->codec_memory_Bps;
        } else if (given->codec_Bps[c] > 0.0) {
            codecs[c].encode_sec = codecs[c].decode_sec = WEIGHT_BYTES / given->codec_Bps[c];
        }
    }
}
