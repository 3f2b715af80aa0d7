/* The reference backend: codes a block, element by element. */
#include "quant/lossless/loops.h"

static int ref_usable(void)
{
    return 1;
}

/* ---- symbols ------------------------------------------------------------------------------------------- */

/* Elements of a batch; a separate loop, which compilers vectorise, computes their entries. */
#define BATCH 512

/** Compute the indices of elements' entries in the encoder's table. */
static void find_entries(const uint16_t *heads, const uint16_t *expected, size_t n, uint16_t *index)
{
    for (size_t i = 0; i < n; i++) {
        int16_t coded = (int16_t)tw_lossless_coded(heads[i]);
        int16_t above = (int16_t)(coded + TW_LOSSLESS_BIAS / 2 - (int16_t)tw_lossless_bottom(expected[i]));
        above = above < 0 ? TW_ENTROPY_ESCAPE - 1 : above;
        above = above < TW_ENTROPY_ESCAPE - 1 ? above : TW_ENTROPY_ESCAPE - 1;
        uint16_t symbol = (uint16_t)(coded ? above + 1 : 0);
        index[i] = (uint16_t)(tw_lossless_context(expected[i]) * TW_ENTROPY_SYMBOLS + symbol);
    }
}

static void ref_encode(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                       size_t n, tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* a copy: compilers know that writing the output cannot change it */
    uint16_t index[BATCH];
    for (size_t i = 0; i < n; i++) {
        if (i % BATCH == 0) {
            find_entries(heads + i, expected + i, n - i < BATCH ? n - i : BATCH, index);
        }
        uint64_t entry = model->encode[index[i % BATCH]];
        uint32_t *lane = &here.lanes[i % TW_ENTROPY_LANES];
        if (entry >> 31 & 1) {
            *here.escapes++ = (uint16_t)tw_lossless_coded(heads[i]);
        }
        *lane = tw_entropy_push(*lane, entry, 0, 0, &here.words);
    }
    *writer = here;
}

static int ref_decode(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                      tw_entropy_reader_t *reader, uint16_t *heads)
{
    tw_entropy_reader_t here = *reader;
    for (size_t i = n; i-- > 0;) {
        uint32_t *lane = &here.lanes[i % TW_ENTROPY_LANES];
        uint32_t table = tw_lossless_context(expected[i]) * TW_ENTROPY_FREQ_SUM;
        uint32_t entry = model->decode[table + *lane % TW_ENTROPY_FREQ_SUM], symbol = entry >> 21;
        uint32_t x = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff);
        if (!tw_entropy_refill(&x, &here.words, here.words_begin)) {
            return 0;
        }
        *lane = x;
        heads[i] = (uint16_t)tw_lossless_coded_of(symbol, expected[i]);
        if (symbol == TW_ENTROPY_ESCAPE && !tw_entropy_pop(&here.escapes, here.escapes_begin, &heads[i])) {
            return 0;
        }
        heads[i] &= 0x1ff; /* a forged escape may have more bits, and tails' tables are chosen by it */
    }
    *reader = here;
    return 1;
}

/* ---- tails in lanes ------------------------------------------------------------------------------------ */

static const uint64_t *tail_entry(const tw_lossless_model_t *model, uint16_t head, uint16_t expected,
                                  uint16_t tail)
{
    uint32_t head_symbol = tw_lossless_symbol(tw_lossless_coded(head), expected);
    uint32_t table = tw_lossless_tail_context(head_symbol, model->tail_first) * TW_ENTROPY_SYMBOLS;
    return &model->encode_tails[table + tw_lossless_tail_symbol(tail)];
}

static void ref_encode_tails(const tw_lossless_model_t *model, const uint16_t *heads,
                             const uint16_t *expected, const uint16_t *tails, size_t n,
                             tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer;
    for (size_t group = 0; group < n; group += TW_ENTROPY_LANES) {
        size_t in_group = n - group < TW_ENTROPY_LANES ? n - group : TW_ENTROPY_LANES;
        uint64_t entries[TW_ENTROPY_LANES];
        for (size_t lane = 0; lane < in_group; lane++) {
            size_t i = group + lane;
            uint32_t symbol = tw_lossless_tail_symbol(tails[i]), raw = (uint32_t)tails[i] >> symbol >> 1;
            entries[lane] = *tail_entry(model, heads[i], expected[i], tails[i]);
            if (entries[lane] >> 31 & 1) {
                *here.escapes++ = tails[i];
            } else {
                here.lanes[lane] = tw_entropy_push_raw(here.lanes[lane], tw_lossless_tail_raw_bits(symbol),
                                                       raw, &here.words);
            }
        }
        for (size_t lane = 0; lane < in_group; lane++) {
            here.lanes[lane] = tw_entropy_push(here.lanes[lane], entries[lane], 0, 0, &here.words);
        }
    }
    *writer = here;
}

/** Remove a tail's symbol from a lane. coded and expected are the head's. */
static uint32_t take_tail_symbol(const tw_lossless_model_t *model, uint16_t coded, uint16_t expected,
                                 uint32_t *lane)
{
    uint32_t context = tw_lossless_tail_context(tw_lossless_symbol(coded, expected), model->tail_first);
    uint32_t entry = model->decode_tails[context * TW_ENTROPY_FREQ_SUM + *lane % TW_ENTROPY_FREQ_SUM];
    *lane = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff);
    return entry >> 21;
}

static int ref_decode_tails(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                            size_t n, tw_entropy_reader_t *reader, uint16_t *tails)
{
    tw_entropy_reader_t here = *reader;
    uint32_t symbols[TW_ENTROPY_LANES];
    for (size_t in_group, end = n; end > 0; end -= in_group) {
        in_group = end % TW_ENTROPY_LANES ? end % TW_ENTROPY_LANES : TW_ENTROPY_LANES;
        size_t group = end - in_group;
        for (size_t lane = in_group; lane-- > 0;) {
            symbols[lane] =
                take_tail_symbol(model, heads[group + lane], expected[group + lane], &here.lanes[lane]);
            if (!tw_entropy_refill(&here.lanes[lane], &here.words, here.words_begin)) {
                return 0;
            }
        }
        for (size_t lane = in_group; lane-- > 0;) {
            uint32_t bits = tw_lossless_tail_raw_bits(symbols[lane]), *x = &here.lanes[lane];
            tails[group + lane] = tw_lossless_tail_of(symbols[lane], *x & ((1u << bits) - 1));
            *x >>= bits;
            if (!tw_entropy_refill(x, &here.words, here.words_begin) ||
                (symbols[lane] == TW_ENTROPY_ESCAPE &&
                 !tw_entropy_pop(&here.escapes, here.escapes_begin, &tails[group + lane]))) {
                return 0;
            }
        }
    }
    *reader = here;
    return 1;
}

/* ---- the other bits ------------------------------------------------------------------------------------ */

/** Move bit b of 7 bits to bit 7 of byte b. The function below moves them back. */
static uint64_t ref_spread(uint64_t bits)
{
    return (bits * 0x0002040810204080) & 0x0080808080808080;
}

static uint8_t unspread(uint64_t bytes)
{
    return (uint8_t)(((bytes >> 7 & 0x0001010101010101) * 0x0102040810204000) >> 56 & 0x7f);
}

/** Pack a whole group. Writes 32 bytes, of which the last 4 do not count. */
static void pack_group(const uint16_t *heads, uint8_t *raw)
{
    for (size_t k = 0; k < 32; k++) {
        raw[k] = tw_lossless_raw(heads[k]);
    }
    for (size_t k = TW_LOSSLESS_RAW_BYTES, at = 0; k < 32; k++, at += 7) {
        uint64_t bytes, bits = ref_spread(tw_lossless_raw(heads[k]));
        memcpy(&bytes, raw + at, sizeof(bytes));
        bytes |= bits;
        memcpy(raw + at, &bytes, sizeof(bytes));
    }
}

static void ref_pack(const uint16_t *heads, size_t n, uint8_t *raw)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        pack_group(heads + i, raw);
    }
    if (n > whole) {
        uint16_t last[32] = {0};
        uint8_t bytes[32];
        size_t n_last = n - whole;
        memcpy(last, heads + whole, 2 * n_last);
        pack_group(last, bytes);
        memcpy(raw, bytes, n_last < TW_LOSSLESS_RAW_BYTES ? n_last : TW_LOSSLESS_RAW_BYTES);
    }
}

/** Unpack a whole group. Reads some bytes beyond its 28 bytes. */
static void unpack_group(const uint8_t *raw, uint16_t *heads)
{
    for (size_t k = 0; k < TW_LOSSLESS_RAW_BYTES; k++) {
        heads[k] = tw_lossless_head_of(heads[k] & 0x1ff, raw[k]);
    }
    for (size_t k = TW_LOSSLESS_RAW_BYTES, at = 0; k < 32; k++, at += 7) {
        uint64_t bytes;
        memcpy(&bytes, raw + at, sizeof(bytes));
        heads[k] = tw_lossless_head_of(heads[k] & 0x1ff, unspread(bytes));
    }
}

static void ref_unpack(const uint8_t *raw, size_t n, uint16_t *heads)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        unpack_group(raw, heads + i);
    }
    if (n > whole) {
        uint16_t last[32] = {0};
        uint8_t bytes[32] = {0};
        size_t n_last = n - whole;
        memcpy(last, heads + whole, 2 * n_last);
        memcpy(bytes, raw, n_last < TW_LOSSLESS_RAW_BYTES ? n_last : TW_LOSSLESS_RAW_BYTES);
        unpack_group(bytes, last);
        memcpy(heads + whole, last, 2 * n_last);
    }
}

/* ---- tails --------------------------------------------------------------------------------------------- */

static void ref_pack_tails(const uint16_t *tails, size_t n, uint8_t *planes)
{
    for (size_t i = 0; i < n; i += 32) {
        uint32_t words[3] = {0};
        size_t in_group = n - i < 32 ? n - i : 32;
        for (size_t k = 0; k < in_group; k++) {
            uint32_t tail = tails[i + k];
            words[0] |= (tail & 1) << k;
            words[1] |= (tail >> 1 & 1) << k;
            words[2] |= (tail >> 2 & 1) << k;
        }
        memcpy(planes + i / 32 * sizeof(words), words, sizeof(words));
    }
}

static void ref_unpack_tails(const uint8_t *planes, size_t n, uint16_t *tails)
{
    for (size_t i = 0; i < n; i += 32) {
        uint32_t words[3];
        size_t in_group = n - i < 32 ? n - i : 32;
        memcpy(words, planes + i / 32 * sizeof(words), sizeof(words));
        for (size_t k = 0; k < in_group; k++) {
            tails[i + k] =
                (uint16_t)((words[0] >> k & 1) | (words[1] >> k & 1) << 1 | (words[2] >> k & 1) << 2);
        }
    }
}

const tw_lossless_backend_t tw_lossless_ref = {
    .is = {"ref", TW_MEM_HOST, ref_usable},
    LOOPS,
    .sum = loops_sum,
    .check = loops_check,
    .deviation = loops_deviation,
    .bins = loops_bins,
    .encode = ref_encode,
    .decode = ref_decode,
    .encode_tails = ref_encode_tails,
    .decode_tails = ref_decode_tails,
    .pack = ref_pack,
    .unpack = ref_unpack,
    .pack_tails = ref_pack_tails,
    .unpack_tails = ref_unpack_tails,
};
