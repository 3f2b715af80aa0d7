/** Finds elements, rows and pieces for the kernels of the lossless codec. */
#pragma once

#include "quant/arithmetic/float.h"
#include "quant/cuda/entropy.cuh"
#include "quant/cuda/lossless_job.h"

/* ---- elements ------------------------------------------------------------------------------------------ */

/** Splits an element's bits into head and tail (see lossless.h), joins them, converts them to a number. */
template <int TYPE>
struct tw_lossless_element {
    static const int bytes = TYPE == TW_TYPE_FP32 ? 4 : 2;

    static TW_DEVICE uint16_t head(uint32_t bits)
    {
        return (uint16_t)(TYPE == TW_TYPE_FP32   ? bits >> 16
                          : TYPE == TW_TYPE_FP16 ? (bits & 0x8000) | (bits & 0x7fff) >> 3
                                                 : bits);
    }
    static TW_DEVICE uint16_t tail(uint32_t bits)
    {
        return (uint16_t)(TYPE == TW_TYPE_FP32 ? bits & 0xffff : TYPE == TW_TYPE_FP16 ? bits & 7 : 0);
    }
    static TW_DEVICE float value(uint32_t bits)
    {
        return TYPE == TW_TYPE_FP32   ? tw_float_of_bits(bits)
               : TYPE == TW_TYPE_BF16 ? tw_float_from_bf16((uint16_t)bits)
                                      : tw_float_from_fp16((uint16_t)bits);
    }
    static TW_DEVICE uint32_t join(uint32_t head, uint32_t tail)
    {
        return TYPE == TW_TYPE_FP32   ? head << 16 | tail
               : TYPE == TW_TYPE_FP16 ? (head & 0x8000) | (head << 3 & 0x7ff8) | (tail & 7)
                                      : head;
    }
};

/** The segment that a thread reads or writes, until tw_lossless_seek gets an element in another one. */
struct tw_lossless_cursor {
    uint64_t first, end, at;
};

TW_DEVICE void tw_lossless_seek(const tw_lossless_cuda_job_t &job, uint64_t element,
                                tw_lossless_cursor &cursor)
{
    if (element - cursor.first < cursor.end - cursor.first) {
        return;
    }
    const tw_lossless_cuda_segment_t *segments = job.segments;
    uint32_t s = tw_entropy_last(job.n_segments, element, [&](uint32_t i) { return segments[i].first; });
    cursor.first = segments[s].first;
    cursor.end = segments[s + 1].first;
    cursor.at = segments[s].at;
}

template <int BYTES>
TW_DEVICE uint32_t tw_lossless_load(const tw_lossless_cuda_job_t &job, uint64_t element,
                                    tw_lossless_cursor &cursor)
{
    tw_lossless_seek(job, element, cursor);
    return tw_dev_load_element<BYTES>((const uint8_t *)(uintptr_t)cursor.at +
                                      (element - cursor.first) * BYTES);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** A row of a piece: n elements from index `element` on. The first one is in column `column`. */
struct tw_lossless_row {
    uint64_t element;
    uint32_t n, column;
};

TW_DEVICE tw_lossless_row tw_lossless_row_at(const tw_lossless_cuda_piece_t &piece, uint32_t row)
{
    uint64_t begin = row ? (uint64_t)row * piece.row_elems - piece.first : 0;
    uint64_t end = ((uint64_t)row + 1) * piece.row_elems - piece.first;
    end = end < piece.n_elems ? end : piece.n_elems;
    return {piece.first_elem + begin, (uint32_t)(end - begin), row ? 0 : piece.first};
}

/** Call use(i, bits) for this lane's elements of a row, i their indices in the row. Most rows lie in one
 *  segment, whose address is found once. */
template <int BYTES, class USE>
TW_DEVICE void tw_lossless_read_row(const tw_lossless_cuda_job_t &job, const tw_lossless_row &row,
                                    tw_lossless_cursor &cursor, const USE &use)
{
    tw_lossless_seek(job, row.element, cursor);
    const uint8_t *at = (const uint8_t *)(uintptr_t)cursor.at + (row.element - cursor.first) * BYTES;
    const uint64_t left = cursor.end - row.element;
    const uint32_t here = left < row.n ? (uint32_t)left : row.n;
    uint32_t i = tw_entropy_lane();
    for (; i < here; i += 32) {
        use(i, tw_dev_load_element<BYTES>(at + (size_t)i * BYTES));
    }
    for (; i < row.n; i += 32) {
        use(i, tw_lossless_load<BYTES>(job, row.element + i, cursor));
    }
}

/** The piece of a row. `row` counts all rows of the message. */
TW_DEVICE tw_lossless_cuda_piece_t &tw_lossless_piece_of_row(const tw_lossless_cuda_job_t &job,
                                                             uint32_t n_pieces, uint32_t row)
{
    tw_lossless_cuda_piece_t *pieces = job.pieces;
    return pieces[tw_entropy_last(n_pieces, row, [&](uint32_t i) { return pieces[i].first_row; })];
}

/** Where coded element x is: its piece, its index among all elements, its row's value and its column. */
struct tw_lossless_place {
    const tw_lossless_cuda_piece_t &piece;
    uint64_t element;
    uint16_t row;
    uint32_t column;
};

TW_DEVICE tw_lossless_place tw_lossless_place_of(const tw_lossless_cuda_job_t &job, uint32_t x)
{
    const tw_lossless_cuda_piece_t *pieces = job.pieces;
    const tw_lossless_cuda_piece_t &piece =
        pieces[tw_entropy_last(job.n_pieces, x, [&](uint32_t i) { return pieces[i].first_live; })];
    const uint32_t *before = job.live_before + piece.first_row, in_piece = x - piece.first_live;
    uint32_t r = tw_entropy_last(piece.n_rows, in_piece, [&](uint32_t i) { return before[i]; });
    tw_lossless_row row = tw_lossless_row_at(piece, r);
    uint32_t i = in_piece - before[r];
    return {piece, row.element + i, job.rows[piece.first_row + r], row.column + i};
}

/** The scales of a row's columns, from its first element's on; NULL without scales of columns. */
TW_DEVICE const int16_t *tw_lossless_columns_of(const tw_lossless_cuda_job_t &job,
                                                const tw_lossless_cuda_piece_t &piece,
                                                const tw_lossless_row &row)
{
    return piece.flags & TW_LOSSLESS_FLAG_COLUMNS ? job.columns + piece.first_column + row.column : NULL;
}

/** List the rows of a piece that are not all zeros, and count their elements. The whole thread block, of
 *  THREADS threads, must call it. Ends with a barrier. */
TW_DEVICE void tw_lossless_list_live(const tw_lossless_cuda_job_t &job, tw_lossless_cuda_piece_t &piece)
{
    uint32_t n_live_rows = 0, n_live = 0;
    for (uint32_t base = 0; base < piece.n_rows; base += TW_ENTROPY_CUDA_THREADS) {
        uint32_t r = base + threadIdx.x, rows, elems;
        bool there = r < piece.n_rows, live = there && job.rows[piece.first_row + r] != TW_LOSSLESS_DEAD;
        uint32_t rank = tw_dev_block_scan<uint32_t>(live, &rows);
        uint32_t before = tw_dev_block_scan<uint32_t>(live ? tw_lossless_row_at(piece, r).n : 0, &elems);
        if (there) {
            job.live_before[piece.first_row + r] = n_live + before;
        }
        if (live) {
            job.live_rows[piece.first_row + n_live_rows + rank] = r;
        }
        n_live_rows += rows;
        n_live += elems;
    }
    if (threadIdx.x == 0) {
        piece.n_live_rows = n_live_rows;
        piece.n_live = n_live;
    }
    __syncthreads();
}

TW_DEVICE uint32_t tw_lossless_blocks_of(uint32_t n_live)
{
    return (n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
}

/** Visit all elements, one warp per row: visit(element, index among coded elements, expectation, whether the
 *  warp visits a whole group of 32) for coded elements, dead(element) for elements of rows of zeros. */
template <class VISIT, class DEAD>
TW_DEVICE void tw_lossless_each(const tw_lossless_cuda_job_t &job, uint32_t n_pieces, uint32_t n_rows,
                                const VISIT &visit, const DEAD &dead)
{
    for (uint32_t r = tw_entropy_warp(); r < n_rows; r += tw_entropy_warps()) {
        const tw_lossless_cuda_piece_t &piece = tw_lossless_piece_of_row(job, n_pieces, r);
        const uint16_t value = job.rows[r];
        const tw_lossless_row row = tw_lossless_row_at(piece, r - piece.first_row);
        const uint32_t x = piece.first_live + job.live_before[r];
        const int16_t *columns = tw_lossless_columns_of(job, piece, row);
        uint32_t i = tw_entropy_lane();
        for (; value == TW_LOSSLESS_DEAD && i < row.n; i += 32) {
            dead(row.element + i);
        }
        for (; i < row.n; i += 32) {
            const uint32_t first = i - tw_entropy_lane();
            visit(row.element + i, x + i, columns ? tw_lossless_expected(value, columns[i]) : value,
                  (x + first) % 32 == 0 && row.n - first >= 32);
        }
    }
}
