/** ecdq's kernels, beside those of the lossless codec. Columns: kernel, bytes of memory read and written per
 *  element (n: size of the type), what it makes, threads:
 *
 *    gather    n + 4        integers and symbols, in the order of coding      a warp a row
 *    count     2            the symbol counts of blocks                       parts of a block
 *    code      2 + 0.3      tables, words and escape lists of blocks          a warp a block
 *    assemble  0.3 + 0.3    the message                                       parts of a block
 *    decode    2 + 0.3 + 2  integers                                          a warp a block
 *    scatter   4 + n        values                                            a warp a row */
#pragma once

#include "quant/cuda/lossless_decode.cuh"

/** The dither of a thread's elements. They are 32 apart, so four in a row use the same Philox words. */
struct tw_ecdq_dithers {
    uint32_t key[2];
    uint32_t counter = ~0u;
    tw_philox_words_t words = {};

    TW_DEVICE uint16_t half(uint32_t i)
    {
        const uint32_t own = tw_ecdq_counter(i);
        if (own != counter) {
            counter = own;
            words = tw_philox({{own}}, key[0], key[1]);
        }
        return tw_ecdq_half(words, i);
    }
};

/* ---- encoding ------------------------------------------------------------------------------------------ */

template <int TYPE>
struct tw_ecdq_kernel_gather {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_ecdq_dithers dither = {{job.key[0], job.key[1]}};
        tw_lossless_gather<TYPE>(job, [&](uint32_t bits, uint32_t x, uint16_t expected) {
            float value = tw_lossless_element<TYPE>::value(bits);
            int32_t integer = (int32_t)tw_ecdq_integer(value, expected, dither.half(x));
            job.heads[x] = (uint16_t)integer;
            job.codes[x] = tw_ecdq_symbol(integer, expected);
        });
    }
};

struct tw_ecdq_kernel_count {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        __shared__ uint32_t counts[TW_ECDQ_SYMBOLS];
        const uint32_t b = blockIdx.x / TW_ENTROPY_CUDA_PARTS, t = threadIdx.x;
        if (!job.state->coded || b >= job.state->n_blocks) {
            return;
        }
        const uint32_t n = tw_entropy_block_elems(job.state->n_live, b);
        counts[t] = 0;
        __syncthreads();
        for (uint32_t i = blockIdx.x % TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS + t; i < n;
             i += TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS) {
            atomicAdd(&counts[job.codes[(size_t)b * TW_LOSSLESS_BLOCK_ELEMS + i]], 1u);
        }
        __syncthreads();
        if (counts[t]) {
            atomicAdd(&job.symbol_counts[b * TW_ECDQ_SYMBOLS + t], counts[t]);
        }
    }
};

/** Code blocks, one warp for each, as the lossless codec does. */
template <int TYPE>
struct tw_ecdq_kernel_code {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        __shared__ uint64_t encode[TW_ECDQ_SYMBOLS];
        const uint32_t b = blockIdx.x, lane = threadIdx.x;
        if (!job.state->coded || b >= job.state->n_blocks) {
            return;
        }
        const uint32_t n = tw_entropy_block_elems(job.state->n_live, b), room = tw_lossless_cuda_room(&job);
        uint16_t *words = job.words + (size_t)b * room;
        const uint32_t tables = put_tables(job.symbol_counts + b * TW_ECDQ_SYMBOLS, words, encode);
        const uint32_t fixed = 2 * tables + TW_ENTROPY_LANES_BYTES, raw = n * element::bytes;
        tw_entropy_encoder coder = {words + tables, words + room, 0, TW_ENTROPY_START, 0, 0};
        /* A coded block must be shorter than a raw one. */
        coder.room = fixed < raw ? (raw - fixed - 1) / 2 : 0;
        __syncthreads();
        bool fits = fixed < raw && code(job, (size_t)b * TW_LOSSLESS_BLOCK_ELEMS, n, encode, coder) &&
                    tw_lossless_sizes_fit(coder.n_words, coder.n_escapes);
        job.lanes[b * TW_ENTROPY_LANES + lane] = coder.x;
        if (lane == 0) {
            job.blocks[b].sizes = fits ? coder.n_words | coder.n_escapes << 16 : TW_ENTROPY_RAW;
            job.block_tails[b] = tables;
        }
    }

    /** Make the tables of a block's classes, one per lane. Write them to the message and fill the coder's
     *  look-up table, `encode`. Returns the 16-bit words that they take in the message. */
    static TW_DEVICE uint32_t put_tables(const uint32_t *counts, uint16_t *to, uint64_t *encode)
    {
        __shared__ uint32_t sizes[TW_LOSSLESS_CLASSES];
        const uint32_t own = threadIdx.x;
        uint16_t freq[TW_ENTROPY_SYMBOLS];
        uint32_t first = 0, end = 0, classes = 0, before = 1, words = 1;
        bool there = own < TW_LOSSLESS_CLASSES &&
                     tw_ecdq_choose_table(counts + own * TW_ENTROPY_SYMBOLS, freq, &first, &end);
        if (own < TW_LOSSLESS_CLASSES) {
            sizes[own] = there ? 1 + end - first : 0;
        }
        __syncthreads();
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            classes |= (uint32_t)(sizes[c] > 0) << c;
            before += c < own ? sizes[c] : 0;
            words += sizes[c];
        }
        if (there) {
            tw_entropy_encode_table(freq, encode + own * TW_ENTROPY_SYMBOLS);
            to[before++] = (uint16_t)(first | (end - first) << 8);
            for (uint32_t s = first; s < end; s++) {
                to[before++] = freq[s];
            }
        }
        if (own == 0) {
            to[0] = (uint16_t)classes;
        }
        return words;
    }

    static TW_DEVICE bool code(const tw_lossless_cuda_job_t &job, size_t first, uint32_t n,
                               const uint64_t *encode, tw_entropy_encoder &coder)
    {
        return tw_entropy_walk<false>(
            job.codes + first, n, [] {},
            [&](uint32_t at, bool there, uint32_t code) {
                /* without the flag of escapes: `list` below writes these elements */
                uint64_t entry = encode[code] & ~((uint64_t)1 << 31);
                return tw_entropy_push_warp(coder, there, entry, 0, 0, [] { return 0; }) &&
                       list(job, first + at, there && code % 32 == TW_ENTROPY_ESCAPE, coder);
            });
    }

    /** Append a warp's escaped elements to the block's list. Returns false if there is no room. */
    static TW_DEVICE bool list(const tw_lossless_cuda_job_t &job, size_t x, bool escapes,
                               tw_entropy_encoder &coder)
    {
        const uint32_t below = (1u << threadIdx.x) - 1, escaping = tw_dev_ballot(escapes);
        if (!escaping) {
            return true;
        }
        const uint16_t integer = escapes ? job.heads[x] : 0;
        const bool raw = integer == (uint16_t)TW_ECDQ_RAW;
        const uint32_t raws = tw_dev_ballot(raw);
        uint16_t *to =
            coder.end - 1 - coder.n_escapes - tw_dev_popc(escaping & below) - 2 * tw_dev_popc(raws & below);
        coder.n_escapes += tw_dev_popc(escaping) + 2 * tw_dev_popc(raws);
        if (coder.n_words + coder.n_escapes > coder.room) {
            return false;
        }
        if (escapes) {
            *to = integer;
        }
        if (raw) {
            tw_lossless_cursor cursor = {0, 0, 0};
            const uint64_t e = tw_lossless_place_of(job, (uint32_t)x).element;
            uint32_t bits = tw_float_bits(element::value(tw_lossless_load<element::bytes>(job, e, cursor)));
            *(to - 1) = (uint16_t)bits;
            *(to - 2) = (uint16_t)(bits >> 16);
        }
        return true;
    }
};

template <int TYPE>
struct tw_ecdq_block_words {
    const tw_lossless_block_words coded;
    tw_lossless_cursor cursor;

    TW_DEVICE tw_ecdq_block_words(const tw_lossless_cuda_job_t &job, uint32_t block)
        : coded(job, block), cursor{0, 0, 0}
    {
    }

    TW_DEVICE uint32_t put_first(uint8_t *to, uint32_t own, uint32_t threads, uint32_t *check) const
    {
        return coded.put_first(to, own, threads, check);
    }

    TW_DEVICE uint32_t at(uint32_t w)
    {
        if (coded.sizes != TW_ENTROPY_RAW) {
            return coded.at(w);
        }
        const uint32_t bytes = tw_lossless_element<TYPE>::bytes, x = w / (bytes / 2);
        const uint64_t e = tw_lossless_place_of(coded.job, coded.block * TW_LOSSLESS_BLOCK_ELEMS + x).element;
        return tw_lossless_load<bytes>(coded.job, e, cursor) >> 16 * (w % (bytes / 2)) & 0xffff;
    }
};

template <int TYPE>
struct tw_ecdq_kernel_assemble : tw_lossless_assemble<TYPE, tw_ecdq_block_words<TYPE>> {
};

/* ---- decoding ------------------------------------------------------------------------------------------ */

/** Decode blocks, one warp for each, from the last element to the first. */
struct tw_ecdq_kernel_decode {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        alignas(4) __shared__ uint8_t symbols[TW_LOSSLESS_CLASSES * TW_ENTROPY_FREQ_SUM];
        __shared__ uint32_t slots[TW_ECDQ_SYMBOLS];
        __shared__ uint16_t freqs[TW_ECDQ_SYMBOLS];
        const uint32_t b = blockIdx.x;
        if (!tw_lossless_is_good(job) || !job.state->coded || b >= job.state->n_blocks) {
            return;
        }
        const tw_entropy_cuda_block_t block = job.blocks[b];
        bool good = block.check == 0;
        if (good && block.sizes != TW_ENTROPY_RAW) {
            const tw_entropy_lookup lookup = {symbols, slots};
            good = take_tables(job.src + block.offset, freqs);
            __syncthreads();
            if (good) {
                tw_entropy_lookup_fill(lookup, freqs, TW_LOSSLESS_CLASSES, TW_ENTROPY_LANES);
            }
            __syncthreads();
            good = good && decode(job, b, block, lookup) && take_listed(job, b, block);
        }
        if (!good && threadIdx.x == 0) {
            job.state->failed = 1;
        }
    }

    /** Read a block's tables; the caller has checked that they lie within the block. A class without a table
     *  gets one with only the escape. Returns false for tables that no encoder writes. */
    static TW_DEVICE bool take_tables(const uint8_t *at, uint16_t *freqs)
    {
        const uint32_t lane = threadIdx.x, classes = tw_entropy_get16(at);
        bool good = classes < 1u << TW_LOSSLESS_CLASSES;
        at += 2;
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            uint32_t first = 0, n = 0;
            if (classes >> c & 1) {
                first = at[0];
                n = at[1];
                at += 2;
            }
            /* lane - first wraps around for lanes below `first`, whose symbols are not sent either */
            const bool sent = lane - first < n;
            const uint32_t freq = sent ? tw_entropy_get16(at + 2 * (lane - first)) : 0;
            const uint32_t sum = tw_entropy_total(freq);
            const bool edge = sent && (lane == first || lane == first + n - 1);
            good = good && first + n <= TW_ENTROPY_ESCAPE && sum < TW_ENTROPY_FREQ_SUM &&
                   !tw_dev_ballot(edge && !freq);
            freqs[c * TW_ENTROPY_SYMBOLS + lane] =
                (uint16_t)(lane == TW_ENTROPY_ESCAPE ? TW_ENTROPY_FREQ_SUM - sum : freq);
            at += 2 * n;
        }
        return good;
    }

    static TW_DEVICE bool decode(const tw_lossless_cuda_job_t &job, uint32_t b,
                                 const tw_entropy_cuda_block_t &block, const tw_entropy_lookup &lookup)
    {
        const uint32_t n = tw_entropy_block_elems(job.state->n_live, b), sent = job.src[block.offset];
        uint16_t *integers = job.codes + (size_t)b * TW_LOSSLESS_BLOCK_ELEMS;
        tw_entropy_decoder coder =
            tw_entropy_decoder_of(lookup, job.src + block.offset + 2 * job.block_tails[b], block.sizes);
        uint32_t classes = 0;
        bool good = tw_entropy_walk<true>(
            job.heads + (size_t)b * TW_LOSSLESS_BLOCK_ELEMS, n, [&] { tw_entropy_prefetch(coder); },
            [&](uint32_t at, bool there, uint32_t expected) {
                tw_entropy_taken taken = {};
                uint32_t of_class = expected >> TW_LOSSLESS_CLASS_SHIFT;
                bool took = tw_entropy_take_warp<true>(coder, there, of_class, 0, taken);
                classes |= 1u << of_class;
                if (there) {
                    integers[at] = (uint16_t)(taken.symbol - TW_ECDQ_REACH);
                }
                return took;
            });
        /* A class must have a table if, and only if, the block has an element of that class. */
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            good = good && (tw_dev_ballot(classes >> c & 1) != 0) == (sent >> c & 1);
        }
        return good && !tw_dev_ballot(coder.x != TW_ENTROPY_START) && !coder.n_words;
    }

    /** Replace escapes by the block's listed integers. Returns false for a list that no encoder writes. */
    static TW_DEVICE bool take_listed(const tw_lossless_cuda_job_t &job, uint32_t b,
                                      const tw_entropy_cuda_block_t &block)
    {
        const uint32_t n_listed = block.sizes >> 16, n = tw_entropy_block_elems(job.state->n_live, b);
        const uint8_t *listed = job.src + block.offset + block.bytes - 2 * n_listed;
        const size_t first = (size_t)b * TW_LOSSLESS_BLOCK_ELEMS;
        uint32_t k = 0;
        for (uint32_t i = 0; n_listed && i < n; i += 32) {
            const uint32_t at = i + threadIdx.x;
            const int32_t escape = TW_ENTROPY_ESCAPE - TW_ECDQ_REACH;
            uint32_t escaping = tw_dev_ballot(at < n && job.codes[first + at] == escape);
            for (; escaping; escaping &= escaping - 1) {
                const int32_t integer = k < n_listed ? (int16_t)tw_entropy_word<true>(listed + 2 * k) : 0;
                const bool raw = integer == TW_ECDQ_RAW;
                if (integer >= -TW_ECDQ_REACH && integer <= TW_ECDQ_REACH) {
                    return false;
                }
                if (threadIdx.x == tw_dev_ones(~escaping)) {
                    job.codes[first + at] = (uint16_t)integer;
                    job.heads[first + at] = raw ? (uint16_t)(k + 1) : job.heads[first + at];
                }
                k += raw ? 3 : 1;
            }
        }
        return k == n_listed;
    }
};

template <int TYPE>
struct tw_ecdq_kernel_scatter {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        const uint8_t *head = job.src + sizeof(tw_lossless_header_t);
        tw_ecdq_dithers dither = {};
        if (tw_lossless_is_good(job) && job.state->coded) { /* otherwise the message may end before the key */
            dither.key[0] = tw_entropy_get32(head + 4);
            dither.key[1] = tw_entropy_get32(head + 8);
        }
        tw_lossless_scatter<TYPE>(
            job, [&](tw_lossless_writer<TYPE> &writer, uint64_t e, uint32_t x, uint16_t expected, bool) {
                const uint32_t b = x / TW_LOSSLESS_BLOCK_ELEMS, bytes = tw_lossless_element<TYPE>::bytes;
                const tw_entropy_cuda_block_t &block = job.blocks[b];
                const uint8_t *at = job.src + block.offset;
                if (block.sizes == TW_ENTROPY_RAW) {
                    at += (size_t)(x % TW_LOSSLESS_BLOCK_ELEMS) * bytes;
                    writer.write(e, bytes == 4 ? fp32_at(at) : tw_entropy_word<true>(at));
                    return;
                }
                const int16_t integer = (int16_t)job.codes[x];
                if (integer == TW_ECDQ_RAW) {
                    at += block.bytes - 2 * (block.sizes >> 16) + 2 * job.heads[x];
                    writer.write_value(e, tw_float_of_bits(fp32_at(at)));
                } else {
                    writer.write_value(e, tw_ecdq_value(integer, expected, dither.half(x)));
                }
            });
    }

    /** Read an fp32 at an even address. */
    static TW_DEVICE uint32_t fp32_at(const uint8_t *at)
    {
        return tw_entropy_word<true>(at) | tw_entropy_word<true>(at + 2) << 16;
    }
};
