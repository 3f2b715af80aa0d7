/** Functions for all kernels of entropy-coded messages: sums, access to a message's bytes, placing of blocks,
 *  and the coder's steps. A warp codes a block; lane i has elements i, 32 + i and so on. */
#pragma once

#include "quant/cuda/entropy_job.h"

/** Returns the last of n entries with key(entry) <= x. Keys ascend, and the first one is never above x. */
template <class KEY>
TW_DEVICE uint32_t tw_entropy_last(uint32_t n, uint64_t x, const KEY &key)
{
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (key(middle) <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- warps --------------------------------------------------------------------------------------------- */

TW_DEVICE uint32_t tw_entropy_lane()
{
    return threadIdx.x % 32;
}

/** The index of the warp in the grid, and the number of warps, if thread blocks have THREADS threads. */
TW_DEVICE uint32_t tw_entropy_warp()
{
    return blockIdx.x * TW_ENTROPY_CUDA_WARPS + threadIdx.x / 32;
}

TW_DEVICE uint32_t tw_entropy_warps()
{
    return gridDim.x * TW_ENTROPY_CUDA_WARPS;
}

/** The sum over the warp, in all lanes. */
template <class T>
TW_DEVICE T tw_entropy_total(T value)
{
    TW_UNROLL
    for (uint32_t step = 1; step < 32; step *= 2) {
        value += tw_dev_exchange(value, step);
    }
    return value;
}

/** Add the values of all lanes of the warp to *sum. */
TW_DEVICE void tw_entropy_add(uint32_t *sum, uint32_t value)
{
    value = tw_entropy_total(value);
    if (tw_entropy_lane() == 0) {
        atomicAdd(sum, value);
    }
}

TW_DEVICE void tw_entropy_add(tw_entropy_sum_t *sum, tw_entropy_sum_t value)
{
    value = tw_entropy_total(value);
    if (tw_entropy_lane() == 0 && value) {
        atomicAdd(sum, value);
    }
}

/* ---- bytes of a message -------------------------------------------------------------------------------- */

TW_DEVICE uint32_t tw_entropy_get16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

TW_DEVICE uint32_t tw_entropy_get32(const uint8_t *at)
{
    return tw_entropy_get16(at) | tw_entropy_get16(at + 2) << 16;
}

TW_DEVICE void tw_entropy_put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

TW_DEVICE void tw_entropy_put32(uint8_t *at, uint32_t value)
{
    tw_entropy_put16(at, value);
    tw_entropy_put16(at + 2, value >> 16);
}

/** Read a 16-bit word of a message, in one access if EVEN says that words have even addresses. */
template <bool EVEN>
TW_DEVICE uint32_t tw_entropy_word(const uint8_t *at)
{
    return EVEN ? tw_dev_load_element<2>(at) : tw_entropy_get16(at);
}

/** This thread's part of a checksum of n words at `at`: every `step`-th word, from index `first` on. */
template <bool EVEN>
TW_DEVICE uint32_t tw_entropy_check_words(const uint8_t *at, uint32_t n, uint32_t first, uint32_t step)
{
    uint32_t check = 0;
    for (uint32_t i = first; i < n; i += step) {
        check += tw_entropy_check(i, (uint16_t)tw_entropy_word<EVEN>(at + 2 * (size_t)i));
    }
    return check;
}

/** The number of elements in a block, if n elements are cut into blocks of 65,536. */
TW_DEVICE uint32_t tw_entropy_block_elems(uint32_t n, uint32_t block)
{
    uint32_t left = n - (block << 16);
    return left < 65536 ? left : 65536;
}

/** Set the offsets of n blocks that follow each other from offset `at` on. block_of(b) gives block b with its
 *  bytes. Returns the end of the last one. The whole thread block must call it. */
template <class BLOCK>
TW_DEVICE uint64_t tw_entropy_place(tw_entropy_cuda_block_t *blocks, uint32_t n, uint64_t at,
                                    const BLOCK &block_of)
{
    for (uint32_t base = 0; base < n; base += TW_ENTROPY_CUDA_THREADS) {
        uint32_t b = base + threadIdx.x;
        tw_entropy_cuda_block_t block = {};
        if (b < n) {
            block = block_of(b);
        }
        uint64_t all, before = tw_dev_block_scan<uint64_t>(block.bytes, &all);
        if (b < n) {
            block.offset = (uint32_t)(at + before);
            blocks[b] = block;
        }
        at += all;
    }
    return at;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

/** An encoder's state in a lane (x), and its warp's output: words from `words` on, escapes back from
 *  `end`. */
struct tw_entropy_encoder {
    uint16_t *words, *end;
    uint32_t room; /**< how many words and escapes fit; a block that needs more is sent raw */
    uint32_t x, n_words, n_escapes;
};

/** Code one element in each lane that has one (`there`): at most 6 raw bits, then the symbol of `entry`. For
 *  the escape's entry escaped_value() is written among the escapes. Returns false without room. */
template <class VALUE>
TW_DEVICE bool tw_entropy_push_warp(tw_entropy_encoder &coder, bool there, uint64_t entry, uint32_t raw_bits,
                                    uint32_t raw, const VALUE &escaped_value)
{
    const uint32_t below = (1u << tw_entropy_lane()) - 1;
    bool escapes = there && entry >> 31 & 1;
    bool full = there && coder.x >> (32 - TW_ENTROPY_FREQ_BITS - raw_bits) >= ((uint32_t)entry & 0x7ff);
    uint32_t spilling = tw_dev_ballot(full), escaping = tw_dev_ballot(escapes);
    uint32_t word = coder.n_words + tw_dev_popc(spilling & below),
             escape = coder.n_escapes + tw_dev_popc(escaping & below);
    coder.n_words += tw_dev_popc(spilling);
    coder.n_escapes += tw_dev_popc(escaping);
    if (coder.n_words + coder.n_escapes > coder.room) {
        return false;
    }
    if (full) {
        coder.words[word] = (uint16_t)coder.x;
        coder.x >>= 16;
    }
    if (escapes) {
        *(coder.end - 1 - escape) = (uint16_t)escaped_value();
    }
    coder.x = there ? tw_entropy_put(coder.x << raw_bits | raw, entry) : coder.x;
    return true;
}

/** Code `bits` (0 to 15) raw bits in each lane, without a symbol. Returns false if there is no room. */
TW_DEVICE bool tw_entropy_push_raw_warp(tw_entropy_encoder &coder, uint32_t bits, uint32_t raw)
{
    bool full = (uint64_t)coder.x >> (32 - bits) != 0;
    uint32_t spilling = tw_dev_ballot(full);
    uint32_t word = coder.n_words + tw_dev_popc(spilling & ((1u << tw_entropy_lane()) - 1));
    coder.n_words += tw_dev_popc(spilling);
    if (coder.n_words + coder.n_escapes > coder.room) {
        return false;
    }
    if (full) {
        coder.words[word] = (uint16_t)coder.x;
        coder.x >>= 16;
    }
    coder.x = coder.x << bits | raw;
    return true;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

/** A decoder's look-up tables: each slot's symbol, and each symbol's frequency | first slot << 11. */
struct tw_entropy_lookup {
    uint8_t *symbols; /**< [tables * FREQ_SUM], aligned to 4 bytes */
    uint32_t *slots;  /**< [tables * SYMBOLS] */
};

/** Fill the look-up tables from freqs [n_tables][SYMBOLS]; each table's sum is FREQ_SUM. All `threads`
 *  threads of a thread block must call it. */
TW_DEVICE void tw_entropy_lookup_fill(const tw_entropy_lookup &lookup, const uint16_t *freqs,
                                      uint32_t n_tables, uint32_t threads = TW_ENTROPY_CUDA_THREADS)
{
    for (uint32_t i = threadIdx.x; i < n_tables * TW_ENTROPY_SYMBOLS; i += threads) {
        uint32_t table = i / TW_ENTROPY_SYMBOLS, first = 0;
        for (uint32_t k = table * TW_ENTROPY_SYMBOLS; k < i; k++) {
            first += freqs[k];
        }
        lookup.slots[i] = freqs[i] | first << 11;
        for (uint32_t slot = first; slot < first + freqs[i]; slot++) {
            lookup.symbols[table * TW_ENTROPY_FREQ_SUM + slot] = (uint8_t)(i % TW_ENTROPY_SYMBOLS);
        }
    }
}

/** Copy the look-up tables; a whole warp calls it. */
TW_DEVICE void tw_entropy_lookup_copy(const tw_entropy_lookup &to, const tw_entropy_lookup &from,
                                      uint32_t n_tables)
{
    for (uint32_t i = tw_entropy_lane(); i < n_tables * TW_ENTROPY_FREQ_SUM / 4; i += 32) {
        ((uint32_t *)to.symbols)[i] = ((const uint32_t *)from.symbols)[i];
    }
    for (uint32_t i = tw_entropy_lane(); i < n_tables * TW_ENTROPY_SYMBOLS; i += 32) {
        to.slots[i] = from.slots[i];
    }
}

/** A decoder's state in a lane (x), and its warp's unread words and escapes, which are read from the end. */
struct tw_entropy_decoder {
    tw_entropy_lookup lookup;
    const uint8_t *words, *escapes;
    uint32_t x, n_words, n_escapes;
};

/** Make the decoder of a block: its words are at `words`, followed by the lanes' states, then by escapes. */
TW_DEVICE tw_entropy_decoder tw_entropy_decoder_of(const tw_entropy_lookup &lookup, const uint8_t *words,
                                                   uint32_t sizes)
{
    const uint32_t n_words = sizes & 0xffff;
    const uint8_t *lanes = words + 2 * n_words;
    return {
        lookup,  words,      lanes + TW_ENTROPY_LANES_BYTES, tw_entropy_get32(lanes + 4 * tw_entropy_lane()),
        n_words, sizes >> 16};
}

/** The parts of a decoded element. */
struct tw_entropy_taken {
    uint32_t symbol, raw, escape; /**< escape: the element's value, if the symbol is the escape */
};

/** Decode one element in each lane that has one (`there`). Returns false if words or escapes run out. */
template <bool EVEN>
TW_DEVICE bool tw_entropy_take_warp(tw_entropy_decoder &coder, bool there, uint32_t table, uint32_t raw_bits,
                                    tw_entropy_taken &taken)
{
    const uint32_t below = (1u << tw_entropy_lane()) - 1, slot = coder.x & (TW_ENTROPY_FREQ_SUM - 1);
    taken.symbol = coder.lookup.symbols[table * TW_ENTROPY_FREQ_SUM + slot];
    uint32_t entry = coder.lookup.slots[table * TW_ENTROPY_SYMBOLS + taken.symbol];
    uint32_t next = (entry & 0x7ff) * (coder.x >> TW_ENTROPY_FREQ_BITS) + slot - (entry >> 11);
    taken.raw = next & ((1u << raw_bits) - 1);
    coder.x = there ? next >> raw_bits : coder.x;
    bool wants = there && coder.x < TW_ENTROPY_START, escaped = there && taken.symbol == TW_ENTROPY_ESCAPE;
    uint32_t wanting = tw_dev_ballot(wants), escaping = tw_dev_ballot(escaped);
    if (tw_dev_popc(wanting) > coder.n_words || tw_dev_popc(escaping) > coder.n_escapes) {
        return false;
    }
    coder.n_words -= tw_dev_popc(wanting);
    coder.n_escapes -= tw_dev_popc(escaping);
    if (wants) {
        uint32_t word = coder.n_words + tw_dev_popc(wanting & below);
        coder.x = coder.x << 16 | tw_entropy_word<EVEN>(coder.words + 2 * word);
    }
    if (escaped) {
        uint32_t escape = coder.n_escapes + tw_dev_popc(escaping & below);
        taken.escape = tw_entropy_word<EVEN>(coder.escapes + 2 * escape);
    }
    return true;
}

/** Decode raw bits, without a symbol. Returns false if words run out. */
template <bool EVEN>
TW_DEVICE bool tw_entropy_take_raw_warp(tw_entropy_decoder &coder, bool there, uint32_t bits, uint32_t &raw)
{
    raw = coder.x & ((1u << bits) - 1);
    coder.x >>= bits;
    bool wants = there && coder.x < TW_ENTROPY_START;
    uint32_t wanting = tw_dev_ballot(wants);
    if (tw_dev_popc(wanting) > coder.n_words) {
        return false;
    }
    coder.n_words -= tw_dev_popc(wanting);
    if (wants) {
        uint32_t word = coder.n_words + tw_dev_popc(wanting & ((1u << tw_entropy_lane()) - 1));
        coder.x = coder.x << 16 | tw_entropy_word<EVEN>(coder.words + 2 * word);
    }
    return true;
}

/** Prefetch words that this warp will read soon, one line per lane. */
TW_DEVICE void tw_entropy_prefetch(const tw_entropy_decoder &coder)
{
    uint32_t back = 64 * (tw_entropy_lane() + 1);
    tw_dev_prefetch(coder.words + 2 * (coder.n_words > back ? coder.n_words - back : 0));
}

/* ---- walks --------------------------------------------------------------------------------------------- */

/** Call step(at, true, word) for a chunk of whole groups. Words are loaded AHEAD steps at a time, so that a
 *  step waits only for the coder's state. */
template <bool BACKWARD, class STEP>
TW_DEVICE bool tw_entropy_walk_whole(const uint16_t *from, uint32_t first, const STEP &step)
{
    uint32_t words[TW_ENTROPY_CUDA_AHEAD];
    bool good = true;
    TW_UNROLL
    for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
        words[s] = from[BACKWARD ? first - 32 * s : first + 32 * s];
    }
    TW_UNROLL
    for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
        good = good && step(BACKWARD ? first - 32 * s : first + 32 * s, true, words[s]);
    }
    return good;
}

/** Call step(at, at < n, word) for n words, 32 words (one a lane) at a time, forward or backward, until it
 *  returns false. begin() is called before each chunk of AHEAD groups. */
template <bool BACKWARD, class BEGIN, class STEP>
TW_DEVICE bool tw_entropy_walk(const uint16_t *from, uint32_t n, const BEGIN &begin, const STEP &step)
{
    const uint32_t chunk = 32 * TW_ENTROPY_CUDA_AHEAD, all = (n + chunk - 1) / chunk * chunk;
    bool good = true;
    for (uint32_t i = 0; good && i < all; i += chunk) {
        const uint32_t first = (BACKWARD ? all - 32 - i : i) + tw_entropy_lane();
        begin();
        if ((BACKWARD ? all - i : i + chunk) <= n) {
            good = tw_entropy_walk_whole<BACKWARD>(from, first, step);
            continue;
        }
        for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
            const uint32_t at = BACKWARD ? first - 32 * s : first + 32 * s;
            if (good && at - tw_entropy_lane() < n) {
                good = step(at, at < n, from[at < n ? at : n - 1]);
            }
        }
    }
    return good;
}
