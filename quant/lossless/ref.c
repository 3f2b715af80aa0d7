/* The oracle: a block, element by element. */
#include "quant/lossless/loops.h"

static int ref_usable(void)
{
    return 1;
}

/* ---- symbols ---------------------------------------------------------------------------------------------------- */

static void ref_encode(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                       size_t n, tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* which what is written can not change */
    for (size_t i = 0; i < n; i++) {
        uint32_t coded = tw_lossless_coded(heads[i]), symbol = tw_lossless_symbol(coded, expected[i]);
        uint64_t entry = model->encode[tw_lossless_context(expected[i]) * TW_ENTROPY_SYMBOLS + symbol];
        uint32_t *lane = &here.lanes[i % TW_ENTROPY_LANES];
        *here.escapes = (uint16_t)coded;
        here.escapes += entry >> 31 & 1;
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

/* ---- the other bits --------------------------------------------------------------------------------------------- */

static void ref_pack(const uint16_t *heads, size_t n, uint8_t *raw)
{
    for (size_t i = 0; i < n; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        size_t in_group = n - i < 32 ? n - i : 32;
        for (size_t k = 0; k < in_group && k < TW_LOSSLESS_RAW_BYTES; k++) {
            raw[k] = tw_lossless_raw(heads[i + k]);
        }
        for (size_t k = TW_LOSSLESS_RAW_BYTES; k < in_group; k++) {
            for (size_t b = 0; b < 7; b++) {
                uint32_t bit = tw_lossless_raw(heads[i + k]) >> b & 1;
                raw[(k - TW_LOSSLESS_RAW_BYTES) * 7 + b] |= (uint8_t)(bit << 7);
            }
        }
    }
}

static void ref_unpack(const uint8_t *raw, size_t n, uint16_t *heads)
{
    for (size_t i = 0; i < n; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        size_t in_group = n - i < 32 ? n - i : 32;
        for (size_t k = 0; k < in_group && k < TW_LOSSLESS_RAW_BYTES; k++) {
            heads[i + k] = tw_lossless_head_of(heads[i + k] & 0x1ff, raw[k] & 0x7f);
        }
        for (size_t k = TW_LOSSLESS_RAW_BYTES; k < in_group; k++) {
            uint8_t bits = 0;
            for (size_t b = 0; b < 7; b++) {
                bits |= (uint8_t)(raw[(k - TW_LOSSLESS_RAW_BYTES) * 7 + b] >> 7 << b);
            }
            heads[i + k] = tw_lossless_head_of(heads[i + k] & 0x1ff, bits);
        }
    }
}

/* ---- tails ------------------------------------------------------------------------------------------------------ */

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
