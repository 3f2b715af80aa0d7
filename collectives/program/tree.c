/** All-reduces over trees of nodes. Sums travel up to a root, and the result travels down, chunk after
 *  chunk, so a link carries both at the same time.
 *
 *  One rank of each node is its gateway for an owner (tw_topo_gateway). It adds up the sums from the nodes
 *  below, the highest node first, and its node's contributions in rank order, all in fp32. It rounds once
 *  and sends the sum up. So a sum is rounded once on each level, and all ranks get the root's bits. The
 *  owners are the ranks of one node or of two nodes. Each has an equal part of the B bytes.
 *
 *  On N nodes with one rank each, with latency alpha, beta seconds per byte, and chunks of c bytes, an
 *  all-reduce takes:
 *    binomial     2 log2(N) (alpha + B beta) for one chunk; with several, at best half of that. The link of
 *                 node 0, the root, carries log2(N) B each way. It has few messages: good for small tensors.
 *    double_tree  2 B beta + about 2 log2(N) (alpha + 2 c beta). There are two trees, each for half of the
 *                 tensor. A node is an inner node in at most one of them and a leaf of the other, so a link
 *                 carries 2 B, hardly more than in a ring, but in log2(N) hops each way.
 *  With a lossless codec, data between nodes is encoded on each level, and the bytes are multiplied by the
 *  codec's ratio.
 *  Sources: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
 *  and scan", Parallel Computing 35(12), 2009; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
 *  collective communication operations in MPICH", IJHPCA 19(1), 2005 (binomial). */
#include "collectives/program/flow.h"

/** A tree of nodes; each array is [n_nodes]. */
typedef struct tree {
    int n_nodes, root;
    int *parent; /**< -1 for the root */
    int *height; /**< 0 for a leaf */
    int *depth;  /**< 0 for the root */
    /** the node's first child, and the next child of the node's parent; the highest child comes first */
    int *child, *next;
} tree_t;

#define TREE_INTS 5

/* ---- shapes -------------------------------------------------------------------------------------------- */

static int lowest_bit(int n)
{
    return n & -n;
}

static int largest_power(int n)
{
    int power = 1;
    while (2 * power <= n) {
        power *= 2;
    }
    return power;
}

/** Returns the parent of a position in a binary tree of positions 1 to n in order; 0 for the root. The root
 *  is the largest power of two, and odd positions are leaves. A position beyond n is left out, and its left
 *  child takes its place. */
static int parent_position(int position, int n)
{
    if (position == largest_power(n)) {
        return 0;
    }
    do {
        int bit = lowest_bit(position);
        position = position & (2 * bit) ? position - bit : position + bit;
    } while (position > n);
    return position;
}

/** Returns a node's position. Positions in the two trees of a pair differ by one, so that an inner node of
 *  one tree is a leaf of the other. */
static int position_of(int node, int n, int second)
{
    return (node + second) % n + 1;
}

static int node_at(int position, int n, int second)
{
    return (position - 1 + n - second) % n;
}

static int double_root(const tw_topo_t *topo, int second)
{
    return node_at(largest_power(topo->n_nodes), topo->n_nodes, second);
}

/** Find every node's height, depth and children from the parents. */
static void find_places(tree_t *tree)
{
    int n = tree->n_nodes;
    for (int node = 0; node < n; node++) {
        tree->height[node] = 0;
        tree->child[node] = -1;
    }
    for (int node = 0; node < n; node++) {
        int above = 0;
        for (int p = tree->parent[node]; p >= 0; p = tree->parent[p]) {
            above++;
            tree->height[p] = above > tree->height[p] ? above : tree->height[p];
        }
        tree->depth[node] = above;
        tree->root = above == 0 ? node : tree->root;
    }
    for (int height = 0; height < tree->height[tree->root]; height++) {
        for (int node = n - 1; node >= 0; node--) {
            int parent = tree->parent[node];
            if (tree->height[node] == height) {
                tree->next[node] = tree->child[parent];
                tree->child[parent] = node;
            }
        }
    }
}

/** Make the binomial tree of all nodes, or the one of the two trees whose root is the owner's node. */
static tree_t make_tree(const tw_topo_t *topo, int owner, int is_double, int *memory)
{
    int n = topo->n_nodes, second = is_double && topo->node[owner] != double_root(topo, 0);
    tree_t tree = {.n_nodes = n,
                   .parent = memory,
                   .height = memory + n,
                   .depth = memory + 2 * n,
                   .child = memory + 3 * n,
                   .next = memory + 4 * n};
    /* in the binomial tree, a parent's number lacks the lowest bit of the node's number */
    for (int node = 0; node < n; node++) {
        int place = is_double ? parent_position(position_of(node, n, second), n) : node;
        int parent = is_double ? node_at(place, n, second) : node - lowest_bit(node);
        tree.parent[node] = place > 0 ? parent : -1;
    }
    find_places(&tree);
    return tree;
}

/* ---- flows --------------------------------------------------------------------------------------------- */

/** Sum up the sums of the nodes below a node, and the contributions of its own ranks. */
static tw_value_t sum_node(tw_flow_t *flow, int owner, const tree_t *tree, int node, const tw_value_t *sums)
{
    const tw_topo_t *topo = flow->topo;
    int size = tw_topo_node_size(topo, node), n = 0;
    tw_value_t inputs[tree->n_nodes + size];
    for (int child = tree->child[node]; child >= 0; child = tree->next[child]) {
        inputs[n++] = sums[child];
    }
    for (int l = 0; l < size; l++) {
        inputs[n++] = tw_flow_own(tw_topo_rank_at(topo, node, l));
    }
    return tw_flow_sum(flow, tw_topo_gateway(topo, owner, node), inputs, n);
}

static tw_value_t tree_reduce(tw_flow_t *flow, int owner, int is_double)
{
    int n = flow->topo->n_nodes, memory[TREE_INTS * n];
    const tree_t tree = make_tree(flow->topo, owner, is_double, memory);
    tw_value_t sums[n];
    for (int height = 0; height <= tree.height[tree.root]; height++) {
        flow->hop = height > 0 ? height - 1 : 0;
        for (int node = 0; node < n; node++) {
            if (tree.height[node] == height) {
                sums[node] = sum_node(flow, owner, &tree, node, sums);
            }
        }
    }
    return sums[tree.root];
}

/** Spread from a node's gateway, which has the value, to the gateways of the nodes below, the highest node
 *  first, and to the other ranks of its node. */
static void spread_node(tw_flow_t *flow, int owner, const tree_t *tree, int node, tw_value_t *there)
{
    const tw_topo_t *topo = flow->topo;
    for (int child = tree->child[node]; child >= 0; child = tree->next[child]) {
        there[child] = tw_flow_move(flow, there[node], tw_topo_gateway(topo, owner, child));
    }
    for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
        (void)tw_flow_move(flow, there[node], tw_topo_rank_at(topo, node, l));
    }
}

static void tree_spread(tw_flow_t *flow, int owner, tw_value_t from, int is_double)
{
    int n = flow->topo->n_nodes, memory[TREE_INTS * n];
    const tree_t tree = make_tree(flow->topo, owner, is_double, memory);
    tw_value_t there[n];
    there[tree.root] = from;
    for (int depth = 0; depth <= tree.height[tree.root]; depth++) {
        flow->hop = depth;
        for (int node = 0; node < n; node++) {
            if (tree.depth[node] == depth) {
                spread_node(flow, owner, &tree, node, there);
            }
        }
    }
}

/* ---- binomial ------------------------------------------------------------------------------------------ */

int tw_flow_owns_binomial(const tw_topo_t *topo, int rank)
{
    return topo->node[rank] == 0;
}

tw_value_t tw_flow_reduce_binomial(tw_flow_t *flow, int owner)
{
    return tree_reduce(flow, owner, 0);
}

void tw_flow_spread_binomial_nodes(tw_flow_t *flow, int owner, tw_value_t from)
{
    tree_spread(flow, owner, from, 0);
}

/* ---- two trees ----------------------------------------------------------------------------------------- */

int tw_flow_owns_double(const tw_topo_t *topo, int rank)
{
    return topo->node[rank] == double_root(topo, 0) || topo->node[rank] == double_root(topo, 1);
}

tw_value_t tw_flow_reduce_double(tw_flow_t *flow, int owner)
{
    return tree_reduce(flow, owner, 1);
}

void tw_flow_spread_double(tw_flow_t *flow, int owner, tw_value_t from)
{
    tree_spread(flow, owner, from, 1);
}
