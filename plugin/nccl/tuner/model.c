/* Estimates an operation's time as the sum of two parts: the latency of its consecutive rounds, and the time
 * of its bytes on the links of the busiest node.
 *
 * NCCL's rings visit all ranks of a node one after another, so a byte enters and leaves each node once. Its
 * tree is two binary trees over the nodes, each for half the data. A node is inside one tree and a leaf of
 * the other, so it sends and receives every byte twice, or once if there are only two nodes. Inside a node, a
 * tree is a chain. NVLS and both kinds of collnet use a collnet plugin between nodes. Over Ethernet that
 * plugin must move as many bytes as a ring over the nodes, less what our codec saves. */
#include "plugin/nccl/tuner/tuner.h"

typedef struct shape {
    double ranks, nodes, local; /* numbers of ranks, of nodes, and of ranks on the fullest node */
    double collnet_bytes;       /* as in tw_tuner_constants_t */
} shape_t;

typedef struct volume {
    double inter_rounds, node_rounds;
    double inter_bytes, node_bytes; /* bytes on the links of each kind, per byte of the operation */
} volume_t;

static double rounds_of_tree(double n)
{
    double rounds = 0;
    for (double reached = 1; reached < n; reached *= 2) {
        rounds++;
    }
    return rounds;
}

static int is_half(int func)
{
    return func == TW_NCCL_ALL_GATHER || func == TW_NCCL_REDUCE_SCATTER;
}

static volume_t ring(int func, const shape_t *shape)
{
    double times = func == TW_NCCL_ALL_REDUCE ? 2 : 1;
    double bytes =
        func == TW_NCCL_BROADCAST || func == TW_NCCL_REDUCE ? 1 : times * (shape->ranks - 1) / shape->ranks;
    return (volume_t){.inter_rounds = times * (shape->nodes - 1),
                      .node_rounds = times * (shape->ranks - shape->nodes),
                      .inter_bytes = bytes,
                      .node_bytes = bytes};
}

static volume_t tree(const shape_t *shape, double node_rounds)
{
    return (volume_t){.inter_rounds = 2 * rounds_of_tree(shape->nodes),
                      .node_rounds = node_rounds,
                      .inter_bytes = shape->nodes > 2 ? 2 : 1,
                      .node_bytes = 2};
}

static volume_t collnet(int func, const shape_t *shape, double node_rounds)
{
    double times = is_half(func) ? 1 : 2, encoded = is_half(func) ? 1 : shape->collnet_bytes;
    return (volume_t){.inter_rounds = times * (shape->nodes - 1),
                      .node_rounds = node_rounds,
                      .inter_bytes = times * encoded * (shape->nodes - 1) / shape->nodes,
                      .node_bytes = times};
}

static volume_t pat(const shape_t *shape)
{
    double inter = rounds_of_tree(shape->nodes);
    double bytes = (shape->ranks - 1) / shape->ranks;
    return (volume_t){.inter_rounds = inter,
                      .node_rounds = rounds_of_tree(shape->ranks) - inter,
                      .inter_bytes = bytes,
                      .node_bytes = bytes};
}

/** Fill in the volume. Returns 0 if NCCL does not have this algorithm for the function. */
static int volume_of(int func, int algo, const shape_t *shape, volume_t *volume)
{
    int is_all_reduce = func == TW_NCCL_ALL_REDUCE, reduces_or_gathers = is_all_reduce || is_half(func);
    switch (algo) {
    case TW_NCCL_RING:
        *volume = ring(func, shape);
        return 1;
    case TW_NCCL_TREE:
        *volume = tree(shape, 2 * (shape->local - 1));
        return is_all_reduce;
    case TW_NCCL_NVLS_TREE:
        *volume = tree(shape, 2);
        return is_all_reduce;
    case TW_NCCL_COLLNET_CHAIN:
        *volume = collnet(func, shape, 2 * (shape->local - 1));
        return is_all_reduce;
    case TW_NCCL_COLLNET_DIRECT:
    case TW_NCCL_NVLS:
        *volume = collnet(func, shape, is_half(func) ? 1 : 2);
        return reduces_or_gathers;
    case TW_NCCL_PAT:
        *volume = pat(shape);
        return is_half(func);
    default:
        return 0;
    }
}

/** Returns the microseconds for one byte. */
static double beta_us(const tw_tuner_tier_t *tier)
{
    return 8 / (tier->gbps * 1e3);
}

double tw_tuner_time_us(const tw_tuner_t *tuner, const tw_tuner_op_t *op, int algo, int proto)
{
    const tw_tuner_constants_t *constants = &tuner->constants;
    size_t local = (tuner->world + tuner->n_nodes - 1) / tuner->n_nodes;
    shape_t shape = {
        .ranks = (double)tuner->world,
        .nodes = (double)tuner->n_nodes,
        .local = (double)local,
        .collnet_bytes = constants->collnet_bytes,
    };
    volume_t volume;
    double rounds, inter, node;
    if (op->func < 0 || op->func >= TW_NCCL_FUNCS || proto < 0 || proto >= TW_NCCL_PROTOS ||
        !volume_of(op->func, algo, &shape, &volume)) {
        return -1;
    }
    rounds = volume.inter_rounds * (constants->inter.alpha_us + constants->proto[proto].alpha_us) +
             volume.node_rounds * (constants->node.alpha_us + constants->proto[proto].alpha_us);
    inter = volume.inter_bytes * beta_us(&constants->inter);
    node = shape.local > 1 ? volume.node_bytes * beta_us(&constants->node) : 0;
    return rounds * (op->n_ops > 1 ? op->n_ops : 1) + (double)op->bytes * constants->proto[proto].bytes *
                                                          (inter > node ? inter : node) /
                                                          constants->share[algo];
}
