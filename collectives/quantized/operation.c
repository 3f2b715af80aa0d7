/** A quantized operation: the places and forms of its chunks, and the computations on them. */
#include "collectives/quantized/operation.h"

#include <math.h>
#include <string.h>

#define BATCH 16 /**< the most pieces in one call of the codec */
/** elements of a plain sum that are added up at a time; one frame, if that is longer */
#define SUM_ELEMS ((size_t)8192)

static tw_status_t get_codecs(tw_qop_t *op, tw_codecs_t *codecs)
{
    const tw_grid_t *grid = op->grid;

    op->codecs = tw_sched_alloc(op->sched, (grid->n_codecs + 1) * sizeof(*op->codecs));
    op->messages = tw_sched_alloc(op->sched, (grid->n_codecs + 1) * sizeof(*op->messages));
    if (!op->codecs || !op->messages) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t k = 0; k < grid->n_codecs; k++) {
        if (tw_quant_form(grid->codecs[k]) == TW_QUANT_MESSAGE) {
            TW_TRY(tw_codecs_messages(codecs, grid->codecs[k], &op->messages[k]));
        } else {
            TW_TRY(tw_codecs_get(codecs, grid->codecs[k], &op->codecs[k]));
        }
    }
    return grid->inner ? tw_codecs_get(codecs, grid->inner, &op->inner) : TW_OK;
}

/** Mix an index into a seed by splitmix64's finalizer, so that seeds of different indices are unrelated. */
static uint64_t mix_seed(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t tw_qop_seed(tw_seed_t kind, tw_coll_op_t op, uint64_t seed, int index)
{
    if (kind == TW_SEED_OP || (kind == TW_SEED_RANK && op == TW_COLL_ALLGATHER)) {
        return seed;
    }
    return mix_seed(seed, 2 * (uint64_t)index + (kind == TW_SEED_NODE));
}

uint64_t tw_qop_message_seed(uint64_t seed, uint32_t step, size_t chunk)
{
    return mix_seed(mix_seed(seed, step), chunk);
}

/** Returns how many elements of a plain sum are added and then encoded at a time: whole frames. */
static size_t sum_elems(const tw_quant_codec_t *codec)
{
    size_t frame = tw_quant_form(codec) == TW_QUANT_BLOCKS ? tw_quant_frame_elems(codec) : 1;

    return frame < SUM_ELEMS ? SUM_ELEMS / frame * frame : frame;
}

static tw_sbuf_t make_work(const tw_qop_t *op)
{
    size_t most = SUM_ELEMS;

    for (size_t k = 0; k < op->grid->n_codecs; k++) {
        size_t n = sum_elems(op->grid->codecs[k]);
        most = n > most ? n : most;
    }
    return tw_sched_buffer(op->sched, most * sizeof(float));
}

tw_status_t tw_qop_create(tw_coll_request_t *request, const tw_coll_args_t *args, size_t chunk_bytes,
                          tw_qop_t **out)
{
    const tw_topo_t *topo = &request->coll->topo;
    tw_qop_t *op = tw_sched_alloc(request->sched, sizeof(*op));

    if (!op) {
        return TW_ERR_NO_MEMORY;
    }
    op->sched = request->sched;
    op->tensors = request->tensors;
    op->elem_bytes = tw_type_bytes(args->type);
    op->args = (tw_quant_args_t){.type = args->type, .seed = args->seed, .step = args->step, .factor = 1};
    op->limit = tw_coll_limit(args);
    for (int k = 0; k < TW_N_SEEDS; k++) {
        int index = k == TW_SEED_NODE ? topo->node[topo->rank] : topo->rank;
        op->seeds[k] = tw_qop_seed((tw_seed_t)k, args->op, args->seed, index);
    }
    op->grid = &request->grid;
    TW_TRY(tw_grid_init(&request->grid, args, topo->world, chunk_bytes));
    tw_grid_unpack_short(&request->grid, request->choice.least_packed_bytes / op->elem_bytes);
    TW_TRY(get_codecs(op, &request->coll->codecs));
    op->work = make_work(op);
    *out = op;
    return TW_OK;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

/** Returns the codec that quantizes a chunk in a form; NULL if the form is not quantized. */
static tw_quant_t *qop_codec_of(const tw_qop_t *op, size_t chunk, tw_form_t form)
{
    int codec = op->grid->chunks[chunk].codec;

    return form == TW_FORM_INNER ? op->inner : form == TW_FORM_CODEC ? op->codecs[codec] : NULL;
}

tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form)
{
    const tw_quant_codec_t *codec = tw_grid_form_codec(op->grid, chunk, form);
    size_t bytes = tw_grid_chunk_bytes(op->grid, chunk, codec, op->args.type);
    tw_sbuf_t buffer = tw_sched_buffer(op->sched, bytes);

    return form == TW_FORM_PACKED ? tw_span_bound(buffer, bytes) : tw_span_buffer(buffer, 0, bytes);
}

/* ---- computations -------------------------------------------------------------------------------------- */

typedef struct work {
    const tw_qop_t *op;
    tw_qop_work_t is;
    tw_quant_message_segment_t *pieces; /**< PACKED: room for all pieces of the chunk */
    tw_sbuf_t from[];
} work_t;

static char *buffer_at(tw_sched_t *sched, tw_sbuf_t buffer)
{
    return tw_sched_at(sched, tw_span_buffer(buffer, 0, 0), NULL);
}

static tw_grid_walk_t start_walk(const work_t *work)
{
    const tw_qop_t *op = work->op;
    tw_grid_walk_t walk = tw_grid_walk_start(op->grid, work->is.chunk, op->tensors, op->args.type);

    walk.in = work->is.in;
    walk.out = work->is.out;
    return walk;
}

/** Encode or decode a chunk in blocks, a batch of pieces at a time. */
static tw_status_t run_codec(tw_sched_t *sched, const void *arg)
{
    const work_t *work = arg;
    int decodes = work->is.out == TW_FORM_PLAIN, from_dst = work->from[0] == TW_QOP_DST;
    tw_quant_t *codec = qop_codec_of(work->op, work->is.chunk, decodes ? work->is.in : work->is.out);
    tw_grid_walk_t walk = start_walk(work);
    char *message = buffer_at(sched, decodes ? work->from[0] : work->is.to);
    tw_status_t status = message ? TW_OK : TW_ERR_NO_MEMORY;
    tw_quant_args_t args = work->op->args;
    tw_quant_segment_t batch[BATCH];
    tw_grid_placed_t piece;
    size_t n = BATCH;

    args.seed = work->op->seeds[work->is.seed];
    while (status == TW_OK && n == BATCH) {
        for (n = 0; n < BATCH && tw_grid_walk_next(&walk, &piece); n++) {
            batch[n] = piece.at;
            if (decodes) {
                batch[n].src = message + piece.in_at;
            } else {
                batch[n].src = from_dst ? piece.at.dst : piece.at.src;
                batch[n].dst = message + piece.out_at;
            }
        }
        status = decodes ? tw_quant_decode(codec, &args, batch, n) : tw_quant_encode(codec, &args, batch, n);
    }
    return status;
}

/** Encode or decode a chunk as one message. */
static tw_status_t run_message(tw_sched_t *sched, const void *arg)
{
    const work_t *work = arg;
    const tw_qop_t *op = work->op;
    int packs = work->is.out == TW_FORM_PACKED;
    tw_sbuf_t packed = packs ? work->is.to : work->from[0], plain = packs ? work->from[0] : work->is.to;
    char *message = buffer_at(sched, packed), *buffer = plain >= 0 ? buffer_at(sched, plain) : NULL;
    tw_grid_walk_t walk = start_walk(work);
    tw_type_t type = op->args.type;
    size_t chunk = work->is.chunk, n_elems = op->grid->chunks[chunk].n_elems;
    tw_quant_messages_stream_t *coder = op->messages[op->grid->chunks[chunk].codec];

    if (!message || (plain >= 0 && !buffer)) {
        return TW_ERR_NO_MEMORY;
    }
    walk.in = walk.out = TW_FORM_PLAIN;
    const tw_quant_message_args_t args = {
        .type = type,
        .segments = work->pieces,
        .n_segments = tw_grid_pieces(walk, buffer, plain == TW_QOP_SRC, work->pieces),
        .seed = tw_qop_message_seed(op->seeds[work->is.seed], op->args.step, chunk),
    };
    tw_quant_outcome_t outcome;
    const tw_quant_stream_args_t call = {.outcome = &outcome};
    if (!packs) {
        const tw_quant_message_t from = {.src = message, .src_bytes = tw_sched_filled(sched, packed)};
        TW_TRY(tw_quant_messages_stream_decode(coder, &call, &args, TW_QUANT_SINK_STORE, from));
        return (tw_status_t)outcome.status;
    }
    size_t most = tw_quant_bound_bytes(tw_quant_messages_stream_codec(coder), type, n_elems);
    TW_TRY(tw_quant_messages_stream_encode(coder, &call, &args, message, most));
    tw_sched_fill(sched, packed, outcome.bytes);
    return TW_OK;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

/** Sum up encoded inputs, and write the sum to `to`. */
static tw_status_t run_sum_encoded(tw_sched_t *sched, const void *arg)
{
    const work_t *work = arg;
    tw_quant_t *in = qop_codec_of(work->op, work->is.chunk, work->is.in);
    tw_quant_t *out = qop_codec_of(work->op, work->is.chunk, work->is.out);
    tw_grid_walk_t walk = start_walk(work);
    int n_from = work->is.n_from;
    const void *srcs[n_from];
    const char *inputs[n_from];
    tw_quant_args_t args = work->op->args;
    char *to = work->is.to >= 0 ? buffer_at(sched, work->is.to) : NULL;
    tw_status_t status = work->is.to >= 0 && !to ? TW_ERR_NO_MEMORY : TW_OK;
    tw_grid_placed_t piece;

    args.factor = work->is.factor;
    args.seed = work->op->seeds[work->is.seed];
    args.saturate = isfinite(work->op->limit);
    for (int i = 0; i < n_from; i++) {
        inputs[i] = buffer_at(sched, work->from[i]);
        status = inputs[i] ? status : TW_ERR_NO_MEMORY;
    }
    while (status == TW_OK && tw_grid_walk_next(&walk, &piece)) {
        tw_quant_reduce_segment_t segment = {
            .srcs = srcs,
            .n_srcs = (size_t)n_from,
            .dst = to ? to + piece.out_at : piece.at.dst,
            .n_elems = piece.at.n_elems,
            .tensor = piece.at.tensor,
            .first_elem = piece.at.first_elem,
        };
        for (int i = 0; i < n_from; i++) {
            srcs[i] = inputs[i] + piece.in_at;
        }
        status = to ? tw_quant_reduce_encode(in, out, &args, &segment, 1)
                    : tw_quant_reduce_decode(in, &args, &segment, 1);
    }
    return status;
}

/** Compute acc = factor * the sum of n elements of all inputs. An input in the tensors is at src; one in a
 *  buffer begins at byte `at` of it. */
static void sum_plain(tw_sched_t *sched, const work_t *work, const char *src, size_t at, size_t n, float *acc)
{
    for (int i = 0; i < work->is.n_from; i++) {
        const char *input = work->from[i] == TW_QOP_SRC ? src : buffer_at(sched, work->from[i]) + at;
        if (i == 0) {
            tw_convert_to_fp32(work->op->args.type, input, acc, n);
        } else {
            tw_convert_add_fp32(work->op->args.type, input, acc, n);
        }
    }
    for (size_t i = 0; work->is.factor != 1 && i < n; i++) {
        acc[i] *= work->is.factor;
    }
}

/** Sum up plain inputs, and encode the sum to `to`. A long piece is done in parts of whole frames. */
static tw_status_t run_sum_plain(tw_sched_t *sched, const void *arg)
{
    const work_t *work = arg;
    tw_quant_t *codec = qop_codec_of(work->op, work->is.chunk, work->is.out);
    tw_grid_walk_t walk = start_walk(work);
    tw_quant_args_t args = work->op->args;
    char *to = buffer_at(sched, work->is.to);
    float *acc = (float *)(void *)buffer_at(sched, work->op->work);
    const tw_quant_codec_t *description = tw_quant_codec_get(codec);
    size_t step = sum_elems(description), elem_bytes = work->op->elem_bytes;
    tw_status_t status = to && acc ? TW_OK : TW_ERR_NO_MEMORY;
    tw_grid_placed_t piece;

    args.type = TW_TYPE_FP32;
    args.seed = work->op->seeds[work->is.seed];
    while (status == TW_OK && tw_grid_walk_next(&walk, &piece)) {
        for (size_t at = 0; at < piece.at.n_elems && status == TW_OK; at += step) {
            size_t n = piece.at.n_elems - at < step ? piece.at.n_elems - at : step;
            const char *src = (const char *)piece.at.src + at * elem_bytes;
            tw_quant_segment_t segment = {
                .src = acc,
                .dst = to + piece.out_at + tw_message_bytes(description, walk.type, at),
                .n_elems = n,
                .tensor = piece.at.tensor,
                .first_elem = piece.at.first_elem + at,
            };
            sum_plain(sched, work, src, piece.in_at + at * elem_bytes, n, acc);
            status = tw_quant_encode(codec, &args, &segment, 1);
        }
    }
    return status;
}

/* ---- emitting ------------------------------------------------------------------------------------------ */

static tw_compute_fn_t choose_run(const tw_qop_work_t *is)
{
    int is_packed = is->in == TW_FORM_PACKED || is->out == TW_FORM_PACKED;

    if (is->is_sum) {
        return is->in == TW_FORM_PLAIN ? run_sum_plain : run_sum_encoded;
    }
    return is_packed ? run_message : run_codec;
}

tw_task_t tw_qop_emit(const tw_qop_t *op, const tw_qop_work_t *is)
{
    tw_compute_fn_t run = choose_run(is);
    size_t from_bytes = (size_t)is->n_from * sizeof(*is->from);
    size_t n_pieces = run == run_message ? op->grid->chunks[is->chunk].n_pieces : 0;
    work_t *work = tw_sched_alloc(op->sched, sizeof(*work) + from_bytes);
    tw_quant_message_segment_t *pieces = tw_sched_alloc(op->sched, n_pieces * sizeof(*pieces));

    if (!work || !pieces) {
        return TW_TASK_NONE;
    }
    work->op = op;
    work->is = *is;
    work->pieces = pieces;
    memcpy(work->from, is->from, from_bytes);
    tw_task_t task = tw_sched_compute(op->sched, run, work);
    for (int i = 0; i < is->n_from; i++) {
        tw_sched_use(op->sched, task, work->from[i]);
    }
    tw_sched_use(op->sched, task, is->to);
    tw_sched_use(op->sched, task, run == run_sum_plain ? op->work : TW_SBUF_NONE);
    return task;
}
