/* Decodes a message of the lossless delta. */
#include "quant/delta/walk.h"

#include <string.h>

/* The unread rest of a message. */
typedef struct {
    const uint8_t *at, *end;
} source_t;

static size_t delta_bytes_left(const source_t *source)
{
    return (size_t)(source->end - source->at);
}

static tw_status_t fail_format(const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "quant: delta_decode: %s", what);
}

static tw_status_t read_header(source_t *source, int second, int *coded)
{
    tw_delta_header_t header;
    TW_FAIL_IF(delta_bytes_left(source) < sizeof(header), TW_ERR_TRUNCATED,
               "quant: delta_decode: a message of %zu bytes is shorter than its header",
               delta_bytes_left(source));
    memcpy(&header, source->at, sizeof(header));
    TW_FAIL_IF(header.magic != TW_DELTA_MAGIC || header.version != TW_DELTA_VERSION || header.zero ||
                   header.flags > (TW_DELTA_FLAG_CODED | TW_DELTA_FLAG_SECOND),
               TW_ERR_FORMAT,
               "quant: delta_decode: not a lossless delta of version %d (bytes %02x %02x %02x %02x)",
               TW_DELTA_VERSION, header.magic, header.version, header.flags, header.zero);
    if (header.bytes != delta_bytes_left(source)) {
        tw_error("quant: delta_decode: %zu bytes, the message says %u", delta_bytes_left(source),
                 header.bytes);
        return header.bytes > delta_bytes_left(source) ? TW_ERR_TRUNCATED : TW_ERR_FORMAT;
    }
    TW_FAIL_IF(!!(header.flags & TW_DELTA_FLAG_SECOND) != second, TW_ERR_MISMATCH,
               "quant: delta_decode: the message was made with%s states, the segments have %s",
               second ? "out" : "", second ? "some" : "none");
    *coded = header.flags & TW_DELTA_FLAG_CODED;
    source->at += sizeof(header);
    return TW_OK;
}

static tw_status_t fail_elems(size_t in_message, size_t n_elems)
{
    return tw_fail(TW_ERR_MISMATCH, "quant: delta_decode: the message has %zu elements, the segments %zu",
                   in_message, n_elems);
}

/** Read the part before the blocks: n, statistics and entries. */
static tw_status_t delta_read_head(tw_quant_delta_t *delta, source_t *source, size_t n_elems, int second,
                                   const uint8_t **entries)
{
    uint32_t n;
    if (delta_bytes_left(source) < sizeof(n)) {
        return fail_format("the message ends before its number of elements");
    }
    memcpy(&n, source->at, sizeof(n));
    source->at += sizeof(n);
    if (n != n_elems) {
        return fail_elems(n, n_elems);
    }
    size_t bytes = tw_delta_stats_read(&delta->stats, second, source->at, delta_bytes_left(source));
    if (!bytes) {
        return fail_format("bad tables");
    }
    source->at += bytes;
    *entries = source->at;
    if (delta_bytes_left(source) < sizeof(tw_entropy_entry_t) * tw_delta_block_count(n_elems)) {
        return fail_format("the message ends before its blocks");
    }
    source->at += sizeof(tw_entropy_entry_t) * tw_delta_block_count(n_elems);
    tw_delta_model_decoder(&delta->stats, &delta->model);
    return TW_OK;
}

/** Take the values of a raw block. A new value may overwrite the old one, so its state is updated first. */
static void take_raw(const tw_delta_run_t *run, const uint8_t *values)
{
    for (size_t i = 0; i < run->n; i++) {
        uint16_t new_bits;
        memcpy(&new_bits, values + 2 * i, sizeof(new_bits));
        if (run->state) {
            run->state[i] = tw_delta_state(tw_delta_change(run->old_values[i], new_bits));
        }
        run->new_values[i] = new_bits;
    }
}

static tw_status_t decode_block(tw_quant_delta_t *delta, const tw_delta_run_t *run,
                                const tw_entropy_entry_t *entry, source_t *source)
{
    size_t n_words = entry->sizes & 0xffff, n_escapes = entry->sizes >> 16;
    size_t bytes = 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_escapes;
    if (entry->sizes == TW_ENTROPY_RAW) {
        bytes = 2 * run->n;
    }
    if (bytes > delta_bytes_left(source)) {
        return fail_format("the message ends within a block");
    }
    const uint8_t *at = source->at;
    source->at += bytes;
    if (entry->sizes == TW_ENTROPY_RAW) {
        if (tw_delta_check_values(at, 0, run->n) != entry->check) {
            return fail_format("a block that is not coded is spoilt");
        }
        take_raw(run, at);
        return TW_OK;
    }
    tw_entropy_reader_t reader = {
        .words_begin = at,
        .words = at + 2 * n_words,
        .escapes_begin = source->at - 2 * n_escapes,
        .escapes = source->at,
    };
    memcpy(reader.lanes, reader.words, TW_ENTROPY_LANES_BYTES);
    if (!delta->backend->decode(&delta->model, run, 0, &reader) || !tw_entropy_came_back(&reader) ||
        reader.check != entry->check) {
        return fail_format("a block does not decode: spoilt, or made from other old values or states");
    }
    return TW_OK;
}

static tw_status_t decode_coded(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                size_t n_elems, int second, source_t *source)
{
    const uint8_t *entries = NULL;
    tw_status_t status = delta_read_head(delta, source, n_elems, second, &entries);
    tw_delta_cursor_t cursor = {segments, 0};
    for (size_t block = 0; status == TW_OK && block < tw_delta_block_count(n_elems); block++) {
        tw_delta_cursor_t start = cursor;
        tw_entropy_entry_t entry;
        int gathered;
        memcpy(&entry, entries + sizeof(entry) * block, sizeof(entry));
        tw_delta_run_t run =
            tw_delta_next_block(delta, &cursor, tw_delta_block_elems(n_elems, block), 0, &gathered);
        status = decode_block(delta, &run, &entry, source);
        if (gathered && status == TW_OK) {
            tw_delta_scatter(delta, start, run.n, 1);
        }
    }
    if (status == TW_OK && delta_bytes_left(source)) {
        return fail_format("bytes are left behind the last block");
    }
    return status;
}

static tw_status_t decode_plain(const tw_quant_delta_segment_t *segments, size_t n_elems, source_t *source)
{
    tw_delta_cursor_t cursor = {segments, 0};
    uint32_t check;
    if (delta_bytes_left(source) < sizeof(check)) {
        return fail_format("the message ends before its checksum");
    }
    memcpy(&check, source->at, sizeof(check));
    source->at += sizeof(check);
    if (delta_bytes_left(source) != 2 * n_elems) {
        return fail_elems(delta_bytes_left(source) / 2, n_elems);
    }
    if (tw_delta_check_values(source->at, 0, n_elems) != check) {
        return fail_format("a message that is not coded is spoilt");
    }
    for (size_t done = 0; done < n_elems;) {
        tw_delta_run_t run = tw_delta_next_run(&cursor, n_elems - done, 0);
        take_raw(&run, source->at + 2 * done);
        done += run.n;
    }
    return TW_OK;
}

tw_status_t tw_quant_delta_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, const void *src, size_t src_bytes)
{
    size_t n_elems;
    int second, coded;
    TW_TRY(tw_delta_check_call("delta_decode", segments, n_segments, 0, &n_elems, &second));
    source_t source = {src, src ? (const uint8_t *)src + src_bytes : NULL};
    TW_TRY(read_header(&source, second, &coded));
    return coded ? decode_coded(delta, segments, n_elems, second, &source)
                 : decode_plain(segments, n_elems, &source);
}
