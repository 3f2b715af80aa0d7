/* Turns operations on segments into launches. */
#include "quant/cuda/job.h"

#include <string.h>

/* Thread blocks per multiprocessor: how many of 128 threads a multiprocessor runs at a time. */
#define BLOCKS_PER_MULTIPROCESSOR 16
/* If there are fewer tiles than this per multiprocessor, tiles are made smaller. */
#define TILES_PER_MULTIPROCESSOR 4

/* ---- filling a job ------------------------------------------------------------------------------------- */

/* A segment of any operation, and the pointers that go into a list: inputs or AdamW's arrays. */
typedef struct {
    tw_cuda_segment_t segment; /* complete except for what place_segment fills in */
    const void *const *list;
    size_t n_list;
} entry_t;

typedef struct {
    const tw_cuda_device_t *device;
    tw_cuda_job_t *job;
    uint32_t rows;      /* strips per thread in this operation's kernels */
    size_t front, back; /* words that segments use, from the front; words that lists use, from the back */
    uint64_t n_elems;
    uint64_t *table; /* the unused part of the workspace */
} filling_t;

static void job_begin(filling_t *f)
{
    f->front = f->back = 0;
    f->n_elems = 0;
    f->job->params.args.n_segments = 0;
}

static size_t words_of(const entry_t *entry)
{
    return TW_CUDA_SEGMENT_WORDS + entry->n_list;
}

static int fits(const filling_t *f, const entry_t *entry)
{
    return f->front + f->back + words_of(entry) <= TW_CUDA_WORDS_LARGE;
}

static void job_add(filling_t *f, const entry_t *entry)
{
    uint64_t *words = f->job->params.words;
    tw_cuda_segment_t segment = entry->segment;
    f->back += entry->n_list;
    segment.list = (uint32_t)f->back; /* from the end; place_segments() makes an index of it */
    for (size_t i = 0; i < entry->n_list; i++) {
        words[TW_CUDA_WORDS_LARGE - f->back + i] = (uint64_t)(uintptr_t)entry->list[i];
    }
    memcpy(words + f->front, &segment, sizeof(segment));
    f->front += TW_CUDA_SEGMENT_WORDS;
    f->n_elems += segment.n_elems;
    f->job->params.args.n_segments++;
}

/** Move the lists right behind the segments, and set each segment's first tile. */
static void place_segments(filling_t *f)
{
    tw_cuda_args_t *args = &f->job->params.args;
    uint64_t *words = f->job->params.words, tiles = 0;
    f->job->n_words = f->front + f->back;
    memmove(words + f->front, words + TW_CUDA_WORDS_LARGE - f->back, f->back * sizeof(*words));
    for (uint32_t s = 0; s < args->n_segments; s++) {
        tw_cuda_segment_t segment;
        memcpy(&segment, words + s * TW_CUDA_SEGMENT_WORDS, sizeof(segment));
        segment.list = (uint32_t)(f->job->n_words - segment.list);
        segment.first_tile = tiles;
        tiles += tw_cuda_tile_count(&args->tiling, segment.n_elems);
        memcpy(words + s * TW_CUDA_SEGMENT_WORDS, &segment, sizeof(segment));
    }
    args->n_tiles = tiles;
}

static tw_status_t launch(filling_t *f)
{
    tw_cuda_args_t *args = &f->job->params.args;
    uint64_t most = (uint64_t)f->device->n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    if (args->n_segments == 0) {
        return TW_OK;
    }
    args->tiling = tw_cuda_tiling_choose(&args->out, f->rows, f->n_elems,
                                         (uint64_t)f->device->n_multiprocessors * TILES_PER_MULTIPROCESSOR);
    place_segments(f);
    return f->device->run(f->job, (uint32_t)(args->n_tiles < most ? args->n_tiles : most));
}

/** Add an entry to the job. If it does not fit, the job is launched first. */
static tw_status_t job_push(filling_t *f, const entry_t *entry)
{
    tw_status_t status = TW_OK;
    if (!fits(f, entry)) {
        status = launch(f);
        job_begin(f);
    }
    job_add(f, entry);
    return status;
}

/* ---- operations with one input ------------------------------------------------------------------------- */

static void init_job(tw_cuda_job_t *job, tw_cuda_op_t op, const tw_quant_args_t *args, const tw_quant_t *in,
                     const tw_quant_t *out)
{
    const tw_cuda_device_t *device = out->impl;
    tw_cuda_args_t *p = &job->params.args;
    memset(p, 0, sizeof(*p));
    job->op = op;
    job->type = args->type;
    job->stream = args->stream;
    job->load_only = 0;
    p->in = tw_cuda_codec_of(&in->codec);
    p->out = tw_cuda_codec_of(&out->codec);
    p->seed = args->seed;
    p->step = args->step;
    p->factor = args->factor;
    p->saturate = args->saturate != 0;
    p->nonfinite = device->nonfinite;
}

static filling_t filling_of(const tw_quant_t *quant, tw_cuda_job_t *job, uint32_t rows)
{
    filling_t f = {.device = quant->impl, .job = job, .rows = rows};
    job_begin(&f);
    return f;
}

static tw_status_t run_plain(tw_cuda_job_t *job, const tw_quant_t *quant, const tw_quant_segment_t *segments,
                             size_t n_segments)
{
    filling_t f = filling_of(quant, job, TW_CUDA_ROWS_MAX);
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_segment_t *from = &segments[s];
        entry_t entry = {.segment = {.n_elems = from->n_elems,
                                     .first_elem = from->first_elem,
                                     .src = from->src,
                                     .base = from->base,
                                     .dst = from->dst,
                                     .n_srcs = 1,
                                     .tensor = from->tensor}};
        TW_TRY(from->n_elems ? job_push(&f, &entry) : TW_OK);
    }
    return launch(&f);
}

tw_status_t tw_cuda_encode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                           size_t n_segments, int delta)
{
    tw_cuda_job_t job;
    init_job(&job, delta ? TW_CUDA_ENCODE_DELTA : TW_CUDA_ENCODE, args, quant, quant);
    job.params.args.rotate = job.params.args.out.hadamard;
    return run_plain(&job, quant, segments, n_segments);
}

tw_status_t tw_cuda_decode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                           size_t n_segments, int apply)
{
    tw_cuda_job_t job;
    init_job(&job, apply ? TW_CUDA_DECODE_APPLY : TW_CUDA_DECODE, args, quant, quant);
    job.params.args.undo = job.params.args.in.hadamard;
    return run_plain(&job, quant, segments, n_segments);
}

/* ---- reductions ---------------------------------------------------------------------------------------- */

/** Whether the inputs' addresses are at equal distances (*stride), as in a receive buffer. */
static int are_strided(const void *const *srcs, size_t n, int64_t *stride)
{
    uint64_t first = (uint64_t)(uintptr_t)srcs[0], step = n > 1 ? (uint64_t)(uintptr_t)srcs[1] - first : 0;
    for (size_t k = 2; k < n; k++) {
        if ((uint64_t)(uintptr_t)srcs[k] - (uint64_t)(uintptr_t)srcs[k - 1] != step) {
            return 0;
        }
    }
    *stride = (int64_t)step;
    return 1;
}

static entry_t reduce_entry(const tw_quant_reduce_segment_t *from)
{
    entry_t entry = {.segment = {.n_elems = from->n_elems,
                                 .first_elem = from->first_elem,
                                 .src = from->srcs[0],
                                 .dst = from->dst,
                                 .n_srcs = (uint32_t)from->n_srcs,
                                 .tensor = from->tensor,
                                 .inputs = TW_CUDA_STRIDED}};
    if (!are_strided(from->srcs, from->n_srcs, &entry.segment.stride)) {
        entry.segment.inputs = TW_CUDA_LISTED;
        entry.list = from->srcs;
        entry.n_list = from->n_srcs;
    }
    return entry;
}

/** Whether a segment has too many inputs to list them in a launch's parameters. */
static int is_long(const tw_quant_reduce_segment_t *segment)
{
    return segment->n_elems && segment->n_srcs > TW_CUDA_WORDS_LARGE - TW_CUDA_SEGMENT_WORDS;
}

size_t tw_cuda_reduce_workspace_bytes(const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    size_t words = 0;
    for (size_t s = 0; s < n_segments; s++) {
        words = tw_size_add(words, is_long(&segments[s]) ? segments[s].n_srcs : 0);
    }
    return tw_size_mul(words, sizeof(uint64_t));
}

static tw_status_t check_reduce(const tw_quant_args_t *args, const tw_quant_reduce_segment_t *segments,
                                size_t n_segments)
{
    int64_t stride;
    size_t words = 0;
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_reduce_segment_t *segment = &segments[s];
        TW_FAIL_IF(segment->n_elems && segment->n_srcs > UINT32_MAX, TW_ERR_INVALID,
                   "quant: %zu inputs of a reduction: at most %u", segment->n_srcs, UINT32_MAX);
        if (is_long(segment) && !are_strided(segment->srcs, segment->n_srcs, &stride)) {
            words += segment->n_srcs;
        }
    }
    size_t given = args->workspace ? args->workspace_bytes : 0;
    TW_FAIL_IF(given / sizeof(uint64_t) < words || (words && (uintptr_t)args->workspace % sizeof(uint64_t)),
               TW_ERR_INVALID,
               "quant: a reduction needs %zu bytes of workspace, aligned to %zu; given were %zu at %p",
               words * sizeof(uint64_t), sizeof(uint64_t), given, args->workspace);
    return TW_OK;
}

/** Put the entry's list of inputs into the workspace. */
static tw_status_t list_in_table(filling_t *f, entry_t *entry)
{
    tw_status_t status = f->device->table_fill(f->table, entry->list, entry->n_list, f->job->stream);
    entry->segment.inputs = TW_CUDA_TABLE;
    entry->segment.base = (const uint8_t *)f->table;
    f->table += entry->n_list;
    entry->n_list = 0;
    return status;
}

static tw_status_t run_reduce(tw_cuda_job_t *job, const tw_quant_t *quant, const tw_quant_args_t *args,
                              const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    filling_t f = filling_of(quant, job, TW_CUDA_ROWS_MAX);
    TW_TRY(check_reduce(args, segments, n_segments));
    f.table = args->workspace;
    for (size_t s = 0; s < n_segments; s++) {
        if (segments[s].n_elems == 0) {
            continue;
        }
        entry_t entry = reduce_entry(&segments[s]);
        if (words_of(&entry) > TW_CUDA_WORDS_LARGE) {
            TW_TRY(list_in_table(&f, &entry));
        }
        TW_TRY(job_push(&f, &entry));
    }
    return launch(&f);
}

tw_status_t tw_cuda_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    tw_cuda_job_t job;
    init_job(&job, TW_CUDA_REDUCE_ENCODE, args, in_quant, out_quant);
    tw_cuda_args_t *p = &job.params.args;
    p->undo = p->in.hadamard && !p->out.hadamard;
    p->rotate = p->out.hadamard && !p->in.hadamard;
    return run_reduce(&job, out_quant, args, segments, n_segments);
}

tw_status_t tw_cuda_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    tw_cuda_job_t job;
    init_job(&job, TW_CUDA_REDUCE_DECODE, args, quant, quant);
    job.params.args.undo = job.params.args.in.hadamard;
    return run_reduce(&job, quant, args, segments, n_segments);
}

/* ---- AdamW --------------------------------------------------------------------------------------------- */

tw_status_t tw_cuda_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                       const tw_quant_adamw_t *adamw,
                                       const tw_quant_adamw_segment_t *segments, size_t n_segments)
{
    tw_cuda_job_t job;
    init_job(&job, TW_CUDA_ADAMW, args, quant, quant);
    tw_cuda_args_t *p = &job.params.args;
    p->rotate = p->out.hadamard;
    p->grad_type = adamw->grad_type;
    p->grad_scale = adamw->grad_scale;
    p->adamw = tw_adamw_factors_of(adamw);
    filling_t f = filling_of(quant, &job, 1);
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_adamw_segment_t *from = &segments[s];
        const void *state[3] = {from->master, from->m, from->v};
        entry_t entry = {.segment = {.n_elems = from->n_elems,
                                     .first_elem = from->first_elem,
                                     .src = from->grad,
                                     .base = from->replica,
                                     .dst = from->dst,
                                     .n_srcs = 1,
                                     .tensor = from->tensor},
                         .list = state,
                         .n_list = 3};
        TW_TRY(from->n_elems ? job_push(&f, &entry) : TW_OK);
    }
    return launch(&f);
}
