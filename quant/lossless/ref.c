/* The oracle: a block, element by element. */
#include "quant/lossless/loops.h"

static int ref_usable(void)
{
    return 1;
}

/* ---- symbols ------------------------------------------------------------------------------------------- */

/* Elements whose entries are looked for in a loop of its own, which compilers make vectors of. */
#define BATCH 512

/** Where elements' entries are in the encoder's table. */
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
    tw_entropy_writer_t here = *writer; /* which what is written can not change */
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
    }
    *reader = here;
    return 1;
}

/* ---- the other bits ------------------------------------------------------------------------------------ */

/** Bit b of 7 bits as bit 7 of byte b, and back. */
static uint64_t spread(uint64_t bits)
{
    return (bits * 0x0002040810204080) & 0x0080808080808080;
}

static uint8_t unspread(uint64_t bytes)
{
    return (uint8_t)(((bytes >> 7 & 0x0001010101010101) * 0x0102040810204000) >> 56 & 0x7f);
}

/** A whole group; takes 4 bytes more. */
static void pack_group(const uint16_t *heads, uint8_t *raw)
{
    for (size_t k = 0; k < 32; k++) {
        raw[k] = tw_lossless_raw(heads[k]);
    }
    for (size_t k = TW_LOSSLESS_RAW_BYTES, at = 0; k < 32; k++, at += 7) {
        uint64_t bytes, bits = spread(tw_lossless_raw(heads[k]));
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

/** A whole group; reads 4 bytes more. */
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
    .name = "ref",
    .usable = ref_usable,
    LOOPS,
    .sum = loops_sum,
    .deviation = loops_deviation,
    .bins = loops_bins,
    .encode = ref_encode,
    .decode = ref_decode,
    .pack = ref_pack,
    .unpack = ref_unpack,
    .pack_tails = ref_pack_tails,
    .unpack_tails = ref_unpack_tails,
};
