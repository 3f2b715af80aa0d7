/** Quantized all-to-all: what goes to a rank of another node is encoded for it, and decoded there. What stays
 *  on a node goes as it is, as in the exact one: bytes are cheap there, and rounding is not. In place, all
 *  that is sent is put aside first, encoded where it is sent so. */
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
        segments[s].src = segments[s].dst;
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

/** How a chunk travels between this rank and a peer; NULL: as it is. */
static tw_quant_t *codec_between(const tw_qop_t *op, int peer, size_t chunk)
{
    const tw_topo_t *topo = op->topo;

    return topo->node[peer] != topo->node[topo->rank] ? tw_qop_codec(op, chunk) : NULL;
}

/** A chunk of src in a buffer, encoded or as it is. */
static tw_span_t fill_buffer(exchange_t *x, size_t chunk, tw_quant_t *codec, int packs, tw_task_t *filled)
{
    tw_sbuf_t buffer = packs ? tw_qop_message_buffer(x->out, chunk) : tw_qop_buffer(x->out, chunk, codec);

    *filled =
        packs ? tw_qop_encode_message(x->out, chunk, buffer) : tw_qop_encode(x->out, chunk, codec, buffer);
    if (x->build->aliased) {
        tw_sched_after(x->build->sched, *filled, x->read);
        x->read = *filled;
    }
    return packs ? tw_qop_message_span(x->out, chunk, buffer) : tw_qop_span(x->out, chunk, codec, buffer);
}

static void send_chunk(exchange_t *x, int to, size_t c)
{
    tw_task_t filled = TW_TASK_NONE;
    size_t chunk;

    if (!shard_chunk(x->out, to, c, &chunk)) {
        return;
    }
    tw_quant_t *codec = codec_between(x->out, to, chunk);
    int packs = tw_qop_is_packed(x->out, chunk, to), fills = codec || packs || x->build->aliased;
    tw_span_t message =
        fills ? fill_buffer(x, chunk, codec, packs, &filled) : tw_qop_plain_span(x->out, chunk);
    tw_sched_after(x->build->sched, tw_sched_send(x->build->sched, to, message), filled);
}

static void receive_chunk(const exchange_t *x, int from, size_t c)
{
    tw_sched_t *sched = x->build->sched;
    size_t chunk;

    if (!shard_chunk(x->in, from, c, &chunk)) {
        return;
    }
    tw_quant_t *codec = codec_between(x->in, from, chunk);
    int packs = tw_qop_is_packed(x->in, chunk, from);
    if (!codec && !packs) {
        tw_sched_after(sched, tw_sched_recv(sched, from, tw_qop_plain_span(x->in, chunk)), x->read);
        return;
    }
    tw_sbuf_t buffer = tw_qop_message_buffer(x->in, chunk);
    tw_task_t received = tw_sched_recv(sched, from, tw_qop_message_span(x->in, chunk, buffer));
    tw_task_t decoded = tw_qop_decode(x->in, chunk, buffer);
    tw_sched_after(sched, decoded, received);
    tw_sched_after(sched, decoded, x->read);
}

/** The own shard: from src to dst, or from where it was put aside. */
static void keep_chunk(const exchange_t *x, size_t c, const tw_span_t *aside)
{
    int rank = x->out->topo->rank;
    size_t from, to;

    if (shard_chunk(x->out, rank, c, &from) && shard_chunk(x->in, rank, c, &to)) {
        tw_span_t own = aside ? aside[c] : tw_qop_plain_span(x->out, from);
        tw_task_t copied = tw_work_copy(x->build->sched, own, tw_qop_plain_span(x->in, to));
        tw_sched_after(x->build->sched, copied, x->read);
    }
}

/** In place: everything is read before anything is written. */
static void exchange_in_place(exchange_t *x, size_t n_chunks)
{
    int rank = x->out->topo->rank, world = x->out->topo->world;
    tw_span_t *own = tw_sched_alloc(x->build->sched, (n_chunks + 1) * sizeof(*own));
    size_t chunk;

    for (size_t c = 0; c < n_chunks && own; c++) {
        tw_task_t filled;
        if (shard_chunk(x->out, rank, c, &chunk)) {
            own[c] = fill_buffer(x, chunk, NULL, 0, &filled);
        }
        for (int step = 1; step < world; step++) {
            send_chunk(x, (rank + step) % world, c);
        }
    }
    for (size_t c = 0; c < n_chunks && own; c++) {
        for (int step = 1; step < world; step++) {
            receive_chunk(x, (rank - step + world) % world, c);
        }
        keep_chunk(x, c, own);
    }
}

static void exchange(exchange_t *x, size_t n_chunks)
{
    int rank = x->out->topo->rank, world = x->out->topo->world;

    for (size_t c = 0; c < n_chunks; c++) {
        tw_sched_next_round(x->build->sched);
        for (int step = 1; step < world; step++) {
            send_chunk(x, (rank + step) % world, c);
            receive_chunk(x, (rank - step + world) % world, c);
        }
        keep_chunk(x, c, NULL);
    }
}

static void build_pairwise(const tw_build_t *build)
{
    exchange_t x = {.build = build, .read = TW_TASK_NONE};

    x.out = tw_qop_create(build);
    x.in = x.out ? create_in(build) : NULL;
    if (!x.in) {
        return;
    }
    size_t out = x.out->grid.shard_chunks, in = x.in->grid.shard_chunks, n_chunks = out > in ? out : in;
    if (build->aliased) {
        exchange_in_place(&x, n_chunks);
    } else {
        exchange(&x, n_chunks);
    }
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLTOALL, "pairwise",
                 "each shard goes straight to its rank, encoded if that is on another node; one hop", 1},
        .build = build_pairwise,
        .flows = {.spread = tw_flow_spread_direct, .by_pair = 1},
    },
};

const tw_algo_rows_t tw_quantized_alltoall_rows = {algos, sizeof(algos) / sizeof(algos[0])};
