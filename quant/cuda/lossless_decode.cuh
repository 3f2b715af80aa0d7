/** The kernels that decode, in the order of their launches. Columns as in lossless_encode.cuh:
 *
 *    open          -        reads the header                                     one thread block
 *    check         -        the checksum of the head, or of a plain message (n)  parts
 *    read          -        reads the head (untrusted) and makes 40 KB of tables one thread block
 *    expect        2        the expectation of each coded element                a warp a row
 *    check blocks  1.3 (+ 2) each block's checksum                               parts of a block
 *    decode        2 + 0.4 + 2: 9 bits of each coded element                     a warp a block (65,536)
 *    scatter       2 + 1 (+ 2) + n: values                                       a warp a row
 *    close         -        writes the outcome                                   one thread
 *  Together 13 for bf16. The least possible, reading the message and writing the tensor, is 3.3. */
#pragma once

#include "quant/cuda/lossless_read.cuh"

/* ---- blocks -------------------------------------------------------------------------------------------- */

struct tw_lossless_kernel_expect {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        const tw_lossless_cuda_state_t *state = job.state;
        if (!tw_lossless_is_good(job) || !state->coded) {
            return;
        }
        tw_lossless_each(
            job, state->n_pieces, state->n_rows,
            [&](uint64_t, uint32_t x, uint16_t expected, bool) { job.heads[x] = expected; }, [](uint64_t) {});
    }
};

/** Subtract each block's checksum from its entry's, block.check, which becomes 0 if both are equal. */
struct tw_lossless_kernel_check_blocks {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        uint32_t b = blockIdx.x / TW_ENTROPY_CUDA_PARTS,
                 first = blockIdx.x % TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
        if (!tw_lossless_is_good(job) || !job.state->coded || b >= job.state->n_blocks) {
            return;
        }
        tw_entropy_cuda_block_t &block = job.blocks[b];
        uint32_t check = tw_entropy_check_words<true>(job.src + block.offset, block.bytes / 2, first,
                                                      TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS);
        tw_entropy_add(&block.check, 0u - check);
    }
};

/** Decode blocks, one warp for each, from the last element to the first. The look-up tables take 36 KB. */
struct tw_lossless_kernel_decode {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        alignas(4) __shared__ uint8_t symbols[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_FREQ_SUM];
        __shared__ uint32_t slots[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS];
        const tw_lossless_cuda_state_t *state = job.state;
        const uint32_t b = blockIdx.x;
        if (!tw_lossless_is_good(job) || !state->coded || b >= state->n_blocks) {
            return;
        }
        const tw_entropy_cuda_block_t block = job.blocks[b];
        bool good = block.check == 0;
        if (good && block.sizes != TW_ENTROPY_RAW) {
            const tw_entropy_lookup lookup = {symbols, slots};
            tw_entropy_lookup_copy(lookup, {job.symbols, job.slots}, TW_LOSSLESS_CONTEXTS);
            __syncthreads();
            good = decode(job, b, block, lookup);
        }
        good = good && take_listed(job, b, block);
        if (!good && threadIdx.x == 0) {
            job.state->failed = 1;
        }
    }

    static TW_DEVICE bool decode(const tw_lossless_cuda_job_t &job, uint32_t b,
                                 const tw_entropy_cuda_block_t &block, const tw_entropy_lookup &lookup)
    {
        const uint32_t n = tw_entropy_block_elems(job.state->n_live, b), lane = threadIdx.x;
        uint16_t *heads = job.heads + (size_t)b * TW_LOSSLESS_BLOCK_ELEMS;
        tw_entropy_decoder coder = tw_entropy_decoder_of(
            lookup, job.src + block.offset + tw_lossless_raw_part_bytes(n), block.sizes);
        uint16_t *tails = job.block_tails[b] == TW_LOSSLESS_TAILS_CODED
                              ? job.tails + (size_t)b * TW_LOSSLESS_BLOCK_ELEMS
                              : NULL;
        const auto decode_heads = [&](bool with_symbols) {
            return tw_entropy_walk<true>(
                heads, n, [&] { tw_entropy_prefetch(coder); },
                [&](uint32_t at, bool there, uint32_t expected) {
                    return step(coder, (uint16_t)expected, there, heads + at,
                                with_symbols ? tails + at : NULL);
                });
        };
        /* constants, so that what has no tails does not ask for them at each element */
        bool good = tails ? decode_heads(true) && decode_tails(job, coder, n, tails) : decode_heads(false);
        /* A lane's last state is START plus two bytes of the block's 7 bits (plus 0 past their end). */
        job.lanes[b * TW_ENTROPY_LANES + lane] = coder.x;
        uint32_t any = 2 * lane < tw_lossless_raw_in_lanes(tw_lossless_raw_bytes(n)) ? 0xffff : 0;
        return good && !tw_dev_ballot((coder.x ^ TW_ENTROPY_START) & ~any) && !coder.n_words &&
               !coder.n_escapes;
    }

    /** Decode tails. `tails` goes in as the symbols of the heads, which choose the tables. */
    static TW_DEVICE bool decode_tails(const tw_lossless_cuda_job_t &job, tw_entropy_decoder &coder,
                                       uint32_t n, uint16_t *tails)
    {
        const uint32_t lane = threadIdx.x, first = TW_LOSSLESS_TAIL_CONTEXTS - job.state->tails.n_tables;
        coder.lookup = {job.tail_symbols, job.tail_slots};
        for (uint32_t i = (n + 31) / 32 * 32; i > 0; i -= 32) {
            const uint32_t at = i - 32 + lane;
            const bool there = at < n;
            const uint32_t context = tw_lossless_tail_context(there ? tails[at] : 0, first);
            tw_entropy_taken taken = {};
            uint32_t raw;
            if (!tw_entropy_take_warp<true>(coder, there, context, 0, taken) ||
                !tw_entropy_take_raw_warp<true>(coder, there,
                                                there ? tw_lossless_tail_raw_bits(taken.symbol) : 0, raw)) {
                return false;
            }
            if (there) {
                tails[at] = taken.symbol == TW_ENTROPY_ESCAPE ? (uint16_t)taken.escape
                                                              : tw_lossless_tail_of(taken.symbol, raw);
            }
        }
        return true;
    }

    /** Read a block's list of the tails that are not 0. Returns false for a list that no encoder writes. */
    static TW_DEVICE bool take_listed(const tw_lossless_cuda_job_t &job, uint32_t b,
                                      const tw_entropy_cuda_block_t &block)
    {
        const uint32_t n_listed = job.block_tails[b], n = tw_entropy_block_elems(job.state->n_live, b);
        if (job.type != TW_TYPE_FP32 || n_listed >= TW_LOSSLESS_TAILS_CODED) {
            return true;
        }
        uint16_t *tails = job.tails + (size_t)b * TW_LOSSLESS_BLOCK_ELEMS;
        const uint8_t *listed = job.src + block.offset + block.bytes - 4 * n_listed;
        bool wrong = false;
        for (uint32_t i = threadIdx.x; i < n; i += 32) {
            tails[i] = 0;
        }
        __syncthreads();
        for (uint32_t k = threadIdx.x; k < n_listed; k += 32) {
            uint32_t i = tw_entropy_word<true>(listed + 4 * k),
                     tail = tw_entropy_word<true>(listed + 4 * k + 2);
            bool good = i < n && tail && (!k || i > tw_entropy_word<true>(listed + 4 * k - 4));
            wrong = wrong || !good;
            if (good) {
                tails[i] = (uint16_t)tail;
            }
        }
        return !tw_dev_ballot(wrong);
    }

    /** Decode one head per lane. All lanes of the warp must call it. *symbol, if not NULL, gets the head's
     *  symbol, for decode_tails. Returns false if words or escapes run out. */
    static TW_DEVICE bool step(tw_entropy_decoder &coder, uint16_t expected, bool there, uint16_t *head,
                               uint16_t *symbol)
    {
        tw_entropy_taken taken = {};
        if (!tw_entropy_take_warp<true>(coder, there, tw_lossless_context(expected), 0, taken)) {
            return false;
        }
        uint32_t coded =
            taken.symbol == TW_ENTROPY_ESCAPE ? taken.escape : tw_lossless_coded_of(taken.symbol, expected);
        if (there) {
            *head = (uint16_t)(coded & 0x1ff);
        }
        if (there && symbol) {
            *symbol = (uint16_t)tw_lossless_symbol(coded & 0x1ff, expected);
        }
        return true;
    }
};

/* ---- values -------------------------------------------------------------------------------------------- */

/** Writes values to the segments, in the way that job.sink says. */
template <int TYPE>
struct tw_lossless_writer {
    const tw_lossless_cuda_job_t &job;
    tw_lossless_cursor cursor;

    TW_DEVICE explicit tw_lossless_writer(const tw_lossless_cuda_job_t &of_job) : job(of_job), cursor{0, 0, 0}
    {
    }

    TW_DEVICE void write(uint64_t element, uint32_t bits)
    {
        uint8_t *at = to(element);
        if (job.sink == TW_QUANT_SINK_STORE) {
            tw_dev_store_element<tw_lossless_element<TYPE>::bytes>(at, bits);
        } else {
            write_wide(at, tw_lossless_element<TYPE>::value(bits));
        }
    }

    /** Write an fp32 value. TW_QUANT_SINK_STORE rounds it to the type. */
    TW_DEVICE void write_value(uint64_t element, float value)
    {
        uint8_t *at = to(element);
        if (job.sink == TW_QUANT_SINK_STORE) {
            tw_dev_store_element<tw_lossless_element<TYPE>::bytes>(at, rounded(value));
        } else {
            write_wide(at, value);
        }
    }

  private:
    TW_DEVICE uint8_t *to(uint64_t element)
    {
        tw_lossless_seek(job, element, cursor);
        const int bytes = job.sink == TW_QUANT_SINK_STORE ? tw_lossless_element<TYPE>::bytes : 4;
        return (uint8_t *)(uintptr_t)cursor.at + (element - cursor.first) * bytes;
    }

    static TW_DEVICE uint32_t rounded(float value)
    {
        if (TYPE == TW_TYPE_FP32) { /* NaN becomes quiet */
            return tw_float_bits(value) |
                   (tw_float_abs_bits(value) > TW_FLOAT_INF_BITS ? TW_FLOAT_NAN_BITS : 0);
        }
        return TYPE == TW_TYPE_BF16 ? tw_float_to_bf16(value) : tw_float_to_fp16(value);
    }

    TW_DEVICE void write_wide(uint8_t *at, float value)
    {
        if (job.sink == TW_QUANT_SINK_ADD_FP32) {
            value = tw_float_add_nan(tw_float_of_bits(tw_dev_load_element<4>(at)), value);
        }
        tw_dev_store_element<4>(at, tw_float_bits(value));
    }
};

/** Write all elements that are not coded. Then call put(writer, element, index among coded elements,
 *  expectation, whole) for each coded one; whole: the warp has a whole group of 32. */
template <int TYPE, class PUT>
TW_DEVICE void tw_lossless_scatter(const tw_lossless_cuda_job_t &job, const PUT &put)
{
    const tw_lossless_cuda_state_t *state = job.state;
    tw_lossless_writer<TYPE> writer(job);
    if (!tw_lossless_is_good(job) || state->failed) {
        return;
    }
    const int bytes = tw_lossless_element<TYPE>::bytes;
    const uint8_t *from = job.src + sizeof(tw_lossless_header_t);
    for (uint32_t e = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; !state->coded && e < job.n_elems;
         e += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
        writer.write(e, tw_dev_load_element<bytes>(from + (size_t)e * bytes));
    }
    if (state->coded) {
        tw_lossless_each(
            job, state->n_pieces, state->n_rows,
            [&](uint64_t e, uint32_t x, uint16_t expected, bool whole) {
                put(writer, e, x, expected, whole);
            },
            [&](uint64_t e) { writer.write(e, 0); });
    }
}

template <int TYPE>
struct tw_lossless_kernel_scatter {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        block_t block = {};
        tw_lossless_scatter<TYPE>(
            job, [&](tw_lossless_writer<TYPE> &writer, uint64_t e, uint32_t x, uint16_t, bool whole) {
                if (!block.raw.at || block.number != x / TW_LOSSLESS_BLOCK_ELEMS) {
                    block = block_of(job, x / TW_LOSSLESS_BLOCK_ELEMS);
                }
                writer.write(e, value(job, block, x, whole));
            });
    }

    /** Reads bytes of a block's 7 bits. The first in_lanes bytes are in the lanes' first states. */
    struct raw_t {
        const uint8_t *at;
        const uint32_t *lanes;
        uint32_t in_lanes;

        TW_DEVICE uint32_t byte(uint32_t j) const
        {
            return j < in_lanes ? lanes[j / 2] >> 8 * (j % 2) & 0xff : at[j - in_lanes];
        }
    };

    /** The block that a thread reads, until it gets an element of another one. */
    struct block_t {
        uint32_t number;
        bool coded, takes_tails; /**< takes_tails: its tails are in job.tails, not in the message */
        raw_t raw;
        const uint8_t *tails;
    };

    static TW_DEVICE block_t block_of(const tw_lossless_cuda_job_t &job, uint32_t b)
    {
        const tw_entropy_cuda_block_t &block = job.blocks[b];
        const uint32_t n = tw_entropy_block_elems(job.state->n_live, b), tails = job.block_tails[b];
        const uint8_t *at = job.src + block.offset;
        return {b,
                block.sizes != TW_ENTROPY_RAW,
                TYPE == TW_TYPE_FP32 && tails != TW_LOSSLESS_TAILS_RAW,
                {at, job.lanes + b * TW_ENTROPY_LANES,
                 (uint32_t)tw_lossless_raw_in_lanes(tw_lossless_raw_bytes(n))},
                at + block.bytes - tw_lossless_tail_bytes(job.type, n, tails)};
    }

    /** The bits of coded element x. whole: the warp's lanes have a whole group of 32 elements. */
    static TW_DEVICE uint32_t value(const tw_lossless_cuda_job_t &job, const block_t &block, uint32_t x,
                                    bool whole)
    {
        const uint32_t i = x % TW_LOSSLESS_BLOCK_ELEMS;
        uint32_t tail = TYPE == TW_TYPE_BF16 ? 0 : block.takes_tails ? job.tails[x] : tail_at(block.tails, i);
        if (!block.coded) {
            return element::join(tw_dev_load_element<2>(block.raw.at + 2 * i), tail);
        }
        const raw_t &raw = block.raw;
        const uint32_t first = i / 32 * TW_LOSSLESS_RAW_BYTES, k = i % 32;
        uint32_t bits = k < TW_LOSSLESS_RAW_BYTES ? raw.byte(first + k) : 0;
        if (whole) { /* the other bytes' high bits are the last four elements' bits */
            const uint32_t highest = tw_dev_ballot(bits >> 7);
            bits =
                k < TW_LOSSLESS_RAW_BYTES ? bits & 0x7f : highest >> (k - TW_LOSSLESS_RAW_BYTES) * 7 & 0x7f;
        } else if (k < TW_LOSSLESS_RAW_BYTES) {
            bits &= 0x7f;
        } else {
            TW_UNROLL
            for (uint32_t c = 0; c < 7; c++) {
                bits |= raw.byte(first + (k - TW_LOSSLESS_RAW_BYTES) * 7 + c) >> 7 << c;
            }
        }
        return element::join(tw_lossless_head_of(job.heads[x], (uint8_t)bits), tail);
    }

    static TW_DEVICE uint32_t tail_at(const uint8_t *tails, uint32_t i)
    {
        if (TYPE == TW_TYPE_FP32) {
            return tw_dev_load_element<2>(tails + 2 * i);
        }
        const uint8_t *half = tails + i / 32 * 12 + i % 32 / 16 * 2;
        uint32_t k = i % 16;
        return (tw_dev_load_element<2>(half) >> k & 1) | (tw_dev_load_element<2>(half + 4) >> k & 1) << 1 |
               (tw_dev_load_element<2>(half + 8) >> k & 1) << 2;
    }
};

struct tw_lossless_kernel_close {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        if (threadIdx.x == 0) {
            int32_t status = job.state->failed ? TW_ERR_FORMAT : job.state->status;
            job.outcome->bytes = status == TW_OK ? job.state->bytes : 0;
            job.outcome->status = status;
        }
    }
};
