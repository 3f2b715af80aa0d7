/** The lossless encoder: writes the head, the part of a message before the blocks. */
#pragma once

#include "quant/cuda/lossless_model.cuh"
#include "quant/ecdq/value.h"

/* ---- the head ------------------------------------------------------------------------------------------ */

/** The bytes that a `number` (see lossless.h) takes, and the function that writes them. */
TW_DEVICE uint32_t tw_lossless_number_bytes(uint32_t number)
{
    uint32_t bytes = 1;
    for (; number > 0x7f; number >>= 7) {
        bytes++;
    }
    return bytes;
}

template <class PUT>
TW_DEVICE void tw_lossless_put_number(uint32_t number, const PUT &put)
{
    for (; number > 0x7f; number >>= 7) {
        put(number % 0x80 + 0x80);
    }
    put(number);
}

/** Compute the offset of each part of the head, and write the parts that do not belong to a piece. */
struct tw_lossless_kernel_head {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_state_t *state = job.state;
        uint32_t at =
            tw_lossless_cuda_head_at(&job) + TW_LOSSLESS_HEAD_BYTES + tw_lossless_number_bytes(job.n_pieces);
        const uint32_t pieces = at;
        uint32_t zeros = 0;
        uint64_t bits = 0;
        for (uint32_t base = 0; base < job.n_pieces; base += TW_ENTROPY_CUDA_THREADS) {
            uint32_t p = base + threadIdx.x, all_bytes, all_zeros;
            uint64_t all_bits;
            tw_lossless_cuda_piece_t none = {};
            tw_lossless_cuda_piece_t &piece = p < job.n_pieces ? job.pieces[p] : none;
            uint32_t before = tw_dev_block_scan<uint32_t>(p < job.n_pieces ? bytes_of(piece) : 0, &all_bytes);
            uint32_t zeros_before = tw_dev_block_scan<uint32_t>(zeros_of(piece), &all_zeros);
            uint64_t own = 0;
            for (uint32_t k = 0; k < TW_LOSSLESS_CUDA_LISTS; k++) {
                own += piece.lists[k].bits;
            }
            uint64_t bits_before = bits + tw_dev_block_scan<uint64_t>(own, &all_bits);
            piece.offset = at + before;
            piece.zeros_offset = zeros + zeros_before;
            for (uint32_t k = 0; k < TW_LOSSLESS_CUDA_LISTS; k++) {
                piece.lists[k].at = bits_before;
                bits_before += piece.lists[k].bits;
            }
            at += all_bytes;
            zeros += all_zeros;
            bits += all_bits;
        }
        const uint32_t tables = at + zeros;
        uint32_t lists = tables + tw_dev_popc(state->own) * TW_LOSSLESS_TABLE_BYTES;
        lists += state->tails.tailed ? 1 + state->tails.n_tables * TW_LOSSLESS_TAIL_SYMBOLS : 0;
        uint64_t taken = lists + (bits + 7) / 8;
        taken += taken % 2;
        uint64_t head_bytes =
            taken + (uint64_t)state->n_blocks * tw_lossless_entry_bytes(state->tails.tailed);
        bool fits = sizeof(tw_lossless_header_t) + head_bytes <= job.bound;
        for (uint32_t p = threadIdx.x; p < job.n_pieces; p += TW_ENTROPY_CUDA_THREADS) {
            job.pieces[p].zeros_offset += at;
            for (uint32_t k = 0; k < TW_LOSSLESS_CUDA_LISTS; k++) {
                job.pieces[p].lists[k].at += 8 * (uint64_t)lists;
            }
        }
        /* The `write` kernel adds bits to 32-bit words, so all bytes but the tables must be zero first, up to
         * the end of the last such word. */
        const uint64_t zeros_end = taken + (state->n_blocks ? taken % 4 : 0);
        for (uint64_t i = pieces + threadIdx.x; fits && i < zeros_end; i += TW_ENTROPY_CUDA_THREADS) {
            if (i < tables || i >= lists) {
                job.dst[sizeof(tw_lossless_header_t) + i] = 0;
            }
        }
        if (threadIdx.x == 0) {
            state->coded = fits;
            state->head_bytes = fits ? (uint32_t)head_bytes : 0;
            if (fits) {
                write(job, (uint32_t)head_bytes, tables);
            }
        }
    }

    static TW_DEVICE uint32_t bytes_of(const tw_lossless_cuda_piece_t &piece)
    {
        return 1 + tw_lossless_number_bytes(piece.n_elems) + tw_lossless_number_bytes(piece.row_elems) +
               (piece.first ? tw_lossless_number_bytes(piece.first) : 0) + 2;
    }

    static TW_DEVICE uint32_t zeros_of(const tw_lossless_cuda_piece_t &piece)
    {
        return piece.flags & TW_LOSSLESS_FLAG_ZEROS ? (piece.n_rows + 7) / 8 : 0;
    }

    static TW_DEVICE void write(const tw_lossless_cuda_job_t &job, uint32_t head_bytes, uint32_t at)
    {
        const tw_lossless_cuda_state_t *state = job.state;
        uint8_t *head = job.dst + sizeof(tw_lossless_header_t);
        uint8_t *own = head + tw_lossless_cuda_head_at(&job);
        if (job.dithered) {
            tw_entropy_put32(head + 4, job.key[0]);
            tw_entropy_put32(head + 8, job.key[1]);
            tw_entropy_put16(head + 12, (uint8_t)job.step);
            tw_entropy_put32(own, 0);
        }
        tw_entropy_put32(head, head_bytes);
        own[4] = (uint8_t)(state->window / 4);
        own[5] = (uint8_t)state->own;
        uint8_t *number = own + TW_LOSSLESS_HEAD_BYTES;
        tw_lossless_put_number(job.n_pieces, [&](uint32_t byte) { *number++ = (uint8_t)byte; });
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            for (uint32_t i = 0; state->own >> c & 1 && i < TW_LOSSLESS_TABLE_BYTES; i++) {
                head[at++] = state->tables[c][i];
            }
        }
        if (state->tails.tailed) {
            head[at++] = (uint8_t)state->tails.n_tables;
            for (uint32_t i = 0; i < state->tails.n_tables * TW_LOSSLESS_TAIL_SYMBOLS; i++) {
                head[at++] = ((const uint8_t *)state->tails.tables)[i];
            }
        }
    }
};

/** Adds bits to the message with atomics on 32-bit words, because other threads may add to the same words. */
struct tw_lossless_bits {
    uint32_t *word;
    uint32_t n;
    uint64_t bits;

    TW_DEVICE tw_lossless_bits(const tw_lossless_cuda_job_t &job, uint64_t at)
        : word((uint32_t *)(job.dst + sizeof(tw_lossless_header_t)) + at / 32), n((uint32_t)(at % 32)),
          bits(0)
    {
    }

    /** Add the lowest `count` bits of a value, 32 at most. */
    TW_DEVICE void put(uint32_t value, uint32_t count)
    {
        bits |= (uint64_t)value << n;
        n += count;
        if (n >= 32) {
            flush();
        }
    }

    TW_DEVICE void flush()
    {
        if ((uint32_t)bits) {
            atomicOr(word, (uint32_t)bits);
        }
        word++;
        bits >>= 32;
        n -= n < 32 ? n : 32;
    }
};

/** Write a piece's part of the head, then move the scales of its rows by the window. */
struct tw_lossless_kernel_write {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_piece_t &piece = job.pieces[blockIdx.x];
        const int32_t window = job.state->window;
        if (!job.state->coded) {
            return;
        }
        if (threadIdx.x == 0) {
            sizes(job, piece, window);
        }
        if (piece.flags & TW_LOSSLESS_FLAG_ZEROS) {
            zeros(job, piece);
        }
        if (piece.flags & TW_LOSSLESS_FLAG_SCALES) {
            list<TW_LOSSLESS_OF_ROWS>(job, piece);
        }
        if (piece.flags & TW_LOSSLESS_FLAG_CLASSES) {
            list<TW_LOSSLESS_OF_CLASSES>(job, piece);
        }
        if (piece.flags & TW_LOSSLESS_FLAG_COLUMNS) {
            list<TW_LOSSLESS_OF_COLUMNS>(job, piece);
        }
        __syncthreads();
        for (uint32_t r = threadIdx.x; r < piece.n_rows; r += TW_ENTROPY_CUDA_THREADS) {
            uint16_t &row = job.rows[piece.first_row + r];
            row = row == TW_LOSSLESS_DEAD ? row
                  : job.dithered          ? tw_ecdq_moved_row(row, job.step)
                                          : (uint16_t)(row + window);
        }
    }

    static TW_DEVICE void sizes(const tw_lossless_cuda_job_t &job, const tw_lossless_cuda_piece_t &piece,
                                int32_t window)
    {
        tw_lossless_bits bits(job, 8 * (uint64_t)piece.offset);
        const auto put = [&](uint32_t byte) { bits.put(byte, 8); };
        put(piece.flags | piece.row_class << TW_LOSSLESS_FLAG_BITS);
        tw_lossless_put_number(piece.n_elems, put);
        tw_lossless_put_number(piece.row_elems, put);
        if (piece.first) {
            tw_lossless_put_number(piece.first, put);
        }
        bits.put((uint32_t)(piece.scale + window) & 0xffff, 16);
        bits.flush();
    }

    static TW_DEVICE void zeros(const tw_lossless_cuda_job_t &job, const tw_lossless_cuda_piece_t &piece)
    {
        for (uint32_t r = 32 * threadIdx.x; r < piece.n_rows; r += 32 * TW_ENTROPY_CUDA_THREADS) {
            tw_lossless_bits bits(job, 8 * (uint64_t)piece.zeros_offset + r);
            for (uint32_t k = 0; k < 32 && r + k < piece.n_rows; k++) {
                bits.put(job.rows[piece.first_row + r + k] == TW_LOSSLESS_DEAD, 1);
            }
            bits.flush();
        }
    }

    /** Write a list (lossless.h). A thread writes 32 x: x >> k in unary, then low bits, then long x >> k. */
    template <int KIND>
    static TW_DEVICE void list(const tw_lossless_cuda_job_t &job, const tw_lossless_cuda_piece_t &piece)
    {
        const tw_lossless_list<KIND> values(job, piece);
        const uint32_t k = piece.lists[KIND].k, n = (values.n + TW_LOSSLESS_GROUP - 1) / TW_LOSSLESS_GROUP;
        uint64_t at = piece.lists[KIND].at;
        if (threadIdx.x == 0) {
            tw_lossless_bits bits(job, at);
            bits.put(k, TW_LOSSLESS_LIST_K_BITS);
            bits.flush();
        }
        at += TW_LOSSLESS_LIST_K_BITS;
        for (uint32_t base = 0; base < n; base += TW_ENTROPY_CUDA_THREADS) {
            uint32_t first = (base + threadIdx.x) * TW_LOSSLESS_GROUP, own = 0, all;
            uint32_t end = first + TW_LOSSLESS_GROUP < values.n ? first + TW_LOSSLESS_GROUP : values.n;
            for (uint32_t i = first; i < end; i++) {
                own += tw_lossless_folded_bits(values.folded(i), k);
            }
            uint32_t before = tw_dev_block_scan<uint32_t>(own, &all);
            if (first < end) {
                group(values, first, end, k, tw_lossless_bits(job, at + before));
            }
            at += all;
        }
    }

    template <class LIST>
    static TW_DEVICE void group(const LIST &values, uint32_t first, uint32_t end, uint32_t k,
                                tw_lossless_bits bits)
    {
        const uint32_t after = TW_LOSSLESS_LONG_AFTER;
        for (uint32_t i = first; i < end; i++) {
            uint32_t ones = values.folded(i) >> k;
            bits.put((1u << (ones < after ? ones : after)) - 1, ones < after ? ones + 1 : after);
        }
        for (uint32_t i = first; i < end; i++) {
            bits.put(values.folded(i) & ((1u << k) - 1), k);
        }
        for (uint32_t i = first; i < end; i++) {
            uint32_t ones = values.folded(i) >> k;
            if (ones >= after) {
                bits.put(ones, TW_LOSSLESS_LONG_BITS);
            }
        }
        bits.flush();
    }
};
