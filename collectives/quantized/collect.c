#include "collectives/quantized/collect.h"

/** Emit a send of `message`, after `ready`; returns it. */
static tw_task_t send_after(const tw_qop_t *op, int peer, tw_span_t message, tw_task_t ready)
{
    tw_task_t send = tw_sched_send(op->sched, peer, message);
    tw_sched_after(op->sched, send, ready);
    return send;
}

/** As receive, of a packed chunk: as it is once the task has ended. */
static tw_sbuf_t receive_packed(const tw_qop_t *op, int peer, size_t chunk, tw_task_t *task)
{
    tw_sbuf_t message = tw_qop_message_buffer(op, chunk), buffer = tw_qop_buffer(op, chunk, NULL);
    tw_task_t come = tw_sched_recv(op->sched, peer, tw_qop_message_span(op, chunk, message));

    *task = tw_qop_unpack(op, chunk, message, buffer);
    tw_sched_after(op->sched, *task, come);
    return buffer;
}

/** A buffer that a message of a quantized (NULL: exact) chunk is received into, and the task that does it. */
static tw_sbuf_t receive(const tw_qop_t *op, int peer, size_t chunk, const tw_quant_t *codec, tw_task_t *task)
{
    if (tw_qop_is_packed(op, chunk, peer)) {
        return receive_packed(op, peer, chunk, task);
    }
    tw_sbuf_t buffer = tw_qop_buffer(op, chunk, codec);
    *task = tw_sched_recv(op->sched, peer, tw_qop_span(op, chunk, codec, buffer));
    return buffer;
}

/** A buffer with the own contribution to a chunk. */
static tw_sbuf_t encode_own(const tw_collect_t *collect, size_t chunk, tw_quant_t *codec, tw_task_t *task)
{
    tw_sbuf_t buffer = tw_qop_buffer(collect->op, chunk, codec);
    *task = tw_qop_encode(collect->op, chunk, codec, buffer);
    collect->read[chunk] = *task;
    return buffer;
}

static int make_inputs(const tw_qop_t *op, int n, tw_collect_inputs_t *inputs)
{
    inputs->n = n;
    inputs->buffers = tw_sched_alloc(op->sched, (size_t)n * sizeof(*inputs->buffers));
    inputs->tasks = tw_sched_alloc(op->sched, (size_t)n * sizeof(*inputs->tasks));
    return inputs->buffers && inputs->tasks;
}

tw_collect_t *tw_collect_create(const tw_qop_t *op, int encodes)
{
    const tw_topo_t *topo = op->topo;
    size_t n = op->grid.n_chunks + 1, world = (size_t)topo->world;
    tw_collect_t *collect = tw_sched_alloc(op->sched, sizeof(*collect));

    if (!collect) {
        return NULL;
    }
    *collect = (tw_collect_t){.op = op, .encodes = encodes};
    collect->read = tw_sched_alloc(op->sched, n * sizeof(*collect->read));
    collect->done = tw_sched_alloc(op->sched, n * sizeof(*collect->done));
    collect->results = tw_sched_alloc(op->sched, n * sizeof(*collect->results));
    collect->sent[0] = tw_sched_alloc(op->sched, world * sizeof(**collect->sent));
    collect->sent[1] = tw_sched_alloc(op->sched, world * sizeof(**collect->sent));
    int most = topo->max_local > topo->n_nodes ? topo->max_local : topo->n_nodes;
    if (!collect->read || !collect->done || !collect->results || !collect->sent[0] || !collect->sent[1] ||
        !make_inputs(op, most, &collect->inside) || !make_inputs(op, topo->world, &collect->outside)) {
        return NULL;
    }
    for (size_t r = 0; r < world; r++) {
        collect->sent[0][r] = collect->sent[1][r] = TW_TASK_NONE;
    }
    return collect;
}

static void wait_for_inputs(const tw_qop_t *op, tw_task_t sum, const tw_collect_inputs_t *inputs)
{
    for (int i = 0; i < inputs->n; i++) {
        tw_sched_after(op->sched, sum, inputs->tasks[i]);
    }
}

/** The owner's sum: the operation's result. */
static void finish_chunk(const tw_collect_t *collect, size_t chunk, const tw_collect_inputs_t *inputs,
                         float factor)
{
    const tw_qop_t *op = collect->op;
    tw_qop_sum_t sum = {
        .chunk = chunk,
        .codec = tw_qop_codec(op, chunk),
        .from = inputs->buffers,
        .n_from = inputs->n,
        .factor = factor,
        .seed = op->args.seed,
    };

    int in_type = !collect->encodes || tw_qop_is_lossless(op, chunk) || (op->rounds_sums && sum.codec);
    if (collect->encodes) {
        collect->results[chunk] = tw_qop_message_buffer(op, chunk);
    }
    tw_task_t done =
        in_type ? tw_qop_sum_decode(op, &sum) : tw_qop_sum_encode(op, &sum, collect->results[chunk]);
    wait_for_inputs(op, done, inputs);
    collect->done[chunk] = done;
    if (in_type && collect->encodes) {
        collect->done[chunk] = tw_qop_encode_result(op, chunk, collect->results[chunk]);
        tw_sched_after(op->sched, collect->done[chunk], done);
    }
}

/** The chunk-th chunk of a rank's shard; 0: there are fewer. */
static int shard_chunk(const tw_qop_t *op, int owner, size_t index, size_t *chunk)
{
    const tw_grid_shard_t *shard = &op->grid.shards[owner];
    *chunk = shard->first_chunk + index;
    return index < shard->n_chunks;
}

/* ---- one hop ------------------------------------------------------------------------------------------- */

static void finish_one_hop(const tw_collect_t *collect, size_t chunk)
{
    const tw_qop_t *op = collect->op;
    tw_quant_t *codec = tw_qop_codec(op, chunk);
    tw_collect_inputs_t inputs = collect->outside;

    for (int rank = 0; rank < op->topo->world; rank++) {
        if (rank == op->topo->rank) {
            inputs.buffers[rank] = encode_own(collect, chunk, codec, &inputs.tasks[rank]);
        } else {
            inputs.buffers[rank] = receive(op, rank, chunk, codec, &inputs.tasks[rank]);
        }
    }
    finish_chunk(collect, chunk, &inputs, op->factor);
}

/** Not encoded before the message of two rounds ago has been sent: one on the way and one that follows are
 *  enough, and encoding more would keep the processor from the messages. */
static void give(const tw_collect_t *collect, int owner, size_t chunk, size_t round)
{
    const tw_qop_t *op = collect->op;
    tw_quant_t *codec = tw_qop_codec(op, chunk);
    tw_task_t *sent = &collect->sent[round % 2][owner], encode;
    tw_span_t message;

    if (tw_qop_is_packed(op, chunk, owner)) {
        tw_sbuf_t buffer = tw_qop_message_buffer(op, chunk);
        encode = collect->read[chunk] = tw_qop_encode_message(op, chunk, buffer);
        message = tw_qop_message_span(op, chunk, buffer);
    } else {
        message = tw_qop_span(op, chunk, codec, encode_own(collect, chunk, codec, &encode));
    }
    tw_sched_after(op->sched, encode, *sent);
    *sent = send_after(op, owner, message, encode);
}

void tw_collect_one_hop(const tw_collect_t *collect, size_t round)
{
    const tw_qop_t *op = collect->op;
    size_t chunk;

    /* from the next rank on, so that at any time all send to different ones */
    for (int d = 1; d < op->topo->world; d++) {
        int owner = tw_topo_ring_rank(op->topo, d);
        if (shard_chunk(op, owner, round, &chunk)) {
            give(collect, owner, chunk, round);
        }
    }
    if (shard_chunk(op, op->topo->rank, round, &chunk)) {
        finish_one_hop(collect, chunk);
    }
}

/* ---- two hops ------------------------------------------------------------------------------------------ */

/** Give this rank's contribution to the one of its node that gathers the chunk. */
static void send_inside(const tw_collect_t *collect, int gateway, size_t chunk)
{
    const tw_qop_t *op = collect->op;

    tw_quant_t *inner = tw_qop_inner(op, chunk);
    if (!inner) {
        collect->read[chunk] = send_after(op, gateway, tw_qop_plain_span(op, chunk), TW_TASK_NONE);
        return;
    }
    tw_task_t encode;
    tw_sbuf_t buffer = encode_own(collect, chunk, inner, &encode);
    send_after(op, gateway, tw_qop_span(op, chunk, inner, buffer), encode);
}

/** The own contribution to the node's sum: a buffer, or TW_SBUF_NONE for src itself. */
static tw_sbuf_t own_inside(const tw_collect_t *collect, size_t chunk, tw_task_t *task)
{
    tw_quant_t *inner = tw_qop_inner(collect->op, chunk);

    *task = TW_TASK_NONE;
    return inner ? encode_own(collect, chunk, inner, task) : TW_SBUF_NONE;
}

/** What a node's sum is multiplied with. That of an exact chunk travels on as it is, and on one node it is
 *  the result. */
static float inside_factor(const tw_qop_t *op, const tw_quant_t *codec)
{
    if (codec || op->topo->max_local == 1) {
        return 1;
    }
    return op->topo->n_nodes == 1 ? op->factor : op->scale;
}

/** What the sum over the nodes is multiplied with. */
static float outside_factor(const tw_qop_t *op, const tw_quant_t *codec)
{
    if (codec || op->topo->max_local == 1) {
        return op->factor;
    }
    return op->topo->n_nodes == 1 ? 1 : op->rest;
}

/** What this rank's node has for a chunk, summed up here and encoded. */
static tw_sbuf_t gather_inside(const tw_collect_t *collect, size_t chunk, tw_task_t *task)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int node = topo->node[topo->rank], size = tw_topo_node_size(topo, node);
    tw_quant_t *codec = tw_qop_codec(op, chunk), *inner = tw_qop_inner(op, chunk);
    tw_collect_inputs_t inputs = collect->inside;

    if (size == 1 && codec) { /* nothing to sum up */
        return encode_own(collect, chunk, codec, task);
    }
    inputs.n = size;
    for (int l = 0; l < size; l++) {
        int rank = tw_topo_rank_at(topo, node, l);
        inputs.buffers[l] = rank == topo->rank ? own_inside(collect, chunk, &inputs.tasks[l])
                                               : receive(op, rank, chunk, inner, &inputs.tasks[l]);
    }
    tw_sbuf_t buffer = tw_qop_buffer(op, chunk, codec);
    tw_qop_sum_t sum = {
        .chunk = chunk,
        .codec = inner,
        .from = inputs.buffers,
        .n_from = size,
        .factor = inside_factor(op, codec),
        .seed = op->node_seed,
    };
    *task = tw_qop_sum_encode(op, &sum, buffer);
    wait_for_inputs(op, *task, &inputs);
    if (!inner) {
        collect->read[chunk] = *task;
    }
    return buffer;
}

/** The own chunk: this node's sum is in `own`, those of the others come in. */
static void finish_two_hop(const tw_collect_t *collect, size_t chunk, tw_sbuf_t own, tw_task_t own_task)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    tw_quant_t *codec = tw_qop_codec(op, chunk);
    tw_collect_inputs_t inputs = collect->outside;

    inputs.n = topo->n_nodes;
    for (int node = 0; node < topo->n_nodes; node++) {
        if (node == topo->node[topo->rank]) {
            inputs.buffers[node] = own;
            inputs.tasks[node] = own_task;
        } else {
            int gateway = tw_topo_gateway(topo, topo->rank, node);
            inputs.buffers[node] = receive(op, gateway, chunk, codec, &inputs.tasks[node]);
        }
    }
    finish_chunk(collect, chunk, &inputs, outside_factor(op, codec));
}

/** The node's sum goes to the owner of the chunk. */
static void send_sum(const tw_qop_t *op, int owner, size_t chunk, tw_sbuf_t sum, tw_task_t ready)
{
    if (!tw_qop_is_packed(op, chunk, owner)) {
        send_after(op, owner, tw_qop_span(op, chunk, tw_qop_codec(op, chunk), sum), ready);
        return;
    }
    tw_sbuf_t message = tw_qop_message_buffer(op, chunk);
    tw_task_t pack = tw_qop_pack(op, chunk, sum, message);
    tw_sched_after(op->sched, pack, ready);
    send_after(op, owner, tw_qop_message_span(op, chunk, message), pack);
}

static void two_hop_chunk(const tw_collect_t *collect, int owner, size_t chunk)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int gateway = tw_topo_gateway(topo, owner, topo->node[topo->rank]);

    if (gateway != topo->rank) {
        send_inside(collect, gateway, chunk);
        return;
    }
    tw_task_t task;
    tw_sbuf_t buffer = gather_inside(collect, chunk, &task);
    if (owner == topo->rank) {
        finish_two_hop(collect, chunk, buffer, task);
    } else {
        send_sum(op, owner, chunk, buffer, task);
    }
}

void tw_collect_two_hop(const tw_collect_t *collect, size_t round)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int node = topo->node[topo->rank];

    /* from the next node on, the own one last: at any time all nodes send to different ones */
    for (int i = 0; i < topo->world; i++) {
        int owner = topo->ring[(topo->node_first[node + 1] + i) % topo->world];
        size_t chunk;
        if (shard_chunk(op, owner, round, &chunk)) {
            two_hop_chunk(collect, owner, chunk);
        }
    }
}
