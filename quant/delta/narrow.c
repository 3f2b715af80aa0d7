/* Elements of 8 bits. An element becomes an old and a new value of 16 bits: their difference is its change,
 * and the old value's exponent tells the old element's size. The codec of 16 bits then encodes them. */
#include "quant/delta/walk.h"

#include <string.h>

#define CHUNK_ELEMS TW_DELTA8_CHUNK_ELEMS
#define ELEMS_MAX (2 * TW_DELTA_ELEMS_MAX)
#define RANKED_OLD_VALUE 0x100

struct tw_delta_narrow {
    uint8_t old_codes[CHUNK_ELEMS], new_codes[CHUNK_ELEMS];
    uint16_t old_values[CHUNK_ELEMS], new_values[CHUNK_ELEMS];
    uint8_t message[sizeof(tw_delta_header_t) + sizeof(uint32_t) + sizeof(uint16_t) * CHUNK_ELEMS];
};

/* ---- one element --------------------------------------------------------------------------------------- */

/** Map sign and magnitude to two's complement, so that the order of numbers stays. Its own inverse. */
static uint8_t narrow_order(uint8_t code)
{
    return (uint8_t)(code ^ (0x7f & -(code >> 7)));
}

/** The 16-bit value of an old element. Its exponent is the upper five bits of the magnitude, plus 2: then
 *  adding any change stays in range. */
static uint16_t narrow_value(uint8_t old_code)
{
    return (uint16_t)(((old_code & 0x7c) << 5) + 0x100);
}

static void widen_old(struct tw_delta_narrow *narrow, size_t n, int is_ranked)
{
    const uint8_t *restrict old_codes = narrow->old_codes;
    uint16_t *restrict old_values = narrow->old_values;
    for (size_t i = 0; i < n; i++) {
        old_values[i] = is_ranked ? RANKED_OLD_VALUE : narrow_value(old_codes[i]);
    }
}

static void widen_new(struct tw_delta_narrow *narrow, size_t n)
{
    const uint8_t *restrict old_codes = narrow->old_codes, *restrict new_codes = narrow->new_codes;
    uint16_t *restrict new_values = narrow->new_values;
    for (size_t i = 0; i < n; i++) {
        int change = (int8_t)narrow_order(new_codes[i]) - (int8_t)narrow_order(old_codes[i]);
        new_values[i] = (uint16_t)(narrow_value(old_codes[i]) + change);
    }
}

/** Undo widen_new. */
static void take_back(struct tw_delta_narrow *narrow, size_t n)
{
    const uint8_t *restrict old_codes = narrow->old_codes;
    const uint16_t *restrict new_values = narrow->new_values;
    uint8_t *restrict new_codes = narrow->new_codes;
    for (size_t i = 0; i < n; i++) {
        int change = new_values[i] - narrow_value(old_codes[i]);
        new_codes[i] = narrow_order((uint8_t)(narrow_order(old_codes[i]) + change));
    }
}

/* ---- elements by themselves ---------------------------------------------------------------------------- */

/** List the classes of magnitudes (their upper 5 bits), the most frequent one first. */
static void rank_classes(const uint8_t *codes, size_t n, uint8_t *classes)
{
    size_t counts[TW_DELTA8_CLASSES] = {0};
    for (size_t i = 0; i < n; i++) {
        counts[(codes[i] & 0x7f) >> 2]++;
    }
    for (size_t high = 0; high < TW_DELTA8_CLASSES; high++) {
        size_t rank = high;
        for (; rank > 0 && counts[classes[rank - 1]] < counts[high]; rank--) {
            classes[rank] = classes[rank - 1];
        }
        classes[rank] = (uint8_t)high;
    }
}

static void widen_ranked(struct tw_delta_narrow *narrow, size_t n, const uint8_t *classes)
{
    uint8_t z_of[TW_DELTA8_CLASSES];
    for (size_t rank = 0; rank < TW_DELTA8_CLASSES; rank++) {
        z_of[classes[rank]] = (uint8_t)(rank << 3);
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t code = narrow->new_codes[i];
        uint32_t z = z_of[(code & 0x7f) >> 2] | (uint32_t)(code & 3) << 1 | code >> 7;
        narrow->new_values[i] = (uint16_t)(RANKED_OLD_VALUE + tw_delta_unzigzag((uint16_t)z));
    }
}

static void take_back_ranked(struct tw_delta_narrow *narrow, size_t n, const uint8_t *classes)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t z = tw_delta_zigzag((int16_t)(narrow->new_values[i] - RANKED_OLD_VALUE));
        uint32_t high = classes[(z >> 3) % TW_DELTA8_CLASSES];
        narrow->new_codes[i] = (uint8_t)(z << 7 | high << 2 | (z >> 1 & 3));
    }
}

/* ---- both directions ----------------------------------------------------------------------------------- */

/** Copy the next n codes and move the cursor. Encoding: old and new codes, from the segments. Decoding: old
 *  codes from the segments, or if old_codes is NULL new codes to the segments. */
static void copy_codes(tw_delta_cursor_t *cursor, size_t n, uint8_t *old_codes, uint8_t *new_codes,
                       int encoding)
{
    for (size_t done = 0; done < n;) {
        const tw_quant_delta_segment_t *segment = cursor->segment;
        size_t left = segment->n_elems - cursor->at, run = left < n - done ? left : n - done;
        if (run > 0 && old_codes && segment->base) {
            memcpy(old_codes + done, (const uint8_t *)segment->base + cursor->at, run);
        } else if (old_codes) {
            memset(old_codes + done, 0, run);
        }
        if (run > 0 && new_codes && encoding) {
            memcpy(new_codes + done, (const uint8_t *)segment->src + cursor->at, run);
        } else if (run > 0 && new_codes) {
            memcpy((uint8_t *)segment->dst + cursor->at, new_codes + done, run);
        }
        done += run;
        cursor->segment += run == left;
        cursor->at = run == left ? 0 : cursor->at + run;
    }
}

static tw_status_t narrow_begin(tw_quant_delta_t *delta, const char *operation,
                                const tw_quant_delta_segment_t *segments, size_t n_segments, int encoding,
                                size_t *n_elems)
{
    *n_elems = 0;
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_delta_segment_t *segment = &segments[s];
        int is_whole = (encoding ? segment->src : segment->dst) && !segment->state;
        TW_FAIL_IF(
            segment->n_elems > 0 && (!is_whole || segment->n_elems > ELEMS_MAX - *n_elems), TW_ERR_INVALID,
            "quant: %s: segment %zu has a NULL pointer or a state, or there are more than %zu elements",
            operation, s, ELEMS_MAX);
        *n_elems += segment->n_elems;
    }
    if (!delta->narrow) {
        delta->narrow = tw_buffer_alloc(sizeof(*delta->narrow));
    }
    TW_FAIL_IF(!delta->narrow, TW_ERR_NO_MEMORY, "quant: %s: out of memory", operation);
    return TW_OK;
}

static size_t chunk_elems(size_t left)
{
    return left < CHUNK_ELEMS ? left : CHUNK_ELEMS;
}

size_t tw_quant_delta8_bound_bytes(size_t n_elems)
{
    return n_elems <= TW_MEMORY_BYTES_MAX
               ? sizeof(tw_delta8_header_t) + n_elems + (n_elems + CHUNK_ELEMS - 1) / CHUNK_ELEMS
               : SIZE_MAX;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/** Encode a chunk into the codec's memory: its changes, or with `classes` the new elements, RANKED. */
static tw_status_t encode_chunk(tw_quant_delta_t *delta, size_t n, const uint8_t *classes, size_t *bytes)
{
    struct tw_delta_narrow *narrow = delta->narrow;
    const tw_quant_delta_segment_t segment = {
        .base = narrow->old_values, .src = narrow->new_values, .n_elems = n};
    widen_old(narrow, n, classes != NULL);
    if (classes) {
        widen_ranked(narrow, n, classes);
    } else {
        widen_new(narrow, n);
    }
    return tw_quant_delta_encode(delta, &segment, 1, narrow->message, sizeof(narrow->message), bytes);
}

/** Write a chunk in its shortest form at *at, and move *at to its end. */
static tw_status_t append_chunk(tw_quant_delta_t *delta, size_t n, uint8_t **at)
{
    uint8_t head[1 + TW_DELTA8_CLASSES] = {TW_DELTA8_RANKED}, *classes = head + 1;
    size_t bytes, head_bytes = 0;
    TW_TRY(encode_chunk(delta, n, NULL, &bytes));
    if (bytes > n - n / 4) { /* a RANKED chunk is seldom longer */
        size_t changes = bytes;
        rank_classes(delta->narrow->new_codes, n, classes);
        TW_TRY(encode_chunk(delta, n, classes, &bytes));
        head_bytes = sizeof(head);
        if (changes <= head_bytes + bytes) {
            head_bytes = 0, bytes = changes;
            TW_TRY(changes > n ? TW_OK : encode_chunk(delta, n, NULL, &bytes));
        }
    }
    const uint8_t *body = delta->narrow->message;
    if (head_bytes + bytes > n) {
        head[0] = TW_DELTA8_RAW;
        head_bytes = 1, bytes = n, body = delta->narrow->new_codes;
    }
    memcpy(*at, head, head_bytes);
    memcpy(*at + head_bytes, body, bytes);
    *at += head_bytes + bytes;
    return TW_OK;
}

tw_status_t tw_quant_delta8_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes)
{
    size_t n_elems;
    TW_TRY(narrow_begin(delta, "delta8_encode", segments, n_segments, 1, &n_elems));
    size_t bound = tw_quant_delta8_bound_bytes(n_elems);
    TW_FAIL_IF(!dst || dst_bytes < bound, TW_ERR_INVALID,
               "quant: delta8_encode: room for %zu bytes, must be for %zu", dst ? dst_bytes : 0, bound);
    tw_delta_cursor_t cursor = {segments, 0};
    uint8_t *at = (uint8_t *)dst + sizeof(tw_delta8_header_t);
    uint64_t check = 0;
    for (size_t left = n_elems; left > 0; left -= chunk_elems(left)) {
        size_t n = chunk_elems(left);
        copy_codes(&cursor, n, delta->narrow->old_codes, delta->narrow->new_codes, 1);
        check = tw_checksum(delta->narrow->new_codes, n, check);
        TW_TRY(append_chunk(delta, n, &at));
    }
    *bytes = (size_t)(at - (uint8_t *)dst);
    tw_delta8_header_t header = {.magic = TW_DELTA8_MAGIC,
                                 .version = TW_DELTA8_VERSION,
                                 .bytes = (uint32_t)*bytes,
                                 .n_elems = (uint32_t)n_elems,
                                 .check = (uint32_t)check};
    memcpy(dst, &header, sizeof(header));
    return TW_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

static tw_status_t narrow_read_header(const uint8_t *src, size_t bytes, size_t n_elems,
                                      tw_delta8_header_t *header)
{
    TW_FAIL_IF(bytes < sizeof(*header), TW_ERR_TRUNCATED,
               "quant: delta8_decode: a message of %zu bytes is shorter than its header", bytes);
    memcpy(header, src, sizeof(*header));
    TW_FAIL_IF(header->magic != TW_DELTA8_MAGIC || header->version != TW_DELTA8_VERSION || header->zero,
               TW_ERR_FORMAT, "quant: delta8_decode: not a lossless delta of 8 bits of version %d",
               TW_DELTA8_VERSION);
    TW_FAIL_IF(header->bytes != bytes, header->bytes > bytes ? TW_ERR_TRUNCATED : TW_ERR_FORMAT,
               "quant: delta8_decode: %zu bytes, the message says %u", bytes, header->bytes);
    TW_FAIL_IF(header->n_elems != n_elems, TW_ERR_MISMATCH,
               "quant: delta8_decode: the message has %u elements, the segments %zu", header->n_elems,
               n_elems);
    return TW_OK;
}

/** Decode a chunk into narrow->new_codes; narrow->old_codes are set. *used: the chunk's length. */
static tw_status_t narrow_decode_chunk(tw_quant_delta_t *delta, size_t n, const uint8_t *at, size_t left,
                                       size_t *used)
{
    struct tw_delta_narrow *narrow = delta->narrow;
    const tw_quant_delta_segment_t segment = {
        .base = narrow->old_values, .dst = narrow->new_values, .n_elems = n};
    int is_raw = left > 0 && *at == TW_DELTA8_RAW, is_ranked = left > 0 && *at == TW_DELTA8_RANKED;
    size_t head_bytes = is_raw ? 1 : is_ranked ? 1 + TW_DELTA8_CLASSES : 0, bytes = is_raw ? n : 0;
    tw_delta_header_t header;
    if (!is_raw && left >= head_bytes + sizeof(header)) {
        memcpy(&header, at + head_bytes, sizeof(header));
        bytes = header.bytes;
    }
    *used = head_bytes + bytes;
    TW_FAIL_IF(bytes == 0 || *used > left, TW_ERR_FORMAT, "quant: delta8_decode: a chunk is not all there");
    if (is_raw) {
        memcpy(narrow->new_codes, at + 1, n);
        return TW_OK;
    }
    widen_old(narrow, n, is_ranked);
    TW_TRY(tw_quant_delta_decode(delta, &segment, 1, at + head_bytes, bytes));
    if (is_ranked) {
        take_back_ranked(narrow, n, at + 1);
    } else {
        take_back(narrow, n);
    }
    return TW_OK;
}

tw_status_t tw_quant_delta8_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, const void *src, size_t src_bytes)
{
    size_t n_elems, used;
    tw_delta8_header_t header;
    TW_TRY(narrow_begin(delta, "delta8_decode", segments, n_segments, 0, &n_elems));
    TW_TRY(narrow_read_header(src, src ? src_bytes : 0, n_elems, &header));
    tw_delta_cursor_t from = {segments, 0}, to = {segments, 0};
    const uint8_t *at = (const uint8_t *)src + sizeof(header), *end = (const uint8_t *)src + src_bytes;
    uint64_t check = 0;
    for (size_t left = n_elems; left > 0; left -= chunk_elems(left)) {
        size_t n = chunk_elems(left);
        copy_codes(&from, n, delta->narrow->old_codes, NULL, 0);
        TW_TRY(narrow_decode_chunk(delta, n, at, (size_t)(end - at), &used));
        copy_codes(&to, n, NULL, delta->narrow->new_codes, 0);
        check = tw_checksum(delta->narrow->new_codes, n, check);
        at += used;
    }
    TW_FAIL_IF(at != end || (uint32_t)check != header.check, TW_ERR_FORMAT,
               "quant: delta8_decode: the message does not decode: spoilt, or made from other old values");
    return TW_OK;
}
