/* The lossless codec on streams: what a call needs, where it lies in the workspace, and the launches. */
#include "quant/cuda/lossless_job.h"

#include <stdlib.h>

#define THREADS TW_ENTROPY_CUDA_THREADS

struct tw_quant_lossless_stream {
    tw_entropy_cuda_device_t device;
    int on_device;
    tw_quant_lossless_t *host; /* a codec of the host instead; on a device NULL */
    /* What goes to the device first. */
    tw_lossless_shape_t shape;
    tw_entropy_staging_t staging;
};

/* ---- codecs -------------------------------------------------------------------------------------------- */

tw_status_t tw_lossless_stream_create_on(const tw_entropy_cuda_device_t *device,
                                         tw_quant_lossless_stream_t **out)
{
    tw_quant_lossless_stream_t *codec = calloc(1, sizeof(*codec));
    TW_FAIL_IF(!codec, TW_ERR_NO_MEMORY, "quant: lossless: out of memory");
    codec->on_device = device != NULL;
    if (device) {
        codec->device = *device;
    } else {
        tw_status_t status = tw_quant_lossless_create(NULL, &codec->host);
        if (status != TW_OK) {
            free(codec);
            return status;
        }
    }
    *out = codec;
    return TW_OK;
}

tw_status_t tw_quant_lossless_stream_create(tw_mem_t mem, tw_quant_lossless_stream_t **out)
{
    if (mem == TW_MEM_HOST) {
        return tw_lossless_stream_create_on(NULL, out);
    }
#ifdef TW_HAVE_CUDA
    tw_entropy_cuda_device_t device;
    TW_TRY(tw_lossless_cuda_device_create(&device));
    return tw_lossless_stream_create_on(&device, out);
#else
    return tw_fail(TW_ERR_UNSUPPORTED, "quant: lossless: this was built without CUDA");
#endif
}

void tw_quant_lossless_stream_destroy(tw_quant_lossless_stream_t *codec)
{
    if (codec) {
        tw_quant_lossless_destroy(codec->host);
        tw_lossless_shape_cleanup(&codec->shape);
        tw_entropy_staging_cleanup(&codec->staging);
    }
    free(codec);
}

/* ---- workspaces ---------------------------------------------------------------------------------------- */

/** What is filled first: state, segments, pieces. What is zeroed follows them. */
static void lossless_stream_place(tw_lossless_cuda_job_t *job, void *workspace, int encoding, size_t *bytes)
{
    tw_entropy_arena_t arena = {(uintptr_t)workspace};
    size_t n_live = job->n_elems, rows = job->n_rows, blocks = job->n_blocks;
    int is_fp32 = job->type == TW_TYPE_FP32;
    job->segments = tw_entropy_arena_take(&arena, job->n_segments + 1, sizeof(*job->segments));
    job->pieces = tw_entropy_arena_take(&arena, job->n_pieces, sizeof(*job->pieces));
    job->state = tw_entropy_arena_take(&arena, 1, sizeof(*job->state));
    job->blocks = tw_entropy_arena_take(&arena, job->n_blocks, sizeof(*job->blocks));
    job->block_tails = tw_entropy_arena_take(&arena, blocks, sizeof(*job->block_tails));
    job->tail_counts = tw_entropy_arena_take(&arena, 1, sizeof(tw_lossless_tail_counts_t));
    job->rows = tw_entropy_arena_take(&arena, rows, sizeof(*job->rows));
    job->live_before = tw_entropy_arena_take(&arena, rows, sizeof(*job->live_before));
    job->live_rows = tw_entropy_arena_take(&arena, rows, sizeof(*job->live_rows));
    job->columns = tw_entropy_arena_take(&arena, job->n_columns, sizeof(*job->columns));
    job->heads = tw_entropy_arena_take(&arena, n_live, sizeof(*job->heads));
    job->lanes = tw_entropy_arena_take(&arena, blocks * TW_ENTROPY_LANES, sizeof(*job->lanes));
    if (encoding) {
        job->counts = tw_entropy_arena_take(&arena, TW_LOSSLESS_CLASSES, sizeof(*job->counts));
        job->encode =
            tw_entropy_arena_take(&arena, TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS, sizeof(*job->encode));
        job->codes = tw_entropy_arena_take(&arena, n_live, sizeof(*job->codes));
        job->tails =
            tw_entropy_arena_take(&arena, job->type == TW_TYPE_BF16 ? 0 : n_live, sizeof(*job->tails));
        job->words =
            tw_entropy_arena_take(&arena, blocks * tw_lossless_cuda_room(job->type), sizeof(*job->words));
        job->listed = tw_entropy_arena_take(&arena, is_fp32 ? blocks * TW_LOSSLESS_CUDA_LISTED : 0,
                                            sizeof(*job->listed));
        job->encode_tails = tw_entropy_arena_take(&arena, TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_SYMBOLS,
                                                  sizeof(*job->encode_tails));
    } else {
        job->symbols =
            tw_entropy_arena_take(&arena, TW_LOSSLESS_CONTEXTS * TW_ENTROPY_FREQ_SUM, sizeof(*job->symbols));
        job->slots =
            tw_entropy_arena_take(&arena, TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS, sizeof(*job->slots));
        job->tail_symbols = tw_entropy_arena_take(&arena, TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_FREQ_SUM,
                                                  sizeof(*job->tail_symbols));
        job->tail_slots = tw_entropy_arena_take(&arena, TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_SYMBOLS,
                                                sizeof(*job->tail_slots));
        job->tails = tw_entropy_arena_take(&arena, is_fp32 ? n_live : 0, sizeof(*job->tails));
    }
    *bytes = arena.at - (uintptr_t)workspace;
}

static uint32_t blocks_of(size_t n_elems)
{
    return (uint32_t)((n_elems + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS);
}

/** The pieces of segments, and what there is of all. */
static tw_status_t plan_encode(tw_quant_lossless_stream_t *codec, tw_type_t type, size_t n_elems,
                               const tw_quant_lossless_segment_t *segments, size_t n_segments,
                               tw_lossless_cuda_job_t *job)
{
    TW_TRY(tw_lossless_make_pieces(&codec->shape, segments, n_segments));
    *job = (tw_lossless_cuda_job_t){
        .type = type,
        .n_elems = (uint32_t)n_elems,
        .n_segments = (uint32_t)n_segments,
        .n_pieces = (uint32_t)codec->shape.n_pieces,
        .n_blocks = blocks_of(n_elems),
        .bound = tw_quant_lossless_bound_bytes(type, n_elems),
    };
    for (size_t p = 0; p < codec->shape.n_pieces; p++) {
        const tw_lossless_piece_t *piece = &codec->shape.pieces[p];
        job->n_rows += (uint32_t)tw_lossless_piece_rows(piece);
        job->n_columns += piece->flags & TW_LOSSLESS_PIECE_UNKNOWN ? 0 : piece->row_elems;
    }
    return TW_OK;
}

static void plan_decode(tw_type_t type, size_t n_elems, size_t n_segments, tw_lossless_cuda_job_t *job)
{
    *job = (tw_lossless_cuda_job_t){
        .type = type,
        .n_elems = (uint32_t)n_elems,
        .n_segments = (uint32_t)n_segments,
        .n_pieces = (uint32_t)tw_lossless_pieces_max(n_elems),
        .n_rows = (uint32_t)tw_lossless_rows_max(n_elems),
        .n_columns = (uint32_t)tw_lossless_columns_max(n_elems),
        .n_blocks = blocks_of(n_elems),
        .bound = tw_quant_lossless_bound_bytes(type, n_elems),
    };
}

size_t tw_quant_lossless_encode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                const tw_quant_lossless_segment_t *segments,
                                                size_t n_segments)
{
    tw_lossless_cuda_job_t job;
    size_t bytes = 0, n_elems = 0;
    for (size_t s = 0; s < n_segments; s++) {
        n_elems = tw_size_add(n_elems, segments[s].n_elems);
    }
    if (!codec->on_device) {
        return 0;
    }
    if (n_elems > TW_LOSSLESS_ELEMS_MAX ||
        plan_encode(codec, type, n_elems, segments, n_segments, &job) != TW_OK) {
        return SIZE_MAX;
    }
    lossless_stream_place(&job, NULL, 1, &bytes);
    return bytes;
}

size_t tw_quant_lossless_decode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments)
{
    tw_lossless_cuda_job_t job;
    size_t bytes = 0;
    if (!codec->on_device) {
        return 0;
    }
    if (n_elems > TW_LOSSLESS_ELEMS_MAX) {
        return SIZE_MAX;
    }
    plan_decode(type, n_elems, n_segments, &job);
    lossless_stream_place(&job, NULL, 0, &bytes);
    return bytes;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/** Where elements are, to the device. */
static tw_status_t fill_segments(tw_quant_lossless_stream_t *codec, const tw_lossless_cuda_job_t *job,
                                 const tw_quant_lossless_segment_t *segments, size_t n_segments, int encoding,
                                 tw_stream_t stream)
{
    size_t n = 0, words = (n_segments + 1) * sizeof(tw_lossless_cuda_segment_t) / sizeof(uint64_t);
    uint64_t first = 0;
    TW_TRY(tw_entropy_staging_need(&codec->staging, words));
    tw_lossless_cuda_segment_t *to = (void *)codec->staging.words;
    for (size_t s = 0; s < n_segments; s++) {
        const void *at = encoding ? segments[s].src : segments[s].dst;
        if (segments[s].n_elems) {
            to[n++] = (tw_lossless_cuda_segment_t){first, (uintptr_t)at};
            first += segments[s].n_elems;
        }
    }
    to[n++] = (tw_lossless_cuda_segment_t){first, 0};
    return codec->device.fill(job->segments, codec->staging.words, n * sizeof(*to) / sizeof(uint64_t),
                              stream);
}

static tw_status_t fill_pieces(tw_quant_lossless_stream_t *codec, const tw_lossless_cuda_job_t *job,
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

static void launch_analysis(tw_entropy_launching_t *l)
{
    const tw_lossless_cuda_job_t *job = l->job;
    size_t rows = tw_entropy_launch_persistent(l, divided(job->n_rows, TW_ENTROPY_CUDA_WARPS));
    size_t sample = tw_lossless_sample_distance(job->n_elems ? job->n_elems : 1);
    sample =
        divided((size_t)job->n_elems * TW_LOSSLESS_SAMPLE_RUN / sample + TW_LOSSLESS_SAMPLE_RUN, 4 * THREADS);
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
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_SAMPLE, tw_entropy_launch_persistent(l, sample), THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_MODEL, 1, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_HEAD, 1, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_WRITE, job->n_pieces, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_GATHER, rows, THREADS);
    tw_entropy_launch(l, TW_LOSSLESS_CUDA_CODE, job->n_blocks, TW_ENTROPY_LANES);
}

static tw_status_t encode_on_device(tw_quant_lossless_stream_t *codec, const tw_quant_lossless_args_t *args,
                                    const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                    size_t n_elems, void *dst)
{
    tw_lossless_cuda_job_t job;
    size_t needed;
    TW_TRY(plan_encode(codec, args->type, n_elems, segments, n_segments, &job));
    lossless_stream_place(&job, args->call.workspace, 1, &needed);
    TW_TRY(tw_entropy_call_check("lossless_stream_encode", &args->call, dst, needed));
    job.dst = dst;
    job.outcome = args->call.outcome ? args->call.outcome : &job.state->outcome;
    int coded = n_elems >= TW_LOSSLESS_CODED_MIN;
    tw_entropy_launching_t l = {&codec->device, &job, args->call.stream, TW_OK};
    TW_TRY(fill_segments(codec, &job, segments, n_segments, 1, args->call.stream));
    TW_TRY(codec->device.zero(job.state, (size_t)((char *)job.rows - (char *)job.state), args->call.stream));
    TW_TRY(codec->device.zero(job.counts, TW_LOSSLESS_CLASSES * sizeof(*job.counts), args->call.stream));
    if (coded) {
        TW_TRY(fill_pieces(codec, &job, args->call.stream));
        launch_analysis(&l);
    }
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_LAYOUT, 1, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_ASSEMBLE, (size_t)job.n_blocks * TW_ENTROPY_CUDA_PARTS, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_FINISH, 1, THREADS);
    return tw_entropy_launch_finish(&l, &args->call, job.outcome);
}

static tw_status_t decode_on_device(tw_quant_lossless_stream_t *codec, const tw_quant_lossless_args_t *args,
                                    tw_quant_sink_t sink, const tw_quant_lossless_segment_t *segments,
                                    size_t n_segments, tw_quant_message_t message)
{
    tw_lossless_cuda_job_t job;
    size_t needed, n_elems;
    TW_TRY(tw_lossless_check_call("lossless_stream_decode", args->type, segments, n_segments, 0, &n_elems));
    TW_FAIL_IF(!message.src, TW_ERR_INVALID, "quant: lossless_stream_decode: no message");
    plan_decode(args->type, n_elems, n_segments, &job);
    lossless_stream_place(&job, args->call.workspace, 0, &needed);
    TW_TRY(tw_entropy_call_check("lossless_stream_decode", &args->call, message.src, needed));
    job.sink = sink;
    job.src = message.src;
    job.src_bytes = message.src_bytes < UINT32_MAX ? (uint32_t)message.src_bytes : UINT32_MAX;
    job.at_most = (uint32_t)(message.at_most != 0);
    job.outcome = args->call.outcome ? args->call.outcome : &job.state->outcome;
    tw_entropy_launching_t l = {&codec->device, &job, args->call.stream, TW_OK};
    size_t rows = tw_entropy_launch_persistent(&l, divided(job.n_rows, TW_ENTROPY_CUDA_WARPS));
    size_t parts = (size_t)job.n_blocks * TW_ENTROPY_CUDA_PARTS;
    TW_TRY(fill_segments(codec, &job, segments, n_segments, 0, args->call.stream));
    TW_TRY(codec->device.zero(job.state, sizeof(*job.state), args->call.stream));
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_OPEN, 1, TW_ENTROPY_LANES);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CHECK, tw_entropy_launch_persistent(&l, parts ? parts : 1),
                      THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_READ, 1, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_EXPECT, rows, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CHECK_BLOCKS, parts, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_DECODE, job.n_blocks, TW_ENTROPY_LANES);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_SCATTER, rows, THREADS);
    tw_entropy_launch(&l, TW_LOSSLESS_CUDA_CLOSE, 1, TW_ENTROPY_LANES);
    return tw_entropy_launch_finish(&l, &args->call, job.outcome);
}

/* ---- the host's memory --------------------------------------------------------------------------------- */

static tw_status_t decode_on_host(tw_quant_lossless_stream_t *codec, const tw_quant_lossless_args_t *args,
                                  tw_quant_sink_t sink, const tw_quant_lossless_segment_t *segments,
                                  size_t n_segments, tw_quant_message_t message)
{
    const void *src = message.src;
    size_t bytes = message.src_bytes;
    tw_status_t status = TW_OK;
    if (message.at_most) {
        status = tw_quant_lossless_message_bytes(src, message.src_bytes, &bytes);
        bytes = bytes < message.src_bytes ? bytes : message.src_bytes; /* too short is found below */
    }
    if (status == TW_OK) {
        status = sink == TW_QUANT_SINK_STORE
                     ? tw_quant_lossless_decode(codec->host, args->type, segments, n_segments, src, bytes)
                     : tw_quant_lossless_decode_fp32(codec->host, args->type, sink == TW_QUANT_SINK_ADD_FP32,
                                                     segments, n_segments, src, bytes);
    }
    tw_entropy_put_outcome(&args->call, bytes, status);
    return status == TW_ERR_INVALID || status == TW_ERR_NO_MEMORY ? status : TW_OK;
}

/* ---- public -------------------------------------------------------------------------------------------- */

tw_status_t tw_quant_lossless_stream_encode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            void *dst, size_t dst_bytes)
{
    size_t n_elems, bytes = 0;
    if (!codec->on_device) {
        TW_TRY(
            tw_quant_lossless_encode(codec->host, args->type, segments, n_segments, dst, dst_bytes, &bytes));
        tw_entropy_put_outcome(&args->call, bytes, TW_OK);
        return TW_OK;
    }
    TW_TRY(tw_lossless_check_call("lossless_stream_encode", args->type, segments, n_segments, 1, &n_elems));
    size_t bound = tw_quant_lossless_bound_bytes(args->type, n_elems);
    TW_FAIL_IF(!dst || dst_bytes < bound, TW_ERR_INVALID,
               "quant: lossless_stream_encode: room for %zu bytes, must be for %zu", dst ? dst_bytes : 0,
               bound);
    return encode_on_device(codec, args, segments, n_segments, n_elems, dst);
}

tw_status_t tw_quant_lossless_stream_decode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args, tw_quant_sink_t sink,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            tw_quant_message_t message)
{
    return codec->on_device ? decode_on_device(codec, args, sink, segments, n_segments, message)
                            : decode_on_host(codec, args, sink, segments, n_segments, message);
}
