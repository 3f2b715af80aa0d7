/* How long codecs take on this machine. */
#include <stdlib.h>

#include "quant/quant.h"
#include "trainer/plan/plan.h"

/* The quickest of so many goes counts: others were disturbed. */
#define GOES 7
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

static void note(double *best, double begin, size_t n_elems)
{
    double sec = (tw_time_sec() - begin) / (double)n_elems;
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
        double begin = tw_time_sec();
        status = tw_quant_delta_encode(quant, &args, &out, 1);
        note(&speed->encode_sec, begin, trial->n_elems);
        begin = tw_time_sec();
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
        double begin = tw_time_sec();
        status = tw_quant_exact_encode(exact, &out, 1, trial->message, trial->message_bytes, &bytes);
        note(&speed->encode_sec, begin, trial->n_elems);
        begin = tw_time_sec();
        status = status == TW_OK ? tw_quant_exact_decode(exact, &in, 1, trial->message, bytes) : status;
        note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_exact_destroy(exact);
    return status;
}

tw_status_t tw_plan_measure_codecs(size_t message_elems, double core_share,
                                   tw_plan_speed_t codecs[TW_PLAN_CODEC_COUNT])
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
        codecs[codec].encode_sec /= core_share;
        codecs[codec].decode_sec /= core_share;
    }
    trial_cleanup(&trial);
    return status;
}
