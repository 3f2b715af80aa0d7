/* Lossless messages: decodes untrusted bytes. */
#include "quant/lossless/value.h"

/* A decoding call. */
typedef struct {
    tw_quant_lossless_t *codec;
    const tw_quant_message_args_t *args;
    tw_quant_sink_t sink;
    size_t n_elems;
    const uint8_t *at, *end; /* unread bytes of the message */
} decoding_t;

static tw_status_t fail_format(const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "quant: lossless_decode: %s", what);
}

static size_t lossless_bytes_left(const decoding_t *decoding)
{
    return (size_t)(decoding->end - decoding->at);
}

/* ---- values -------------------------------------------------------------------------------------------- */

/** Give the sink n elements of the decoded block, from index `from` on. */
static void sink_block(const decoding_t *decoding, size_t from, size_t n, uint8_t *dst)
{
    tw_quant_lossless_t *codec = decoding->codec;
    const uint16_t *heads = codec->heads + from, *tails = codec->tails + from;
    if (decoding->args->type == TW_TYPE_BF16) {
        tw_lossless_sink_values(decoding->args->type, decoding->sink, heads, n, dst);
    } else if (decoding->sink == TW_QUANT_SINK_STORE) {
        codec->backend->join(decoding->args->type, heads, tails, n, dst);
    } else {
        codec->backend->join(decoding->args->type, heads, tails, n, codec->body);
        tw_lossless_sink_values(decoding->args->type, decoding->sink, codec->body, n, dst);
    }
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/** Set the expectations of the next n coded elements. Returns where to write the heads. For bf16
 *  elements contiguous in one segment this is the segment, and the walk moves on; else codec->heads. */
static uint16_t *expect_block(const decoding_t *decoding, tw_lossless_walk_t *at, size_t n)
{
    tw_lossless_walk_t walk = *at;
    tw_quant_lossless_t *codec = decoding->codec;
    uint16_t *first = NULL;
    int together = decoding->sink == TW_QUANT_SINK_STORE && decoding->args->type == TW_TYPE_BF16;
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(&walk, n - done, &run);) {
        if (run.value == TW_LOSSLESS_DEAD) {
            together = 0;
            continue;
        }
        uint16_t *to = (uint16_t *)(uintptr_t)run.data;
        first = done ? first : to;
        together = together && to == first + done;
        codec->backend->expect(run.value, run.columns, run.n, codec->expected + done);
        done += run.n;
    }
    if (together) {
        *at = walk;
    }
    return together ? first : codec->heads;
}

/** Give the sink the n elements of the decoded block, and all rows of zeros before them. */
static void scatter_block(const decoding_t *decoding, tw_lossless_walk_t *walk, size_t n)
{
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(walk, n - done, &run);) {
        uint8_t *to = (uint8_t *)(uintptr_t)run.data;
        if (run.value == TW_LOSSLESS_DEAD) {
            tw_lossless_sink_zeros(decoding->args->type, decoding->sink, run.n, to);
            continue;
        }
        sink_block(decoding, done, run.n, to);
        done += run.n;
    }
}

/** Read the list of tails that are not 0; the others are 0. Returns 0 for a list that no encoder writes. */
static int take_listed(const uint8_t *at, size_t n_listed, size_t n, uint16_t *tails)
{
    uint16_t listed[2];
    memset(tails, 0, 2 * n);
    for (size_t i = 0, next = 0; i < n_listed; i++, next = listed[0] + (size_t)1) {
        memcpy(listed, at + i * sizeof(listed), sizeof(listed));
        if (listed[0] < next || listed[0] >= n || !listed[1]) {
            return 0;
        }
        tails[listed[0]] = listed[1];
    }
    return 1;
}

/** Read tails that are not coded in lanes. `how` is `tails` of the block's entry. */
static int take_tails(const decoding_t *decoding, const uint8_t *at, size_t n, uint32_t how)
{
    uint16_t *tails = decoding->codec->tails;
    if (decoding->args->type == TW_TYPE_FP16) {
        decoding->codec->backend->unpack_tails(at, n, tails);
    } else if (decoding->args->type == TW_TYPE_FP32 && how == TW_LOSSLESS_TAILS_RAW) {
        memcpy(tails, at, 2 * n);
    } else if (decoding->args->type == TW_TYPE_FP32 && how != TW_LOSSLESS_TAILS_CODED) {
        return take_listed(at, how, n, tails);
    }
    return 1;
}

/** Whether all words and escapes are read, and all lanes have states with which an encoder can begin. */
static int came_back(const tw_entropy_reader_t *reader, size_t in_lanes)
{
    uint32_t differ = 0;
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        uint32_t any = 2 * lane < in_lanes ? 0xffff : 0;
        differ |= (reader->lanes[lane] ^ TW_ENTROPY_START) & ~any;
    }
    return !differ && reader->words == reader->words_begin && reader->escapes == reader->escapes_begin;
}

/** Read the 7 bits of each element that are not entropy-coded (quant/lossless/value.h): the first in_lanes
 *  bytes from the lanes, the others at `at`. */
static void unpack_raw(const tw_quant_lossless_t *codec, const tw_entropy_reader_t *reader, const uint8_t *at,
                       size_t n, uint16_t *heads)
{
    uint8_t first[TW_LOSSLESS_FIRST_BYTES + 4];
    size_t raw_bytes = tw_lossless_raw_bytes(n), in_lanes = tw_lossless_raw_in_lanes(raw_bytes);
    size_t in_first = raw_bytes < TW_LOSSLESS_FIRST_BYTES ? raw_bytes : TW_LOSSLESS_FIRST_BYTES;
    size_t n_first = n < TW_LOSSLESS_FIRST_ELEMS ? n : TW_LOSSLESS_FIRST_ELEMS;
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        memcpy(first + 2 * lane, &reader->lanes[lane], 2);
    }
    memcpy(first + in_lanes, at, in_first - in_lanes);
    codec->backend->unpack(first, n_first, heads);
    codec->backend->unpack(at + in_first - in_lanes, n - n_first, heads + n_first);
}

/** Decode a block. Its bytes have been checked: all are there, and their checksum is right. */
static int decode_coded_block(tw_quant_lossless_t *codec, const uint8_t *at, size_t n,
                              const tw_lossless_entry_t *entry, uint16_t *heads)
{
    size_t n_words = entry->sizes & 0xffff, n_escapes = entry->sizes >> 16;
    size_t raw_bytes = tw_lossless_raw_bytes(n);
    size_t in_lanes = tw_lossless_raw_in_lanes(raw_bytes);
    const uint8_t *words = at + raw_bytes - in_lanes;
    tw_entropy_reader_t reader = {
        .words_begin = words,
        .words = words + 2 * n_words,
        .escapes_begin = words + 2 * n_words + TW_ENTROPY_LANES_BYTES,
        .escapes = words + 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_escapes,
    };
    memcpy(reader.lanes, reader.words, TW_ENTROPY_LANES_BYTES);
    if (!codec->backend->decode(&codec->model, codec->expected, n, &reader, heads) ||
        (entry->tails == TW_LOSSLESS_TAILS_CODED &&
         !codec->backend->decode_tails(&codec->model, heads, codec->expected, n, &reader, codec->tails)) ||
        !came_back(&reader, in_lanes)) {
        return 0;
    }
    unpack_raw(codec, &reader, at, n, heads);
    return 1;
}

static tw_status_t decode_block(decoding_t *decoding, const tw_lossless_entry_t *entry, size_t n,
                                uint16_t *heads)
{
    tw_quant_lossless_t *codec = decoding->codec;
    size_t n_words = entry->sizes & 0xffff, n_escapes = entry->sizes >> 16;
    if (!tw_lossless_tails_may_be(entry, codec->tails_are.n_tables, n)) {
        return fail_format("a block has tails of which the head knows nothing");
    }
    size_t tail_bytes = tw_lossless_tail_bytes(decoding->args->type, n, entry->tails);
    int raw = entry->sizes == TW_ENTROPY_RAW;
    size_t raw_bytes = tw_lossless_raw_bytes(n);
    size_t coded_bytes = raw_bytes - tw_lossless_raw_in_lanes(raw_bytes) + 2 * n_words +
                         TW_ENTROPY_LANES_BYTES + 2 * n_escapes;
    size_t bytes = (raw ? 2 * n : coded_bytes) + tail_bytes;
    if (bytes > lossless_bytes_left(decoding)) {
        return fail_format("the message ends within a block");
    }
    const uint8_t *at = decoding->at;
    decoding->at += bytes;
    if (codec->backend->check(at, bytes / 2, 0) != entry->check) {
        return fail_format("a block is spoilt");
    }
    if (raw) {
        memcpy(heads, at, 2 * n);
    } else if (!decode_coded_block(codec, at, n, entry, heads)) {
        return fail_format("a block does not decode");
    }
    return take_tails(decoding, at + bytes - tail_bytes, n, entry->tails)
               ? TW_OK
               : fail_format("a block's list of tails is wrong");
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Read the part before the blocks. *entries: where the blocks' entries begin. */
static tw_status_t lossless_read_head(decoding_t *decoding, uint32_t check, const uint8_t **entries)
{
    tw_quant_lossless_t *codec = decoding->codec;
    uint32_t head_bytes;
    size_t taken;
    if (lossless_bytes_left(decoding) < sizeof(head_bytes)) {
        return fail_format("the message ends before its head");
    }
    memcpy(&head_bytes, decoding->at, sizeof(head_bytes));
    if (head_bytes > lossless_bytes_left(decoding) || head_bytes % 2 ||
        codec->backend->check(decoding->at, head_bytes / 2, 0) != check) {
        return fail_format("the head is spoilt");
    }
    TW_TRY(tw_lossless_head_read(codec, decoding->at, head_bytes, decoding->n_elems, &taken));
    size_t n_blocks = (codec->shape.n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
    if (head_bytes - taken != tw_lossless_entry_bytes(codec->tails_are.tailed) * n_blocks) {
        return fail_format("the head has another number of blocks than elements for them");
    }
    *entries = decoding->at + taken;
    decoding->at += head_bytes;
    tw_lossless_model_decoder(codec);
    return TW_OK;
}

static tw_status_t decode_coded(decoding_t *decoding, uint32_t check)
{
    tw_quant_lossless_t *codec = decoding->codec;
    const uint8_t *entries = NULL;
    size_t entry_bytes = tw_lossless_entry_bytes(codec->tails_are.tailed);
    TW_TRY(lossless_read_head(decoding, check, &entries));
    tw_lossless_walk_t walk =
        tw_lossless_walk_begin(&codec->shape, decoding->args->segments, 0,
                               tw_lossless_sink_bytes(decoding->args->type, decoding->sink));
    for (size_t done = 0; done < codec->shape.n_live; done += TW_LOSSLESS_BLOCK_ELEMS) {
        size_t left = codec->shape.n_live - done;
        size_t n = left < TW_LOSSLESS_BLOCK_ELEMS ? left : TW_LOSSLESS_BLOCK_ELEMS;
        tw_lossless_entry_t entry = {.tails = TW_LOSSLESS_TAILS_RAW};
        memcpy(&entry, entries, entry_bytes);
        entries += entry_bytes;
        uint16_t *heads = expect_block(decoding, &walk, n);
        TW_TRY(decode_block(decoding, &entry, n, heads));
        if (heads == codec->heads) {
            scatter_block(decoding, &walk, n);
        }
    }
    scatter_block(decoding, &walk, 1); /* give the sink the last rows of zeros */
    return lossless_bytes_left(decoding) ? fail_format("bytes are left behind the last block") : TW_OK;
}

static tw_status_t decode_plain(const decoding_t *decoding, uint32_t check)
{
    size_t bytes = decoding->n_elems * tw_type_bytes(decoding->args->type);
    const uint8_t *at = decoding->at;
    if (lossless_bytes_left(decoding) != bytes) {
        return fail_format("as many bytes as elements would be right");
    }
    if (decoding->codec->backend->check(at, bytes / 2, 0) != check) {
        return fail_format("the message is spoilt");
    }
    tw_lossless_sink_segments(decoding->codec, decoding->args, decoding->sink, at);
    return TW_OK;
}

tw_status_t tw_quant_lossless_message_bytes(const void *src, size_t src_bytes, size_t *bytes)
{
    tw_lossless_header_t header;
    TW_FAIL_IF(!src || src_bytes < sizeof(header), TW_ERR_TRUNCATED,
               "quant: lossless: a message of %zu bytes is shorter than its header", src_bytes);
    memcpy(&header, src, sizeof(header));
    TW_FAIL_IF(header.magic != TW_LOSSLESS_MAGIC || header.version != TW_LOSSLESS_VERSION ||
                   header.form > TW_LOSSLESS_TAILED || header.bytes < sizeof(header),
               TW_ERR_FORMAT,
               "quant: lossless: not a message of version %d (bytes %02x %02x %02x %02x, length %u)",
               TW_LOSSLESS_VERSION, header.magic, header.version, header.type, header.form, header.bytes);
    *bytes = header.bytes;
    return TW_OK;
}

tw_status_t tw_lossless_check_header(const char *operation, const tw_lossless_header_t *header,
                                     size_t src_bytes, tw_type_t type, size_t n_elems)
{
    if (header->bytes != src_bytes) {
        tw_error("quant: %s: %zu bytes, the message says %u", operation, src_bytes, header->bytes);
        return header->bytes > src_bytes ? TW_ERR_TRUNCATED : TW_ERR_FORMAT;
    }
    TW_FAIL_IF(header->type != type || header->n_elems != n_elems, TW_ERR_MISMATCH,
               "quant: %s: the message has %u elements of type %u, the segments %zu of %u", operation,
               header->n_elems, header->type, n_elems, (unsigned)type);
    return TW_OK;
}

tw_status_t tw_lossless_decode(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const void *src, size_t src_bytes)
{
    decoding_t decoding = {.codec = codec, .args = args, .sink = sink};
    tw_lossless_header_t header;
    size_t bytes;
    TW_TRY(tw_lossless_check_call("lossless_decode", args->type, args->segments, args->n_segments, 0,
                                  &decoding.n_elems));
    TW_TRY(tw_quant_lossless_message_bytes(src, src ? src_bytes : 0, &bytes));
    memcpy(&header, src, sizeof(header));
    TW_TRY(tw_lossless_check_header("lossless_decode", &header, src_bytes, args->type, decoding.n_elems));
    decoding.at = (const uint8_t *)src + sizeof(header);
    decoding.end = (const uint8_t *)src + src_bytes;
    codec->tails_are.tailed = header.form == TW_LOSSLESS_TAILED;
    if (header.form == TW_LOSSLESS_TAILED && header.type != TW_TYPE_FP32) {
        return fail_format("only fp32 has tails that are coded");
    }
    return header.form == TW_LOSSLESS_PLAIN ? decode_plain(&decoding, header.check)
                                            : decode_coded(&decoding, header.check);
}

tw_status_t tw_quant_lossless_decode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     const void *src, size_t src_bytes)
{
    const tw_quant_message_args_t args = {.type = type, .segments = segments, .n_segments = n_segments};
    return tw_lossless_decode(codec, &args, TW_QUANT_SINK_STORE, src, src_bytes);
}
