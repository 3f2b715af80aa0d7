/** Derives the traffic of an algorithm from its flows. */
#include <math.h>
#include <stdlib.h>

#include "collectives/program/cost.h"

/** A value at one step of an algorithm: its form, and the moves and computations that it has gone through. */
typedef struct point {
    tw_form_t form;
    int inter, node; /**< moves so far, between nodes and inside nodes */
    int spread;      /**< those of the moves that spread a result (flows->spread) */
    tw_work_count_t work;
} point_t;

typedef struct rank_count {
    int inter_moves[TW_FORM_COUNT], node_moves[TW_FORM_COUNT];
    int inter_row[TW_TRAFFIC_HOPS], node_row[TW_TRAFFIC_HOPS];
    int arrivals; /**< encoded shards that this rank receives and keeps */
    tw_work_count_t work;
} rank_count_t;

typedef struct node_count {
    double in[TW_FORM_COUNT], out[TW_FORM_COUNT], inside[TW_FORM_COUNT];
    int source; /**< 1 + number of a node from which something has come; 0: nothing has */
} node_count_t;

typedef struct reader {
    const tw_topo_t *topo;
    const tw_flows_t *flows;
    int codec, inner;
    tw_flow_t flow;
    rank_count_t *ranks; /**< [world] */
    node_count_t *nodes; /**< [n_nodes] */
    point_t *points;     /**< [world + operations], the contributions, then the value of each operation */
    size_t max_points;
    point_t longest;
    int is_spread; /**< 1: the operations from here on send results to all ranks */
    int n_spread;  /**< the most moves of a result on its way to all ranks */
    tw_traffic_t *traffic;
} reader_t;

static point_t *point_of(const reader_t *r, tw_value_t value)
{
    return &r->points[value < 0 ? -1 - value : r->topo->world + value];
}

static double total(const tw_work_count_t *work)
{
    double sum = work->adds;
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        sum += work->encodes[f] + work->decodes[f];
    }
    return sum;
}

static int is_longer(const point_t *a, const point_t *b)
{
    if (a->inter != b->inter) {
        return a->inter > b->inter;
    }
    return a->node != b->node ? a->node > b->node : total(&a->work) > total(&b->work);
}

static void traffic_encode(reader_t *r, tw_value_t value, tw_form_t form)
{
    point_t *point = point_of(r, value);
    if (form != TW_FORM_PLAIN && point->form == TW_FORM_PLAIN) {
        point->form = form;
        point->work.encodes[form]++;
        r->ranks[tw_flow_rank(&r->flow, value)].work.encodes[form]++;
    }
}

static void count_move(reader_t *r, const tw_flow_op_t *op, int from, tw_form_t form)
{
    int a = r->topo->node[from], b = r->topo->node[op->at], hop = op->hop % TW_TRAFFIC_HOPS;
    rank_count_t *rank = &r->ranks[from];
    if (a == b) {
        rank->node_moves[form]++;
        rank->node_row[hop]++;
        r->nodes[a].inside[form]++;
        return;
    }
    rank->inter_moves[form]++;
    rank->inter_row[hop]++;
    r->nodes[a].out[form]++;
    r->nodes[b].in[form]++;
    r->traffic->crowded |= r->nodes[b].source != 0 && r->nodes[b].source != a + 1;
    r->nodes[b].source = a + 1;
}

static void read_move(reader_t *r, const tw_flow_op_t *op, point_t *to)
{
    tw_value_t value = r->flow.inputs[op->first_input];
    int from = tw_flow_rank(&r->flow, value), crosses = r->topo->node[from] != r->topo->node[op->at];
    tw_coding_t coded = r->flows->recodes ? TW_CODING_LOSSLESS : TW_CODING_BLOCKS;
    const tw_move_t move = {.coding = r->codec ? coded : TW_CODING_NONE,
                            .has_inner = r->inner,
                            .is_spread = r->is_spread,
                            .is_sum = value >= 0,
                            .crosses = crosses};
    tw_form_t form = tw_form_of_move(r->flows, &move);
    form = form == TW_FORM_PACKED ? TW_FORM_CODEC : form; /* messages of any codec count as encoded */
    if (r->flows->by_pair) {                              /* each rank gets other data */
        point_of(r, value)->form = TW_FORM_PLAIN;
        point_of(r, value)->work = (tw_work_count_t){0};
    }
    traffic_encode(r, value, form);
    *to = *point_of(r, value);
    to->inter += crosses;
    to->node += !crosses;
    to->spread += r->is_spread;
    count_move(r, op, from, form);
    if (r->is_spread && form != TW_FORM_PLAIN) {
        r->ranks[op->at].arrivals++;
    }
    r->n_spread = to->spread > r->n_spread ? to->spread : r->n_spread;
}

/** Count the decoding of each encoded input of an operation. */
static void decode_inputs(reader_t *r, const tw_flow_op_t *op, point_t *to)
{
    for (int i = 0; i < op->n_inputs; i++) {
        tw_form_t form = point_of(r, r->flow.inputs[op->first_input + i])->form;
        r->ranks[op->at].work.decodes[form] += form != TW_FORM_PLAIN;
        to->work.decodes[form] += form != TW_FORM_PLAIN;
    }
}

static void read_sum(reader_t *r, const tw_flow_op_t *op, point_t *to)
{
    const tw_value_t *inputs = &r->flow.inputs[op->first_input];
    tw_work_count_t *work = &r->ranks[op->at].work;
    tw_form_t form = TW_FORM_PLAIN;
    for (int i = 0; i < op->n_inputs; i++) {
        tw_form_t other = point_of(r, inputs[i])->form;
        form = other != TW_FORM_PLAIN && !r->flows->recodes ? other : form;
    }
    *to = (point_t){0};
    for (int i = 0; i < op->n_inputs; i++) {
        traffic_encode(r, inputs[i], form);
        *to = is_longer(point_of(r, inputs[i]), to) ? *point_of(r, inputs[i]) : *to;
    }
    if (r->flows->recodes) {
        decode_inputs(r, op, to);
    }
    to->form = TW_FORM_PLAIN;
    if (form != TW_FORM_PLAIN) {
        work->decodes[form] += op->n_inputs;
        to->work.decodes[form] += op->n_inputs;
    } else {
        /* in one pass, a sum needs no fp32 memory */
        int in_one_pass = op->n_inputs == 1 || (op->n_inputs == 2 && !r->codec);
        int adds = in_one_pass ? op->n_inputs - 1 : op->n_inputs;
        work->adds += adds;
        to->work.adds += adds;
    }
}

static tw_status_t traffic_make_room(reader_t *r)
{
    if (r->flow.status == TW_OK &&
        !tw_grow(&r->points, &r->max_points, r->topo->world + r->flow.n_ops, sizeof(*r->points))) {
        return TW_ERR_NO_MEMORY;
    }
    return r->flow.status;
}

/** Count what is sent and computed by the operations from number `first` on. */
static void read_ops(reader_t *r, int first)
{
    for (int i = first; i < r->flow.n_ops; i++) {
        const tw_flow_op_t *op = &r->flow.ops[i];
        point_t *point = point_of(r, i);
        if (op->is_sum) {
            read_sum(r, op, point);
        } else {
            read_move(r, op, point);
        }
        r->longest = is_longer(point, &r->longest) ? *point : r->longest;
    }
}

static tw_status_t read_owner(reader_t *r, int owner)
{
    tw_value_t result = tw_flow_own(owner);
    int n_reduce = 0;
    tw_flow_clear(&r->flow);
    if (r->flows->reduce) {
        result = r->flows->reduce(&r->flow, owner);
        n_reduce = r->flow.n_ops;
    }
    if (r->flows->spread) {
        r->flows->spread(&r->flow, owner, result);
    }
    TW_TRY(traffic_make_room(r));
    for (int rank = 0; rank < r->topo->world; rank++) {
        r->points[rank] = (point_t){0};
    }
    r->is_spread = 0;
    int n_ops = r->flow.n_ops;
    r->flow.n_ops = n_reduce;
    read_ops(r, 0);
    /* on one node, the sum is encoded, too */
    if (r->codec && r->flows->nodes_first && r->topo->n_nodes == 1) {
        traffic_encode(r, result, TW_FORM_CODEC);
        r->ranks[owner].work.decodes[TW_FORM_CODEC]++;
        r->longest = *point_of(r, result);
        r->longest.work.decodes[TW_FORM_CODEC]++;
    }
    r->flow.n_ops = n_ops;
    r->is_spread = 1;
    read_ops(r, n_reduce);
    return TW_OK;
}

static void take_work(const tw_work_count_t *work, tw_work_count_t *most)
{
    for (int f = 0; f < TW_FORM_COUNT; f++) {
        most->encodes[f] = fmax(most->encodes[f], work->encodes[f]);
        most->decodes[f] = fmax(most->decodes[f], work->decodes[f]);
    }
    most->adds = fmax(most->adds, work->adds);
}

static void take_ints(const int *counts, int n, int *most)
{
    for (int i = 0; i < n; i++) {
        most[i] = counts[i] > most[i] ? counts[i] : most[i];
    }
}

/** Find the busiest rank and node. Received shards are decoded, and the owner's, too, for equal bits. */
static void take_busiest(const reader_t *r)
{
    tw_traffic_t *traffic = r->traffic;
    int most_arrivals = 0;
    for (int rank = 0; rank < r->topo->world; rank++) {
        rank_count_t *count = &r->ranks[rank];
        int own = r->codec && r->flows->spread && !r->flows->by_pair;
        count->work.decodes[TW_FORM_CODEC] += count->arrivals + own;
        take_work(&count->work, &traffic->work);
        take_ints(count->inter_moves, TW_FORM_COUNT, traffic->inter_moves);
        take_ints(count->node_moves, TW_FORM_COUNT, traffic->node_moves);
        take_ints(count->inter_row, TW_TRAFFIC_HOPS, traffic->inter_row);
        take_ints(count->node_row, TW_TRAFFIC_HOPS, traffic->node_row);
        most_arrivals = count->arrivals > most_arrivals ? count->arrivals : most_arrivals;
    }
    for (int n = 0; n < r->topo->n_nodes; n++) {
        for (int f = 0; f < TW_FORM_COUNT; f++) {
            const node_count_t *node = &r->nodes[n];
            traffic->inter_shards[f] = fmax(traffic->inter_shards[f], fmax(node->in[f], node->out[f]));
            traffic->node_shards[f] = fmax(traffic->node_shards[f], node->inside[f]);
        }
    }
    traffic->inter_rounds = r->longest.inter;
    traffic->node_rounds = r->longest.node;
    traffic->fill = r->longest.work;
    if (most_arrivals > 0) { /* in a single hop, all shards come at the same time */
        traffic->fill.decodes[TW_FORM_CODEC] += r->n_spread == 1 ? most_arrivals : 1;
    }
}

tw_status_t tw_traffic_read(const tw_topo_t *topo, const tw_flows_t *flows, int codec, int inner,
                            tw_traffic_t *traffic)
{
    reader_t r = {.topo = topo,
                  .flows = flows,
                  .codec = codec,
                  .inner = inner,
                  .flow = {.topo = topo},
                  .ranks = calloc((size_t)topo->world, sizeof(*r.ranks)),
                  .nodes = calloc((size_t)topo->n_nodes, sizeof(*r.nodes)),
                  .traffic = traffic};
    tw_status_t status = r.ranks && r.nodes ? TW_OK : TW_ERR_NO_MEMORY;
    *traffic = (tw_traffic_t){0};
    for (int owner = 0; owner < topo->world && status == TW_OK; owner++) {
        status = tw_flows_has_cost(flows, topo, owner) ? read_owner(&r, owner) : TW_OK;
    }
    if (status == TW_OK) {
        take_busiest(&r);
    } else {
        tw_error("out of memory planning an operation");
    }
    tw_flow_cleanup(&r.flow);
    free(r.points);
    free(r.nodes);
    free(r.ranks);
    return status;
}
