/* Messages of lossless deltas: the public calls. */
#include "quant/delta/model.h"

#include <stdlib.h>
#include <string.h>

#define VECTOR_SLACK 32 /* elements that a vector may write too many */

/* Best first. */
static const tw_delta_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_delta_avx512,
    &tw_delta_avx2,
#endif
    &tw_delta_ref,
};
#define N_BACKENDS (sizeof(backends) / sizeof(backends[0]))

struct tw_quant_delta {
    const tw_delta_backend_t *backend;
    tw_delta_stats_t stats;
    tw_delta_model_t model;
    uint16_t words[TW_DELTA_BLOCK_ELEMS + VECTOR_SLACK], escapes[TW_DELTA_BLOCK_ELEMS + 1];
    /* A block whose elements lie in several segments. */
    uint16_t old_values[TW_DELTA_BLOCK_ELEMS], new_values[TW_DELTA_BLOCK_ELEMS];
    uint8_t state[TW_DELTA_BLOCK_ELEMS];
    tw_delta_sample_t sample;
};

_Static_assert(sizeof(tw_delta_header_t) + 4 + TW_DELTA_STATS_BYTES_MAX + sizeof(tw_entropy_entry_t) <=
                   2 * TW_DELTA_CODED_MIN,
               "the head of a coded message fits where a plain one does");

/* ---- codecs -------------------------------------------------------------------------------------------- */

size_t tw_quant_delta_backends(const char **names, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < N_BACKENDS && n < max; i++) {
        if (backends[i]->usable()) {
            names[n++] = backends[i]->name;
        }
    }
    return n;
}

tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out)
{
    const tw_delta_backend_t *found = NULL;
    int any = !backend || strcmp(backend, "auto") == 0;
    for (size_t i = 0; i < N_BACKENDS && !found; i++) {
        if ((any || strcmp(backend, backends[i]->name) == 0) && backends[i]->usable()) {
            found = backends[i];
        }
    }
    if (!found) {
        tw_error("quant: lossless delta: no backend '%s' on this machine", backend);
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_delta_t *delta = tw_buffer_alloc_zero(sizeof(*delta));
    if (!delta) {
        tw_error("quant: lossless delta: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    delta->backend = found;
    *out = delta;
    return TW_OK;
}

void tw_quant_delta_destroy(tw_quant_delta_t *delta)
{
    tw_buffer_free(delta);
}

const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta)
{
    return delta->backend->name;
}

size_t tw_quant_delta_bound_bytes(size_t n_elems)
{
    return n_elems <= TW_MEMORY_BYTES_MAX ? sizeof(tw_delta_header_t) + sizeof(uint32_t) + 2 * n_elems
                                          : SIZE_MAX;
}

/* ---- segments ------------------------------------------------------------------------------------------ */

tw_status_t tw_delta_check_call(const char *operation, const tw_quant_delta_segment_t *segments,
                                size_t n_segments, int encoding, size_t *n_elems, int *second)
{
    size_t n = 0, with_state = 0, not_empty = 0;
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_delta_segment_t *segment = &segments[s];
        if (!segment->n_elems) {
            continue;
        }
        const void *values = encoding ? segment->src : segment->dst;
        if (!segment->base || !values || segment->n_elems > TW_DELTA_ELEMS_MAX - n) {
            tw_error("quant: %s: segment %zu has a NULL pointer, or there are more than %zu elements",
                     operation, s, TW_DELTA_ELEMS_MAX);
            return TW_ERR_INVALID;
        }
        n += segment->n_elems;
        not_empty++;
        with_state += segment->state != NULL;
    }
    if (with_state && with_state != not_empty) {
        tw_error("quant: %s: %zu of %zu segments have a state: all or none must", operation, with_state,
                 not_empty);
        return TW_ERR_INVALID;
    }
    *n_elems = n;
    *second = with_state > 0;
    return TW_OK;
}

/* Where a walk over the segments stands. */
typedef struct {
    const tw_quant_delta_segment_t *segment;
    size_t at;
} cursor_t;

/** The next elements that lie together, at most n of them, there being n left; moves on. */
static tw_delta_run_t next_run(cursor_t *cursor, size_t n, int encoding)
{
    while (cursor->at == cursor->segment->n_elems) {
        cursor->segment++;
        cursor->at = 0;
    }
    const tw_quant_delta_segment_t *segment = cursor->segment;
    size_t left = segment->n_elems - cursor->at, at = cursor->at;
    tw_delta_run_t run = {
        .old_values = (const uint16_t *)segment->base + at,
        .new_values = (uint16_t *)(encoding ? (uintptr_t)segment->src : (uintptr_t)segment->dst) + at,
        .state = segment->state ? segment->state + at : NULL,
        .n = left < n ? left : n,
    };
    cursor->at += run.n;
    return run;
}

/** Elements of several segments one after the other in the codec's memory; `new_too` as well. */
static void gather(tw_quant_delta_t *delta, cursor_t cursor, size_t n, int new_too)
{
    for (size_t done = 0; done < n;) {
        tw_delta_run_t run = next_run(&cursor, n - done, new_too);
        memcpy(delta->old_values + done, run.old_values, 2 * run.n);
        if (new_too) {
            memcpy(delta->new_values + done, run.new_values, 2 * run.n);
        }
        if (run.state) {
            memcpy(delta->state + done, run.state, run.n);
        }
        done += run.n;
    }
}

/** And back: the states, and after decoding the new values. */
static void scatter(const tw_quant_delta_t *delta, cursor_t cursor, size_t n, int new_too)
{
    for (size_t done = 0; done < n;) {
        tw_delta_run_t run = next_run(&cursor, n - done, !new_too);
        if (new_too) {
            memcpy(run.new_values, delta->new_values + done, 2 * run.n);
        }
        if (run.state) {
            memcpy(run.state, delta->state + done, run.n);
        }
        done += run.n;
    }
}

/** A block, gathered if it must be; *gathered says so. The cursor moves on. */
static tw_delta_run_t next_block(tw_quant_delta_t *delta, cursor_t *cursor, size_t n, int encoding,
                                 int *gathered)
{
    cursor_t start = *cursor;
    tw_delta_run_t run = next_run(cursor, n, encoding);
    *gathered = run.n < n;
    if (*gathered) {
        gather(delta, start, n, encoding);
        for (size_t done = run.n; done < n;) {
            done += next_run(cursor, n - done, encoding).n;
        }
        run = (tw_delta_run_t){delta->old_values, delta->new_values, run.state ? delta->state : NULL, n};
    }
    return run;
}

static size_t block_count(size_t n_elems)
{
    return (n_elems + TW_DELTA_BLOCK_ELEMS - 1) / TW_DELTA_BLOCK_ELEMS;
}

static size_t block_elems(size_t n_elems, size_t block)
{
    size_t left = n_elems - block * TW_DELTA_BLOCK_ELEMS;
    return left < TW_DELTA_BLOCK_ELEMS ? left : TW_DELTA_BLOCK_ELEMS;
}

/** What a run of values, of which the first has this index, adds to a checksum. */
static uint32_t check_values(const void *values, size_t first, size_t n)
{
    uint32_t check = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const uint8_t *)values + 2 * i, sizeof(bits));
        check += tw_entropy_check(first + i, bits);
    }
    return check;
}

/** The states after a run that was not coded. */
static void update_states(const tw_delta_run_t *run)
{
    for (size_t i = 0; run->state && i < run->n; i++) {
        run->state[i] = tw_delta_state(tw_delta_change(run->old_values[i], run->new_values[i]));
    }
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/** Short runs at equal distances over all segments. */
static void take_sample(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments, size_t n_elems)
{
    tw_delta_sample_t *sample = &delta->sample;
    size_t distance = tw_delta_sample_distance((uint32_t)n_elems);
    cursor_t cursor = {segments, 0};
    sample->n = 0;
    for (size_t at = 0; at < n_elems;) {
        size_t in_step = at % distance;
        size_t wanted = in_step < TW_DELTA_SAMPLE_RUN ? TW_DELTA_SAMPLE_RUN - in_step : distance - in_step;
        tw_delta_run_t run = next_run(&cursor, wanted < n_elems - at ? wanted : n_elems - at, 1);
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

/* Where the next block goes. */
typedef struct {
    uint8_t *at, *end;
} target_t;

static void put(target_t *target, const void *data, size_t bytes)
{
    memcpy(target->at, data, bytes);
    target->at += bytes;
}

/** Encode a block into the codec's memory and append it; 0 when it does not fit. The states move on in any
 *  case. */
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
        put(target, delta->words, 2 * n_words);
        put(target, writer.lanes, TW_ENTROPY_LANES_BYTES);
        put(target, delta->escapes, 2 * n_escapes);
        return 1;
    }
    if (2 * run->n <= room) {
        entry->sizes = TW_ENTROPY_RAW;
        put(target, run->new_values, 2 * run->n);
        return 1;
    }
    return 0;
}

/** The blocks; 0 when they take more than a plain message. */
static int append_blocks(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments, size_t n_elems,
                         target_t *target)
{
    size_t n_blocks = block_count(n_elems);
    cursor_t cursor = {segments, 0};
    uint8_t *entries = target->at;
    int fits = (size_t)(target->end - target->at) >= sizeof(tw_entropy_entry_t) * n_blocks;
    target->at += fits ? sizeof(tw_entropy_entry_t) * n_blocks : 0;
    for (size_t block = 0; block < n_blocks; block++) {
        cursor_t start = cursor;
        tw_entropy_entry_t entry = {0};
        int gathered;
        tw_delta_run_t run = next_block(delta, &cursor, block_elems(n_elems, block), 1, &gathered);
        if (fits) {
            fits = append_block(delta, &run, &entry, target);
        } else {
            update_states(&run);
        }
        if (fits) {
            memcpy(entries + sizeof(entry) * block, &entry, sizeof(entry));
        }
        if (gathered && run.state) {
            scatter(delta, start, run.n, 0);
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
    put(target, &n, sizeof(n));
    target->at += tw_delta_stats_write(&delta->stats, second, target->at);
    return append_blocks(delta, segments, n_elems, target);
}

static void append_plain(const tw_quant_delta_segment_t *segments, size_t n_elems, int update,
                         target_t *target)
{
    cursor_t cursor = {segments, 0};
    uint32_t check = 0;
    uint8_t *check_at = target->at;
    target->at += sizeof(check);
    for (size_t done = 0; done < n_elems;) {
        tw_delta_run_t run = next_run(&cursor, n_elems - done, 1);
        put(target, run.new_values, 2 * run.n);
        check += check_values(run.new_values, done, run.n);
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
    if (!dst || dst_bytes < bound) {
        tw_error("quant: delta_encode: room for %zu bytes, must be for %zu", dst ? dst_bytes : 0, bound);
        return TW_ERR_INVALID;
    }
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

/* ---- decoding ------------------------------------------------------------------------------------------ */

/* What is left of a message, and what to call it. */
typedef struct {
    const uint8_t *at, *end;
} source_t;

static size_t bytes_left(const source_t *source)
{
    return (size_t)(source->end - source->at);
}

static tw_status_t fail_format(const char *what)
{
    tw_error("quant: delta_decode: %s", what);
    return TW_ERR_FORMAT;
}

static tw_status_t read_header(source_t *source, int second, int *coded)
{
    tw_delta_header_t header;
    if (bytes_left(source) < sizeof(header)) {
        tw_error("quant: delta_decode: a message of %zu bytes is shorter than its header",
                 bytes_left(source));
        return TW_ERR_TRUNCATED;
    }
    memcpy(&header, source->at, sizeof(header));
    if (header.magic != TW_DELTA_MAGIC || header.version != TW_DELTA_VERSION || header.zero ||
        header.flags > (TW_DELTA_FLAG_CODED | TW_DELTA_FLAG_SECOND)) {
        tw_error("quant: delta_decode: not a lossless delta of version %d (bytes %02x %02x %02x %02x)",
                 TW_DELTA_VERSION, header.magic, header.version, header.flags, header.zero);
        return TW_ERR_FORMAT;
    }
    if (header.bytes != bytes_left(source)) {
        tw_error("quant: delta_decode: %zu bytes, the message says %u", bytes_left(source), header.bytes);
        return header.bytes > bytes_left(source) ? TW_ERR_TRUNCATED : TW_ERR_FORMAT;
    }
    if (!!(header.flags & TW_DELTA_FLAG_SECOND) != second) {
        tw_error("quant: delta_decode: the message was made with%s states, the segments have %s",
                 second ? "out" : "", second ? "some" : "none");
        return TW_ERR_MISMATCH;
    }
    *coded = header.flags & TW_DELTA_FLAG_CODED;
    source->at += sizeof(header);
    return TW_OK;
}

static tw_status_t fail_elems(size_t in_message, size_t n_elems)
{
    tw_error("quant: delta_decode: the message has %zu elements, the segments %zu", in_message, n_elems);
    return TW_ERR_MISMATCH;
}

/** What stands before the blocks: statistics and entries. */
static tw_status_t read_head(tw_quant_delta_t *delta, source_t *source, size_t n_elems, int second,
                             const uint8_t **entries)
{
    uint32_t n;
    if (bytes_left(source) < sizeof(n)) {
        return fail_format("the message ends before its number of elements");
    }
    memcpy(&n, source->at, sizeof(n));
    source->at += sizeof(n);
    if (n != n_elems) {
        return fail_elems(n, n_elems);
    }
    size_t bytes = tw_delta_stats_read(&delta->stats, second, source->at, bytes_left(source));
    if (!bytes) {
        return fail_format("bad tables");
    }
    source->at += bytes;
    *entries = source->at;
    if (bytes_left(source) < sizeof(tw_entropy_entry_t) * block_count(n_elems)) {
        return fail_format("the message ends before its blocks");
    }
    source->at += sizeof(tw_entropy_entry_t) * block_count(n_elems);
    tw_delta_model_decoder(&delta->stats, &delta->model);
    return TW_OK;
}

/** A raw run; dst may be where the old values lie, so the states come first. */
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
    if (bytes > bytes_left(source)) {
        return fail_format("the message ends within a block");
    }
    const uint8_t *at = source->at;
    source->at += bytes;
    if (entry->sizes == TW_ENTROPY_RAW) {
        if (check_values(at, 0, run->n) != entry->check) {
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
    tw_status_t status = read_head(delta, source, n_elems, second, &entries);
    cursor_t cursor = {segments, 0};
    for (size_t block = 0; status == TW_OK && block < block_count(n_elems); block++) {
        cursor_t start = cursor;
        tw_entropy_entry_t entry;
        int gathered;
        memcpy(&entry, entries + sizeof(entry) * block, sizeof(entry));
        tw_delta_run_t run = next_block(delta, &cursor, block_elems(n_elems, block), 0, &gathered);
        status = decode_block(delta, &run, &entry, source);
        if (gathered && status == TW_OK) {
            scatter(delta, start, run.n, 1);
        }
    }
    if (status == TW_OK && bytes_left(source)) {
        return fail_format("bytes are left behind the last block");
    }
    return status;
}

static tw_status_t decode_plain(const tw_quant_delta_segment_t *segments, size_t n_elems, source_t *source)
{
    cursor_t cursor = {segments, 0};
    uint32_t check;
    if (bytes_left(source) < sizeof(check)) {
        return fail_format("the message ends before its checksum");
    }
    memcpy(&check, source->at, sizeof(check));
    source->at += sizeof(check);
    if (bytes_left(source) != 2 * n_elems) {
        return fail_elems(bytes_left(source) / 2, n_elems);
    }
    if (check_values(source->at, 0, n_elems) != check) {
        return fail_format("a message that is not coded is spoilt");
    }
    for (size_t done = 0; done < n_elems;) {
        tw_delta_run_t run = next_run(&cursor, n_elems - done, 0);
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
