/* Codecs of messages on streams: lays out a call's workspace and launches its kernels. */
#include "quant/cuda/lossless_job.h"

#include <stdlib.h>

#define THREADS TW_ENTROPY_CUDA_THREADS

struct tw_quant_messages_stream {
    tw_quant_codec_t codec;
    tw_entropy_cuda_device_t device;
    int on_device;
    tw_quant_messages_t *host; /* the host's codec, if memory is the host's; NULL on a device */
    /* The message's pieces, and the words that are copied to the device before kernels run. */
    tw_lossless_shape_t shape;
    tw_entropy_staging_t staging;
};

/* ---- codecs -------------------------------------------------------------------------------------------- */

tw_status_t tw_messages_stream_create_on(const tw_entropy_cuda_device_t *device,
                                         const tw_quant_codec_t *codec, tw_quant_messages_stream_t **out)
{
    TW_TRY(tw_quant_codec_check(codec));
    TW_FAIL_IF(codec->kind != TW_QUANT_LOSSLESS && codec->kind != TW_QUANT_ECDQ, TW_ERR_INVALID,
               "quant: codec %s has no messages on streams", tw_quant_row_get(codec->kind)->name);
    tw_quant_messages_stream_t *stream = calloc(1, sizeof(*stream));
    TW_FAIL_IF(!stream, TW_ERR_NO_MEMORY, "quant: out of memory for a codec on streams");
    stream->codec = *codec;
    stream->on_device = device != NULL;
    if (device) {
        stream->device = *device;
    } else {
        tw_status_t status = tw_quant_messages_create(codec, NULL, &stream->host);
        if (status != TW_OK) {
            free(stream);
            return status;
        }
    }
    *out = stream;
    return TW_OK;
}

tw_status_t tw_quant_messages_stream_create(const tw_quant_codec_t *codec, tw_mem_t mem,
                                            tw_quant_messages_stream_t **out)
{
    if (mem == TW_MEM_HOST) {
        return tw_messages_stream_create_on(NULL, codec, out);
    }
#ifdef TW_HAVE_CUDA
    tw_entropy_cuda_device_t device;
    TW_TRY(tw_lossless_cuda_device_create(&device));
    return tw_messages_stream_create_on(&device, codec, out);
#else
    return tw_fail(TW_ERR_UNSUPPORTED, "quant: messages: this was built without CUDA");
#endif
}

void tw_quant_messages_stream_destroy(tw_quant_messages_stream_t *codec)
{
    if (codec) {
        tw_quant_messages_destroy(codec->host);
        tw_lossless_shape_cleanup(&codec->shape);
        tw_entropy_staging_cleanup(&codec->staging);
    }
    free(codec);
}

const tw_quant_codec_t *tw_quant_messages_stream_codec(const tw_quant_messages_stream_t *codec)
{
    return &codec->codec;
}

/* ---- workspaces ---------------------------------------------------------------------------------------- */

/** Place the arrays that the lossless codec needs and ecdq does not. */
static void place_lossless(tw_lossless_cuda_job_t *job, tw_entropy_arena_t *arena, int encoding)
{
    size_t n_live = job->n_elems, tail_contexts = TW_LOSSLESS_TAIL_CONTEXTS;
    size_t symbols = TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS;
    int is_fp32 = job->type == TW_TYPE_FP32;
    if (encoding) {
        job->encode = tw_entropy_arena_take(arena, symbols, sizeof(*job->encode));
        job->tails =
            tw_entropy_arena_take(arena, job->type == TW_TYPE_BF16 ? 0 : n_live, sizeof(*job->tails));
        job->listed = tw_entropy_arena_take(arena, is_fp32 ? job->n_blocks * TW_LOSSLESS_CUDA_LISTED : 0,
                                            sizeof(*job->listed));
        job->encode_tails =
            tw_entropy_arena_take(arena, tail_contexts * TW_ENTROPY_SYMBOLS, sizeof(*job->encode_tails));
        return;
    }
    job->symbols =
        tw_entropy_arena_take(arena, TW_LOSSLESS_CONTEXTS * TW_ENTROPY_FREQ_SUM, sizeof(*job->symbols));
    job->slots = tw_entropy_arena_take(arena, symbols, sizeof(*job->slots));
    job->tail_symbols =
        tw_entropy_arena_take(arena, tail_contexts * TW_ENTROPY_FREQ_SUM, sizeof(*job->tail_symbols));
    job->tail_slots =
        tw_entropy_arena_take(arena, tail_contexts * TW_ENTROPY_SYMBOLS, sizeof(*job->tail_slots));
    job->tails = tw_entropy_arena_take(arena, is_fp32 ? n_live : 0, sizeof(*job->tails));
}

/** Lay the workspace out and return its bytes. Arrays that the host fills come first; all that must be
 *  zeroed, from the state to the rows, is adjacent. */
static size_t messages_place(tw_lossless_cuda_job_t *job, void *workspace, int encoding)
{
    tw_entropy_arena_t arena = {(uintptr_t)workspace};
    size_t rows = job->n_rows, blocks = job->n_blocks;
    job->segments = tw_entropy_arena_take(&arena, job->n_segments + 1, sizeof(*job->segments));
    job->pieces = tw_entropy_arena_take(&arena, job->n_pieces, sizeof(*job->pieces));
    job->state = tw_entropy_arena_take(&arena, 1, sizeof(*job->state));
    job->blocks = tw_entropy_arena_take(&arena, blocks, sizeof(*job->blocks));
    job->block_tails = tw_entropy_arena_take(&arena, blocks, sizeof(*job->block_tails));
    job->tail_counts = tw_entropy_arena_take(&arena, 1, sizeof(tw_lossless_tail_counts_t));
    job->counts = tw_entropy_arena_take(&arena, encoding ? TW_LOSSLESS_CLASSES : 0, sizeof(*job->counts));
    job->symbol_counts = tw_entropy_arena_take(
        &arena, encoding && job->dithered ? blocks * TW_ECDQ_SYMBOLS : 0, sizeof(*job->symbol_counts));
    job->rows = tw_entropy_arena_take(&arena, rows, sizeof(*job->rows));
    job->live_before = tw_entropy_arena_take(&arena, rows, sizeof(*job->live_before));
    job->live_rows = tw_entropy_arena_take(&arena, rows, sizeof(*job->live_rows));
    job->columns = tw_entropy_arena_take(&arena, job->n_columns, sizeof(*job->columns));
    job->heads = tw_entropy_arena_take(&arena, job->n_elems, sizeof(*job->heads));
    job->lanes = tw_entropy_arena_take(&arena, blocks * TW_ENTROPY_LANES, sizeof(*job->lanes));
    job->codes =
        tw_entropy_arena_take(&arena, encoding || job->dithered ? job->n_elems : 0, sizeof(*job->codes));
    job->words = tw_entropy_arena_take(&arena, encoding ? blocks * tw_lossless_cuda_room(job) : 0,
                                       sizeof(*job->words));
    if (!job->dithered) {
        place_lossless(job, &arena, encoding);
    }
    return arena.at - (uintptr_t)workspace;
}

static uint32_t blocks_of(size_t n_elems)
{
    return (uint32_t)((n_elems + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS);
}

/** Fill in the members of a job that encoding and decoding share. */
static tw_lossless_cuda_job_t plan(const tw_quant_messages_stream_t *codec, tw_type_t type, size_t n_elems,
                                   size_t n_segments)
{
    return (tw_lossless_cuda_job_t){
        .type = type,
        .dithered = codec->codec.kind == TW_QUANT_ECDQ,
        .step = codec->codec.step,
        .n_elems = (uint32_t)n_elems,
        .n_segments = (uint32_t)n_segments,
        .n_blocks = blocks_of(n_elems),
        .bound = tw_quant_lossless_bound_bytes(type, n_elems),
    };
}

/** Make the segments' pieces, and set the job's numbers of pieces, rows, columns and blocks. */
static tw_status_t plan_encode(tw_quant_messages_stream_t *codec, const tw_quant_message_args_t *args,
                               size_t n_elems, tw_lossless_cuda_job_t *job)
{
    TW_TRY(tw_lossless_make_pieces(&codec->shape, args->segments, args->n_segments));
    *job = plan(codec, args->type, n_elems, args->n_segments);
    job->key[0] = (uint32_t)args->seed;
    job->key[1] = (uint32_t)(args->seed >> 32);
    job->n_pieces = (uint32_t)codec->shape.n_pieces;
    for (size_t p = 0; p < codec->shape.n_pieces; p++) {
        const tw_lossless_piece_t *piece = &codec->shape.pieces[p];
        job->n_rows += (uint32_t)tw_lossless_piece_rows(piece);
        job->n_columns += piece->flags & TW_LOSSLESS_PIECE_UNKNOWN ? 0 : piece->row_elems;
    }
    return TW_OK;
}

static tw_lossless_cuda_job_t plan_decode(const tw_quant_messages_stream_t *codec, tw_type_t type,
                                          size_t n_elems, size_t n_segments)
{
    tw_lossless_cuda_job_t job = plan(codec, type, n_elems, n_segments);
    job.n_pieces = (uint32_t)tw_lossless_pieces_max(n_elems);
    job.n_rows = (uint32_t)tw_lossless_rows_max(n_elems);
    job.n_columns = (uint32_t)tw_lossless_columns_max(n_elems);
    return job;
}

size_t tw_quant_messages_encode_workspace_bytes(tw_quant_messages_stream_t *codec,
                                                const tw_quant_message_args_t *args)
{
    tw_lossless_cuda_job_t job;
    size_t n_elems = 0;
    for (size_t s = 0; s < args->n_segments; s++) {
        n_elems = tw_size_add(n_elems, args->segments[s].n_elems);
    }
    if (!codec->on_device) {
        return 0;
    }
    if (n_elems > TW_LOSSLESS_ELEMS_MAX || plan_encode(codec, args, n_elems, &job) != TW_OK) {
        return SIZE_MAX;
    }
    return messages_place(&job, NULL, 1);
}

size_t tw_quant_messages_decode_workspace_bytes(tw_quant_messages_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments)
{
    if (!codec->on_device) {
        return 0;
    }
    if (n_elems > TW_LOSSLESS_ELEMS_MAX) {
        return SIZE_MAX;
    }
    tw_lossless_cuda_job_t job = plan_decode(codec, type, n_elems, n_segments);
    return messages_place(&job, NULL, 0);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/** Copy the segments' addresses to the device. */
static tw_status_t fill_segments(tw_quant_messages_stream_t *codec, const tw_lossless_cuda_job_t *job,
                                 const tw_quant_message_args_t *args, int encoding, tw_stream_t stream)
{
    size_t n = 0, words = (args->n_segments + 1) * sizeof(tw_lossless_cuda_segment_t) / sizeof(uint64_t);
    uint64_t first = 0;
    TW_TRY(tw_entropy_staging_need(&codec->staging, words));
    tw_lossless_cuda_segment_t *to = (void *)codec->staging.words;
    for (size_t s = 0; s < args->n_segments; s++) {
        const void *at = encoding ? args->segments[s].src : args->segments[s].dst;
        if (args->segments[s].n_elems) {
            to[n++] = (tw_lossless_cuda_segment_t){first, (uintptr_t)at};
            first += args->segments[s].n_elems;
        }
    }
    to[n++] = (tw_lossless_cuda_segment_t){first, 0};
    return codec->device.fill(job->segments, codec->staging.words, n * sizeof(*to) / sizeof(uint64_t),
                              stream);
}

static tw_status_t fill_pieces(tw_quant_messages_stream_t *codec, const tw_lossless_cuda_job_t *job,
                               tw_stream_t stream)
{
    size_t words = job->n_pieces * sizeof(tw_lossless_cuda_piece_t) / sizeof(uint64_t);
    tw_lossless_cuda_piece_t next = {0};
    TW_TRY(tw_entropy_staging_need(&codec->staging, words));
    tw_lossless_cuda_piece_t *to = (void *)codec->staging.words;
    for (size_t p = 0; p < codec->shape.n_pieces; p++) {
        const tw_lossless_piece_t *piece = &codec->shape.pieces[p];
        next.n_elems = piece->n_elems;
        next.row_elems = piece->row_elems;
        next.first = piece->first;
        next.n_rows = (uint32_t)tw_lossless_piece_rows(piece);
        next.with_columns = !(piece->flags & TW_LOSSLESS_PIECE_UNKNOWN);
        to[p] = next;
        next.first_elem += next.n_elems;
        next.first_row += next.n_rows;
        next.first_column += next.with_columns ? next.row_elems : 0;
    }
    return codec->device.fill(job->pieces, codec->staging.words, words, stream);
}

static size_t divided(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static uint32_t of_codec(const tw_lossless_cuda_job_t *job, tw_lossless_cuda_kernel_t lossless,
                         tw_lossless_cuda_kernel_t ecdq)
{
    return job->dithered ? ecdq : lossless;
}

static void launch_coder(tw_entropy_launching_t *l)
{
    const tw_lossless_cuda_job_t *job = l->job;
    size_t rows = tw_entropy_launch_persistent(l, divided(job->n_rows, TW_ENTROPY_CUDA_WARPS));
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_ROWS, rows, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_COLUMNS, divided(job->n_columns, THREADS), THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_DEVIATIONS,
                      tw_entropy_launch_persistent(
                          l, divided((size_t)job->n_pieces * TW_LOSSLESS_TRIED_ON, TW_ENTROPY_CUDA_WARPS)),
                      THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_SCALES, job->n_pieces, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_CLASSES, rows, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_PIECES, job->n_pieces, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_COUNT, 1, THREADS);
    if (!job->dithered) {
        size_t sample = tw_lossless_sample_distance(job->n_elems ? job->n_elems : 1);
        sample = divided((size_t)job->n_elems * TW_LOSSLESS_SAMPLE_RUN / sample + TW_LOSSLESS_SAMPLE_RUN,
                         4 * THREADS);
        tw_entropy_launch(l, TW_LOSSLESS_CUDA_SAMPLE, tw_entropy_launch_persistent(l, sample), THREADS);
        tw_entropy_launch(l, TW_LOSSLESS_CUDA_MODEL, 1, THREADS);
    }
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_HEAD, 1, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_WRITE, job->n_pieces, THREADS);
    tw_entropy_launch(l, of_codec(job, TW_LOSSLESS_CUDA_GATHER, TW_ECDQ_CUDA_GATHER), rows, THREADS);
    if (job->dithered) {
        tw_entropy_launch(l, TW_ECDQ_CUDA_COUNT, (size_t)job->n_blocks * TW_ENTROPY_CUDA_PARTS, THREADS);
    }
    tw_entropy_launch(l, of_codec(job, TW_LOSSLESS_CUDA_CODE, TW_ECDQ_CUDA_CODE), job->n_blocks,
                      TW_ENTROPY_LANES);
}

static tw_status_t encode_on_device(tw_quant_messages_stream_t *codec, const tw_quant_stream_args_t *call,
                                    const tw_quant_message_args_t *args, void *dst, size_t dst_bytes)
{
    tw_lossless_cuda_job_t job;
    size_t n_elems;
    TW_TRY(tw_lossless_check_encode("messages_stream_encode", args, dst, dst_bytes, &n_elems));
    TW_TRY(plan_encode(codec, args, n_elems, &job));
    TW_TRY(
        tw_entropy_call_check("messages_stream_encode", call, dst, messages_place(&job, call->workspace, 1)));
    job.dst = dst;
    job.outcome = call->outcome ? call->outcome : &job.state->outcome;
    tw_entropy_launching_t l = {&codec->device, &job, call->stream, TW_OK};
    TW_TRY(fill_segments(codec, &job, args, 1, call->stream));
    TW_TRY(codec->device.zero(job.state, (size_t)((char *)job.rows - (char *)job.state), call->stream));
    if (n_elems >= TW_LOSSLESS_CODED_MIN) {
        TW_TRY(fill_pieces(codec, &job, call->stream));
        launch_coder(&l);
    }
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_LAYOUT, 1, THREADS);
    tw_entropy_launch(&l, of_codec(&job, TW_LOSSLESS_CUDA_ASSEMBLE, TW_ECDQ_CUDA_ASSEMBLE),
                      (size_t)job.n_blocks * TW_ENTROPY_CUDA_PARTS, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_FINISH, 1, THREADS);
    return tw_entropy_launch_finish(&l, call, job.outcome);
}

static tw_status_t decode_on_device(tw_quant_messages_stream_t *codec, const tw_quant_stream_args_t *call,
                                    const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                                    tw_quant_message_t message)
{
    size_t n_elems;
    TW_TRY(tw_lossless_check_call("messages_stream_decode", args->type, args->segments, args->n_segments, 0,
                                  &n_elems));
    TW_FAIL_IF(!message.src, TW_ERR_INVALID, "quant: messages_stream_decode: no message");
    tw_lossless_cuda_job_t job = plan_decode(codec, args->type, n_elems, args->n_segments);
    TW_TRY(tw_entropy_call_check("messages_stream_decode", call, message.src,
                                 messages_place(&job, call->workspace, 0)));
    job.sink = sink;
    job.src = message.src;
    job.src_bytes = message.src_bytes < UINT32_MAX ? (uint32_t)message.src_bytes : UINT32_MAX;
    job.at_most = (uint32_t)(message.at_most != 0);
    job.outcome = call->outcome ? call->outcome : &job.state->outcome;
    tw_entropy_launching_t l = {&codec->device, &job, call->stream, TW_OK};
    size_t rows = tw_entropy_launch_persistent(&l, divided(job.n_rows, TW_ENTROPY_CUDA_WARPS));
    size_t parts = (size_t)job.n_blocks * TW_ENTROPY_CUDA_PARTS;
    TW_TRY(fill_segments(codec, &job, args, 0, call->stream));
    TW_TRY(codec->device.zero(job.state, sizeof(*job.state), call->stream));
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_OPEN, 1, TW_ENTROPY_LANES);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CHECK, tw_entropy_launch_persistent(&l, parts ? parts : 1),
                      THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_READ, 1, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_EXPECT, rows, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CHECK_BLOCKS, parts, THREADS);
    tw_entropy_launch(&l, of_codec(&job, TW_LOSSLESS_CUDA_DECODE, TW_ECDQ_CUDA_DECODE), job.n_blocks,
                      TW_ENTROPY_LANES);
    tw_entropy_launch(&l, of_codec(&job, TW_LOSSLESS_CUDA_SCATTER, TW_ECDQ_CUDA_SCATTER), rows, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CLOSE, 1, TW_ENTROPY_LANES);
    return tw_entropy_launch_finish(&l, call, job.outcome);
}

/* ---- public -------------------------------------------------------------------------------------------- */

tw_status_t tw_quant_messages_stream_encode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, void *dst, size_t dst_bytes)
{
    size_t bytes = 0;
    if (codec->on_device) {
        return encode_on_device(codec, call, args, dst, dst_bytes);
    }
    TW_TRY(tw_quant_messages_encode(codec->host, args, dst, dst_bytes, &bytes));
    tw_entropy_put_outcome(call, bytes, TW_OK);
    return TW_OK;
}

tw_status_t tw_quant_messages_stream_decode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                                            tw_quant_message_t message)
{
    tw_lossless_header_t header = {0};
    size_t bytes = message.src_bytes;
    if (codec->on_device) {
        return decode_on_device(codec, call, args, sink, message);
    }
    if (message.at_most && message.src && bytes >= sizeof(header)) {
        memcpy(&header, message.src, sizeof(header));
        bytes = header.bytes >= sizeof(header) && header.bytes < bytes ? header.bytes : bytes;
    }
    tw_status_t status = tw_quant_messages_decode(codec->host, args, sink, message.src, bytes);
    tw_entropy_put_outcome(call, bytes, status);
    return status == TW_ERR_INVALID || status == TW_ERR_NO_MEMORY ? status : TW_OK;
}
