/* How long codecs and copies take on this machine. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "quant/quant.h"
#include "trainer/plan/plan.h"

/* The quickest of so many goes counts: others were disturbed. */
#define GOES 7
/* Twice that is more than a core's own caches hold, and buffers as large still lie in small pages, as messages do. */
#define COPY_BYTES ((size_t)3 << 20)
#define MOST_ELEMS ((size_t)1 << 20)

/* A message's memory: weights, their change, and what is sent. */
typedef struct trial {
    size_t n_elems;
    float *masters;
    uint16_t *old, *fresh;
    uint8_t *states; /* of both ends */
    uint8_t *message;
    size_t message_bytes; /* of room */
} trial_t;

static void trial_cleanup(trial_t *trial)
{
    free(trial->masters);
    free(trial->old);
    free(trial->fresh);
    free(trial->states);
    free(trial->message);
}

/* Weights of 0.02 or so, whose changes are a unit in the last place or so. */
static void fill(trial_t *trial)
{
    uint32_t random = 1;
    for (size_t i = 0; i < trial->n_elems; i++) {
        random = random * 1664525u + 1013904223u;
        trial->masters[i] = ((float)(random >> 8) * 0x1p-23f - 1.0f) * 0.04f;
    }
    tw_convert_from_fp32(TW_TYPE_BF16, trial->masters, 1.0f, trial->old, trial->n_elems);
    for (size_t i = 0; i < trial->n_elems; i++) {
        random = random * 1664525u + 1013904223u;
        trial->masters[i] += ((float)(random >> 8) * 0x1p-23f - 1.0f) * 3e-4f;
    }
    tw_convert_from_fp32(TW_TYPE_BF16, trial->masters, 1.0f, trial->fresh, trial->n_elems);
}

static tw_status_t trial_init(trial_t *trial, size_t n_elems)
{
    *trial = (trial_t){.n_elems = n_elems, .message_bytes = tw_quant_exact_bound_bytes(n_elems)};
    trial->masters = malloc(n_elems * sizeof(*trial->masters));
    trial->old = malloc(n_elems * sizeof(*trial->old));
    trial->fresh = malloc(n_elems * sizeof(*trial->fresh));
    trial->states = calloc(n_elems, 2);
    trial->message = malloc(trial->message_bytes);
    if (!trial->masters || !trial->old || !trial->fresh || !trial->states || !trial->message) {
        tw_error("plan: out of memory for codecs on %zu parameters", n_elems);
        return TW_ERR_NO_MEMORY;
    }
    fill(trial);
    return TW_OK;
}

/* This thread's time of a core. */
static double core_sec(void)
{
    struct timespec time = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void note(double *best, double begin, size_t n_elems)
{
    double sec = (core_sec() - begin) / (double)n_elems;
    *best = *best == 0.0 || sec < *best ? sec : *best;
}

/* A message there and back, as a sync does it. */
static tw_status_t measure_quant(const trial_t *trial, const char *name, tw_plan_speed_t *speed)
{
    tw_quant_params_t params = {.mem = TW_MEM_HOST};
    const tw_quant_args_t args = {.type = TW_TYPE_BF16, .factor = 1.0f};
    const tw_quant_segment_t out = {
        .src = trial->masters, .base = trial->old, .dst = trial->message, .n_elems = trial->n_elems};
    const tw_quant_segment_t in = {.src = trial->message, .dst = trial->old, .n_elems = trial->n_elems};
    tw_quant_t *quant = NULL;
    tw_status_t status = tw_quant_codec_parse(name, &params.codec);
    if (status == TW_OK) {
        status = tw_quant_create(&params, &quant);
    }
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        double begin = core_sec();
        status = tw_quant_delta_encode(quant, &args, &out, 1);
        note(&speed->encode_sec, begin, trial->n_elems);
        begin = core_sec();
        status = status == TW_OK ? tw_quant_decode_apply(quant, &args, &in, 1) : status;
        note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_destroy(quant);
    return status;
}

static tw_status_t measure_exact(const trial_t *trial, tw_plan_speed_t *speed)
{
    const tw_quant_exact_segment_t out = {
        .base = trial->old, .src = trial->fresh, .state = trial->states, .n_elems = trial->n_elems};
    const tw_quant_exact_segment_t in = {.base = trial->old,
                                         .dst = trial->fresh,
                                         .state = trial->states + trial->n_elems,
                                         .n_elems = trial->n_elems};
    tw_quant_exact_t *exact = NULL;
    size_t bytes;
    tw_status_t status = tw_quant_exact_create(NULL, &exact);
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        double begin = core_sec();
        status = tw_quant_exact_encode(exact, &out, 1, trial->message, trial->message_bytes, &bytes);
        note(&speed->encode_sec, begin, trial->n_elems);
        begin = core_sec();
        status = status == TW_OK ? tw_quant_exact_decode(exact, &in, 1, trial->message, bytes) : status;
        note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_exact_destroy(exact);
    return status;
}

tw_status_t tw_plan_measure_codecs(size_t message_elems, tw_plan_speed_t codecs[TW_PLAN_CODEC_COUNT])
{
    static const char *const names[] = {
        [TW_PLAN_INT8] = "int8", [TW_PLAN_INT4] = "int4:hadamard", [TW_PLAN_INT2] = "int2:hadamard"};
    size_t n_elems = message_elems < 1 ? 1 : message_elems < MOST_ELEMS ? message_elems : MOST_ELEMS;
    trial_t trial;
    tw_status_t status = trial_init(&trial, n_elems);
    for (int codec = 0; codec < TW_PLAN_CODEC_COUNT && status == TW_OK; codec++) {
        codecs[codec] = (tw_plan_speed_t){0};
        status = codec == TW_PLAN_EXACT ? measure_exact(&trial, &codecs[codec])
                                        : measure_quant(&trial, names[codec], &codecs[codec]);
    }
    trial_cleanup(&trial);
    return status;
}

/* Ranks of a node read each other's memory: the transport's way of more than a few KiB. */
static tw_status_t read_memory(char *to, char *from, size_t n_bytes)
{
    struct iovec local = {to, n_bytes}, remote = {from, n_bytes};
    ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (n == (ssize_t)n_bytes) {
        return TW_OK;
    }
    int error = n < 0 ? errno : EIO;
    tw_error("plan: cannot read a process's memory: %s", strerror(error));
    return tw_status_from_errno(error);
}

tw_status_t tw_plan_measure_copies(size_t message_elems, double *byte_sec)
{
    char *from = tw_buffer_alloc_zero(COPY_BYTES), *to = tw_buffer_alloc_zero(COPY_BYTES);
    size_t n_bytes = (message_elems < 1 ? 1 : message_elems) * sizeof(uint16_t);
    n_bytes = n_bytes < COPY_BYTES ? n_bytes : COPY_BYTES;
    tw_status_t status = from && to ? TW_OK : TW_ERR_NO_MEMORY;
    *byte_sec = 0.0;
    if (status == TW_OK) {
        memset(from, 1, COPY_BYTES);
    }
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        size_t at = 0;
        double begin = core_sec();
        for (; at + n_bytes <= COPY_BYTES && status == TW_OK; at += n_bytes) {
            status = read_memory(to + at, from + at, n_bytes);
        }
        note(byte_sec, begin, at);
    }
    tw_buffer_free(from);
    tw_buffer_free(to);
    return status;
}
