/** The kernels that encode, in the order of their launches. Each is a struct with its body. Columns: kernel,
 *  least bytes of memory read and written per element (n: size of the type), what it makes, threads:
 *
 *    rows       n         each row's mean magnitude, or that it is all zeros          a warp a row
 *    columns    n, of 128 rows of a piece: each column's mean above its rows          a thread a column
 *    deviations n, of 32 rows of a piece: mean distance from each kind of expectation a warp a row
 *    scales     2 a row: which scales of rows and columns pay                         a thread block a piece
 *    classes    n         each row's class                                            a warp a row
 *    pieces     4 a row: which pieces' classes pay                                    a thread block a piece
 *    count      -         the numbers of coded elements and blocks                    one thread block
 *    sample     n / 16    counts of the sample's symbols                              a thread an element
 *    model      -         the window, tables, the coder's look-ups                    one thread block
 *    head       -         the offsets of the head's parts                             one thread block
 *    write      2 a row, 2 a column: lists of scales and classes                      a thread block a piece
 *    gather     n + 4 (+ 2 with tails): heads and codes, in the order of coding       a warp a row
 *    code       2 + 0.4: words and escapes                                            a warp a block (65,536)
 *    layout     -         the offsets of blocks                                       one thread block
 *    assemble   2.4 (+ 2) read, 1.3 (+ 2) written: the message                        parts of a block
 *    finish     -         the header                                                  one thread block
 *  Together 3 n + 10: 16 bytes for bf16. The least possible, to read the tensor and write the message:
 *  3.3. */
#pragma once

#include "quant/cuda/lossless_head.cuh"

/* ---- blocks -------------------------------------------------------------------------------------------- */

/** An element's code: context and symbol, or for an escape a flag, the context and the 9 bits of its head. */
TW_DEVICE uint16_t tw_lossless_code(uint16_t head, uint16_t expected)
{
    uint32_t coded = tw_lossless_coded(head), symbol = tw_lossless_symbol(coded, expected);
    uint32_t context = tw_lossless_context(expected);
    return (uint16_t)(symbol == TW_ENTROPY_ESCAPE ? TW_LOSSLESS_CUDA_ESCAPED | context << 9 | coded
                                                  : context << 5 | symbol);
}

/** Call put(bits, index among coded elements, expectation) for all elements that are coded. */
template <int TYPE, class PUT>
TW_DEVICE void tw_lossless_gather(const tw_lossless_cuda_job_t &job, const PUT &put)
{
    tw_lossless_cursor cursor = {0, 0, 0};
    for (uint32_t r = tw_entropy_warp(); job.state->coded && r < job.n_rows; r += tw_entropy_warps()) {
        const tw_lossless_cuda_piece_t &piece = tw_lossless_piece_of_row(job, job.n_pieces, r);
        const uint16_t value = job.rows[r];
        if (value == TW_LOSSLESS_DEAD) {
            continue;
        }
        const tw_lossless_row row = tw_lossless_row_at(piece, r - piece.first_row);
        const uint32_t x = piece.first_live + job.live_before[r];
        const int16_t *columns = tw_lossless_columns_of(job, piece, row);
        tw_lossless_read_row<tw_lossless_element<TYPE>::bytes>(
            job, row, cursor, [&](uint32_t i, uint32_t bits) {
                put(bits, x + i, columns ? tw_lossless_expected(value, columns[i]) : value);
            });
    }
}

template <int TYPE>
struct tw_lossless_kernel_gather {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        using element = tw_lossless_element<TYPE>;
        tw_lossless_gather<TYPE>(job, [&](uint32_t bits, uint32_t x, uint16_t expected) {
            job.heads[x] = element::head(bits);
            job.codes[x] = tw_lossless_code(element::head(bits), expected);
            if (TYPE != TW_TYPE_BF16) {
                job.tails[x] = element::tail(bits);
            }
        });
    }
};

/** Byte j of the bytes that hold a block's 7 bits (see lossless.h). */
TW_DEVICE uint32_t tw_lossless_raw_byte(const uint16_t *heads, uint32_t n, uint32_t j)
{
    uint32_t first = j / TW_LOSSLESS_RAW_BYTES * 32, k = j % TW_LOSSLESS_RAW_BYTES;
    uint32_t last = first + TW_LOSSLESS_RAW_BYTES + k / 7;
    if (first + k >= n) {
        return 0;
    }
    uint32_t high = last < n ? (uint32_t)tw_lossless_raw(heads[last]) >> k % 7 & 1 : 0;
    return tw_lossless_raw(heads[first + k]) | high << 7;
}

/** The bit of a head that is bit `bit` of its 7 bits. */
TW_DEVICE uint32_t tw_lossless_raw_bit(uint16_t head, uint32_t bit)
{
    return (uint32_t)head >> (bit < 6 ? bit : 15) & 1;
}

/** Bytes k and k + 1 of a whole group's 7 bits; k is even. heads: the group's, aligned to 4 bytes. */
TW_DEVICE uint32_t tw_lossless_raw_of_group(const uint16_t *heads, uint32_t k)
{
    const uint16_t *last = heads + TW_LOSSLESS_RAW_BYTES;
    const uint32_t two = tw_dev_load_element<4>(heads + k);
    const uint32_t bits = (two & 0x3f003f) | (two >> 9 & 0x400040); /* of both */
    return (bits & 0x7f) | (bits >> 8 & 0x7f00) | tw_lossless_raw_bit(last[k / 7], k % 7) << 7 |
           tw_lossless_raw_bit(last[(k + 1) / 7], (k + 1) % 7) << 15;
}

/** The two bytes of the 7 bits with which lane number `pair` begins; 0 past their end. */
TW_DEVICE uint32_t tw_lossless_raw_pair(const uint16_t *heads, uint32_t n, uint32_t pair)
{
    return tw_lossless_raw_byte(heads, n, 2 * pair) | tw_lossless_raw_byte(heads, n, 2 * pair + 1) << 8;
}

/** The number of bytes of the 7 bits that are not in lanes. */
TW_DEVICE uint32_t tw_lossless_raw_part_bytes(uint32_t n)
{
    size_t bytes = tw_lossless_raw_bytes(n);
    return (uint32_t)(bytes - tw_lossless_raw_in_lanes(bytes));
}

/** Code blocks, one warp for each: lane i has elements i, 32 + i and so on, as in the format. A step is 80
 *  PTX instructions with two ballots. Elements are loaded ahead, so steps wait only for the state. */
struct tw_lossless_kernel_code {
    /** A block to be coded. */
    struct block_t {
        uint32_t n, lane;
        const uint16_t *codes, *heads, *tails;
    };

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        __shared__ uint64_t encode[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS];
        const tw_lossless_cuda_state_t *state = job.state;
        const uint32_t b = blockIdx.x, lane = threadIdx.x;
        if (!state->coded || b >= state->n_blocks) {
            return;
        }
        for (uint32_t i = lane; i < TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS; i += 32) {
            encode[i] = job.encode[i];
        }
        __syncthreads();
        const size_t first = (size_t)b * TW_LOSSLESS_BLOCK_ELEMS;
        const block_t block = {tw_entropy_block_elems(state->n_live, b), lane, job.codes + first,
                               job.heads + first, job.tails + first};
        const uint32_t fixed = tw_lossless_raw_part_bytes(block.n) + TW_ENTROPY_LANES_BYTES;
        uint16_t *words = job.words + (size_t)b * tw_lossless_cuda_room(&job);
        const tw_entropy_encoder begin = {
            words, words + tw_lossless_cuda_room(&job),
            0,     TW_ENTROPY_START | tw_lossless_raw_pair(block.heads, block.n, lane),
            0,     0};
        tw_entropy_encoder coder = begin;
        uint32_t tails = state->tails.tailed
                             ? list_tails(job, block, job.listed + (size_t)b * TW_LOSSLESS_CUDA_LISTED)
                             : TW_LOSSLESS_TAILS_RAW;
        if (tails == TW_LOSSLESS_TAILS_CODED && !code_tails(job, block, coder)) {
            tails = TW_LOSSLESS_TAILS_RAW;
            coder = begin;
        }
        bool fits = finish(block, encode, tails, fixed, coder);
        if (!fits && tails == TW_LOSSLESS_TAILS_CODED) { /* code heads alone if both do not fit */
            tails = TW_LOSSLESS_TAILS_RAW;
            coder = begin;
            fits = finish(block, encode, tails, fixed, coder);
        }
        job.lanes[b * TW_ENTROPY_LANES + lane] = coder.x;
        if (lane == 0) {
            job.blocks[b].sizes = fits ? coder.n_words | coder.n_escapes << 16 : TW_ENTROPY_RAW;
            job.block_tails[b] = tails;
        }
    }

    /** List the tails that are not 0, if they are few. Returns `tails` for the entry if heads are coded. */
    static TW_DEVICE uint32_t list_tails(const tw_lossless_cuda_job_t &job, const block_t &block,
                                         uint16_t *listed)
    {
        uint32_t n = 0, most = block.n / TW_LOSSLESS_LISTED;
        for (uint32_t i = 0; i < block.n && n <= most; i += 32) {
            uint32_t at = i + block.lane, tail = at < block.n ? block.tails[at] : 0;
            uint32_t some = tw_dev_ballot(tail != 0), own = n + tw_dev_popc(some & ((1u << block.lane) - 1));
            if (tail && own < most) {
                listed[2 * own] = (uint16_t)at;
                listed[2 * own + 1] = (uint16_t)tail;
            }
            n += tw_dev_popc(some);
        }
        return n <= most ? n : job.state->tails.n_tables ? TW_LOSSLESS_TAILS_CODED : TW_LOSSLESS_TAILS_RAW;
    }

    static TW_DEVICE bool code_tails(const tw_lossless_cuda_job_t &job, const block_t &block,
                                     tw_entropy_encoder &coder)
    {
        const uint32_t first = TW_LOSSLESS_TAIL_CONTEXTS - job.state->tails.n_tables;
        bool fits = true;
        coder.room = block.n - 1;
        for (uint32_t i = 0; fits && i < block.n; i += 32) {
            const uint32_t at = i + block.lane;
            const bool there = at < block.n;
            const uint32_t code = there ? block.codes[at] : 0, tail = there ? block.tails[at] : 0;
            const uint32_t head_symbol =
                code & TW_LOSSLESS_CUDA_ESCAPED ? TW_ENTROPY_ESCAPE : code % TW_ENTROPY_SYMBOLS;
            const uint32_t symbol = tw_lossless_tail_symbol((uint16_t)tail);
            const uint64_t entry =
                job.encode_tails[tw_lossless_tail_context(head_symbol, first) * TW_ENTROPY_SYMBOLS + symbol];
            const bool raw = there && !(entry >> 31 & 1);
            fits = tw_entropy_push_raw_warp(coder, raw ? tw_lossless_tail_raw_bits(symbol) : 0,
                                            raw ? tail >> symbol >> 1 : 0) &&
                   tw_entropy_push_warp(coder, there, entry, 0, 0, [&] { return tail; });
        }
        return fits;
    }

    /** Code heads, after tails. Returns false if the block would not be shorter than a raw one. */
    static TW_DEVICE bool finish(const block_t &block, const uint64_t *encode, uint32_t tails, uint32_t fixed,
                                 tw_entropy_encoder &coder)
    {
        const uint32_t without = tails == TW_LOSSLESS_TAILS_CODED ? 4 * block.n : 2 * block.n;
        coder.room = fixed < without ? (without - fixed - 1) / 2 : 0;
        return fixed < without && code_heads(block, encode, coder) &&
               tw_lossless_sizes_fit(coder.n_words, coder.n_escapes);
    }

    static TW_DEVICE bool code_heads(const block_t &block, const uint64_t *encode, tw_entropy_encoder &coder)
    {
        return tw_entropy_walk<false>(
            block.codes, block.n, [] {},
            [&](uint32_t at, bool there, uint32_t code) {
                return tw_entropy_push_warp(coder, there, encode[index_of(code)], 0, 0,
                                            [&] { return tw_lossless_coded(block.heads[at]); });
            });
    }

    /** The index of a code's entry in `encode`. Symbols that a table lacks have the escape's entry. */
    static TW_DEVICE uint32_t index_of(uint32_t code)
    {
        const uint32_t context = code >> 9 & (TW_LOSSLESS_CONTEXTS - 1);
        return code & TW_LOSSLESS_CUDA_ESCAPED ? context * TW_ENTROPY_SYMBOLS + TW_ENTROPY_ESCAPE : code;
    }
};

/** Bytes of a block of n elements. `sizes` and `tails` are those of its entry. */
TW_DEVICE uint32_t tw_lossless_block_bytes(const tw_lossless_cuda_job_t &job, uint32_t sizes, uint32_t tails,
                                           uint32_t n)
{
    uint32_t coded = 2 * (sizes & 0xffff) + TW_ENTROPY_LANES_BYTES + 2 * (sizes >> 16);
    if (job.dithered) {
        return sizes == TW_ENTROPY_RAW ? n * (job.type == TW_TYPE_FP32 ? 4 : 2) : coded + 2 * tails;
    }
    return (sizes == TW_ENTROPY_RAW ? 2 * n : coded + tw_lossless_raw_part_bytes(n)) +
           (uint32_t)tw_lossless_tail_bytes(job.type, n, tails);
}

struct tw_lossless_kernel_layout {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_state_t *state = job.state;
        uint64_t at = sizeof(tw_lossless_header_t) + state->head_bytes;
        const uint32_t coded = state->coded, n_blocks = coded ? state->n_blocks : 0;
        at = tw_entropy_place(job.blocks, n_blocks, at, [&](uint32_t b) {
            const uint32_t sizes = job.blocks[b].sizes, n = tw_entropy_block_elems(state->n_live, b);
            return tw_entropy_cuda_block_t{sizes, 0, 0,
                                           tw_lossless_block_bytes(job, sizes, job.block_tails[b], n)};
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            state->coded = coded && at <= job.bound;
            state->bytes = (uint32_t)(state->coded ? at : job.bound);
        }
    }
};

/* ---- the message --------------------------------------------------------------------------------------- */

/** Gives 16-bit words of a block, for assemble. ecdq uses it for coded blocks. */
struct tw_lossless_block_words {
    const tw_lossless_cuda_job_t &job;
    uint32_t block, n, sizes, in_lanes, raw_end, words_end, lanes_end, heads_end;

    TW_DEVICE tw_lossless_block_words(const tw_lossless_cuda_job_t &of_job, uint32_t of_block)
        : job(of_job), block(of_block), n(tw_entropy_block_elems(of_job.state->n_live, of_block)),
          sizes(of_job.blocks[of_block].sizes)
    {
        in_lanes = (uint32_t)tw_lossless_raw_in_lanes(tw_lossless_raw_bytes(n));
        raw_end = job.dithered ? 0 : tw_lossless_raw_part_bytes(n) / 2;
        words_end = raw_end + (job.dithered ? job.block_tails[block] : 0) + (sizes & 0xffff);
        lanes_end = words_end + TW_ENTROPY_LANES_BYTES / 2;
        heads_end = sizes == TW_ENTROPY_RAW ? n : lanes_end + (sizes >> 16);
    }

    /** Write a coded block's first words: those of the 7 bits that are not in lanes, and the coder's words.
     *  This is thread `own` of `threads`. Adds to *check. Returns how many words these are. */
    TW_DEVICE uint32_t put_first(uint8_t *to, uint32_t own, uint32_t threads, uint32_t *check) const
    {
        const uint16_t *words = job.words + (size_t)block * tw_lossless_cuda_room(&job);
        if (sizes == TW_ENTROPY_RAW) {
            return 0;
        }
        if (raw_end > 0) {
            put_raw(to, own / 32, threads / 32, check);
        }
        for (uint32_t w = raw_end + own; w < words_end; w += threads) {
            put(to, w, words[w - raw_end], check);
        }
        return words_end;
    }

    /** Write the words of the 7 bits. Lanes 0 to 27 of each of `warps` warps write two groups' at a time. */
    TW_DEVICE void put_raw(uint8_t *to, uint32_t warp, uint32_t warps, uint32_t *check) const
    {
        const uint32_t lane = tw_entropy_lane(), each = TW_LOSSLESS_RAW_BYTES / 2, own = lane % each;
        const uint16_t *heads = job.heads + (size_t)block * TW_LOSSLESS_BLOCK_ELEMS;
        for (uint32_t g = 2 * warp + lane / each; lane < 2 * each && 32 * g < n; g += 2 * warps) {
            const uint32_t w = g * each + own - in_lanes / 2; /* wraps around for what is in lanes */
            if (w < raw_end) {
                put(to, w,
                    32 * g + 32 <= n ? tw_lossless_raw_of_group(heads + 32 * g, 2 * own)
                                     : tw_lossless_raw_pair(heads, n, w + in_lanes / 2),
                    check);
            }
        }
    }

    static TW_DEVICE void put(uint8_t *to, uint32_t w, uint32_t word, uint32_t *check)
    {
        tw_dev_store_element<2>(to + 2 * (size_t)w, word);
        *check += tw_entropy_check(w, (uint16_t)word);
    }

    /** Word w; of a coded block one that put_first has not written. */
    TW_DEVICE uint32_t at(uint32_t w) const
    {
        if (w >= heads_end) {
            return tail(w - heads_end);
        }
        if (sizes == TW_ENTROPY_RAW) {
            return head(w);
        }
        if (w < lanes_end) {
            uint32_t lane = w - words_end;
            return job.lanes[block * TW_ENTROPY_LANES + lane / 2] >> 16 * (lane % 2) & 0xffff;
        }
        const size_t end = ((size_t)block + 1) * tw_lossless_cuda_room(&job);
        return job.words[end - 1 - (w - lanes_end)];
    }

    TW_DEVICE uint16_t head(uint32_t i) const
    {
        return job.heads[(size_t)block * TW_LOSSLESS_BLOCK_ELEMS + i];
    }

    TW_DEVICE uint32_t tail(uint32_t w) const
    {
        const uint16_t *tails = job.tails + (size_t)block * TW_LOSSLESS_BLOCK_ELEMS;
        if (job.type == TW_TYPE_FP32) {
            return job.block_tails[block] == TW_LOSSLESS_TAILS_RAW
                       ? tails[w]
                       : job.listed[(size_t)block * TW_LOSSLESS_CUDA_LISTED + w];
        }
        /* fp16: a group has 3 words of 32 bits; word k has bit k of each element's tail. */
        uint32_t first = w / 6 * 32 + w % 2 * 16, bit = w % 6 / 2, word = 0;
        for (uint32_t k = 0; k < 16 && first + k < n; k++) {
            word |= (uint32_t)(tails[first + k] >> bit & 1) << k;
        }
        return word;
    }
};

/** Writes the message. An object WORDS(job, block) gives the 16-bit words of a block. */
template <int TYPE, class WORDS>
struct tw_lossless_assemble {
    static const uint32_t step = TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        uint32_t block = blockIdx.x / TW_ENTROPY_CUDA_PARTS,
                 first = blockIdx.x % TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
        if (!job.state->coded) {
            plain(job);
        } else if (block < job.state->n_blocks) {
            coded(job, block, first);
        }
    }

    static TW_DEVICE void coded(const tw_lossless_cuda_job_t &job, uint32_t block, uint32_t first)
    {
        WORDS words(job, block);
        uint8_t *to = job.dst + job.blocks[block].offset;
        uint32_t check = 0, written = words.put_first(to, first, step, &check);
        for (uint32_t w = written + first; w < job.blocks[block].bytes / 2; w += step) {
            tw_lossless_block_words::put(to, w, words.at(w), &check);
        }
        tw_entropy_add(&job.blocks[block].check, check);
    }

    /** Copy all elements as they are. */
    static TW_DEVICE void plain(const tw_lossless_cuda_job_t &job)
    {
        const uint32_t bytes = tw_lossless_element<TYPE>::bytes;
        uint8_t *to = job.dst + sizeof(tw_lossless_header_t);
        tw_lossless_cursor cursor = {0, 0, 0};
        uint32_t check = 0;
        for (uint32_t e = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; e < job.n_elems;
             e += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
            uint32_t bits = tw_lossless_load<bytes>(job, e, cursor);
            tw_dev_store_element<bytes>(to + (size_t)e * bytes, bits);
            if (bytes == 4) {
                check += tw_entropy_check(2 * (size_t)e, (uint16_t)bits) +
                         tw_entropy_check(2 * (size_t)e + 1, (uint16_t)(bits >> 16));
            } else {
                check += tw_entropy_check(e, (uint16_t)bits);
            }
        }
        tw_entropy_add(&job.state->check, check);
    }
};

template <int TYPE>
struct tw_lossless_kernel_assemble : tw_lossless_assemble<TYPE, tw_lossless_block_words> {
};

struct tw_lossless_kernel_finish {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_state_t *state = job.state;
        uint8_t *head = job.dst + sizeof(tw_lossless_header_t);
        if (state->coded) {
            const size_t entry_bytes = tw_lossless_entry_bytes(state->tails.tailed);
            uint8_t *entries = head + state->head_bytes - state->n_blocks * entry_bytes;
            for (uint32_t b = threadIdx.x; b < state->n_blocks; b += TW_ENTROPY_CUDA_THREADS) {
                uint8_t *entry = entries + b * entry_bytes;
                tw_entropy_put32(entry, job.blocks[b].sizes);
                tw_entropy_put32(entry + 4, job.blocks[b].check);
                if (state->tails.tailed) {
                    tw_entropy_put32(entry + 8, job.block_tails[b]);
                }
            }
            __syncthreads();
            tw_entropy_add(&state->check, tw_entropy_check_words<true>(head, state->head_bytes / 2,
                                                                       threadIdx.x, TW_ENTROPY_CUDA_THREADS));
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            header(job, *state);
            if (job.outcome) {
                job.outcome->bytes = state->bytes;
                job.outcome->status = TW_OK;
            }
        }
    }

    static TW_DEVICE void header(const tw_lossless_cuda_job_t &job, const tw_lossless_cuda_state_t &state)
    {
        uint8_t *to = job.dst;
        to[0] = job.dithered ? TW_ECDQ_MAGIC : TW_LOSSLESS_MAGIC;
        to[1] = job.dithered ? TW_ECDQ_VERSION : TW_LOSSLESS_VERSION;
        to[2] = (uint8_t)job.type;
        to[3] = (uint8_t)(!state.coded         ? TW_LOSSLESS_PLAIN
                          : state.tails.tailed ? TW_LOSSLESS_TAILED
                                               : TW_LOSSLESS_CODED);
        tw_entropy_put32(to + 4, state.bytes);
        tw_entropy_put32(to + 8, job.n_elems);
        tw_entropy_put32(to + 12, state.check);
    }
};
