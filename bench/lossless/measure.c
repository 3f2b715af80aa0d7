/* bench/lossless: one backend on a set of tensors. */
#include "bench/lossless/lossless.h"

#include <stdlib.h>
#include <string.h>

#include "bench/timing.h"

#define MIN_SAMPLES 3
#define MAX_SAMPLES 1000

/* A message: segments of one type. */
typedef struct {
    tw_type_t type;
    size_t first, n, n_elems; /* of segments */
} message_t;

typedef struct {
    tw_quant_lossless_t *codec;
    tw_quant_lossless_segment_t *segments;
    message_t *messages;
    size_t n_segments, n_messages;
    uint8_t *encoded, *decoded; /* room for all of either; each message at its bound's place */
    double samples[2][MAX_SAMPLES];
} run_t;

/** Tensors of one type that follow each other, or a part of one, are a message. */
static void make_messages(const lossless_set_t *set, size_t chunk_elems, run_t *run)
{
    uint8_t *to = run->decoded;
    for (size_t t = 0; t < set->n_tensors; t++) {
        const lossless_tensor_t *tensor = &set->tensors[t];
        size_t bytes = tw_type_bytes(tensor->type), step = chunk_elems ? chunk_elems : tensor->n_elems;
        for (size_t at = 0; at < tensor->n_elems; at += step) {
            size_t n = tensor->n_elems - at < step ? tensor->n_elems - at : step;
            message_t *last = run->n_messages ? &run->messages[run->n_messages - 1] : NULL;
            if (!last || chunk_elems || last->type != tensor->type) {
                last = &run->messages[run->n_messages++];
                *last = (message_t){.type = tensor->type, .first = run->n_segments};
            }
            run->segments[run->n_segments++] = (tw_quant_lossless_segment_t){
                .src = (const uint8_t *)tensor->values + at * bytes,
                .dst = to,
                .n_elems = n,
                .row_elems = tensor->row_elems,
                .first_elem = at,
            };
            last->n++;
            last->n_elems += n;
            to += n * bytes;
        }
    }
}

/** All messages there and back. */
static tw_status_t sample(run_t *run, size_t at, lossless_row_t *row)
{
    run->samples[0][at] = run->samples[1][at] = 0;
    row->message_bytes = 0;
    for (size_t m = 0; m < run->n_messages; m++) {
        const message_t *message = &run->messages[m];
        const tw_quant_lossless_segment_t *segments = run->segments + message->first;
        size_t bytes, bound = tw_quant_lossless_bound_bytes(message->type, message->n_elems);
        double start = bench_thread_sec();
        TW_TRY(tw_quant_lossless_encode(run->codec, message->type, segments, message->n, run->encoded, bound,
                                        &bytes));
        double between = bench_thread_sec();
        TW_TRY(
            tw_quant_lossless_decode(run->codec, message->type, segments, message->n, run->encoded, bytes));
        run->samples[0][at] += between - start;
        run->samples[1][at] += bench_thread_sec() - between;
        row->message_bytes += bytes;
    }
    return TW_OK;
}

static tw_status_t run_samples(run_t *run, double seconds, lossless_row_t *row)
{
    size_t n = 0;
    double start = bench_thread_sec();
    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || bench_thread_sec() - start < seconds)) {
        TW_TRY(sample(run, n++, row));
    }
    row->encode_gbytes = 1e-9 * (double)row->plain_bytes / tw_median(run->samples[0], n);
    row->decode_gbytes = 1e-9 * (double)row->plain_bytes / tw_median(run->samples[1], n);
    row->bits = 8.0 * (double)row->message_bytes / (double)row->n_elems;
    row->ok = 1;
    for (size_t m = 0; m < run->n_messages; m++) {
        for (size_t s = run->messages[m].first; s < run->messages[m].first + run->messages[m].n; s++) {
            const tw_quant_lossless_segment_t *segment = &run->segments[s];
            size_t bytes = segment->n_elems * tw_type_bytes(run->messages[m].type);
            row->ok = row->ok && memcmp(segment->src, segment->dst, bytes) == 0;
        }
    }
    return TW_OK;
}

static size_t count_segments(const lossless_set_t *set, size_t chunk_elems)
{
    size_t n = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        n += chunk_elems ? (set->tensors[t].n_elems + chunk_elems - 1) / chunk_elems : 1;
    }
    return n;
}

tw_status_t lossless_measure(const lossless_set_t *set, double seconds, lossless_row_t *row)
{
    size_t n = count_segments(set, row->chunk_elems);
    run_t *run = calloc(1, sizeof(*run));
    tw_status_t status = run ? tw_quant_lossless_create(row->backend, &run->codec) : TW_ERR_NO_MEMORY;
    if (status != TW_OK) {
        goto err_free;
    }
    row->source = set->name;
    row->n_elems = set->n_elems;
    row->plain_bytes = 0;
    for (size_t t = 0; t < set->n_tensors; t++) {
        row->plain_bytes += set->tensors[t].n_elems * tw_type_bytes(set->tensors[t].type);
    }
    run->segments = calloc(n, sizeof(*run->segments));
    run->messages = calloc(n, sizeof(*run->messages));
    run->encoded = tw_buffer_alloc_zero(row->plain_bytes + TW_QUANT_LOSSLESS_HEADER_BYTES);
    run->decoded = tw_buffer_alloc_zero(row->plain_bytes);
    if (run->segments && run->messages && run->encoded && run->decoded) {
        make_messages(set, row->chunk_elems, run);
        status = run_samples(run, seconds, row);
    } else {
        tw_error("bench: no memory for %zu elements", set->n_elems);
        status = TW_ERR_NO_MEMORY;
    }
    tw_buffer_free(run->decoded);
    tw_buffer_free(run->encoded);
    free(run->messages);
    free(run->segments);
    tw_quant_lossless_destroy(run->codec);
err_free:
    free(run);
    return status;
}
