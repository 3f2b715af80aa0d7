/* bench/quant: speed of the operations beside memcpy, on several threads, with data in or out of the
 * cache. */
#include "bench/codecs/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIN_SAMPLES 5
#define MAX_SAMPLES 2000
/* A warm sample repeats until it has moved this much, so that the clock does not matter. */
#define WARM_PASS_BYTES ((size_t)2 << 20)

/* One thread, and what it works on: elements [first, first + n) of every buffer. */
typedef struct worker {
    qb_arena_t *arena;
    size_t first, n;
    pthread_t thread;
} worker_t;

struct qb_arena {
    tw_type_t type;
    int threads, cold;
    size_t n_elems, n_inputs, repeats;
    double seconds;
    uint8_t *plain;   /* type[n]: source of encode, base of differences */
    uint8_t *target;  /* type[n]: of memcpy, decode, decode_apply */
    float *fp32;      /* fp32[n]: source of differences, target of decode_add */
    uint8_t *encoded; /* n_inputs and one more segments for each worker */
    size_t encoded_stride;
    worker_t *workers;
    int n_started;

    /* What to do next, set while the workers wait. */
    pthread_barrier_t barrier;
    int barrier_made, stop, copy;
    tw_quant_t *quant;
    qb_op_t op;
    tw_status_t status; /* atomic */
};

/* ---- what is measured ---------------------------------------------------------------------------------- */

/** Encoded segment k of a worker; every codec fits. */
static uint8_t *encoded_at(const worker_t *worker, size_t k)
{
    const qb_arena_t *arena = worker->arena;
    return arena->encoded +
           ((size_t)(worker - arena->workers) * (arena->n_inputs + 1) + k) * arena->encoded_stride;
}

static tw_status_t reduce(const worker_t *worker, const tw_quant_args_t *args)
{
    qb_arena_t *arena = worker->arena;
    const void **srcs = malloc(arena->n_inputs * sizeof(*srcs));
    if (!srcs) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t k = 0; k < arena->n_inputs; k++) {
        srcs[k] = encoded_at(worker, k);
    }
    tw_quant_reduce_segment_t segment = {.srcs = srcs, .n_srcs = arena->n_inputs, .n_elems = worker->n};
    tw_status_t status;
    if (arena->op == QB_REDUCE_ENCODE) {
        segment.dst = encoded_at(worker, arena->n_inputs);
        status = tw_quant_reduce_encode(arena->quant, arena->quant, args, &segment, 1);
    } else {
        segment.dst = arena->target + worker->first * tw_type_bytes(arena->type);
        status = tw_quant_reduce_decode(arena->quant, args, &segment, 1);
    }
    free(srcs);
    return status;
}

static tw_status_t run_op(const worker_t *worker)
{
    qb_arena_t *arena = worker->arena;
    size_t at = worker->first * tw_type_bytes(arena->type);
    tw_quant_args_t args = {.type = arena->type, .seed = 1, .factor = 1.0f / (float)arena->n_inputs};
    tw_quant_segment_t segment = {.n_elems = worker->n, .first_elem = worker->first};
    switch (arena->op) {
    case QB_ENCODE:
        segment.src = arena->plain + at;
        segment.dst = encoded_at(worker, arena->n_inputs);
        return tw_quant_encode(arena->quant, &args, &segment, 1);
    case QB_ENCODE_DELTA:
        segment.src = arena->fp32 + worker->first;
        segment.base = arena->plain + at;
        segment.dst = encoded_at(worker, arena->n_inputs);
        return tw_quant_encode_delta(arena->quant, &args, &segment, 1);
    case QB_DECODE:
        segment.src = encoded_at(worker, 0);
        segment.dst = arena->target + at;
        return tw_quant_decode(arena->quant, &args, &segment, 1);
    case QB_DECODE_APPLY:
        segment.src = encoded_at(worker, 0);
        segment.dst = arena->target + at;
        return tw_quant_decode_apply(arena->quant, &args, &segment, 1);
    case QB_DECODE_ADD:
        segment.src = encoded_at(worker, 0);
        segment.dst = arena->fp32 + worker->first;
        return tw_quant_decode_add(arena->quant, &args, &segment, 1);
    default:
        return reduce(worker, &args);
    }
}

/** What the operation has to read and write. */
static double moved_bytes(const qb_arena_t *arena, qb_op_t op)
{
    double n = (double)arena->n_elems, plain = n * (double)tw_type_bytes(arena->type), fp32 = 4 * n;
    double encoded = 0;
    for (int t = 0; t < arena->threads; t++) {
        encoded += (double)tw_quant_encoded_bytes(tw_quant_codec_get(arena->quant), arena->workers[t].n);
    }
    switch (op) {
    case QB_ENCODE_DELTA:
        return fp32 + plain + encoded;
    case QB_DECODE_APPLY:
        return 2 * plain + encoded;
    case QB_DECODE_ADD:
        return 2 * fp32 + encoded;
    case QB_REDUCE_ENCODE:
        return (double)(arena->n_inputs + 1) * encoded;
    case QB_REDUCE_DECODE:
        return (double)arena->n_inputs * encoded + plain;
    default:
        return plain + encoded;
    }
}

/* ---- threads ------------------------------------------------------------------------------------------- */

static void run_worker(const worker_t *worker)
{
    qb_arena_t *arena = worker->arena;
    size_t bytes = tw_type_bytes(arena->type), at = worker->first * bytes;
    for (size_t i = 0; i < arena->repeats; i++) {
        tw_status_t status = TW_OK;
        if (arena->copy) {
            memcpy(arena->target + at, arena->plain + at, worker->n * bytes);
            __asm__ volatile("" ::: "memory"); /* each copy counts */
        } else {
            status = run_op(worker);
        }
        if (status != TW_OK) {
            __atomic_store_n(&arena->status, status, __ATOMIC_RELAXED);
        }
    }
}

static void *work(void *arg)
{
    worker_t *worker = arg;
    for (;;) {
        pthread_barrier_wait(&worker->arena->barrier);
        if (worker->arena->stop) {
            return NULL;
        }
        run_worker(worker);
        pthread_barrier_wait(&worker->arena->barrier);
    }
}

/** One pass of all threads; the caller is the first of them. */
static double pass(qb_arena_t *arena, int copy)
{
    arena->copy = copy;
    double start = tw_time_sec();
    pthread_barrier_wait(&arena->barrier);
    run_worker(&arena->workers[0]);
    pthread_barrier_wait(&arena->barrier);
    return (tw_time_sec() - start) / (double)arena->repeats;
}

/** Both take turns, so that whatever else the machine does meets both. */
static tw_status_t sample(qb_arena_t *arena, qb_speed_t *speed)
{
    double *copies = malloc(2 * MAX_SAMPLES * sizeof(*copies));
    if (!copies) {
        tw_error("bench: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    double *ops = copies + MAX_SAMPLES, start = tw_time_sec();
    size_t n = 0;
    pass(arena, 1);
    pass(arena, 0);
    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || tw_time_sec() - start < arena->seconds)) {
        copies[n] = pass(arena, 1);
        ops[n++] = pass(arena, 0);
    }
    speed->memcpy_sec = tw_median(copies, n);
    speed->op_sec = tw_median(ops, n);
    free(copies);
    return arena->status;
}

/** Inputs of the decoding operations; replicas must not grow beyond all bounds while they are added to. */
static tw_status_t prepare(qb_arena_t *arena)
{
    tw_quant_args_t args = {.type = arena->type};
    for (int t = 0; t < arena->threads; t++) {
        const worker_t *worker = &arena->workers[t];
        const uint8_t *src = arena->plain + worker->first * tw_type_bytes(arena->type);
        for (size_t k = 0; k < arena->n_inputs; k++) {
            tw_quant_segment_t segment = {.src = src, .dst = encoded_at(worker, k), .n_elems = worker->n};
            TW_TRY(tw_quant_encode(arena->quant, &args, &segment, 1));
        }
    }
    for (size_t i = 0; i < arena->n_elems; i++) {
        arena->fp32[i] = (float)(i % 97) - 48.0f;
    }
    return TW_OK;
}

tw_status_t qb_arena_measure(qb_arena_t *arena, tw_quant_t *quant, qb_op_t op, qb_speed_t *speed)
{
    arena->quant = quant;
    arena->op = op;
    arena->status = TW_OK;
    TW_TRY(prepare(arena));
    *speed = (qb_speed_t){
        .op = op,
        .codec = *tw_quant_codec_get(quant),
        .type = arena->type,
        .threads = arena->threads,
        .cold = arena->cold,
        .bytes = arena->n_elems * tw_type_bytes(arena->type),
        .moved_bytes = moved_bytes(arena, op),
    };
    return sample(arena, speed);
}

/* ---- arena --------------------------------------------------------------------------------------------- */

/** Ranges begin at whole frames of every codec: 8 blocks of 4096. What is warm stays with its worker, however
 *  large it is. */
static void cut(qb_arena_t *arena, size_t warm_elems)
{
    const size_t frame = 8 * TW_QUANT_BLOCK_MAX;
    for (int t = 0; t < arena->threads; t++) {
        size_t first = arena->n_elems * (size_t)t / (size_t)arena->threads;
        size_t end = arena->n_elems * ((size_t)t + 1) / (size_t)arena->threads;
        if (arena->cold) {
            first -= first % frame;
            end -= t + 1 < arena->threads ? end % frame : 0;
        } else {
            first = (size_t)t * warm_elems;
            end = first + warm_elems;
        }
        arena->workers[t] = (worker_t){.arena = arena, .first = first, .n = end - first};
    }
}

static size_t largest_range(const qb_arena_t *arena)
{
    size_t n = 0;
    for (int t = 0; t < arena->threads; t++) {
        n = arena->workers[t].n > n ? arena->workers[t].n : n;
    }
    return n;
}

/** A sum of uniforms, near enough to a normal distribution; a cheap generator, as these are many. */
static void fill(qb_arena_t *arena)
{
    uint64_t state = 1;
    float *values = arena->fp32;
    for (size_t i = 0; i < arena->n_elems; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(state >> 48) + (float)(state >> 32 & 0xffff)) * 0x1p-15f - 2.0f;
    }
    tw_convert_from_fp32(arena->type, values, 1.0f, arena->plain, arena->n_elems);
    memset(arena->target, 0, arena->n_elems * tw_type_bytes(arena->type));
}

static tw_status_t allocate(qb_arena_t *arena, size_t warm_elems)
{
    size_t plain_bytes = arena->n_elems * tw_type_bytes(arena->type), threads = (size_t)arena->threads;
    arena->workers = calloc(threads, sizeof(*arena->workers));
    if (!arena->workers) {
        return TW_ERR_NO_MEMORY;
    }
    cut(arena, warm_elems);
    /* int8 in the smallest blocks with the widest scales is the largest encoding: 9 bytes for 8 elements. */
    size_t n = largest_range(arena);
    arena->encoded_stride = (n + n / 8 + 4096) & ~(size_t)4095;
    size_t encoded_bytes = threads * (arena->n_inputs + 1) * arena->encoded_stride;
    arena->plain = tw_buffer_alloc(plain_bytes);
    arena->target = tw_buffer_alloc(plain_bytes);
    arena->fp32 = tw_buffer_alloc(arena->n_elems * sizeof(float));
    arena->encoded = tw_buffer_alloc_zero(encoded_bytes);
    return arena->plain && arena->target && arena->fp32 && arena->encoded ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t start_threads(qb_arena_t *arena)
{
    int error = pthread_barrier_init(&arena->barrier, NULL, (unsigned)arena->threads);
    arena->barrier_made = error == 0;
    for (int t = 1; error == 0 && t < arena->threads; t++) {
        error = pthread_create(&arena->workers[t].thread, NULL, work, &arena->workers[t]);
        arena->n_started += error == 0;
    }
    return error == 0 ? TW_OK : tw_status_from_errno(error);
}

tw_status_t qb_arena_create(const qb_options_t *options, tw_type_t type, int threads, int cold,
                            qb_arena_t **out)
{
    size_t bytes = tw_type_bytes(type), warm_elems = options->warm_bytes / bytes;
    qb_arena_t *arena = calloc(1, sizeof(*arena));
    if (!arena) {
        return TW_ERR_NO_MEMORY;
    }
    arena->type = type;
    arena->threads = threads;
    arena->cold = cold;
    arena->n_elems = cold ? options->bytes / bytes : warm_elems * (size_t)threads;
    arena->n_inputs = (size_t)options->n_inputs;
    arena->seconds = options->seconds;
    arena->repeats = cold ? 1 : 1 + WARM_PASS_BYTES / options->warm_bytes;
    tw_status_t status = allocate(arena, warm_elems);
    if (status == TW_OK) {
        status = start_threads(arena);
    }
    if (status != TW_OK) {
        tw_error("bench: no buffers or threads for %zu elements on %d threads: %s", arena->n_elems, threads,
                 tw_status_string(status));
        qb_arena_destroy(arena);
        return status;
    }
    fill(arena);
    *out = arena;
    return TW_OK;
}

void qb_arena_destroy(qb_arena_t *arena)
{
    if (!arena) {
        return;
    }
    /* Where a thread could not be started, the others wait at the barrier for good; the program ends then. */
    if (arena->barrier_made && arena->n_started == arena->threads - 1) {
        arena->stop = 1;
        pthread_barrier_wait(&arena->barrier);
        for (int t = 1; t < arena->threads; t++) {
            pthread_join(arena->workers[t].thread, NULL);
        }
        pthread_barrier_destroy(&arena->barrier);
    } else if (arena->n_started > 0) {
        return;
    }
    tw_buffer_free(arena->encoded);
    tw_buffer_free(arena->fp32);
    tw_buffer_free(arena->target);
    tw_buffer_free(arena->plain);
    free(arena->workers);
    free(arena);
}
