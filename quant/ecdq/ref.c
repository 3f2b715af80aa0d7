/* The reference backend: makes dither element by element, codes a block's symbols lane by lane. */
#include "quant/ecdq/loops.h"

static int ecdq_always(void)
{
    return 1;
}

static void ecdq_ref_dither(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves)
{
    for (size_t i = 0; i < n_groups * TW_ECDQ_DITHER_GROUP; i++) {
        const uint32_t x = group * TW_ECDQ_DITHER_GROUP + (uint32_t)i;
        const tw_philox_words_t counter = {{tw_ecdq_counter(x)}};
        halves[i] = tw_ecdq_half(tw_philox(counter, key[0], key[1]), x);
    }
}

static void ecdq_ref_encode(const uint64_t *table, const uint8_t *symbols, size_t n,
                            tw_entropy_writer_t *writer)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t *lane = &writer->lanes[i % TW_ENTROPY_LANES];
        *lane = tw_entropy_push(*lane, table[symbols[i]], 0, 0, &writer->words);
    }
}

int tw_ecdq_decode_tail(tw_ecdq_t *ecdq, size_t first, size_t end, tw_entropy_reader_t *reader)
{
    for (size_t i = end; i-- > first;) {
        uint32_t *lane = &reader->lanes[i % TW_ENTROPY_LANES];
        uint32_t of_class = (uint32_t)ecdq->expected[i] >> TW_LOSSLESS_CLASS_SHIFT << TW_ENTROPY_FREQ_BITS;
        uint32_t entry = ecdq->decode_table[of_class | *lane % TW_ENTROPY_FREQ_SUM];
        *lane = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff);
        ecdq->symbols[i] = (uint8_t)(entry >> 21);
        if (!tw_entropy_refill(lane, &reader->words, reader->words_begin)) {
            return 0;
        }
    }
    loops_dequantize(ecdq->symbols + first, ecdq->expected + first, ecdq->halves + first, end - first,
                     ecdq->values + first);
    return 1;
}

static int ecdq_ref_decode(tw_ecdq_t *ecdq, size_t n, tw_entropy_reader_t *reader)
{
    return tw_ecdq_decode_tail(ecdq, 0, n, reader);
}

const tw_ecdq_backend_t tw_ecdq_ref = {
    .is = {"ref", TW_MEM_HOST, ecdq_always},
    .dither = ecdq_ref_dither,
    .quantize = loops_quantize,
    .encode = ecdq_ref_encode,
    .decode = ecdq_ref_decode,
};
