/* Encodes a message of the lossless delta. */
#include "quant/delta/walk.h"

#include <string.h>

_Static_assert(sizeof(tw_delta_header_t) + 4 + TW_DELTA_STATS_BYTES_MAX + sizeof(tw_entropy_entry_t) <=
                   2 * TW_DELTA_CODED_MIN,
               "the head of a coded message fits where a plain one does");

/** Update the states of a run that is sent raw. */
static void update_states(const tw_delta_run_t *run)
{
    for (size_t i = 0; run->state && i < run->n; i++) {
        run->state[i] = tw_delta_state(tw_delta_change(run->old_values[i], run->new_values[i]));
    }
}

/** Fill the sample with short runs at equal distances from all segments. */
static void take_sample(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments, size_t n_elems)
{
    tw_delta_sample_t *sample = &delta->sample;
    size_t distance = tw_delta_sample_distance((uint32_t)n_elems);
    tw_delta_cursor_t cursor = {segments, 0};
    sample->n = 0;
    for (size_t at = 0; at < n_elems;) {
        size_t in_step = at % distance;
        size_t wanted = in_step < TW_DELTA_SAMPLE_RUN ? TW_DELTA_SAMPLE_RUN - in_step : distance - in_step;
        tw_delta_run_t run = tw_delta_next_run(&cursor, wanted < n_elems - at ? wanted : n_elems - at, 1);
        at += run.n;
        if (in_step >= TW_DELTA_SAMPLE_RUN) {
            continue;
        }
        memcpy(sample->old_values + sample->n, run.old_values, 2 * run.n);
        memcpy(sample->new_values + sample->n, run.new_values, 2 * run.n);
        if (run.state) {
            memcpy(sample->states + sample->n, run.state, run.n);
        } else {
            memset(sample->states + sample->n, 0, run.n);
        }
        sample->n += run.n;
    }
}

/* Where the next block is written, and the end of that memory. */
typedef struct {
    uint8_t *at, *end;
} target_t;

static void delta_put(target_t *target, const void *data, size_t bytes)
{
    memcpy(target->at, data, bytes);
    target->at += bytes;
}

/** Encode a block and append it. Returns 0 if it does not fit. States are updated in both cases. */
static int append_block(tw_quant_delta_t *delta, const tw_delta_run_t *run, tw_entropy_entry_t *entry,
                        target_t *target)
{
    tw_entropy_writer_t writer = {.words = delta->words, .escapes = delta->escapes};
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        writer.lanes[lane] = TW_ENTROPY_START;
    }
    delta->backend->encode(&delta->model, run, 0, &writer);
    size_t n_words = (size_t)(writer.words - delta->words),
           n_escapes = (size_t)(writer.escapes - delta->escapes);
    size_t bytes = 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_escapes,
           room = (size_t)(target->end - target->at);
    entry->check = writer.check;
    if (bytes < 2 * run->n && bytes <= room) {
        entry->sizes = (uint32_t)(n_words | n_escapes << 16);
        delta_put(target, delta->words, 2 * n_words);
        delta_put(target, writer.lanes, TW_ENTROPY_LANES_BYTES);
        delta_put(target, delta->escapes, 2 * n_escapes);
        return 1;
    }
    if (2 * run->n <= room) {
        entry->sizes = TW_ENTROPY_RAW;
        delta_put(target, run->new_values, 2 * run->n);
        return 1;
    }
    return 0;
}

/** Append all blocks. Returns 0 if they take more bytes than a plain message. */
static int append_blocks(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments, size_t n_elems,
                         target_t *target)
{
    size_t n_blocks = tw_delta_block_count(n_elems);
    tw_delta_cursor_t cursor = {segments, 0};
    uint8_t *entries = target->at;
    int fits = (size_t)(target->end - target->at) >= sizeof(tw_entropy_entry_t) * n_blocks;
    target->at += fits ? sizeof(tw_entropy_entry_t) * n_blocks : 0;
    for (size_t block = 0; block < n_blocks; block++) {
        tw_delta_cursor_t start = cursor;
        tw_entropy_entry_t entry = {0};
        int gathered;
        tw_delta_run_t run =
            tw_delta_next_block(delta, &cursor, tw_delta_block_elems(n_elems, block), 1, &gathered);
        if (fits) {
            fits = append_block(delta, &run, &entry, target);
        } else {
            update_states(&run);
        }
        if (fits) {
            memcpy(entries + sizeof(entry) * block, &entry, sizeof(entry));
        }
        if (gathered && run.state) {
            tw_delta_scatter(delta, start, run.n, 0);
        }
    }
    return fits;
}

static int append_coded(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments, size_t n_elems,
                        int second, target_t *target)
{
    uint32_t n = (uint32_t)n_elems;
    take_sample(delta, segments, n_elems);
    tw_delta_stats_choose(&delta->sample, second, &delta->stats);
    tw_delta_model_encoder(&delta->stats, &delta->model);
    delta_put(target, &n, sizeof(n));
    target->at += tw_delta_stats_write(&delta->stats, second, target->at);
    return append_blocks(delta, segments, n_elems, target);
}

static void append_plain(const tw_quant_delta_segment_t *segments, size_t n_elems, int update,
                         target_t *target)
{
    tw_delta_cursor_t cursor = {segments, 0};
    uint32_t check = 0;
    uint8_t *check_at = target->at;
    target->at += sizeof(check);
    for (size_t done = 0; done < n_elems;) {
        tw_delta_run_t run = tw_delta_next_run(&cursor, n_elems - done, 1);
        delta_put(target, run.new_values, 2 * run.n);
        check += tw_delta_check_values(run.new_values, done, run.n);
        if (update) {
            update_states(&run);
        }
        done += run.n;
    }
    memcpy(check_at, &check, sizeof(check));
}

tw_status_t tw_quant_delta_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes)
{
    size_t n_elems;
    int second;
    TW_TRY(tw_delta_check_call("delta_encode", segments, n_segments, 1, &n_elems, &second));
    size_t bound = tw_quant_delta_bound_bytes(n_elems);
    TW_FAIL_IF(!dst || dst_bytes < bound, TW_ERR_INVALID,
               "quant: delta_encode: room for %zu bytes, must be for %zu", dst ? dst_bytes : 0, bound);
    uint8_t *body = (uint8_t *)dst + sizeof(tw_delta_header_t);
    target_t target = {body, (uint8_t *)dst + bound};
    int try_coded = n_elems >= TW_DELTA_CODED_MIN;
    int coded = try_coded && append_coded(delta, segments, n_elems, second, &target);
    if (!coded) {
        target.at = body;
        append_plain(segments, n_elems, !try_coded, &target);
    }
    tw_delta_header_t header = {
        .magic = TW_DELTA_MAGIC,
        .version = TW_DELTA_VERSION,
        .flags = (uint8_t)((coded ? TW_DELTA_FLAG_CODED : 0) | (second ? TW_DELTA_FLAG_SECOND : 0)),
        .bytes = (uint32_t)(target.at - (uint8_t *)dst),
    };
    memcpy(dst, &header, sizeof(header));
    *bytes = header.bytes;
    return TW_OK;
}
