/* The lossless delta on streams: lays out a call's workspace and launches its kernels. */
#include "quant/cuda/delta_job.h"

#include <stdlib.h>

#define THREADS TW_ENTROPY_CUDA_THREADS

struct tw_quant_delta_stream {
    tw_entropy_cuda_device_t device;
    int on_device;
    tw_quant_delta_t *host; /* the host's codec, if memory is the host's; NULL on a device */
    tw_entropy_staging_t staging;
};

/* ---- codecs -------------------------------------------------------------------------------------------- */

tw_status_t tw_delta_stream_create_on(const tw_entropy_cuda_device_t *device, tw_quant_delta_stream_t **out)
{
    tw_quant_delta_stream_t *codec = calloc(1, sizeof(*codec));
    TW_FAIL_IF(!codec, TW_ERR_NO_MEMORY, "quant: lossless delta: out of memory");
    codec->on_device = device != NULL;
    if (device) {
        codec->device = *device;
    } else {
        tw_status_t status = tw_quant_delta_create(NULL, &codec->host);
        if (status != TW_OK) {
            free(codec);
            return status;
        }
    }
    *out = codec;
    return TW_OK;
}

tw_status_t tw_quant_delta_stream_create(tw_mem_t mem, tw_quant_delta_stream_t **out)
{
    if (mem == TW_MEM_HOST) {
        return tw_delta_stream_create_on(NULL, out);
    }
#ifdef TW_HAVE_CUDA
    tw_entropy_cuda_device_t device;
    TW_TRY(tw_delta_cuda_device_create(&device));
    return tw_delta_stream_create_on(&device, out);
#else
    return tw_fail(TW_ERR_UNSUPPORTED, "quant: lossless delta: this was built without CUDA");
#endif
}

void tw_quant_delta_stream_destroy(tw_quant_delta_stream_t *codec)
{
    if (codec) {
        tw_quant_delta_destroy(codec->host);
        tw_entropy_staging_cleanup(&codec->staging);
    }
    free(codec);
}

/* ---- workspaces ---------------------------------------------------------------------------------------- */

static tw_delta_cuda_job_t plan(size_t n_elems, size_t n_segments, int second)
{
    return (tw_delta_cuda_job_t){
        .n_elems = (uint32_t)n_elems,
        .n_segments = (uint32_t)n_segments,
        .n_blocks = (uint32_t)((n_elems + TW_DELTA_BLOCK_ELEMS - 1) / TW_DELTA_BLOCK_ELEMS),
        .second = (uint32_t)second,
        .tried = n_elems >= TW_DELTA_CODED_MIN,
        .bound = tw_quant_delta_bound_bytes(n_elems),
    };
}

/** Lay the workspace out and return its bytes. The state and the sums, which must be zeroed, are adjacent. */
static size_t delta_stream_place(tw_delta_cuda_job_t *job, void *workspace, int encoding)
{
    tw_entropy_arena_t arena = {(uintptr_t)workspace};
    const size_t n_symbols = TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS, n_blocks = job->n_blocks;
    job->segments = tw_entropy_arena_take(&arena, job->n_segments + 1, sizeof(*job->segments));
    job->state = tw_entropy_arena_take(&arena, 1, sizeof(*job->state));
    job->sums = tw_entropy_arena_take(&arena, (size_t)encoding, sizeof(*job->sums));
    job->blocks = tw_entropy_arena_take(&arena, n_blocks, sizeof(*job->blocks));
    if (encoding) {
        const size_t room = job->tried ? n_blocks * TW_DELTA_BLOCK_ELEMS : 0;
        job->encode = tw_entropy_arena_take(&arena, n_symbols, sizeof(*job->encode));
        job->words = tw_entropy_arena_take(&arena, room, sizeof(*job->words));
        job->lanes = tw_entropy_arena_take(&arena, n_blocks * TW_ENTROPY_LANES, sizeof(*job->lanes));
    } else {
        job->symbols =
            tw_entropy_arena_take(&arena, TW_DELTA_TABLES * TW_ENTROPY_FREQ_SUM, sizeof(*job->symbols));
        job->slots = tw_entropy_arena_take(&arena, n_symbols, sizeof(*job->slots));
    }
    return arena.at - (uintptr_t)workspace;
}

static size_t delta_stream_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                           size_t n_segments, int encoding)
{
    if (codec && !codec->on_device) {
        return 0;
    }
    if (n_elems > TW_DELTA_ELEMS_MAX || n_segments >= UINT32_MAX) {
        return SIZE_MAX;
    }
    tw_delta_cuda_job_t job = plan(n_elems, n_segments, 0);
    return delta_stream_place(&job, NULL, encoding);
}

size_t tw_quant_delta_encode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments)
{
    return delta_stream_workspace_bytes(codec, n_elems, n_segments, 1);
}

size_t tw_quant_delta_decode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments)
{
    return delta_stream_workspace_bytes(codec, n_elems, n_segments, 0);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/** Copy the segments' addresses to the device. Sets job->n_segments: the segments with elements. */
static tw_status_t fill_segments(tw_quant_delta_stream_t *codec, tw_delta_cuda_job_t *job,
                                 const tw_quant_delta_segment_t *segments, size_t n_segments, int encoding,
                                 tw_stream_t stream)
{
    const size_t words = sizeof(tw_delta_cuda_segment_t) / sizeof(uint64_t);
    uint32_t n = 0;
    uint64_t first = 0;
    TW_TRY(tw_entropy_staging_need(&codec->staging, (n_segments + 1) * words));
    tw_delta_cuda_segment_t *to = (void *)codec->staging.words;
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_delta_segment_t *from = &segments[s];
        if (from->n_elems) {
            to[n++] = (tw_delta_cuda_segment_t){.first = first,
                                                .old_values = (uintptr_t)from->base,
                                                .new_values =
                                                    encoding ? (uintptr_t)from->src : (uintptr_t)from->dst,
                                                .states = (uintptr_t)from->state};
            first += from->n_elems;
        }
    }
    to[n] = (tw_delta_cuda_segment_t){.first = first};
    job->n_segments = n;
    return codec->device.fill(job->segments, codec->staging.words, (n + 1) * words, stream);
}

static size_t divided(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

static void launch_coder(tw_entropy_launching_t *l, const tw_delta_cuda_job_t *job)
{
    const size_t in_sample = job->n_elems < TW_DELTA_SAMPLE_MAX ? job->n_elems : TW_DELTA_SAMPLE_MAX;
    const size_t sample = tw_entropy_launch_persistent(l, divided(in_sample, THREADS));
    tw_entropy_launch(l, TW_DELTA_CUDA_EXPONENTS, sample, THREADS);
    tw_entropy_launch(l, TW_DELTA_CUDA_FACTORS, job->second ? sample : 0, THREADS);
    tw_entropy_launch(l, TW_DELTA_CUDA_CONTEXTS, sample, THREADS);
    tw_entropy_launch(l, TW_DELTA_CUDA_SYMBOLS, sample, THREADS);
    tw_entropy_launch(l, TW_DELTA_CUDA_MODEL, 1, THREADS);
    tw_entropy_launch(l, TW_DELTA_CUDA_CODE, job->n_blocks, TW_ENTROPY_LANES);
}

static tw_status_t encode_on_device(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                    const tw_quant_delta_segment_t *segments, size_t n_segments,
                                    tw_delta_cuda_job_t *job)
{
    TW_TRY(tw_entropy_call_check("delta_stream_encode", args, job->dst,
                                 delta_stream_place(job, args->workspace, 1)));
    job->outcome = args->outcome ? args->outcome : &job->state->outcome;
    TW_TRY(fill_segments(codec, job, segments, n_segments, 1, args->stream));
    TW_TRY(codec->device.zero(job->state, (size_t)((char *)job->blocks - (char *)job->state), args->stream));
    tw_entropy_launching_t l = {&codec->device, job, args->stream, TW_OK};
    if (job->tried) {
        launch_coder(&l, job);
    }
    tw_entropy_launch(&l, TW_DELTA_CUDA_LAYOUT, 1, THREADS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_ASSEMBLE, (size_t)job->n_blocks * TW_ENTROPY_CUDA_PARTS, THREADS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_FINISH, 1, THREADS);
    return tw_entropy_launch_finish(&l, args, job->outcome);
}

static tw_status_t decode_on_device(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                    const tw_quant_delta_segment_t *segments, size_t n_segments,
                                    tw_delta_cuda_job_t *job)
{
    TW_TRY(tw_entropy_call_check("delta_stream_decode", args, job->src,
                                 delta_stream_place(job, args->workspace, 0)));
    job->outcome = args->outcome ? args->outcome : &job->state->outcome;
    TW_TRY(fill_segments(codec, job, segments, n_segments, 0, args->stream));
    TW_TRY(codec->device.zero(job->state, sizeof(*job->state), args->stream));
    tw_entropy_launching_t l = {&codec->device, job, args->stream, TW_OK};
    size_t parts = tw_entropy_launch_persistent(&l, (size_t)job->n_blocks * TW_ENTROPY_CUDA_PARTS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_READ, 1, THREADS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_CHECK, parts, THREADS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_DECODE, job->n_blocks, TW_ENTROPY_LANES);
    tw_entropy_launch(&l, TW_DELTA_CUDA_APPLY, parts, THREADS);
    tw_entropy_launch(&l, TW_DELTA_CUDA_CLOSE, 1, TW_ENTROPY_LANES);
    return tw_entropy_launch_finish(&l, args, job->outcome);
}

/* ---- the host's memory --------------------------------------------------------------------------------- */

static tw_status_t decode_on_host(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                  const tw_quant_delta_segment_t *segments, size_t n_segments,
                                  tw_quant_message_t message)
{
    tw_delta_header_t header;
    size_t bytes = message.src_bytes;
    if (message.at_most && bytes > sizeof(header)) {
        memcpy(&header, message.src, sizeof(header));
        /* tw_quant_delta_decode returns an error if this length does not fit the message. */
        bytes = header.bytes < bytes ? header.bytes : bytes;
        bytes = bytes > sizeof(header) ? bytes : sizeof(header);
    }
    tw_status_t status = tw_quant_delta_decode(codec->host, segments, n_segments, message.src, bytes);
    if (status == TW_ERR_INVALID) {
        return status;
    }
    tw_entropy_put_outcome(args, bytes, status);
    return TW_OK;
}

/* ---- public -------------------------------------------------------------------------------------------- */

tw_status_t tw_quant_delta_stream_encode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         void *dst, size_t dst_bytes)
{
    size_t n_elems, bytes;
    int second;
    if (!codec->on_device) {
        TW_TRY(tw_quant_delta_encode(codec->host, segments, n_segments, dst, dst_bytes, &bytes));
        tw_entropy_put_outcome(args, bytes, TW_OK);
        return TW_OK;
    }
    TW_TRY(tw_delta_check_call("delta_stream_encode", segments, n_segments, 1, &n_elems, &second));
    tw_delta_cuda_job_t job = plan(n_elems, n_segments, second);
    TW_FAIL_IF(!dst || dst_bytes < job.bound, TW_ERR_INVALID,
               "quant: delta_stream_encode: room for %zu bytes, must be for %zu", dst ? dst_bytes : 0,
               (size_t)job.bound);
    job.dst = dst;
    return encode_on_device(codec, args, segments, n_segments, &job);
}

tw_status_t tw_quant_delta_stream_decode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         tw_quant_message_t message)
{
    size_t n_elems;
    int second;
    TW_FAIL_IF(!message.src, TW_ERR_INVALID, "quant: delta_stream_decode: no message");
    if (!codec->on_device) {
        return decode_on_host(codec, args, segments, n_segments, message);
    }
    TW_TRY(tw_delta_check_call("delta_stream_decode", segments, n_segments, 0, &n_elems, &second));
    tw_delta_cuda_job_t job = plan(n_elems, n_segments, second);
    job.src = message.src;
    job.src_bytes = message.src_bytes < UINT32_MAX ? (uint32_t)message.src_bytes : UINT32_MAX;
    job.at_most = message.at_most != 0;
    return decode_on_device(codec, args, segments, n_segments, &job);
}
