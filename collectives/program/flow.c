#include "collectives/program/flow.h"

#include <stdlib.h>
#include <string.h>

void tw_flow_cleanup(tw_flow_t *flow)
{
    free(flow->ops);
    free(flow->inputs);
}

void tw_flow_clear(tw_flow_t *flow)
{
    flow->n_ops = flow->n_inputs = flow->hop = 0;
}

static tw_value_t flow_add_op(tw_flow_t *flow, tw_flow_op_t op, const tw_value_t *inputs)
{
    if (flow->status != TW_OK) {
        return tw_flow_own(op.at);
    }
    if (!tw_grow(&flow->ops, &flow->max_ops, flow->n_ops + 1, sizeof(*flow->ops)) ||
        !tw_grow(&flow->inputs, &flow->max_inputs, flow->n_inputs + op.n_inputs, sizeof(*inputs))) {
        flow->status = TW_ERR_NO_MEMORY;
        return tw_flow_own(op.at);
    }
    op.hop = flow->hop;
    op.first_input = flow->n_inputs;
    memcpy(&flow->inputs[flow->n_inputs], inputs, (size_t)op.n_inputs * sizeof(*inputs));
    flow->n_inputs += op.n_inputs;
    flow->ops[flow->n_ops] = op;
    return flow->n_ops++;
}

tw_value_t tw_flow_move(tw_flow_t *flow, tw_value_t value, int to)
{
    if (tw_flow_rank(flow, value) == to) {
        return value;
    }
    return flow_add_op(flow, (tw_flow_op_t){.at = to, .n_inputs = 1}, &value);
}

tw_value_t tw_flow_sum(tw_flow_t *flow, int at, const tw_value_t *inputs, int n_inputs)
{
    tw_value_t here[n_inputs];
    for (int i = 0; i < n_inputs; i++) {
        here[i] = tw_flow_move(flow, inputs[i], at);
    }
    return flow_add_op(flow, (tw_flow_op_t){.is_sum = 1, .at = at, .n_inputs = n_inputs}, here);
}

int tw_log2_ceil(int n)
{
    int k = 0;
    while ((1 << k) < n) {
        k++;
    }
    return k;
}

/** List the contributions of a node's ranks, in rank order. */
static int node_inputs(const tw_topo_t *topo, int node, tw_value_t *inputs)
{
    int size = tw_topo_node_size(topo, node);
    for (int l = 0; l < size; l++) {
        inputs[l] = tw_flow_own(tw_topo_rank_at(topo, node, l));
    }
    return size;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

tw_value_t tw_flow_reduce_ring(tw_flow_t *flow, int owner)
{
    const tw_topo_t *topo = flow->topo;
    tw_value_t sum = 0;
    for (int d = 1; d <= topo->world; d++) {
        int rank = tw_topo_ring_behind(topo, owner, d);
        tw_value_t inputs[2] = {sum, tw_flow_own(rank)};
        flow->hop = d > 1 ? d - 2 : 0;
        sum = d == 1 ? tw_flow_sum(flow, rank, inputs + 1, 1) : tw_flow_sum(flow, rank, inputs, 2);
    }
    return sum;
}

tw_value_t tw_flow_reduce_direct(tw_flow_t *flow, int owner)
{
    int world = flow->topo->world;
    tw_value_t inputs[world];
    for (int r = 0; r < world; r++) {
        inputs[r] = tw_flow_own(r);
    }
    return tw_flow_sum(flow, owner, inputs, world);
}

tw_value_t tw_flow_reduce_hierarchical(tw_flow_t *flow, int owner)
{
    const tw_topo_t *topo = flow->topo;
    tw_value_t inputs[1 + topo->max_local], sum = 0;
    for (int hop = 0; hop < topo->n_nodes; hop++) {
        int node = (topo->node[owner] + 1 + hop) % topo->n_nodes, n_sums = hop > 0;
        inputs[0] = sum;
        int n = n_sums + node_inputs(topo, node, inputs + n_sums);
        flow->hop = hop;
        sum = tw_flow_sum(flow, tw_topo_gateway(topo, owner, node), inputs, n);
    }
    return sum;
}

tw_value_t tw_flow_reduce_two_hop(tw_flow_t *flow, int owner)
{
    const tw_topo_t *topo = flow->topo;
    tw_value_t inputs[topo->world], sums[topo->n_nodes];
    if (!tw_topo_has_tiers(topo)) {
        int n = 0;
        for (int node = 0; node < topo->n_nodes; node++) {
            n += node_inputs(topo, node, inputs + n);
        }
        return tw_flow_sum(flow, owner, inputs, n);
    }
    for (int node = 0; node < topo->n_nodes; node++) {
        int n = node_inputs(topo, node, inputs);
        sums[node] = tw_flow_sum(flow, tw_topo_gateway(topo, owner, node), inputs, n);
    }
    return tw_flow_sum(flow, owner, sums, topo->n_nodes);
}

/** Rank owner - k holds inputs[k] of the shard: at first its contribution, later also sums that it has
 *  received. In each hop, the upper half of the ranks sends its sums to the lower half. */
tw_value_t tw_flow_reduce_halving(tw_flow_t *flow, int owner)
{
    int world = flow->topo->world, n_hops = tw_log2_ceil(world), n[world];
    tw_value_t inputs[world][n_hops + 1];
    for (int k = 0; k < world; k++) {
        n[k] = 1;
        inputs[k][0] = tw_flow_own((owner - k + world) % world);
    }
    for (int hop = 0; hop < n_hops; hop++) {
        int d = 1 << (n_hops - 1 - hop);
        flow->hop = hop;
        for (int k = 0; k < d && k + d < world; k++) {
            int from = (owner - k - d + 2 * world) % world, to = (owner - k + world) % world;
            tw_value_t sum = tw_flow_sum(flow, from, inputs[k + d], n[k + d]);
            inputs[k][n[k]++] = tw_flow_move(flow, sum, to);
        }
    }
    tw_value_t sum = tw_flow_sum(flow, owner, inputs[0], n[0]);
    flow->hop = n_hops; /* operations that follow belong to later hops */
    return sum;
}

/* ---- spreading ----------------------------------------------------------------------------------------- */

void tw_flow_spread_ring(tw_flow_t *flow, int owner, tw_value_t from)
{
    for (int d = 1; d < flow->topo->world; d++) {
        flow->hop = d - 1;
        from = tw_flow_move(flow, from, tw_topo_ring_behind(flow->topo, owner, d));
    }
}

void tw_flow_spread_direct(tw_flow_t *flow, int owner, tw_value_t from)
{
    for (int d = 1; d < flow->topo->world; d++) {
        (void)tw_flow_move(flow, from, tw_topo_ring_behind(flow->topo, owner, d));
    }
}

void tw_flow_spread_hierarchical(tw_flow_t *flow, int owner, tw_value_t from)
{
    const tw_topo_t *topo = flow->topo;
    for (int hop = 0; hop < topo->n_nodes; hop++) {
        int node = (topo->node[owner] + hop) % topo->n_nodes;
        flow->hop = hop;
        from = tw_flow_move(flow, from, tw_topo_gateway(topo, owner, node));
        for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
            (void)tw_flow_move(flow, from, tw_topo_rank_at(topo, node, l));
        }
    }
}

void tw_flow_spread_rails(tw_flow_t *flow, int owner, tw_value_t from)
{
    const tw_topo_t *topo = flow->topo;
    tw_value_t there[topo->n_nodes];
    for (int i = 0; i < topo->n_nodes; i++) {
        int node = (topo->node[owner] + i) % topo->n_nodes;
        there[node] = tw_flow_move(flow, from, tw_topo_gateway(topo, owner, node));
    }
    flow->hop = 1;
    for (int node = 0; node < topo->n_nodes; node++) {
        for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
            (void)tw_flow_move(flow, there[node], tw_topo_rank_at(topo, node, l));
        }
    }
}

void tw_flow_spread_doubling(tw_flow_t *flow, int owner, tw_value_t from)
{
    int world = flow->topo->world;
    tw_value_t have[world]; /* the value that the rank `index` places before the owner has */
    have[0] = from;
    for (int d = 1; d < world; d *= 2, flow->hop++) {
        for (int k = 0; k < d && k + d < world; k++) {
            have[k + d] = tw_flow_move(flow, have[k], (owner - k - d + 2 * world) % world);
        }
    }
}

void tw_flow_spread_binomial(tw_flow_t *flow, int owner, tw_value_t from)
{
    int world = flow->topo->world, n_hops = tw_log2_ceil(world);
    tw_value_t have[world]; /* the value that the rank `index` places behind the owner in the ring has */
    have[0] = from;
    for (int bit = n_hops > 0 ? 1 << (n_hops - 1) : 0; bit >= 1; bit /= 2, flow->hop++) {
        for (int k = 0; k + bit < world; k += 2 * bit) {
            have[k + bit] = tw_flow_move(flow, have[k], tw_topo_ring_behind(flow->topo, owner, k + bit));
        }
    }
}
