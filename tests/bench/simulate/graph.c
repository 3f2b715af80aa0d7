/* Turns flows into operations that wait for one another. */
#include "tests/bench/simulate/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shards that travel as one message: those of owners that follow one another. */
typedef struct row {
    uint32_t op; /* operation + 1; 0: none yet */
    int last_owner;
} row_t;

typedef struct maker {
    sim_graph_t *graph;
    const tw_algo_t *algo;
    tw_flow_t flow;
    tw_topo_t topo;
    size_t max_ops, max_pairs;
    uint32_t *pairs; /* [2 * n_pairs] before, after */
    size_t n_pairs;
    /* The next four are of one owner's flow. */
    /* [max_made] operation + 1 that makes a value, own ones first; 0: no operation has to make it */
    uint32_t *made;
    uint32_t *encoded; /* [max_made] operation + 1 that encodes it; 0: not encoded yet */
    uint8_t *form;     /* [max_made] tw_form_t in which a value is held */
    size_t max_made;
    row_t *rows;     /* [hops][world] with merges: what a rank sends */
    uint32_t *lanes; /* [world][world] lane + 1 from one to the other; 0: none yet */
    size_t max_lanes;
    int row_shards;
    int owner, is_spread;
    size_t first_op; /* the owner's first operation */
} maker_t;

enum { MAX_HOPS = 32 };

static size_t at_of(const maker_t *m, tw_value_t value)
{
    return value < 0 ? (size_t)(-1 - value) : (size_t)m->topo.world + (size_t)value;
}

static tw_status_t sim_grow(void *items, size_t n, size_t *max, size_t item_bytes)
{
    return tw_grow(items, max, n + 1, item_bytes) ? TW_OK
                                                  : tw_fail(TW_ERR_NO_MEMORY, "simulate: out of memory");
}

/** Return the owner's place in a rank's program (collectives/program/ops.c): owners begin with the next
 *  node's, or, in order, with the first one; where shards are merged, they follow the tensors' order from the
 *  rank's own shard on. */
static uint16_t turn_of(const maker_t *m, int rank)
{
    const tw_topo_t *topo = &m->topo;
    const tw_flows_t *flows = &m->algo->flows;
    const int first = flows->merges ? rank : flows->in_order ? 0 : topo->node_first[topo->node[rank] + 1];
    const int place = flows->merges ? m->owner : topo->position[m->owner];
    return (uint16_t)((place - first + topo->world) % topo->world);
}

static tw_status_t sim_add_op(maker_t *m, sim_op_t op, uint32_t *index)
{
    sim_graph_t *g = m->graph;
    int *n_hops = m->is_spread ? &g->n_spread_hops : &g->n_reduce_hops;
    TW_TRY(sim_grow(&g->ops, g->n_ops, &m->max_ops, sizeof(*g->ops)));
    size_t in_flow = g->n_ops - m->first_op;
    op.index = (uint16_t)(in_flow < UINT16_MAX ? in_flow : UINT16_MAX);
    op.turn = turn_of(m, op.from);
    op.is_spread = (uint8_t)m->is_spread;
    *n_hops = op.hop >= *n_hops ? op.hop + 1 : *n_hops;
    g->ops[g->n_ops] = op;
    *index = (uint32_t)g->n_ops++;
    return TW_OK;
}

/** Let operation `after` wait for the one that makes a value, if there is one. */
static tw_status_t add_pair(maker_t *m, uint32_t before_plus_1, uint32_t after)
{
    if (before_plus_1 == 0) {
        return TW_OK;
    }
    size_t n = 2 * m->n_pairs;
    TW_TRY(sim_grow(&m->pairs, n + 1, &m->max_pairs, sizeof(*m->pairs)));
    m->pairs[n] = before_plus_1 - 1;
    m->pairs[n + 1] = after;
    m->n_pairs++;
    m->graph->ops[after].n_inputs++;
    return TW_OK;
}

static sim_op_t work_op(const maker_t *m, int rank, int hop, sim_work_t work, tw_form_t form, int times)
{
    return (sim_op_t){
        .from = rank, .at = rank, .hop = hop, .owner = m->owner, .work = work, .form = form, .times = times};
}

static tw_form_t sim_form_of(const maker_t *m, tw_value_t value, int crosses)
{
    const tw_flows_t *flows = &m->algo->flows;
    const tw_move_t move = {.coding = !m->algo->info.quantized ? TW_CODING_NONE
                                      : flows->recodes         ? TW_CODING_LOSSLESS
                                                               : TW_CODING_BLOCKS,
                            .is_spread = m->is_spread,
                            .is_sum = value >= 0,
                            .crosses = crosses};
    const tw_form_t form = tw_form_of_move(flows, &move);
    return form == TW_FORM_PACKED ? TW_FORM_CODEC : form; /* the simulator has one codec, whichever it is */
}

/** Set *made to the operation that makes the value in the form in which it is sent. */
static tw_status_t sim_encode(maker_t *m, tw_value_t value, tw_form_t form, int hop, uint32_t *made)
{
    size_t at = at_of(m, value);
    *made = m->made[at];
    if (form == TW_FORM_PLAIN || m->form[at] != TW_FORM_PLAIN) {
        return TW_OK;
    }
    if (m->encoded[at] == 0) {
        uint32_t op;
        TW_TRY(sim_add_op(m, work_op(m, tw_flow_rank(&m->flow, value), hop, SIM_ENCODE, form, 1), &op));
        TW_TRY(add_pair(m, m->made[at], op));
        m->encoded[at] = op + 1;
    }
    *made = m->encoded[at];
    return TW_OK;
}

static tw_status_t find_lane(maker_t *m, int from, int to, uint32_t *lane)
{
    sim_graph_t *g = m->graph;
    uint32_t *known = &m->lanes[from * m->topo.world + to];
    if (*known == 0) {
        TW_TRY(sim_grow(&g->lanes, g->n_lanes, &m->max_lanes, sizeof(*g->lanes)));
        g->lanes[g->n_lanes++] = (sim_lane_t){from, to};
        *known = (uint32_t)g->n_lanes;
    }
    *lane = *known - 1;
    return TW_OK;
}

/** Set *made to the operation that makes the value plain again. */
static tw_status_t sim_decode(maker_t *m, tw_value_t value, const tw_flow_op_t *op, uint32_t *made)
{
    const size_t at = at_of(m, value);
    uint32_t index;
    *made = m->made[at];
    if (m->form[at] == TW_FORM_PLAIN) {
        return TW_OK;
    }
    TW_TRY(sim_add_op(m, work_op(m, op->at, op->hop, SIM_DECODE, m->form[at], 1), &index));
    TW_TRY(add_pair(m, *made, index));
    *made = index + 1;
    return TW_OK;
}

/** Return 1 if the shard joins the row's message, by the library's rule: shards of one hop and receiver, in
 *  the tensors' order, as many as a message holds. */
static int goes_on(const maker_t *m, const row_t *row, const tw_flow_op_t *op)
{
    const sim_op_t *message = row->op ? &m->graph->ops[row->op - 1] : NULL;
    return message && message->at == op->at && row->last_owner + 1 == m->owner &&
           message->times < m->row_shards;
}

/** Add a message, or add the shard to a row's message. */
static tw_status_t message_op(maker_t *m, const tw_flow_op_t *op, int from, tw_form_t form, uint32_t *index)
{
    row_t *row =
        m->algo->flows.merges
            ? &m->rows[(op->hop + (m->is_spread ? MAX_HOPS / 2 : 0)) % MAX_HOPS * m->topo.world + from]
            : NULL;
    if (row && goes_on(m, row, op)) {
        *index = row->op - 1;
        row->last_owner = m->owner;
        m->graph->ops[*index].times++;
        return TW_OK;
    }
    uint32_t lane;
    TW_TRY(find_lane(m, from, op->at, &lane));
    TW_TRY(sim_add_op(m,
                      (sim_op_t){.from = from,
                                 .at = op->at,
                                 .hop = op->hop,
                                 .owner = m->owner,
                                 .lane = lane,
                                 .work = SIM_MOVE,
                                 .form = form,
                                 .times = 1},
                      index));
    if (row) {
        *row = (row_t){.op = *index + 1, .last_owner = m->owner};
    }
    return TW_OK;
}

static tw_status_t add_move(maker_t *m, const tw_flow_op_t *op, int i)
{
    tw_value_t value = m->flow.inputs[op->first_input];
    int from = tw_flow_rank(&m->flow, value), crosses = m->topo.node[from] != m->topo.node[op->at];
    tw_form_t form = m->form[at_of(m, value)];
    uint32_t before, index, decoded;
    form = form == TW_FORM_PLAIN ? sim_form_of(m, value, crosses) : form;
    TW_TRY(sim_encode(m, value, form, op->hop, &before));
    TW_TRY(message_op(m, op, from, form, &index));
    TW_TRY(add_pair(m, before, index));
    m->made[at_of(m, i)] = index + 1;
    m->form[at_of(m, i)] = form;
    if (m->is_spread && form != TW_FORM_PLAIN) { /* the receiver uses the value, too */
        TW_TRY(sim_add_op(m, work_op(m, op->at, op->hop, SIM_DECODE, form, 1), &decoded));
        TW_TRY(add_pair(m, index + 1, decoded));
    }
    return TW_OK;
}

static tw_status_t add_sum(maker_t *m, const tw_flow_op_t *op, int i)
{
    const tw_value_t *inputs = &m->flow.inputs[op->first_input];
    tw_form_t form = TW_FORM_PLAIN;
    uint32_t index, before;
    const int recodes = m->algo->flows.recodes;
    for (int k = 0; k < op->n_inputs && !recodes; k++) {
        tw_form_t other = m->form[at_of(m, inputs[k])];
        form = other != TW_FORM_PLAIN ? other : form;
    }
    int in_one_pass = op->n_inputs == 1 || (op->n_inputs == 2 && !m->algo->info.quantized);
    int adds = in_one_pass ? op->n_inputs - 1 : op->n_inputs;
    sim_op_t sum = form == TW_FORM_PLAIN ? work_op(m, op->at, op->hop, SIM_ADD, form, adds)
                                         : work_op(m, op->at, op->hop, SIM_DECODE, form, op->n_inputs);
    TW_TRY(sim_add_op(m, sum, &index));
    for (int k = 0; k < op->n_inputs; k++) {
        TW_TRY(recodes ? sim_decode(m, inputs[k], op, &before)
                       : sim_encode(m, inputs[k], form, op->hop, &before));
        TW_TRY(add_pair(m, before, index));
    }
    m->made[at_of(m, i)] = index + 1;
    m->form[at_of(m, i)] = TW_FORM_PLAIN;
    return TW_OK;
}

/** Allocate zeroed arrays for an owner's flow. */
static tw_status_t sim_graph_make_room(maker_t *m)
{
    size_t n = (size_t)m->topo.world + (size_t)m->flow.n_ops;
    if (n > m->max_made) {
        free(m->made);
        free(m->encoded);
        free(m->form);
        m->max_made = n;
        m->made = malloc(n * sizeof(*m->made));
        m->encoded = malloc(n * sizeof(*m->encoded));
        m->form = malloc(n);
    }
    TW_FAIL_IF(m->flow.status != TW_OK || !m->made || !m->encoded || !m->form, TW_ERR_NO_MEMORY,
               "simulate: out of memory");
    memset(m->made, 0, n * sizeof(*m->made));
    memset(m->encoded, 0, n * sizeof(*m->encoded));
    memset(m->form, TW_FORM_PLAIN, n);
    return TW_OK;
}

static tw_status_t add_owner(maker_t *m, int owner)
{
    tw_value_t result = tw_flow_own(owner);
    m->owner = owner;
    m->first_op = m->graph->n_ops;
    tw_flow_clear(&m->flow);
    if (m->algo->flows.reduce) {
        result = m->algo->flows.reduce(&m->flow, owner);
    }
    int n_reduce = m->flow.n_ops;
    m->flow.hop = 0;
    if (m->algo->flows.spread) {
        m->algo->flows.spread(&m->flow, owner, result);
    }
    TW_TRY(sim_graph_make_room(m));
    for (int i = 0; i < m->flow.n_ops; i++) {
        const tw_flow_op_t *op = &m->flow.ops[i];
        m->is_spread = i >= n_reduce;
        TW_TRY(op->is_sum ? add_sum(m, op, i) : add_move(m, op, i));
    }
    return TW_OK;
}

/** Index which operations wait for each one, from the list of pairs. */
static tw_status_t index_pairs(maker_t *m)
{
    sim_graph_t *g = m->graph;
    g->first_after = calloc(g->n_ops + 2, sizeof(*g->first_after));
    g->after = malloc((m->n_pairs + 1) * sizeof(*g->after));
    TW_FAIL_IF(!g->first_after || !g->after, TW_ERR_NO_MEMORY, "simulate: out of memory");
    for (size_t p = 0; p < m->n_pairs; p++) {
        g->first_after[m->pairs[2 * p] + 2]++;
    }
    for (size_t i = 2; i < g->n_ops + 2; i++) {
        g->first_after[i] += g->first_after[i - 1];
    }
    for (size_t p = 0; p < m->n_pairs; p++) {
        g->after[g->first_after[m->pairs[2 * p] + 1]++] = m->pairs[2 * p + 1];
    }
    return TW_OK;
}

static int compare_sends(const void *a, const void *b, void *arg)
{
    const sim_op_t *ops = arg, *x = &ops[*(const uint32_t *)a], *y = &ops[*(const uint32_t *)b];
    const int64_t differ[] = {(int64_t)x->lane - y->lane, x->hop - y->hop, x->turn - y->turn,
                              x->index - y->index};
    for (size_t i = 0; i < sizeof(differ) / sizeof(differ[0]); i++) {
        if (differ[i] != 0) {
            return differ[i] < 0 ? -1 : 1;
        }
    }
    return 0;
}

/** Sort the messages of each lane into the order of its sender's program. All owners' hops of spreading
 *  follow all hops of reducing. */
static tw_status_t index_sends(maker_t *m)
{
    sim_graph_t *g = m->graph;
    size_t n = 0;
    g->sends = malloc((g->n_ops + 1) * sizeof(*g->sends));
    g->first_send = calloc(g->n_lanes + 1, sizeof(*g->first_send));
    TW_FAIL_IF(!g->sends || !g->first_send, TW_ERR_NO_MEMORY, "simulate: out of memory");
    for (size_t i = 0; i < g->n_ops; i++) {
        g->ops[i].hop += g->ops[i].is_spread ? g->n_reduce_hops : 0;
        if (g->ops[i].work == SIM_MOVE) {
            g->sends[n++] = (uint32_t)i;
            g->first_send[g->ops[i].lane + 1]++;
        }
    }
    for (size_t l = 0; l < g->n_lanes; l++) {
        g->first_send[l + 1] += g->first_send[l];
    }
    qsort_r(g->sends, n, sizeof(*g->sends), compare_sends, g->ops);
    return TW_OK;
}

static tw_status_t make_topology(const sim_cluster_t *c, tw_topo_t *topo)
{
    int world = c->n_nodes * c->ranks_per_node;
    uint64_t *nodes = calloc((size_t)world, sizeof(*nodes));
    TW_FAIL_IF(!nodes, TW_ERR_NO_MEMORY, "simulate: out of memory");
    for (int r = 0; r < world; r++) {
        nodes[r] = (uint64_t)(r / c->ranks_per_node);
    }
    tw_status_t status = tw_topo_init_nodes(topo, 0, world, nodes);
    free(nodes);
    return status;
}

static tw_status_t make_graph(maker_t *m)
{
    size_t world = (size_t)m->topo.world;
    m->rows = calloc((size_t)MAX_HOPS * world, sizeof(*m->rows));
    m->lanes = calloc(world * world, sizeof(*m->lanes));
    TW_FAIL_IF(!m->rows || !m->lanes, TW_ERR_NO_MEMORY, "simulate: out of memory");
    for (int owner = 0; owner < m->topo.world; owner++) {
        TW_TRY(tw_flows_has_cost(&m->algo->flows, &m->topo, owner) ? add_owner(m, owner) : TW_OK);
    }
    TW_TRY(index_pairs(m));
    return index_sends(m);
}

/** Return how many shards of a tensor of `bytes` the library joins in a message of at most chunk_bytes, where
 *  an algorithm joins those that a rank sends to another one in a hop. */
static int count_row_shards(const sim_cluster_t *cluster, double bytes, double chunk_bytes)
{
    double world = (double)cluster->n_nodes * cluster->ranks_per_node;
    return (int)fmin(fmax(floor(chunk_bytes * world / bytes), 1.0), world);
}

tw_status_t sim_graph_create(const sim_cluster_t *cluster, const tw_algo_t *algo, double bytes,
                             double chunk_bytes, sim_graph_t **out)
{
    maker_t m = {.graph = calloc(1, sizeof(sim_graph_t)),
                 .algo = algo,
                 .row_shards = count_row_shards(cluster, bytes, chunk_bytes)};
    *out = NULL;
    TW_FAIL_IF(!m.graph, TW_ERR_NO_MEMORY, "simulate: out of memory");
    tw_status_t status = make_topology(cluster, &m.topo);
    if (status == TW_OK) {
        m.flow.topo = &m.topo;
        m.graph->world = m.topo.world;
        m.graph->n_shards = tw_flows_count_shards(&algo->flows, &m.topo);
        m.graph->flows = &algo->flows;
        m.graph->is_pipelined = algo->info.quantized || algo->flows.of == TW_FLOWS_SOME || algo->flows.merges;
        status = make_graph(&m);
        tw_topo_cleanup(&m.topo);
    }
    tw_flow_cleanup(&m.flow);
    free(m.pairs);
    free(m.made);
    free(m.encoded);
    free(m.form);
    free(m.rows);
    free(m.lanes);
    if (status != TW_OK) {
        sim_graph_destroy(m.graph);
        return status;
    }
    *out = m.graph;
    return TW_OK;
}

void sim_graph_destroy(sim_graph_t *graph)
{
    if (graph) {
        free(graph->ops);
        free(graph->first_after);
        free(graph->after);
        free(graph->lanes);
        free(graph->sends);
        free(graph->first_send);
    }
    free(graph);
}

const tw_algo_t *sim_algo(tw_coll_op_t op, int quantized, size_t index)
{
    const tw_algo_t *algo;
    for (size_t i = 0; (algo = tw_algo_get(i)); i++) {
        if (algo->info.op == op && !algo->info.quantized == !quantized && index-- == 0) {
            return algo;
        }
    }
    return NULL;
}
