/* Messages of dithered integers: creates codecs, and encodes. */
#include "quant/ecdq/value.h"

static const tw_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_ecdq_avx512.is,
    &tw_ecdq_avx2.is,
#elif defined(__aarch64__)
    &tw_ecdq_neon.is,
#endif
    &tw_ecdq_ref.is,
};
static const tw_backends_t of_ecdq = {"ecdq", backends, sizeof(backends) / sizeof(backends[0])};

/* ---- codecs -------------------------------------------------------------------------------------------- */

static tw_status_t ecdq_create(const tw_quant_codec_t *codec, const char *backend, void **out)
{
    const tw_backend_t *found = tw_backends_find(&of_ecdq, TW_MEM_HOST, backend);
    if (!found) {
        return TW_ERR_UNSUPPORTED;
    }
    tw_ecdq_t *ecdq = tw_buffer_alloc_zero(sizeof(*ecdq));
    TW_FAIL_IF(!ecdq, TW_ERR_NO_MEMORY, "quant: ecdq: out of memory");
    ecdq->backend = (const tw_ecdq_backend_t *)(const void *)found;
    ecdq->step = codec->step;
    tw_status_t status = tw_quant_lossless_create(found->name, &ecdq->scales);
    if (status != TW_OK) {
        tw_buffer_free(ecdq);
        return status;
    }
    *out = ecdq;
    return TW_OK;
}

static void ecdq_destroy(void *coder)
{
    tw_ecdq_t *ecdq = coder;
    tw_quant_lossless_destroy(ecdq->scales);
    tw_buffer_free(ecdq);
}

static const char *ecdq_backend_name(const void *coder)
{
    const tw_ecdq_t *ecdq = coder;
    return ecdq->backend->is.name;
}

/* ---- a block ------------------------------------------------------------------------------------------- */

/* An encoding call. */
typedef struct {
    tw_ecdq_t *ecdq;
    tw_type_t type;
    uint32_t key[2];
    uint8_t *at;        /* where the next bytes are written */
    const uint8_t *end; /* the end of dst */
} encoding_t;

static void ecdq_put(encoding_t *encoding, const void *data, size_t bytes)
{
    memcpy(encoding->at, data, bytes);
    encoding->at += bytes;
}

/** Copy the values and expectations of the next n coded elements into the codec's memory. */
static void gather_values(const encoding_t *encoding, tw_lossless_walk_t *walk, size_t n)
{
    tw_ecdq_t *ecdq = encoding->ecdq;
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(walk, n - done, &run);) {
        if (run.value != TW_LOSSLESS_DEAD) {
            tw_convert_to_fp32(encoding->type, run.data, ecdq->values + done, run.n);
            ecdq->scales->backend->expect(run.value, run.columns, run.n, ecdq->expected + done);
            done += run.n;
        }
    }
}

/** Write the next n coded elements as they are. */
static void put_raw(encoding_t *encoding, tw_lossless_walk_t walk, size_t n)
{
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(&walk, n - done, &run);) {
        if (run.value != TW_LOSSLESS_DEAD) {
            ecdq_put(encoding, run.data, run.n * tw_type_bytes(encoding->type));
            done += run.n;
        }
    }
}

/** Count the symbols of a block. Eight counters are used in turn, so an addition seldom waits. */
static void count_symbols(const uint8_t *symbols, size_t n, uint32_t counts[TW_ECDQ_SYMBOLS])
{
    uint32_t apart[8][TW_ECDQ_SYMBOLS] = {{0}};
    size_t whole = n - n % 8;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t eight;
        memcpy(&eight, symbols + i, sizeof(eight));
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++) {
            apart[k][eight >> 8 * k & 0xff]++;
        }
    }
    for (size_t i = whole; i < n; i++) {
        apart[0][symbols[i]]++;
    }
    memset(counts, 0, TW_ECDQ_SYMBOLS * sizeof(*counts));
    for (size_t k = 0; k < 8; k++) {
        for (size_t s = 0; s < TW_ECDQ_SYMBOLS; s++) {
            counts[s] += apart[k][s];
        }
    }
}

/** Make the encoder's tables for a block, and write the frequencies to `at`. Returns the bytes written.
 *  *n_escapes is the number of escaped elements. */
static size_t put_tables(tw_ecdq_t *ecdq, size_t n, uint8_t *at, size_t *n_escapes)
{
    uint32_t counts[TW_ECDQ_SYMBOLS];
    uint8_t *begin = at;
    count_symbols(ecdq->symbols, n, counts);
    at += 2;
    begin[0] = begin[1] = 0;
    *n_escapes = 0;
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        const uint32_t *of_class = counts + c * TW_ENTROPY_SYMBOLS;
        uint16_t freq[TW_ENTROPY_SYMBOLS];
        uint32_t first, end;
        if (tw_ecdq_choose_table(of_class, freq, &first, &end)) {
            tw_entropy_encode_table(freq, ecdq->encode_table + c * TW_ENTROPY_SYMBOLS);
            begin[0] |= (uint8_t)(1u << c);
            *n_escapes += of_class[TW_ENTROPY_ESCAPE];
            *at++ = (uint8_t)first;
            *at++ = (uint8_t)(end - first);
            memcpy(at, freq + first, 2 * (end - first));
            at += 2 * (end - first);
        }
    }
    return (size_t)(at - begin);
}

/** List the escaped elements. Returns the number of 16-bit words of the list. */
static size_t list_escapes(tw_ecdq_t *ecdq, size_t n, size_t n_escapes)
{
    uint16_t *at = ecdq->escapes;
    memset(ecdq->symbols + n, 0, 8);
    for (size_t i = 0; n_escapes && i < n; i += 8) {
        uint64_t eight, found;
        memcpy(&eight, ecdq->symbols + i, sizeof(eight));
        /* Add 1 to each byte's symbol: for the escape, 31, this carries into bit 5. */
        found = ((eight & 0x1f1f1f1f1f1f1f1f) + 0x0101010101010101) & 0x2020202020202020;
        for (; found; found &= found - 1, n_escapes--) {
            size_t which = i + (size_t)__builtin_ctzll(found) / 8;
            *at++ = (uint16_t)ecdq->integers[which];
            if (ecdq->integers[which] == TW_ECDQ_RAW) {
                memcpy(at, &ecdq->values[which], sizeof(float));
                at += 2;
            }
        }
    }
    return (size_t)(at - ecdq->escapes);
}

/** Encode a block and append it. Returns 0 if it does not fit. */
static int ecdq_append_block(encoding_t *encoding, tw_lossless_walk_t *walk, size_t block, size_t n,
                             tw_entropy_entry_t *entry)
{
    tw_ecdq_t *ecdq = encoding->ecdq;
    const tw_lossless_walk_t begin_walk = *walk;
    tw_entropy_writer_t writer = {.words = ecdq->words};
    uint8_t tables[TW_ECDQ_TABLES_MAX], *begin = encoding->at;
    size_t n_escapes, room = (size_t)(encoding->end - begin), raw_bytes = n * tw_type_bytes(encoding->type);
    gather_values(encoding, walk, n);
    tw_ecdq_dither(ecdq, encoding->key, block, n);
    ecdq->backend->quantize(ecdq->values, ecdq->expected, ecdq->halves, n, ecdq->integers, ecdq->symbols);
    size_t table_bytes = put_tables(ecdq, n, tables, &n_escapes);
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        writer.lanes[lane] = TW_ENTROPY_START;
    }
    ecdq->backend->encode(ecdq->encode_table, ecdq->symbols, n, &writer);
    size_t n_words = (size_t)(writer.words - ecdq->words), n_listed = list_escapes(ecdq, n, n_escapes);
    size_t bytes = table_bytes + 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_listed;
    int coded = bytes < raw_bytes && tw_lossless_sizes_fit(n_words, n_listed);
    if ((coded ? bytes : raw_bytes) > room) {
        return 0;
    }
    entry->sizes = coded ? (uint32_t)(n_words | n_listed << 16) : TW_ENTROPY_RAW;
    if (coded) {
        ecdq_put(encoding, tables, table_bytes);
        ecdq_put(encoding, ecdq->words, 2 * n_words);
        ecdq_put(encoding, writer.lanes, TW_ENTROPY_LANES_BYTES);
        ecdq_put(encoding, ecdq->escapes, 2 * n_listed);
    } else {
        put_raw(encoding, begin_walk, n);
    }
    entry->check = ecdq->scales->backend->check(begin, (size_t)(encoding->at - begin) / 2, 0);
    return 1;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Write the head, and leave room for n_blocks entries. Returns the entries, or NULL if they do not fit. */
static uint8_t *append_head(encoding_t *encoding, size_t n_blocks)
{
    tw_quant_lossless_t *scales = encoding->ecdq->scales;
    tw_ecdq_head_t head = {.key = {encoding->key[0], encoding->key[1]}, .step = (int8_t)encoding->ecdq->step};
    uint8_t *begin = encoding->at, *entries;
    scales->window = scales->own = 0;
    scales->tails_are = (tw_lossless_tails_t){0};
    if ((size_t)(encoding->end - begin) < TW_ECDQ_HEAD_BYTES) {
        return NULL;
    }
    entries = tw_lossless_head_write(scales, begin + TW_ECDQ_HEAD_BYTES, encoding->end);
    if (!entries || (size_t)(encoding->end - entries) < n_blocks * sizeof(tw_entropy_entry_t)) {
        return NULL;
    }
    encoding->at = entries + n_blocks * sizeof(tw_entropy_entry_t);
    head.bytes = (uint32_t)(encoding->at - begin);
    memcpy(begin, &head, TW_ECDQ_HEAD_BYTES);
    return entries;
}

/** Append a coded message. *checked_bytes: the bytes under the header's checksum. *coded is 0 if the message
 *  would not be shorter than a plain one. */
static tw_status_t ecdq_append_coded(encoding_t *encoding, const tw_quant_message_args_t *args,
                                     size_t *checked_bytes, int *coded)
{
    tw_lossless_shape_t *shape = &encoding->ecdq->scales->shape;
    uint8_t *begin = encoding->at;
    TW_TRY(tw_lossless_find_scales(encoding->ecdq->scales, args->type, args->segments, args->n_segments));
    size_t n_blocks = (shape->n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
    uint8_t *entries = append_head(encoding, n_blocks);
    *coded = entries != NULL;
    *checked_bytes = (size_t)(encoding->at - begin);
    tw_ecdq_move_rows(shape, encoding->ecdq->step);
    tw_lossless_walk_t walk = tw_lossless_walk_begin(shape, args->segments, 1, tw_type_bytes(args->type));
    for (size_t block = 0; *coded && block < n_blocks; block++) {
        size_t left = shape->n_live - block * TW_LOSSLESS_BLOCK_ELEMS;
        size_t n = left < TW_LOSSLESS_BLOCK_ELEMS ? left : TW_LOSSLESS_BLOCK_ELEMS;
        tw_entropy_entry_t entry;
        *coded = ecdq_append_block(encoding, &walk, block, n, &entry);
        memcpy(entries + block * sizeof(entry), &entry, *coded ? sizeof(entry) : 0);
    }
    return TW_OK;
}

static tw_status_t ecdq_encode(void *coder, const tw_quant_message_args_t *args, void *dst, size_t dst_bytes,
                               size_t *bytes)
{
    tw_ecdq_t *ecdq = coder;
    size_t n_elems, checked_bytes = 0;
    int coded = 0;
    TW_TRY(tw_lossless_check_encode("ecdq_encode", args, dst, dst_bytes, &n_elems));
    uint8_t *begin = (uint8_t *)dst + sizeof(tw_lossless_header_t);
    encoding_t encoding = {
        .ecdq = ecdq,
        .type = args->type,
        .key = {(uint32_t)args->seed, (uint32_t)(args->seed >> 32)},
        .at = begin,
        .end = (uint8_t *)dst + tw_quant_lossless_bound_bytes(args->type, n_elems),
    };
    if (n_elems >= TW_LOSSLESS_CODED_MIN) {
        TW_TRY(ecdq_append_coded(&encoding, args, &checked_bytes, &coded));
    }
    if (!coded) {
        encoding.at = tw_lossless_copy_plain(args, begin);
        checked_bytes = (size_t)(encoding.at - begin);
    }
    *bytes = (size_t)(encoding.at - (uint8_t *)dst);
    const tw_lossless_header_t header = {
        .magic = TW_ECDQ_MAGIC,
        .version = TW_ECDQ_VERSION,
        .type = (uint8_t)args->type,
        .form = (uint8_t)(coded ? TW_ECDQ_CODED : TW_ECDQ_PLAIN),
        .bytes = (uint32_t)*bytes,
        .n_elems = (uint32_t)n_elems,
        .check = ecdq->scales->backend->check(begin, checked_bytes / 2, 0),
    };
    memcpy(dst, &header, sizeof(header));
    return TW_OK;
}

const tw_quant_message_ops_t tw_quant_ecdq_ops = {
    .backends = &of_ecdq,
    .bound_bytes = tw_quant_lossless_bound_bytes,
    .create = ecdq_create,
    .destroy = ecdq_destroy,
    .backend_name = ecdq_backend_name,
    .encode = ecdq_encode,
    .decode = tw_ecdq_decode,
};
