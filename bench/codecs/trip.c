/* Encodes and decodes a set of tensors, in one thread. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/codecs/codecs.h"

#define MIN_SAMPLES 3
#define MAX_SAMPLES 1000
#define PIECE_ELEMS 4096

typedef struct segment {
    tw_type_t type;
    const uint8_t *src, *old, *older;
    uint8_t *dst;
    uint8_t *state, *state_before; /* [n_elems] state of the delta's second context; NULL: one context */
    size_t n_elems, row_elems, first_elem;
} segment_t;

/* Segments of one type that are encoded together. */
typedef struct message {
    tw_type_t type;
    const segment_t *segments;
    size_t n, n_elems;
} message_t;

typedef struct trip {
    const cb_set_t *set;
    tw_quant_codec_t codec;
    tw_quant_t *blocks; /* the codec's context: one of these three is not NULL */
    tw_quant_messages_t *coder;
    tw_quant_delta_t *delta;
    segment_t *segments;
    message_t *messages;
    size_t n_segments, n_messages, message_bytes;
    uint8_t *encoded, *decoded, *states; /* encoded is `room` bytes: the largest message fits */
    size_t room;
    void *list; /* [n_segments], scratch: segments in the struct that the codec takes */
    double samples[3][MAX_SAMPLES];
} trip_t;

/* ---- codecs -------------------------------------------------------------------------------------------- */

static tw_status_t trip_open(trip_t *trip, cb_row_t *row)
{
    const tw_quant_params_t params = {.codec = trip->codec, .mem = TW_MEM_HOST, .backend = row->backend};
    switch (tw_quant_form(&trip->codec)) {
    case TW_QUANT_BLOCKS:
        TW_TRY(tw_quant_create(&params, &trip->blocks));
        row->backend = tw_quant_backend_name(trip->blocks);
        return TW_OK;
    case TW_QUANT_MESSAGE:
        TW_TRY(tw_quant_messages_create(&trip->codec, row->backend, &trip->coder));
        row->backend = tw_quant_messages_backend_name(trip->coder);
        return TW_OK;
    case TW_QUANT_CHANGE:
        TW_TRY(tw_quant_delta_create(row->backend, &trip->delta));
        row->backend = tw_quant_delta_backend_name(trip->delta);
        return TW_OK;
    default:
        return tw_fail(TW_ERR_UNSUPPORTED, "bench: %s: nothing is encoded",
                       tw_quant_row_get(trip->codec.kind)->name);
    }
}

/** Return the most bytes of an encoded message. Each segment begins with a new block. */
static size_t trip_bound(const trip_t *trip, const message_t *message)
{
    size_t bytes = 0;
    for (size_t s = 0; s < message->n && trip->blocks; s++) {
        bytes += tw_quant_encoded_bytes(&trip->codec, message->segments[s].n_elems);
    }
    return trip->blocks ? bytes : tw_quant_bound_bytes(&trip->codec, message->type, message->n_elems);
}

/** Encode or decode a message of a block codec. Encoded segments lie one after another. */
static tw_status_t trip_run_blocks(trip_t *trip, const message_t *message, int encodes, size_t *bytes)
{
    const tw_quant_args_t args = {.type = message->type, .seed = 1};
    tw_quant_segment_t *list = trip->list;
    uint8_t *encoded = trip->encoded;
    for (size_t s = 0; s < message->n; s++) {
        const segment_t *from = &message->segments[s];
        list[s] = (tw_quant_segment_t){.src = encodes ? from->src : encoded,
                                       .dst = encodes ? encoded : from->dst,
                                       .n_elems = from->n_elems,
                                       .first_elem = from->first_elem};
        encoded += tw_quant_encoded_bytes(&trip->codec, from->n_elems);
    }
    *bytes = (size_t)(encoded - trip->encoded);
    return encodes ? tw_quant_encode(trip->blocks, &args, list, message->n)
                   : tw_quant_decode(trip->blocks, &args, list, message->n);
}

static tw_status_t trip_run_message(trip_t *trip, const message_t *message, int encodes, size_t *bytes)
{
    tw_quant_message_segment_t *list = trip->list;
    const tw_quant_message_args_t args = {message->type, list, message->n, .seed = 1};
    for (size_t s = 0; s < message->n; s++) {
        const segment_t *from = &message->segments[s];
        list[s] = (tw_quant_message_segment_t){from->src, from->dst, from->n_elems, from->row_elems,
                                               from->first_elem};
    }
    return encodes ? tw_quant_messages_encode(trip->coder, &args, trip->encoded, trip->room, bytes)
                   : tw_quant_messages_decode(trip->coder, &args, TW_QUANT_SINK_STORE, trip->encoded, *bytes);
}

static tw_status_t trip_run_delta(trip_t *trip, const message_t *message, int encodes, size_t *bytes)
{
    tw_quant_delta_segment_t *list = trip->list;
    for (size_t s = 0; s < message->n; s++) {
        const segment_t *from = &message->segments[s];
        list[s] = (tw_quant_delta_segment_t){encodes ? from->old : from->dst, from->src, from->dst,
                                             from->state, from->n_elems};
    }
    return encodes ? tw_quant_delta_encode(trip->delta, list, message->n, trip->encoded, trip->room, bytes)
                   : tw_quant_delta_decode(trip->delta, list, message->n, trip->encoded, *bytes);
}

static tw_status_t trip_run(trip_t *trip, const message_t *message, int encodes, size_t *bytes)
{
    return trip->delta   ? trip_run_delta(trip, message, encodes, bytes)
           : trip->coder ? trip_run_message(trip, message, encodes, bytes)
                         : trip_run_blocks(trip, message, encodes, bytes);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static size_t trip_count_segments(const cb_set_t *set, size_t chunk_elems)
{
    size_t n = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        n += chunk_elems ? (set->tensors[t].n_elems + chunk_elems - 1) / chunk_elems : 1;
    }
    return n;
}

static void trip_add_segment(trip_t *trip, const cb_tensor_t *tensor, size_t at, size_t n, size_t done)
{
    size_t bytes = tw_type_bytes(tensor->type);
    const uint8_t *old = tensor->old, *older = tensor->older;
    trip->segments[trip->n_segments++] = (segment_t){
        .type = tensor->type,
        .src = (const uint8_t *)tensor->values + at * bytes,
        .old = old ? old + at * bytes : NULL,
        .older = older ? older + at * bytes : NULL,
        .dst = trip->decoded + done * sizeof(float), /* room for the widest type, as types may differ */
        .state = trip->states ? trip->states + done : NULL,
        .state_before = trip->states ? trip->states + trip->set->n_elems + done : NULL,
        .n_elems = n,
        .row_elems = tensor->row_elems,
        .first_elem = at,
    };
}

/** Make a message of each run of tensors of one type, or, with chunk_elems, of each chunk of a tensor. */
static void trip_make_messages(trip_t *trip, size_t chunk_elems)
{
    size_t done = 0; /* number of elements placed so far in `decoded` */
    for (size_t t = 0; t < trip->set->n_tensors; t++) {
        const cb_tensor_t *tensor = &trip->set->tensors[t];
        size_t step = chunk_elems ? chunk_elems : tensor->n_elems;
        for (size_t at = 0; at < tensor->n_elems; at += step) {
            size_t n = tensor->n_elems - at < step ? tensor->n_elems - at : step;
            message_t *last = trip->n_messages ? &trip->messages[trip->n_messages - 1] : NULL;
            trip_add_segment(trip, tensor, at, n, done);
            if (!last || chunk_elems || last->type != tensor->type) {
                last = &trip->messages[trip->n_messages++];
                *last = (message_t){.type = tensor->type, .segments = &trip->segments[trip->n_segments - 1]};
            }
            last->n++;
            last->n_elems += n;
            done += n;
        }
    }
    for (size_t m = 0; m < trip->n_messages; m++) {
        size_t bound = trip_bound(trip, &trip->messages[m]);
        trip->room = bound > trip->room ? bound : trip->room;
    }
}

static size_t segment_bytes(const segment_t *segment)
{
    return segment->n_elems * tw_type_bytes(segment->type);
}

/** Fill the receiver's tensors: with old values (delta), else with new values (if `others`) or zeros. */
static void trip_begin(const trip_t *trip, int others)
{
    for (size_t s = 0; s < trip->n_segments; s++) {
        const segment_t *segment = &trip->segments[s];
        const uint8_t *from = trip->delta ? segment->old : others ? segment->src : NULL;
        if (from) {
            memcpy(segment->dst, from, segment_bytes(segment));
        } else {
            memset(segment->dst, 0, segment_bytes(segment));
        }
        __asm__ volatile("" ::: "memory"); /* keeps the compiler from leaving a copy out */
    }
}

/* ---- samples ------------------------------------------------------------------------------------------- */

/** Set the delta's state to its value after the previous step. */
static void restore_state(const message_t *message)
{
    for (size_t s = 0; s < message->n && message->segments[s].state; s++) {
        memcpy(message->segments[s].state, message->segments[s].state_before, message->segments[s].n_elems);
    }
}

/** Encode the previous step's change into state_before: that sets it to the state after that step. */
static tw_status_t trip_make_states(trip_t *trip)
{
    for (size_t s = 0; s < trip->n_segments && trip->states; s++) {
        segment_t *segment = &trip->segments[s];
        tw_quant_delta_segment_t before = {segment->older, segment->old, NULL, segment->state_before,
                                           segment->n_elems};
        size_t bytes;
        TW_TRY(tw_quant_delta_encode(trip->delta, &before, 1, trip->encoded, trip->room, &bytes));
    }
    return TW_OK;
}

/** Time a copy of all tensors, then encode and decode every message. */
static tw_status_t trip_sample(trip_t *trip, size_t at)
{
    double start = tw_thread_sec();
    trip_begin(trip, 1);
    trip->samples[2][at] = tw_thread_sec() - start;
    if (!trip->delta) {
        trip_begin(trip, 0);
    }
    trip->samples[0][at] = trip->samples[1][at] = 0;
    trip->message_bytes = 0;
    for (size_t m = 0; m < trip->n_messages; m++) {
        size_t bytes = 0;
        restore_state(&trip->messages[m]);
        start = tw_thread_sec();
        TW_TRY(trip_run(trip, &trip->messages[m], 1, &bytes));
        trip->samples[0][at] += tw_thread_sec() - start;
        restore_state(&trip->messages[m]);
        start = tw_thread_sec();
        TW_TRY(trip_run(trip, &trip->messages[m], 0, &bytes));
        trip->samples[1][at] += tw_thread_sec() - start;
        trip->message_bytes += bytes;
    }
    return TW_OK;
}

static void add_errors(const segment_t *segment, double *squares, double *errors)
{
    float x[PIECE_ELEMS], y[PIECE_ELEMS];
    size_t bytes = tw_type_bytes(segment->type);
    for (size_t i = 0; i < segment->n_elems; i += PIECE_ELEMS) {
        size_t n = segment->n_elems - i < PIECE_ELEMS ? segment->n_elems - i : PIECE_ELEMS;
        tw_convert_to_fp32(segment->type, segment->src + i * bytes, x, n);
        tw_convert_to_fp32(segment->type, segment->dst + i * bytes, y, n);
        for (size_t k = 0; k < n; k++) {
            *squares += (double)x[k] * x[k];
            *errors += ((double)y[k] - x[k]) * ((double)y[k] - x[k]);
        }
    }
}

/** Return the 2-norm of the error relative to that of the values. *is_same: 1 if all bits are right. */
static double trip_error(const trip_t *trip, int *is_same)
{
    double squares = 0, errors = 0;
    *is_same = 1;
    for (size_t s = 0; s < trip->n_segments; s++) {
        const segment_t *segment = &trip->segments[s];
        *is_same = *is_same && memcmp(segment->src, segment->dst, segment_bytes(segment)) == 0;
        add_errors(segment, &squares, &errors);
    }
    return errors > 0 ? sqrt(errors / squares) : 0;
}

static tw_status_t trip_measure(trip_t *trip, double seconds, cb_row_t *row, double *decode_sec)
{
    size_t n = 0;
    int is_same;
    TW_TRY(trip_make_states(trip));
    double start = tw_thread_sec();
    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || tw_thread_sec() - start < seconds)) {
        TW_TRY(trip_sample(trip, n++));
    }
    row->op_sec = tw_median(trip->samples[0], n);
    *decode_sec = tw_median(trip->samples[1], n);
    row->memcpy_sec = tw_median(trip->samples[2], n);
    row->message_bytes = (double)trip->message_bytes;
    row->bits = 8.0 * row->message_bytes / (double)trip->set->n_elems;
    row->rel_rmse = trip_error(trip, &is_same);
    row->ok = tw_quant_loses(&trip->codec) == TW_QUANT_LOSES_NOTHING ? is_same : isfinite(row->rel_rmse);
    if (!row->ok) {
        tw_error("bench: %s: what was decoded is not what was encoded", row->backend);
    }
    return row->ok ? TW_OK : TW_ERR_INTERNAL;
}

static tw_status_t trip_alloc(trip_t *trip, const cb_row_t *row)
{
    size_t n = trip_count_segments(trip->set, row->chunk_elems);
    trip->segments = calloc(n, sizeof(*trip->segments));
    trip->messages = calloc(n, sizeof(*trip->messages));
    trip->list = calloc(n, sizeof(tw_quant_segment_t)); /* the largest of the codecs' segment structs */
    trip->decoded = tw_buffer_alloc_zero(trip->set->n_elems * 4);
    trip->states = row->contexts == 2 ? tw_buffer_alloc_zero(2 * trip->set->n_elems) : NULL;
    int all = trip->segments && trip->messages && trip->list && trip->decoded &&
              (trip->states || row->contexts < 2);
    if (all) {
        trip_make_messages(trip, row->chunk_elems);
        trip->encoded = tw_buffer_alloc_zero(trip->room);
    }
    if (!all || !trip->encoded) {
        tw_error("bench: no memory for %zu elements", trip->set->n_elems);
    }
    return all && trip->encoded ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t cb_trip(const cb_options_t *options, const cb_set_t *set, const tw_quant_codec_t *codec,
                    cb_row_t *row, double *decode_sec)
{
    trip_t trip = {.set = set, .codec = *codec};
    tw_status_t status = trip_open(&trip, row);
    status = status == TW_OK ? trip_alloc(&trip, row) : status;
    status = status == TW_OK ? trip_measure(&trip, options->seconds, row, decode_sec) : status;
    tw_buffer_free(trip.encoded);
    tw_buffer_free(trip.decoded);
    tw_buffer_free(trip.states);
    free(trip.list);
    free(trip.messages);
    free(trip.segments);
    tw_quant_delta_destroy(trip.delta);
    tw_quant_messages_destroy(trip.coder);
    tw_quant_destroy(trip.blocks);
    return status;
}
