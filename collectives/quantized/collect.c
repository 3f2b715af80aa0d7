#include "collectives/quantized/collect.h"

/** Emit a send of `message`, after `ready`; returns it. */
static tw_task_t send_after(const tw_qop_t *op, int peer, tw_span_t message, tw_task_t ready)
{
    tw_task_t send = tw_sched_send(op->sched, peer, message);
    tw_sched_after(op->sched, send, ready);
    return send;
}

/** A buffer that a message of an encoded (NULL: plain) chunk is received into, and the task that does it. */
static tw_sbuf_t receive(const tw_qop_t *op, int peer, size_t chunk, const tw_quant_t *codec, tw_task_t *task)
{
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

/** What is summed up in one task: buffers, and the tasks that fill them. */
typedef struct inputs {
    tw_sbuf_t *buffers;
    tw_task_t *tasks;
    int n;
} inputs_t;

/** 0: out of memory, the error sticks. */
static int make_inputs(const tw_qop_t *op, int n, inputs_t *inputs)
{
    inputs->n = n;
    inputs->buffers = tw_sched_alloc(op->sched, (size_t)n * sizeof(*inputs->buffers));
    inputs->tasks = tw_sched_alloc(op->sched, (size_t)n * sizeof(*inputs->tasks));
    return inputs->buffers != NULL && inputs->tasks != NULL;
}

static void wait_for_inputs(const tw_qop_t *op, tw_task_t sum, const inputs_t *inputs)
{
    for (int i = 0; i < inputs->n; i++) {
        tw_sched_after(op->sched, sum, inputs->tasks[i]);
    }
}

/** The owner's sum: the operation's result. */
static void finish_chunk(const tw_collect_t *collect, size_t chunk, const inputs_t *inputs)
{
    const tw_qop_t *op = collect->op;
    tw_qop_sum_t sum = {
        .chunk = chunk,
        .codec = op->codec,
        .from = inputs->buffers,
        .n_from = inputs->n,
        .factor = op->factor,
        .seed = op->args.seed,
    };

    collect->done[chunk] = collect->results != NULL ? tw_qop_sum_encode(op, &sum, collect->results[chunk])
                                                    : tw_qop_sum_decode(op, &sum);
    wait_for_inputs(op, collect->done[chunk], inputs);
}

/** The chunk-th chunk of a rank's shard; 0: there are fewer. */
static int shard_chunk(const tw_qop_t *op, int owner, size_t index, size_t *chunk)
{
    const tw_grid_shard_t *shard = &op->grid.shards[owner];
    *chunk = shard->first_chunk + index;
    return index < shard->n_chunks;
}

/* ---- one hop --------------------------------------------------------------------------------------------- */

static void finish_one_hop(const tw_collect_t *collect, size_t chunk, inputs_t *inputs)
{
    const tw_qop_t *op = collect->op;

    for (int rank = 0; rank < op->topo->world; rank++) {
        if (rank == op->topo->rank) {
            inputs->buffers[rank] = encode_own(collect, chunk, op->codec, &inputs->tasks[rank]);
        } else {
            inputs->buffers[rank] = receive(op, rank, chunk, op->codec, &inputs->tasks[rank]);
        }
    }
    finish_chunk(collect, chunk, inputs);
}

void tw_collect_one_hop(const tw_collect_t *collect)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    inputs_t inputs;
    size_t chunk;

    if (!make_inputs(op, topo->world, &inputs)) {
        return;
    }
    for (size_t c = 0; c < op->grid.shard_chunks; c++) {
        /* from the next rank on, so that at any time all send to different ones */
        for (int d = 1; d < topo->world; d++) {
            int owner = tw_topo_ring_rank(topo, d);
            if (shard_chunk(op, owner, c, &chunk)) {
                tw_task_t encode;
                tw_sbuf_t buffer = encode_own(collect, chunk, op->codec, &encode);
                send_after(op, owner, tw_qop_span(op, chunk, op->codec, buffer), encode);
            }
        }
        if (shard_chunk(op, topo->rank, c, &chunk)) {
            finish_one_hop(collect, chunk, &inputs);
        }
    }
}

/* ---- two hops -------------------------------------------------------------------------------------------- */

/** Give this rank's piece to the one of its node that gathers the chunk. */
static void send_inside(const tw_collect_t *collect, int gateway, size_t chunk)
{
    const tw_qop_t *op = collect->op;

    if (op->inner == NULL) {
        collect->read[chunk] = send_after(op, gateway, tw_qop_plain_span(op, chunk), TW_TASK_NONE);
        return;
    }
    tw_task_t encode;
    tw_sbuf_t buffer = encode_own(collect, chunk, op->inner, &encode);
    send_after(op, gateway, tw_qop_span(op, chunk, op->inner, buffer), encode);
}

/** What this rank's node has for a chunk, summed up here and encoded. */
static tw_sbuf_t gather_inside(const tw_collect_t *collect, size_t chunk, inputs_t *inputs, tw_task_t *task)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int node = topo->node[topo->rank], size = tw_topo_node_size(topo, node);

    if (size == 1) { /* nothing to sum up */
        return encode_own(collect, chunk, op->codec, task);
    }
    inputs->n = size;
    for (int l = 0; l < size; l++) {
        int rank = tw_topo_rank_at(topo, node, l);
        if (rank != topo->rank) {
            inputs->buffers[l] = receive(op, rank, chunk, op->inner, &inputs->tasks[l]);
        } else if (op->inner != NULL) {
            inputs->buffers[l] = encode_own(collect, chunk, op->inner, &inputs->tasks[l]);
        } else {
            inputs->buffers[l] = TW_SBUF_NONE;
            inputs->tasks[l] = TW_TASK_NONE;
        }
    }
    tw_sbuf_t buffer = tw_qop_buffer(op, chunk, op->codec);
    tw_qop_sum_t sum = {
        .chunk = chunk,
        .codec = op->inner,
        .from = inputs->buffers,
        .n_from = size,
        .factor = 1,
        .seed = op->node_seed,
    };
    *task = tw_qop_sum_encode(op, &sum, buffer);
    wait_for_inputs(op, *task, inputs);
    if (op->inner == NULL) {
        collect->read[chunk] = *task;
    }
    return buffer;
}

/** The own chunk: this node's sum is in `own`, those of the others come in. */
static void finish_two_hop(const tw_collect_t *collect, size_t chunk, tw_sbuf_t own, tw_task_t own_task)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    inputs_t inputs;

    if (!make_inputs(op, topo->n_nodes, &inputs)) {
        return;
    }
    for (int node = 0; node < topo->n_nodes; node++) {
        if (node == topo->node[topo->rank]) {
            inputs.buffers[node] = own;
            inputs.tasks[node] = own_task;
        } else {
            int gateway = tw_topo_gateway(topo, topo->rank, node);
            inputs.buffers[node] = receive(op, gateway, chunk, op->codec, &inputs.tasks[node]);
        }
    }
    finish_chunk(collect, chunk, &inputs);
}

static void two_hop_chunk(const tw_collect_t *collect, int owner, size_t chunk, inputs_t *inside)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int gateway = tw_topo_gateway(topo, owner, topo->node[topo->rank]);

    if (gateway != topo->rank) {
        send_inside(collect, gateway, chunk);
        return;
    }
    tw_task_t task;
    tw_sbuf_t buffer = gather_inside(collect, chunk, inside, &task);
    if (owner == topo->rank) {
        finish_two_hop(collect, chunk, buffer, task);
    } else {
        send_after(op, owner, tw_qop_span(op, chunk, op->codec, buffer), task);
    }
}

void tw_collect_two_hop(const tw_collect_t *collect)
{
    const tw_qop_t *op = collect->op;
    const tw_topo_t *topo = op->topo;
    int node = topo->node[topo->rank];
    inputs_t inside;

    if (!make_inputs(op, topo->max_local, &inside)) {
        return;
    }
    for (size_t c = 0; c < op->grid.shard_chunks; c++) {
        /* from the next node on, the own one last: at any time all nodes send to different ones */
        for (int i = 0; i < topo->world; i++) {
            int owner = topo->ring[(topo->node_first[node + 1] + i) % topo->world];
            size_t chunk;
            if (shard_chunk(op, owner, c, &chunk)) {
                two_hop_chunk(collect, owner, chunk, &inside);
            }
        }
    }
}
