/* Lossless messages: creates codecs, and encodes. All public functions but tw_quant_lossless_decode. */
#include "quant/lossless/value.h"

static const tw_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_lossless_avx512.is,
    &tw_lossless_avx2.is,
#elif defined(__aarch64__)
    &tw_lossless_neon.is,
#endif
    &tw_lossless_ref.is,
};
const tw_backends_t tw_lossless_backends = {"lossless", backends, sizeof(backends) / sizeof(backends[0])};

/* ---- codecs -------------------------------------------------------------------------------------------- */

size_t tw_quant_lossless_backends(const char **names, size_t max)
{
    return tw_backends_names(&tw_lossless_backends, TW_MEM_HOST, names, max);
}

tw_status_t tw_quant_lossless_create(const char *backend, tw_quant_lossless_t **out)
{
    const tw_backend_t *found = tw_backends_find(&tw_lossless_backends, TW_MEM_HOST, backend);
    if (!found) {
        return TW_ERR_UNSUPPORTED;
    }
    tw_quant_lossless_t *codec = tw_buffer_alloc_zero(sizeof(*codec));
    TW_FAIL_IF(!codec, TW_ERR_NO_MEMORY, "quant: lossless: out of memory");
    codec->backend = (const tw_lossless_backend_t *)(const void *)found;
    *out = codec;
    return TW_OK;
}

void tw_quant_lossless_destroy(tw_quant_lossless_t *codec)
{
    if (codec) {
        tw_lossless_shape_cleanup(&codec->shape);
        tw_buffer_free(codec->column_sums);
        tw_buffer_free(codec->column_live);
        tw_buffer_free(codec->list);
    }
    tw_buffer_free(codec);
}

const char *tw_quant_lossless_backend_name(const tw_quant_lossless_t *codec)
{
    return codec->backend->is.name;
}

size_t tw_quant_lossless_bound_bytes(tw_type_t type, size_t n_elems)
{
    return tw_size_add(sizeof(tw_lossless_header_t), tw_size_mul(n_elems, tw_type_bytes(type)));
}

tw_status_t tw_lossless_check_call(const char *operation, tw_type_t type,
                                   const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                   int encoding, size_t *n_elems)
{
    size_t n = 0;
    TW_FAIL_IF(type != TW_TYPE_BF16 && type != TW_TYPE_FP16 && type != TW_TYPE_FP32, TW_ERR_INVALID,
               "quant: %s: type %d has no exponents", operation, (int)type);
    for (size_t s = 0; s < n_segments; s++) {
        const void *values = encoding ? segments[s].src : segments[s].dst;
        TW_FAIL_IF(segments[s].n_elems && (!values || segments[s].n_elems > TW_LOSSLESS_ELEMS_MAX - n),
                   TW_ERR_INVALID,
                   "quant: %s: segment %zu has a NULL pointer, or there are more than %zu elements",
                   operation, s, TW_LOSSLESS_ELEMS_MAX);
        n += segments[s].n_elems;
    }
    *n_elems = n;
    return TW_OK;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/* Where the next bytes are written, and the end of that memory. */
typedef struct {
    uint8_t *at;
    const uint8_t *end;
} target_t;

static void lossless_put(target_t *target, const void *data, size_t bytes)
{
    memcpy(target->at, data, bytes);
    target->at += bytes;
}

/** Copy heads, tails and expectations of the next n coded elements into the codec. Returns the heads; if they
 *  are bf16 and contiguous, they are not copied. */
static const uint16_t *gather_block(tw_quant_lossless_t *codec, tw_type_t type, tw_lossless_walk_t *walk,
                                    size_t n)
{
    const uint16_t *direct = NULL;
    tw_lossless_run_t run;
    for (size_t done = 0; done < n && tw_lossless_walk_next(walk, n - done, &run);) {
        if (run.value == TW_LOSSLESS_DEAD) {
            continue;
        }
        codec->backend->expect(run.value, run.columns, run.n, codec->expected + done);
        if (type != TW_TYPE_BF16) {
            codec->backend->split(type, run.data, run.n, codec->heads + done, codec->tails + done);
        } else if (!done) {
            direct = (const uint16_t *)run.data;
        } else if (direct && direct + done != (const uint16_t *)run.data) {
            memcpy(codec->heads, direct, 2 * done);
            direct = NULL;
        }
        if (type == TW_TYPE_BF16 && !direct) {
            memcpy(codec->heads + done, run.data, 2 * run.n);
        }
        done += run.n;
    }
    return direct ? direct : codec->heads;
}

/** Choose `tails` of the entry of a block whose heads are coded. */
static uint32_t tails_of_block(const tw_quant_lossless_t *codec, size_t n)
{
    if (!codec->tails_are.tailed) {
        return TW_LOSSLESS_TAILS_RAW;
    }
    size_t not_zero = codec->backend->count(codec->tails, n);
    return not_zero * TW_LOSSLESS_LISTED <= n ? (uint32_t)not_zero
           : codec->tails_are.n_tables        ? TW_LOSSLESS_TAILS_CODED
                                              : TW_LOSSLESS_TAILS_RAW;
}

/** Write the list of tails that are not 0. */
static void put_listed(const tw_quant_lossless_t *codec, size_t n, target_t *target)
{
    for (size_t i = 0; n; i++) {
        uint64_t four;
        memcpy(&four, codec->tails + i, sizeof(four));
        if (!four) {
            i += 3;
        } else if (codec->tails[i]) {
            const uint16_t listed[2] = {(uint16_t)i, codec->tails[i]};
            lossless_put(target, listed, sizeof(listed));
            n--;
        }
    }
}

static void put_tails(const tw_quant_lossless_t *codec, tw_type_t type, size_t n, uint32_t tails,
                      target_t *target)
{
    if (type == TW_TYPE_FP32 && tails == TW_LOSSLESS_TAILS_RAW) {
        lossless_put(target, codec->tails, 2 * n);
    } else if (type == TW_TYPE_FP32 && tails != TW_LOSSLESS_TAILS_CODED) {
        put_listed(codec, tails, target);
    }
    if (type == TW_TYPE_FP16) {
        codec->backend->pack_tails(codec->tails, n, target->at);
        target->at += tw_lossless_tail_bytes(type, n, 0);
    }
}

/** Store the 7 bits of a block: the first 64 bytes in the lanes' first states, the others at `at`. */
static void pack_raw(const tw_quant_lossless_t *codec, const uint16_t *heads, size_t n, uint32_t *lanes,
                     uint8_t *at)
{
    uint8_t first[TW_LOSSLESS_FIRST_BYTES + 4];
    size_t raw_bytes = tw_lossless_raw_bytes(n), in_lanes = tw_lossless_raw_in_lanes(raw_bytes);
    size_t in_first = raw_bytes < TW_LOSSLESS_FIRST_BYTES ? raw_bytes : TW_LOSSLESS_FIRST_BYTES;
    size_t n_first = n < TW_LOSSLESS_FIRST_ELEMS ? n : TW_LOSSLESS_FIRST_ELEMS;
    int padded = n % 32 < TW_LOSSLESS_RAW_BYTES && n % 2;
    codec->backend->pack(heads, n_first, first);
    codec->backend->pack(heads + n_first, n - n_first, at + in_first - in_lanes);
    if (padded) {
        *(raw_bytes > in_first ? &at[raw_bytes - in_lanes - 1] : &first[raw_bytes - 1]) = 0;
    }
    memcpy(at, first + in_lanes, in_first - in_lanes);
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        uint16_t raw = 0;
        memcpy(&raw, first + 2 * lane, 2 * lane < in_lanes ? sizeof(raw) : 0);
        lanes[lane] = TW_ENTROPY_START | raw;
    }
}

/** Code a block's words and escapes with `writer`, whose lanes have their first states. If coding tails does
 *  not pay, only heads are coded and *tails becomes RAW. */
static void code_block(tw_quant_lossless_t *codec, const uint16_t *heads, size_t n, uint32_t *tails,
                       tw_entropy_writer_t *writer)
{
    if (*tails == TW_LOSSLESS_TAILS_CODED) {
        tw_entropy_writer_t begin = *writer;
        codec->backend->encode_tails(&codec->model, heads, codec->expected, codec->tails, n, writer);
        if ((size_t)(writer->words - begin.words) + (size_t)(writer->escapes - begin.escapes) >= n) {
            *writer = begin;
            *tails = TW_LOSSLESS_TAILS_RAW;
        }
    }
    codec->backend->encode(&codec->model, heads, codec->expected, n, writer);
}

/** Encode a block and append it. Returns 0 if it does not fit. */
static int append_block(tw_quant_lossless_t *codec, tw_type_t type, const uint16_t *heads, size_t n,
                        tw_lossless_entry_t *entry, target_t *target)
{
    tw_entropy_writer_t writer = {.words = codec->words, .escapes = codec->escapes};
    size_t raw_bytes = tw_lossless_raw_bytes(n), in_lanes = tw_lossless_raw_in_lanes(raw_bytes);
    size_t room = (size_t)(target->end - target->at);
    int direct = room >= raw_bytes + 4;
    uint8_t *raw = direct ? target->at : codec->body;
    size_t n_words, n_escapes, bytes;
    int coded, again;
    pack_raw(codec, heads, n, writer.lanes, raw);
    entry->tails = tails_of_block(codec, n);
    const tw_entropy_writer_t begin_lanes = writer;
    do { /* code heads alone if both do not fit */
        writer = begin_lanes;
        code_block(codec, heads, n, &entry->tails, &writer);
        n_words = (size_t)(writer.words - codec->words);
        n_escapes = (size_t)(writer.escapes - codec->escapes);
        bytes = raw_bytes - in_lanes + 2 * n_words + TW_ENTROPY_LANES_BYTES + 2 * n_escapes;
        again = entry->tails == TW_LOSSLESS_TAILS_CODED;
        coded = bytes < (again ? 4 * n : 2 * n) && tw_lossless_sizes_fit(n_words, n_escapes);
        again = again && !coded;
        entry->tails = again ? TW_LOSSLESS_TAILS_RAW : entry->tails;
    } while (again);
    if ((coded ? bytes : 2 * n) + tw_lossless_tail_bytes(type, n, entry->tails) > room) {
        return 0;
    }
    const uint8_t *begin = target->at;
    entry->sizes = coded ? (uint32_t)(n_words | n_escapes << 16) : TW_ENTROPY_RAW;
    if (coded) {
        lossless_put(target, raw, direct ? 0 : raw_bytes - in_lanes);
        target->at = (uint8_t *)(uintptr_t)begin + raw_bytes - in_lanes;
        lossless_put(target, codec->words, 2 * n_words);
        lossless_put(target, writer.lanes, TW_ENTROPY_LANES_BYTES);
        lossless_put(target, codec->escapes, 2 * n_escapes);
    } else {
        lossless_put(target, heads, 2 * n);
    }
    put_tails(codec, type, n, entry->tails, target);
    entry->check = codec->backend->check(begin, (size_t)(target->at - begin) / 2, 0);
    return 1;
}

/** Append all blocks after the head. Returns 0 if they take more bytes than a plain message. */
static int append_blocks(tw_quant_lossless_t *codec, tw_type_t type,
                         const tw_quant_lossless_segment_t *segments, uint8_t *head, target_t *target)
{
    size_t n_live = codec->shape.n_live;
    size_t n_blocks = (n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
    size_t entry_bytes = tw_lossless_entry_bytes(codec->tails_are.tailed);
    uint8_t *entries = target->at;
    if (entry_bytes * n_blocks > (size_t)(target->end - target->at)) {
        return 0;
    }
    target->at += entry_bytes * n_blocks;
    uint32_t head_bytes = (uint32_t)(target->at - head);
    memcpy(head, &head_bytes, sizeof(head_bytes));
    tw_lossless_walk_t walk = tw_lossless_walk_begin(&codec->shape, segments, 1, tw_type_bytes(type));
    for (size_t block = 0; block < n_blocks; block++) {
        size_t left = n_live - block * TW_LOSSLESS_BLOCK_ELEMS;
        size_t n = left < TW_LOSSLESS_BLOCK_ELEMS ? left : TW_LOSSLESS_BLOCK_ELEMS;
        tw_lossless_entry_t entry;
        const uint16_t *heads = gather_block(codec, type, &walk, n);
        if (!append_block(codec, type, heads, n, &entry, target)) {
            return 0;
        }
        memcpy(entries + entry_bytes * block, &entry, entry_bytes);
    }
    return 1;
}

/** Append a coded message. *head_bytes: bytes under the header's checksum. *coded is 0 if it does not fit. */
static tw_status_t append_coded(tw_quant_lossless_t *codec, tw_type_t type,
                                const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                target_t *target, uint32_t *head_bytes, int *coded)
{
    uint8_t *head = target->at;
    TW_TRY(tw_lossless_analyse(codec, type, segments, n_segments));
    tw_lossless_model_encoder(codec);
    target->at = tw_lossless_head_write(codec, head, target->end);
    *coded = target->at && append_blocks(codec, type, segments, head, target);
    memcpy(head_bytes, head, sizeof(*head_bytes));
    return TW_OK;
}

uint8_t *tw_lossless_copy_plain(const tw_quant_message_args_t *args, uint8_t *at)
{
    for (size_t s = 0; s < args->n_segments; s++) {
        size_t bytes = args->segments[s].n_elems * tw_type_bytes(args->type);
        if (bytes) {
            memcpy(at, args->segments[s].src, bytes);
            at += bytes;
        }
    }
    return at;
}

/** Write the header, last, as it has a checksum of the bytes after it. Returns the message's length. */
static size_t put_header(const tw_quant_lossless_t *codec, tw_type_t type, int form, size_t n_elems,
                         size_t checked_bytes, size_t bytes, uint8_t *dst)
{
    const tw_lossless_header_t header = {
        .magic = TW_LOSSLESS_MAGIC,
        .version = TW_LOSSLESS_VERSION,
        .type = (uint8_t)type,
        .form = (uint8_t)form,
        .bytes = (uint32_t)bytes,
        .n_elems = (uint32_t)n_elems,
        .check = codec->backend->check(dst + sizeof(header), checked_bytes / 2, 0),
    };
    memcpy(dst, &header, sizeof(header));
    return bytes;
}

static size_t write_plain(const tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                          size_t n_elems, uint8_t *dst)
{
    size_t bytes = tw_quant_lossless_bound_bytes(args->type, n_elems);
    tw_lossless_copy_plain(args, dst + sizeof(tw_lossless_header_t));
    return put_header(codec, args->type, TW_LOSSLESS_PLAIN, n_elems, bytes - sizeof(tw_lossless_header_t),
                      bytes, dst);
}

tw_status_t tw_lossless_check_encode(const char *operation, const tw_quant_message_args_t *args,
                                     const void *dst, size_t dst_bytes, size_t *n_elems)
{
    TW_TRY(tw_lossless_check_call(operation, args->type, args->segments, args->n_segments, 1, n_elems));
    size_t bound = tw_quant_lossless_bound_bytes(args->type, *n_elems);
    TW_FAIL_IF(!dst || dst_bytes < bound, TW_ERR_INVALID, "quant: %s: room for %zu bytes, must be for %zu",
               operation, dst ? dst_bytes : 0, bound);
    return TW_OK;
}

tw_status_t tw_quant_lossless_encode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     void *dst, size_t dst_bytes, size_t *bytes)
{
    const tw_quant_message_args_t args = {.type = type, .segments = segments, .n_segments = n_segments};
    size_t n_elems;
    TW_TRY(tw_lossless_check_encode("lossless_encode", &args, dst, dst_bytes, &n_elems));
    target_t target = {(uint8_t *)dst + sizeof(tw_lossless_header_t),
                       (uint8_t *)dst + tw_quant_lossless_bound_bytes(type, n_elems)};
    uint32_t head_bytes = 0;
    int coded = 0;
    if (n_elems >= TW_LOSSLESS_CODED_MIN) {
        TW_TRY(append_coded(codec, type, segments, n_segments, &target, &head_bytes, &coded));
    }
    int form = codec->tails_are.tailed ? TW_LOSSLESS_TAILED : TW_LOSSLESS_CODED;
    *bytes =
        coded ? put_header(codec, type, form, n_elems, head_bytes, (size_t)(target.at - (uint8_t *)dst), dst)
              : write_plain(codec, &args, n_elems, dst);
    return TW_OK;
}
