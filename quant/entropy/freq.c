/* Frequencies, and the tables that coders look up. */
#include "quant/entropy/entropy.h"

void tw_entropy_freq_choose(const uint64_t *weights, uint32_t present, uint16_t *freq)
{
    uint64_t total = 0;
    uint32_t largest = 0;
    int32_t left = TW_ENTROPY_FREQ_SUM;
    present |= 1u << TW_ENTROPY_ESCAPE;
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        total += weights[s];
    }
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        uint64_t share = total ? (weights[s] * TW_ENTROPY_FREQ_SUM + total / 2) / total : 0;
        freq[s] = (uint16_t)(share || !(present >> s & 1) ? share : 1);
        left -= freq[s];
        largest = freq[s] > freq[largest] ? s : largest;
    }
    /* Each symbol is off by 1 at most, and the largest has 1/32 of the sum at least. */
    freq[largest] = (uint16_t)(freq[largest] + left);
}

void tw_entropy_encode_table(const uint16_t *freq, uint64_t *table)
{
    uint32_t escape = freq[TW_ENTROPY_ESCAPE], first_slot = 0;
    uint32_t escape_entry = escape | (TW_ENTROPY_FREQ_SUM - escape) << 11 | 1u << 31;
    for (size_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        int escaped = s == TW_ENTROPY_ESCAPE || !freq[s];
        uint32_t reciprocal = 0xffffffffu / (escaped ? escape : freq[s]);
        table[s] = (escaped ? escape_entry : freq[s] | first_slot << 11) | (uint64_t)reciprocal << 32;
        first_slot += freq[s];
    }
}

void tw_entropy_decode_table(const uint16_t *freq, uint32_t *table)
{
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        for (uint32_t slot = 0; slot < freq[s]; slot++) {
            *table++ = freq[s] | slot << 11 | s << 21;
        }
    }
}

int tw_entropy_came_back(const tw_entropy_reader_t *reader)
{
    uint32_t differ = 0;
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        differ |= reader->lanes[lane] ^ TW_ENTROPY_START;
    }
    return !differ && reader->words == reader->words_begin && reader->escapes == reader->escapes_begin;
}
