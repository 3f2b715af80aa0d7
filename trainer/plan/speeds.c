/* Measures how long codecs and copies take on this machine. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "quant/quant.h"
#include "trainer/plan/plan.h"

/* Measurements of each codec or copy. Only the fastest counts, since the others were disturbed. */
#define GOES 7
/* Bytes of other memory that are written before each measurement, so that caches are cold. A step, too, uses
 * more memory than caches hold. Copies' buffers are in small pages, as messages are. */
#define OTHER_BYTES ((size_t)32 << 20)
#define COPY_BYTES ((size_t)3 << 20)
#define MOST_ELEMS ((size_t)1 << 20)

/* Memory of a message: weights, their changes, and the encoded bytes, piece by piece. */
typedef struct trial {
    size_t n_elems, n_pieces;
    size_t *pieces; /* elements of each piece */
    tw_quant_segment_t *segments;
    tw_quant_delta_segment_t *delta_segments;
    float *masters;
    uint16_t *old, *fresh, *copy;
    uint8_t *states; /* the delta codec's states of sender and receiver */
    uint8_t *message;
    size_t message_bytes; /* allocated bytes of `message` */
    uint8_t *other;
} trial_t;

static void trial_cleanup(trial_t *trial)
{
    free(trial->pieces);
    free(trial->segments);
    free(trial->delta_segments);
    free(trial->masters);
    free(trial->old);
    free(trial->fresh);
    free(trial->copy);
    free(trial->states);
    free(trial->message);
    free(trial->other);
}

/** Write other memory, so that the caches no longer have the trial's. */
static void forget(volatile uint8_t *other)
{
    for (size_t at = 0; at < OTHER_BYTES; at += TW_CACHE_LINE_BYTES) {
        other[at]++;
    }
}

/** Fill in weights of about 0.02, and changes of about a unit in the last place. */
static void speeds_fill(trial_t *trial)
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

/** Set the pieces, smaller in proportion if they exceed MOST_ELEMS elements. Returns their elements. */
static size_t set_pieces(trial_t *trial, const size_t *piece_elems)
{
    size_t all = 0, n_elems = 0;
    for (size_t i = 0; i < trial->n_pieces; i++) {
        all += piece_elems[i];
    }
    double scale = all > MOST_ELEMS ? (double)MOST_ELEMS / (double)all : 1.0;
    for (size_t i = 0; i < trial->n_pieces; i++) {
        size_t scaled = (size_t)(scale * (double)piece_elems[i]);
        trial->pieces[i] = scaled > 0 ? scaled : 1;
        n_elems += trial->pieces[i];
    }
    return n_elems;
}

static tw_status_t trial_alloc(trial_t *trial, const size_t *piece_elems, size_t n_pieces)
{
    trial->n_pieces = n_pieces;
    trial->pieces = calloc(n_pieces, sizeof(*trial->pieces));
    trial->segments = calloc(n_pieces, sizeof(*trial->segments));
    trial->delta_segments = calloc(n_pieces, sizeof(*trial->delta_segments));
    if (!trial->pieces || !trial->segments || !trial->delta_segments) {
        return TW_ERR_NO_MEMORY;
    }
    size_t n_elems = set_pieces(trial, piece_elems);
    trial->n_elems = n_elems;
    /* room for the longest message of any codec */
    trial->message_bytes = tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n_elems);
    trial->masters = malloc(n_elems * sizeof(*trial->masters));
    trial->old = malloc(n_elems * sizeof(*trial->old));
    trial->fresh = malloc(n_elems * sizeof(*trial->fresh));
    trial->copy = malloc(n_elems * sizeof(*trial->copy));
    trial->states = calloc(n_elems, 2);
    trial->message = malloc(trial->message_bytes);
    trial->other = calloc(1, OTHER_BYTES);
    int has_all = trial->masters && trial->old && trial->fresh && trial->copy && trial->states &&
                  trial->message && trial->other;
    return has_all ? TW_OK : TW_ERR_NO_MEMORY;
}

static tw_status_t trial_init(trial_t *trial, const size_t *piece_elems, size_t n_pieces)
{
    *trial = (trial_t){0};
    tw_status_t status = trial_alloc(trial, piece_elems, n_pieces);
    if (status == TW_OK) {
        speeds_fill(trial);
    } else {
        tw_error("plan: out of memory for codecs on %zu pieces", n_pieces);
    }
    return status;
}

static void speeds_note(double *best, double begin, size_t n_elems)
{
    double sec = (tw_thread_sec() - begin) / (double)n_elems;
    *best = *best == 0.0 || sec < *best ? sec : *best;
}

/** Return the segments of a message's pieces, for encoding, or, if `back` is 1, for decoding. */
static const tw_quant_segment_t *quant_segments(const trial_t *trial, const tw_quant_codec_t *codec, int back)
{
    uint8_t *message = trial->message;
    for (size_t i = 0, at = 0; i < trial->n_pieces; at += trial->pieces[i++]) {
        trial->segments[i] = (tw_quant_segment_t){
            .src = trial->masters + at, .base = trial->old + at, .dst = message, .n_elems = trial->pieces[i]};
        if (back) {
            trial->segments[i].src = message;
            trial->segments[i].base = NULL;
            trial->segments[i].dst = trial->old + at;
        }
        message += tw_quant_encoded_bytes(codec, trial->pieces[i]);
    }
    return trial->segments;
}

/** Measure a block codec as the delta's sync uses it. Codecs with few bits rotate. */
static tw_status_t measure_quant(const trial_t *trial, const tw_quant_row_t *row, tw_plan_speed_t *speed)
{
    tw_quant_params_t params = {.mem = TW_MEM_HOST};
    const tw_quant_args_t args = {.type = TW_TYPE_BF16, .factor = 1.0f};
    tw_quant_t *quant = NULL;
    tw_status_t status = tw_quant_codec_parse(row->name, &params.codec);
    params.codec.hadamard = row->bits < 8;
    status = status == TW_OK ? tw_quant_create(&params, &quant) : status;
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        const tw_quant_segment_t *segments = quant_segments(trial, &params.codec, 0);
        forget(trial->other);
        double begin = tw_thread_sec();
        status = tw_quant_encode_delta(quant, &args, segments, trial->n_pieces);
        speeds_note(&speed->encode_sec, begin, trial->n_elems);
        segments = quant_segments(trial, &params.codec, 1);
        forget(trial->other);
        begin = tw_thread_sec();
        status = status == TW_OK ? tw_quant_decode_apply(quant, &args, segments, trial->n_pieces) : status;
        speeds_note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_destroy(quant);
    return status;
}

static const tw_quant_delta_segment_t *delta_segments(const trial_t *trial, int back)
{
    for (size_t i = 0, at = 0; i < trial->n_pieces; at += trial->pieces[i++]) {
        trial->delta_segments[i] =
            (tw_quant_delta_segment_t){.base = trial->old + at,
                                       .src = back ? NULL : trial->fresh + at,
                                       .dst = back ? trial->fresh + at : NULL,
                                       .state = trial->states + at + (back ? trial->n_elems : 0),
                                       .n_elems = trial->pieces[i]};
    }
    return trial->delta_segments;
}

/** Measure the lossless delta, with the rounding of masters before it and the owner's own copy after it. */
static tw_status_t measure_delta(const trial_t *trial, tw_plan_speed_t *speed)
{
    tw_quant_delta_t *delta = NULL;
    size_t bytes;
    tw_status_t status = tw_quant_delta_create(NULL, &delta);
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        const tw_quant_delta_segment_t *segments = delta_segments(trial, 0);
        forget(trial->other);
        double begin = tw_thread_sec();
        tw_convert_from_fp32(TW_TYPE_BF16, trial->masters, 1.0f, trial->fresh, trial->n_elems);
        status = tw_quant_delta_encode(delta, segments, trial->n_pieces, trial->message, trial->message_bytes,
                                       &bytes);
        memcpy(trial->copy, trial->fresh, trial->n_elems * sizeof(*trial->copy));
        speeds_note(&speed->encode_sec, begin, trial->n_elems);
        segments = delta_segments(trial, 1);
        forget(trial->other);
        begin = tw_thread_sec();
        status = status == TW_OK
                     ? tw_quant_delta_decode(delta, segments, trial->n_pieces, trial->message, bytes)
                     : status;
        speeds_note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_delta_destroy(delta);
    return status;
}

/** Measure a codec of messages as gradients use it: one rank encodes, the owner decodes. */
static tw_status_t measure_messages(const trial_t *trial, const char *name, tw_plan_speed_t *speed)
{
    const tw_quant_message_segment_t segment = {
        .src = trial->fresh, .dst = trial->copy, .n_elems = trial->n_elems};
    const tw_quant_message_args_t args = {.type = TW_TYPE_BF16, .segments = &segment, .n_segments = 1};
    tw_quant_messages_t *messages = NULL;
    tw_quant_codec_t codec;
    size_t bytes;
    TW_TRY(tw_quant_codec_parse(name, &codec));
    tw_status_t status = tw_quant_messages_create(&codec, NULL, &messages);
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        forget(trial->other);
        double begin = tw_thread_sec();
        status = tw_quant_messages_encode(messages, &args, trial->message, trial->message_bytes, &bytes);
        speeds_note(&speed->encode_sec, begin, trial->n_elems);
        forget(trial->other);
        begin = tw_thread_sec();
        status = status == TW_OK
                     ? tw_quant_messages_decode(messages, &args, TW_QUANT_SINK_STORE, trial->message, bytes)
                     : status;
        speeds_note(&speed->decode_sec, begin, trial->n_elems);
    }
    tw_quant_messages_destroy(messages);
    return status;
}

tw_status_t tw_plan_measure_codecs(const size_t *piece_elems, size_t n_pieces,
                                   tw_plan_speed_t codecs[TW_QUANT_KINDS])
{
    trial_t trial;
    tw_status_t status = trial_init(&trial, piece_elems, n_pieces);
    for (int kind = TW_QUANT_PLAIN + 1; kind < TW_QUANT_KINDS && status == TW_OK; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get((tw_quant_kind_t)kind);
        codecs[kind] = (tw_plan_speed_t){0};
        status = row->form == TW_QUANT_CHANGE    ? measure_delta(&trial, &codecs[kind])
                 : row->form == TW_QUANT_MESSAGE ? measure_messages(&trial, row->name, &codecs[kind])
                                                 : measure_quant(&trial, row, &codecs[kind]);
    }
    trial_cleanup(&trial);
    return status;
}

/** Read a process's memory, as the transport does between ranks of a node for large messages. */
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
    uint8_t *other = calloc(1, OTHER_BYTES);
    tw_status_t status = from && to && other ? TW_OK : TW_ERR_NO_MEMORY;
    *byte_sec = 0.0;
    if (status == TW_OK) {
        memset(from, 1, COPY_BYTES);
    }
    for (int go = 0; go < GOES && status == TW_OK; go++) {
        size_t at = 0;
        forget(other);
        double begin = tw_thread_sec();
        for (; at + n_bytes <= COPY_BYTES && status == TW_OK; at += n_bytes) {
            status = read_memory(to + at, from + at, n_bytes);
        }
        speeds_note(byte_sec, begin, at);
    }
    free(other);
    tw_buffer_free(from);
    tw_buffer_free(to);
    return status;
}
