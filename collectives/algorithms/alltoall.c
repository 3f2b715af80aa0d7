/** All-to-all: on step s every rank sends to the one s further on and receives from the one s before; steps
 *  overlap. With a codec, what goes to a rank of another node is encoded for it, and decoded there; what
 *  stays on a node goes as it is: bytes are cheap there, and rounding is not. In place, all that is sent is
 *  put aside first, which takes as much scratch memory as the tensors do. */
#include "collectives/quantized/operation.h"

/** What is emitted, chunk by chunk. */
typedef struct exchange {
    const tw_build_t *build;
    tw_qop_t *out;  /**< what is sent: the shard of each rank in src */
    tw_qop_t *in;   /**< what comes: the shard of each rank in dst */
    tw_task_t read; /**< in place: after all that has read src so far */
} exchange_t;

/** The operation as its receiver sees it: the shards are what each rank sends here, and all of them lie in
 *  dst. */
static tw_qop_t *create_in(const tw_build_t *build)
{
    size_t n = build->args->n_segments;
    tw_coll_segment_t *segments = tw_sched_alloc(build->sched, (n + 1) * sizeof(*segments));
    tw_coll_args_t args = *build->args;
    tw_build_t receiver = *build;

    for (size_t s = 0; s < n && segments; s++) {
        segments[s] = args.segments[s];
        segments[s].counts = segments[s].recv_counts;
    }
    args.segments = segments;
    receiver.args = &args;
    return segments ? tw_qop_create(&receiver) : NULL;
}

/** Chunk c of a rank's shard; 0: it has fewer. */
static int shard_chunk(const tw_qop_t *op, int rank, size_t c, size_t *chunk)
{
    *chunk = op->grid.shards[rank].first_chunk + c;
    return c < op->grid.shards[rank].n_chunks;
}

/** How a chunk travels between this rank and a peer. */
static tw_form_t form_between(const tw_qop_t *op, int peer, size_t chunk)
{
    const tw_flows_t flows = {.by_pair = 1};
    const tw_move_t move = {.coding = tw_qop_coding(op, chunk),
                            .is_spread = 1,
                            .crosses = op->topo->node[peer] != op->topo->node[op->topo->rank]};

    return tw_form_of_move(&flows, &move);
}

/** A chunk of src in a buffer. */
static tw_span_t fill_buffer(exchange_t *x, size_t chunk, tw_form_t form, tw_task_t *filled)
{
    tw_span_t buffer = tw_qop_buffer(x->out, chunk, form);

    *filled = form == TW_FORM_PLAIN
                  ? tw_work_copy(x->build->sched, tw_qop_in(x->out, chunk), buffer)
                  : tw_qop_encode(x->out, chunk, form, x->out->own_seed, TW_QOP_SRC, buffer.buffer);
    if (x->build->aliased) {
        tw_sched_after(x->build->sched, *filled, x->read);
        x->read = *filled;
    }
    return buffer;
}

static void send_chunk(exchange_t *x, int to, size_t c)
{
    tw_task_t filled = TW_TASK_NONE;
    size_t chunk;

    if (!shard_chunk(x->out, to, c, &chunk)) {
        return;
    }
    tw_form_t form = form_between(x->out, to, chunk);
    int is_straight = form == TW_FORM_PLAIN && !x->build->aliased;
    tw_span_t message = is_straight ? tw_qop_in(x->out, chunk) : fill_buffer(x, chunk, form, &filled);
    tw_sched_after(x->build->sched, tw_sched_send(x->build->sched, to, message), filled);
}

static void receive_chunk(const exchange_t *x, int from, size_t c)
{
    tw_sched_t *sched = x->build->sched;
    size_t chunk;

    if (!shard_chunk(x->in, from, c, &chunk)) {
        return;
    }
    tw_form_t form = form_between(x->in, from, chunk);
    tw_span_t message = form == TW_FORM_PLAIN ? tw_qop_out(x->in, chunk) : tw_qop_buffer(x->in, chunk, form);
    tw_task_t last = tw_sched_recv(sched, from, message);
    if (form != TW_FORM_PLAIN) {
        tw_task_t decoded = tw_qop_decode(x->in, chunk, form, message.buffer, TW_QOP_DST);
        tw_sched_after(sched, decoded, last);
        last = decoded;
    }
    tw_sched_after(sched, last, x->read);
}

/** The own shard: from src to dst, or from where it was put aside. */
static void keep_chunk(const exchange_t *x, size_t c, const tw_span_t *aside)
{
    int rank = x->out->topo->rank;
    size_t from, to;

    if (shard_chunk(x->out, rank, c, &from) && shard_chunk(x->in, rank, c, &to)) {
        tw_span_t own = aside ? aside[c] : tw_qop_in(x->out, from);
        tw_task_t copied = tw_work_copy(x->build->sched, own, tw_qop_out(x->in, to));
        tw_sched_after(x->build->sched, copied, x->read);
    }
}

/** In place, everything is read before anything is written. */
void tw_build_alltoall(const tw_build_t *build)
{
    exchange_t x = {.build = build, .out = tw_qop_create(build), .read = TW_TASK_NONE};
    int rank = build->topo->rank, world = build->topo->world;

    x.in = x.out ? create_in(build) : NULL;
    if (!x.in) {
        return;
    }
    size_t out = x.out->grid.shard_chunks, in = x.in->grid.shard_chunks, n_chunks = out > in ? out : in, own;
    tw_span_t *aside = build->aliased ? tw_sched_alloc(build->sched, (n_chunks + 1) * sizeof(*aside)) : NULL;
    tw_task_t filled;

    for (size_t c = 0; c < n_chunks; c++) {
        if (!build->aliased) {
            tw_sched_next_round(build->sched);
        }
        if (aside && shard_chunk(x.out, rank, c, &own)) {
            aside[c] = fill_buffer(&x, own, TW_FORM_PLAIN, &filled);
        }
        for (int step = 1; step < world; step++) {
            send_chunk(&x, (rank + step) % world, c);
            if (!build->aliased) {
                receive_chunk(&x, (rank - step + world) % world, c);
            }
        }
        if (!build->aliased) {
            keep_chunk(&x, c, NULL);
        }
    }
    for (size_t c = 0; c < n_chunks && aside; c++) {
        for (int step = 1; step < world; step++) {
            receive_chunk(&x, (rank - step + world) % world, c);
        }
        keep_chunk(&x, c, aside);
    }
}
