/* Messages of dithered integers: decodes untrusted bytes. */
#include "quant/ecdq/value.h"

/* A decoding call. */
typedef struct {
    tw_ecdq_t *ecdq;
    const tw_quant_message_args_t *args;
    tw_quant_sink_t sink;
    size_t n_elems;
    uint32_t key[2];
    const uint8_t *at, *end; /* unread bytes of the message */
} decoding_t;

static tw_status_t ecdq_fail_format(const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "quant: ecdq_decode: %s", what);
}

static size_t ecdq_bytes_left(const decoding_t *decoding)
{
    return (size_t)(decoding->end - decoding->at);
}

/* ---- steps and dither ---------------------------------------------------------------------------------- */

void tw_ecdq_move_rows(tw_lossless_shape_t *shape, int step)
{
    for (size_t r = 0; r < shape->n_rows; r++) {
        if (shape->rows[r] != TW_LOSSLESS_DEAD) {
            shape->rows[r] = tw_ecdq_moved_row(shape->rows[r], step);
        }
    }
}

void tw_ecdq_dither(tw_ecdq_t *ecdq, const uint32_t key[2], size_t block, size_t n)
{
    const size_t groups = TW_LOSSLESS_BLOCK_ELEMS / TW_ECDQ_DITHER_GROUP;
    ecdq->backend->dither(key, (uint32_t)(block * groups),
                          (n + TW_ECDQ_DITHER_GROUP - 1) / TW_ECDQ_DITHER_GROUP, ecdq->halves);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void ecdq_sink(const decoding_t *decoding, const float *values, size_t n, uint8_t *dst)
{
    if (decoding->sink == TW_QUANT_SINK_STORE) {
        tw_convert_from_fp32(decoding->args->type, values, 1.0f, dst, n);
    } else {
        tw_lossless_sink_values(TW_TYPE_FP32, decoding->sink, values, n, dst);
    }
}

/** Give the sink the next n coded elements, and all rows of zeros before them. Elements are from `raw`, a RAW
 *  block's bytes, or if `raw` is NULL from the decoded values. */
static void scatter_block(const decoding_t *decoding, tw_lossless_walk_t *walk, size_t n, const uint8_t *raw)
{
    size_t elem_bytes = tw_type_bytes(decoding->args->type);
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(walk, n - done, &run);) {
        uint8_t *to = (uint8_t *)(uintptr_t)run.data;
        if (run.value == TW_LOSSLESS_DEAD) {
            tw_lossless_sink_zeros(decoding->args->type, decoding->sink, run.n, to);
            continue;
        }
        if (raw) {
            tw_lossless_sink_plain(decoding->ecdq->scales, decoding->args->type, decoding->sink,
                                   raw + done * elem_bytes, run.n, to);
        } else {
            ecdq_sink(decoding, decoding->ecdq->values + done, run.n, to);
        }
        done += run.n;
    }
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/** Set the expectations of the next n coded elements. Returns a mask of their classes. */
static uint32_t expect_block(const decoding_t *decoding, tw_lossless_walk_t walk, size_t n)
{
    tw_ecdq_t *ecdq = decoding->ecdq;
    uint32_t classes = 0;
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(&walk, n - done, &run);) {
        if (run.value != TW_LOSSLESS_DEAD) {
            ecdq->scales->backend->expect(run.value, run.columns, run.n, ecdq->expected + done);
            classes |= 1u << (run.value >> TW_LOSSLESS_CLASS_SHIFT);
            done += run.n;
        }
    }
    return classes;
}

/** Read a class's table at *at and make the decoder's table. Returns 0 if no encoder writes that. */
static int take_table(tw_ecdq_t *ecdq, size_t row_class, const uint8_t **at, const uint8_t *end)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS] = {0};
    if (end - *at < 2) {
        return 0;
    }
    size_t first = (*at)[0], n = (*at)[1];
    *at += 2;
    if (first + n > TW_ENTROPY_ESCAPE || (size_t)(end - *at) < 2 * n) {
        return 0;
    }
    memcpy(freq + first, *at, 2 * n);
    *at += 2 * n;
    uint32_t sum = 0;
    for (size_t s = 0; s < TW_ENTROPY_ESCAPE; s++) {
        sum += freq[s];
    }
    if (sum >= TW_ENTROPY_FREQ_SUM || (n && (!freq[first] || !freq[first + n - 1]))) {
        return 0;
    }
    freq[TW_ENTROPY_ESCAPE] = (uint16_t)(TW_ENTROPY_FREQ_SUM - sum);
    ecdq->scales->backend->decode_table(freq, ecdq->decode_table + row_class * TW_ENTROPY_FREQ_SUM);
    return 1;
}

/** Read the tables before a block's words. Returns 0 unless they are exactly those of `classes`, the mask of
 *  the block's classes. */
static int take_tables(tw_ecdq_t *ecdq, uint32_t classes, const uint8_t **at, const uint8_t *end)
{
    if (end - *at < 2 || (*at)[0] != classes || (*at)[1]) {
        return 0;
    }
    *at += 2;
    int ok = 1;
    for (size_t c = 0; ok && c < TW_LOSSLESS_CLASSES; c++) {
        ok = !(classes >> c & 1) || take_table(ecdq, c, at, end);
    }
    return ok;
}

/** Set the values of escaped elements from the list. Returns 0 for a list that no encoder writes. */
static int ecdq_take_listed(tw_ecdq_t *ecdq, size_t n, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *symbol = memchr(ecdq->symbols, TW_ENTROPY_ESCAPE, n);
    for (; symbol; symbol = memchr(symbol + 1, TW_ENTROPY_ESCAPE, (size_t)(ecdq->symbols + n - symbol - 1))) {
        size_t i = (size_t)(symbol - ecdq->symbols);
        int16_t integer;
        if (end - at < 2) {
            return 0;
        }
        memcpy(&integer, at, sizeof(integer));
        at += 2;
        if (integer == TW_ECDQ_RAW) {
            if (end - at < (ptrdiff_t)sizeof(float)) {
                return 0;
            }
            memcpy(&ecdq->values[i], at, sizeof(float));
            at += sizeof(float);
            continue;
        }
        if (integer >= -TW_ECDQ_REACH && integer <= TW_ECDQ_REACH) {
            return 0;
        }
        ecdq->values[i] = tw_ecdq_value(integer, ecdq->expected[i], ecdq->halves[i]);
    }
    return at == end;
}

/** Decode the bytes of a block that is not RAW into the codec's values. */
static int decode_coded_block(const decoding_t *decoding, const uint8_t *words, const uint8_t *end,
                              size_t n_words, size_t n)
{
    tw_ecdq_t *ecdq = decoding->ecdq;
    const uint8_t *lanes = words + 2 * n_words, *none = lanes;
    tw_entropy_reader_t reader = {
        .words_begin = words, .words = lanes, .escapes_begin = none, .escapes = none};
    memcpy(reader.lanes, lanes, TW_ENTROPY_LANES_BYTES);
    return ecdq->backend->decode(ecdq, n, &reader) && tw_entropy_came_back(&reader) &&
           ecdq_take_listed(ecdq, n, lanes + TW_ENTROPY_LANES_BYTES, end);
}

static tw_status_t ecdq_decode_block(decoding_t *decoding, tw_lossless_walk_t *walk, size_t block, size_t n,
                                     const tw_entropy_entry_t *entry)
{
    tw_ecdq_t *ecdq = decoding->ecdq;
    const tw_lossless_backend_t *backend = ecdq->scales->backend;
    size_t n_words = entry->sizes & 0xffff, n_listed = entry->sizes >> 16;
    const uint8_t *begin = decoding->at, *words = begin;
    int raw = entry->sizes == TW_ENTROPY_RAW;
    if (!raw) {
        uint32_t classes = expect_block(decoding, *walk, n);
        if (!take_tables(ecdq, classes, &words, decoding->end)) {
            return ecdq_fail_format("a block's tables are wrong");
        }
    }
    size_t behind_tables =
        raw ? n * tw_type_bytes(decoding->args->type) : 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_listed;
    if (behind_tables > (size_t)(decoding->end - words)) {
        return ecdq_fail_format("the message ends within a block");
    }
    decoding->at = words + behind_tables;
    if (backend->check(begin, (size_t)(decoding->at - begin) / 2, 0) != entry->check) {
        return ecdq_fail_format("a block is spoilt");
    }
    if (!raw) {
        tw_ecdq_dither(ecdq, decoding->key, block, n);
        if (!decode_coded_block(decoding, words, decoding->at, n_words, n)) {
            return ecdq_fail_format("a block does not decode");
        }
    }
    scatter_block(decoding, walk, n, raw ? begin : NULL);
    return TW_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Read the part before the blocks. *entries: where the blocks' entries begin. */
static tw_status_t ecdq_read_head(decoding_t *decoding, uint32_t check, const uint8_t **entries)
{
    tw_quant_lossless_t *scales = decoding->ecdq->scales;
    const uint8_t *begin = decoding->at;
    tw_ecdq_head_t head = {0};
    size_t taken;
    if (ecdq_bytes_left(decoding) < TW_ECDQ_HEAD_BYTES) {
        return ecdq_fail_format("the message ends before its head");
    }
    memcpy(&head, begin, TW_ECDQ_HEAD_BYTES);
    if (head.bytes > ecdq_bytes_left(decoding) || head.bytes < TW_ECDQ_HEAD_BYTES || head.bytes % 2 ||
        scales->backend->check(begin, head.bytes / 2, 0) != check) {
        return ecdq_fail_format("the head is spoilt");
    }
    if (head.step < TW_ECDQ_STEP_MIN || head.step > TW_ECDQ_STEP_MAX || head.zero) {
        return ecdq_fail_format("no encoder has such a step");
    }
    scales->tails_are.tailed = 0;
    TW_TRY(tw_lossless_head_read(scales, begin + TW_ECDQ_HEAD_BYTES, head.bytes - TW_ECDQ_HEAD_BYTES,
                                 decoding->n_elems, &taken));
    size_t n_blocks = (scales->shape.n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
    if (scales->own || scales->window ||
        head.bytes - TW_ECDQ_HEAD_BYTES - taken != n_blocks * sizeof(tw_entropy_entry_t)) {
        return ecdq_fail_format("the head has other tables or another number of blocks");
    }
    *entries = begin + TW_ECDQ_HEAD_BYTES + taken;
    decoding->at += head.bytes;
    memcpy(decoding->key, head.key, sizeof(head.key));
    tw_ecdq_move_rows(&scales->shape, head.step);
    return TW_OK;
}

static tw_status_t ecdq_decode_coded(decoding_t *decoding, uint32_t check)
{
    const uint8_t *entries = NULL;
    TW_TRY(ecdq_read_head(decoding, check, &entries));
    const tw_lossless_shape_t *shape = &decoding->ecdq->scales->shape;
    tw_lossless_walk_t walk = tw_lossless_walk_begin(
        shape, decoding->args->segments, 0, tw_lossless_sink_bytes(decoding->args->type, decoding->sink));
    for (size_t block = 0; block * TW_LOSSLESS_BLOCK_ELEMS < shape->n_live; block++) {
        size_t left = shape->n_live - block * TW_LOSSLESS_BLOCK_ELEMS;
        size_t n = left < TW_LOSSLESS_BLOCK_ELEMS ? left : TW_LOSSLESS_BLOCK_ELEMS;
        tw_entropy_entry_t entry;
        memcpy(&entry, entries + block * sizeof(entry), sizeof(entry));
        TW_TRY(ecdq_decode_block(decoding, &walk, block, n, &entry));
    }
    scatter_block(decoding, &walk, 1, NULL); /* give the sink the last rows of zeros */
    return ecdq_bytes_left(decoding) ? ecdq_fail_format("bytes are left behind the last block") : TW_OK;
}

static tw_status_t ecdq_decode_plain(const decoding_t *decoding, uint32_t check)
{
    const tw_quant_message_args_t *args = decoding->args;
    size_t bytes = decoding->n_elems * tw_type_bytes(args->type);
    const uint8_t *at = decoding->at;
    if (ecdq_bytes_left(decoding) != bytes ||
        decoding->ecdq->scales->backend->check(at, bytes / 2, 0) != check) {
        return ecdq_fail_format("the message is spoilt");
    }
    tw_lossless_sink_segments(decoding->ecdq->scales, args, decoding->sink, at);
    return TW_OK;
}

tw_status_t tw_ecdq_decode(void *coder, const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                           const void *src, size_t src_bytes)
{
    decoding_t decoding = {.ecdq = coder, .args = args, .sink = sink};
    tw_lossless_header_t header;
    TW_TRY(tw_lossless_check_call("ecdq_decode", args->type, args->segments, args->n_segments, 0,
                                  &decoding.n_elems));
    TW_FAIL_IF(!src || src_bytes < sizeof(header), TW_ERR_TRUNCATED,
               "quant: ecdq_decode: a message of %zu bytes is shorter than its header", src_bytes);
    memcpy(&header, src, sizeof(header));
    TW_FAIL_IF(header.magic != TW_ECDQ_MAGIC || header.version != TW_ECDQ_VERSION ||
                   header.form > TW_ECDQ_CODED,
               TW_ERR_FORMAT, "quant: ecdq_decode: not a message of version %d (bytes %02x %02x %02x %02x)",
               TW_ECDQ_VERSION, header.magic, header.version, header.type, header.form);
    TW_TRY(tw_lossless_check_header("ecdq_decode", &header, src_bytes, args->type, decoding.n_elems));
    decoding.at = (const uint8_t *)src + sizeof(header);
    decoding.end = (const uint8_t *)src + src_bytes;
    return header.form == TW_ECDQ_PLAIN ? ecdq_decode_plain(&decoding, header.check)
                                        : ecdq_decode_coded(&decoding, header.check);
}
