/* bench/delta: one codec on the weights, beside memcpy. */
#include "bench/delta/delta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/timing.h"

#define MIN_SAMPLES 5
#define MAX_SAMPLES 1000

/* What one line needs. */
typedef struct {
    const delta_data_t *data;
    tw_quant_delta_t *delta;
    uint8_t *message, *state_before, *state;
    uint16_t *replica;
    size_t message_bytes;
    double samples[3][MAX_SAMPLES];
} run_t;

static tw_status_t encode(run_t *run, const uint16_t *from, const uint16_t *to, uint8_t *state)
{
    tw_quant_delta_segment_t segment = {.base = from, .src = to, .state = state, .n_elems = run->data->n};
    return tw_quant_delta_encode(run->delta, &segment, 1, run->message,
                                 tw_quant_delta_bound_bytes(run->data->n), &run->message_bytes);
}

static tw_status_t decode(run_t *run, uint8_t *state)
{
    tw_quant_delta_segment_t segment = {
        .base = run->replica, .dst = run->replica, .state = state, .n_elems = run->data->n};
    return tw_quant_delta_decode(run->delta, &segment, 1, run->message, run->message_bytes);
}

/** The state as the step before left it. */
static uint8_t *fresh_state(run_t *run)
{
    if (run->state) {
        memcpy(run->state, run->state_before, run->data->n);
    }
    return run->state;
}

static tw_status_t sample(run_t *run, size_t at)
{
    const delta_data_t *data = run->data;
    uint8_t *state = fresh_state(run);
    double start = bench_thread_sec();
    tw_status_t status = encode(run, data->old, data->new, state);
    run->samples[0][at] = bench_thread_sec() - start;
    start = bench_thread_sec();
    memcpy(run->replica, data->old, 2 * data->n);
    __asm__ volatile("" ::: "memory");
    run->samples[2][at] = bench_thread_sec() - start;
    state = fresh_state(run);
    start = bench_thread_sec();
    if (status == TW_OK) {
        status = decode(run, state);
    }
    run->samples[1][at] = bench_thread_sec() - start;
    return status;
}

static tw_status_t run_samples(const delta_options_t *options, run_t *run, delta_row_t *row)
{
    const delta_data_t *data = run->data;
    tw_status_t status = TW_OK;
    size_t n = 0;
    if (run->state) {
        status = encode(run, data->older, data->old, run->state_before);
    }
    double start = bench_thread_sec();
    while (status == TW_OK && n < MAX_SAMPLES &&
           (n < MIN_SAMPLES || bench_thread_sec() - start < options->seconds)) {
        status = sample(run, n++);
    }
    if (status != TW_OK) {
        return status;
    }
    row->ok = memcmp(run->replica, data->new, 2 * data->n) == 0;
    row->message_bytes = run->message_bytes;
    row->bits = 8.0 * (double)run->message_bytes / (double)data->n;
    row->above = row->bits / row->floor_bits - 1;
    double gigabytes = 2e-9 * (double)data->n;
    row->encode_gbytes = gigabytes / tw_median(run->samples[0], n);
    row->decode_gbytes = gigabytes / tw_median(run->samples[1], n);
    row->memcpy_gbytes = gigabytes / tw_median(run->samples[2], n);
    return TW_OK;
}

tw_status_t delta_measure(const delta_options_t *options, const delta_data_t *data, delta_row_t *row)
{
    run_t *run = calloc(1, sizeof(*run));
    tw_status_t status = run ? tw_quant_delta_create(row->backend, &run->delta) : TW_ERR_NO_MEMORY;
    if (status != TW_OK) {
        goto err_free;
    }
    row->source = options->new_file ? options->new_file : "synthetic";
    row->lr = options->new_file ? NAN : options->lr;
    row->n_elems = data->n;
    run->data = data;
    run->message = tw_buffer_alloc_zero(tw_quant_delta_bound_bytes(data->n));
    run->replica = tw_buffer_alloc_zero(2 * data->n);
    int second = row->contexts == 2;
    run->state_before = second ? tw_buffer_alloc_zero(data->n) : NULL;
    run->state = second ? tw_buffer_alloc_zero(data->n) : NULL;
    if (run->message && run->replica && (!second || (run->state_before && run->state))) {
        status = run_samples(options, run, row);
    } else {
        tw_error("bench: no memory for %zu weights", data->n);
        status = TW_ERR_NO_MEMORY;
    }
    tw_buffer_free(run->state);
    tw_buffer_free(run->state_before);
    tw_buffer_free(run->replica);
    tw_buffer_free(run->message);
    tw_quant_delta_destroy(run->delta);
err_free:
    free(run);
    return status;
}
