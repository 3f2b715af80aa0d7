/** All-reduces over tori. They add up as in a ring, but along one dimension after another, so the number of
 *  hops is the sum of the dimensions' lengths, not their product.
 *
 *  The ring's places (topology.h) form a box of d0 x d1 (x d2) ranks; the first dimension varies fastest. A
 *  shard is added up along d0: in each row the sum ends at the rank with the owner's place in the row. These
 *  sums are added up along d1, then along d2. The result is spread in the opposite order. A sum is rounded
 *  to the tensor's type on each hop, and all ranks get the owner's bits.
 *
 *  If all nodes have L ranks, d0 is L, and the other dimensions are of nodes. Then rows are inside nodes,
 *  and as few bytes go between nodes as in a ring. Otherwise all dimensions are of ranks. Each dimension is
 *  the largest divisor that is no more than the root of the remaining number of ranks; a prime number makes
 *  a ring.
 *
 *  With one rank per node, latency alpha, beta seconds per byte, and B bytes on W ranks, an all-reduce takes
 *  at most
 *    2 (d0 - 1 + d1 - 1 + d2 - 1) alpha + 2 (W - 1) / W B beta, in 2 (W - 1) messages of a rank.
 *  These are the bytes and messages of a ring with far fewer latencies, many of which are hidden by other
 *  shards. With a lossless codec, data between nodes is encoded on each hop, and the bytes are multiplied by
 *  the codec's ratio (0.65 for bf16 gradients). A rank encodes and decodes W - 1 shards, as many as in
 *  one_hop, where every rank sends to all others.
 *  Sources: N. Jouppi et al., "TPU v4", ISCA 2023, section 2 (tori that reduce by dimension); E. Chan, M.
 *  Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and experience",
 *  CCPE 19(13), 2007, section 4 (meshes, row then column). */
#include "collectives/program/flow.h"

/* ---- dimensions ---------------------------------------------------------------------------------------- */

/** Returns the largest divisor d of a number for which d to the power of n is at most the number. */
static int divisor_near_root(int number, int n)
{
    int best = 1;
    for (int d = 2; d <= number; d++) {
        long power = 1;
        for (int i = 0; i < n; i++) {
            power *= d;
        }
        if (power > number) {
            break;
        }
        best = number % d == 0 ? d : best;
    }
    return best;
}

void tw_flow_torus_dims(const tw_topo_t *topo, int n_dims, int dims[TW_TORUS_DIMS])
{
    int rest = topo->world;
    for (int k = 0; k < TW_TORUS_DIMS; k++) {
        int left = n_dims - k;
        int is_node = k == 0 && tw_topo_has_tiers(topo) && topo->min_local == topo->max_local;
        dims[k] = is_node ? topo->max_local : left > 1 ? divisor_near_root(rest, left) : rest;
        rest /= dims[k];
    }
}

typedef struct torus {
    const tw_topo_t *topo;
    int dims[TW_TORUS_DIMS];
    int n_dims;
} torus_t;

static torus_t make_torus(const tw_topo_t *topo, int n_dims)
{
    torus_t torus = {.topo = topo, .n_dims = n_dims};
    tw_flow_torus_dims(topo, n_dims, torus.dims);
    return torus;
}

static int stride_of(const torus_t *torus, int dim)
{
    int stride = 1;
    for (int k = 0; k < dim; k++) {
        stride *= torus->dims[k];
    }
    return stride;
}

/** Returns the place `distance` further along a dimension; it wraps round at the end. */
static int place_behind(const torus_t *torus, int place, int dim, int distance)
{
    int stride = stride_of(torus, dim), length = torus->dims[dim], at = place / stride % length;
    return place + ((at + distance) % length - at) * stride;
}

/** Returns 1 if the place differs from the owner's only in dimension `dim` and later ones. Then it holds a
 *  sum of the owner's shard when the dimensions before `dim` have been added up. */
static int is_left(const torus_t *torus, int place, int owner_place, int dim)
{
    return place % stride_of(torus, dim) == owner_place % stride_of(torus, dim);
}

/* ---- flows --------------------------------------------------------------------------------------------- */

/** Add up along a dimension, from the place behind `end` round to `end`. values: [world], by place. hop: that
 *  of the first sum. */
static void reduce_line(tw_flow_t *flow, const torus_t *torus, int end, int dim, int hop, tw_value_t *values)
{
    int length = torus->dims[dim];
    tw_value_t sum = values[place_behind(torus, end, dim, 1)];
    for (int d = 2; d <= length; d++) {
        int place = place_behind(torus, end, dim, d);
        tw_value_t inputs[2] = {sum, values[place]};
        flow->hop = hop + d - 2;
        sum = tw_flow_sum(flow, torus->topo->ring[place], inputs, 2);
    }
    values[end] = sum;
}

static tw_value_t torus_reduce(tw_flow_t *flow, int owner, int n_dims)
{
    const tw_topo_t *topo = flow->topo;
    const torus_t torus = make_torus(topo, n_dims);
    int at = topo->position[owner], hop = 0;
    tw_value_t values[topo->world];
    flow->hop = 0;
    for (int place = 0; place < topo->world; place++) { /* the first value of a line travels as a sum */
        int first = place_behind(&torus, at, 0, 1), is_first = (place - first) % torus.dims[0] == 0;
        tw_value_t own = tw_flow_own(topo->ring[place]);
        values[place] = is_first ? tw_flow_sum(flow, topo->ring[place], &own, 1) : own;
    }
    for (int dim = 0; dim < n_dims; dim++) {
        for (int place = 0; place < topo->world; place++) {
            if (is_left(&torus, place, at, dim + 1)) {
                reduce_line(flow, &torus, place, dim, hop, values);
            }
        }
        hop += torus.dims[dim] - 1;
    }
    return values[at];
}

static void spread_line(tw_flow_t *flow, const torus_t *torus, int from, int dim, int hop, tw_value_t *values)
{
    for (int d = 1; d < torus->dims[dim]; d++) {
        int place = place_behind(torus, from, dim, d), before = place_behind(torus, from, dim, d - 1);
        flow->hop = hop + d - 1;
        values[place] = tw_flow_move(flow, values[before], torus->topo->ring[place]);
    }
}

static void torus_spread(tw_flow_t *flow, int owner, tw_value_t from, int n_dims)
{
    const tw_topo_t *topo = flow->topo;
    const torus_t torus = make_torus(topo, n_dims);
    int at = topo->position[owner], hop = 0;
    tw_value_t values[topo->world];
    values[at] = from;
    for (int dim = n_dims - 1; dim >= 0; dim--) {
        for (int place = 0; place < topo->world; place++) {
            if (is_left(&torus, place, at, dim + 1)) {
                spread_line(flow, &torus, place, dim, hop, values);
            }
        }
        hop += torus.dims[dim] - 1;
    }
}

tw_value_t tw_flow_reduce_torus2(tw_flow_t *flow, int owner)
{
    return torus_reduce(flow, owner, 2);
}

void tw_flow_spread_torus2(tw_flow_t *flow, int owner, tw_value_t from)
{
    torus_spread(flow, owner, from, 2);
}

tw_value_t tw_flow_reduce_torus3(tw_flow_t *flow, int owner)
{
    return torus_reduce(flow, owner, 3);
}

void tw_flow_spread_torus3(tw_flow_t *flow, int owner, tw_value_t from)
{
    torus_spread(flow, owner, from, 3);
}
