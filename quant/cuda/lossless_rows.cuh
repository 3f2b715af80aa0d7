/** Where elements, rows and pieces are, for the kernels of the lossless codec. */
#ifndef TW_QUANT_CUDA_LOSSLESS_ROWS_CUH
#define TW_QUANT_CUDA_LOSSLESS_ROWS_CUH

#include "quant/arithmetic/float.h"
#include "quant/cuda/lossless_job.h"

/** The last of n entries whose key is not above x; the first one's is not. */
template <class KEY>
TW_DEVICE uint32_t tw_lossless_last(uint32_t n, uint64_t x, const KEY &key)
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

TW_DEVICE uint32_t tw_lossless_lane()
{
    return threadIdx.x % 32;
}

/** This thread's warp among those of the grid, and how many there are: of kernels with THREADS threads. */
TW_DEVICE uint32_t tw_lossless_warp()
{
    return blockIdx.x * TW_LOSSLESS_CUDA_WARPS + threadIdx.x / 32;
}

TW_DEVICE uint32_t tw_lossless_warps()
{
    return gridDim.x * TW_LOSSLESS_CUDA_WARPS;
}

/** The sum over the warp, in all lanes. */
template <class T>
TW_DEVICE T tw_lossless_total(T value)
{
    TW_UNROLL
    for (uint32_t step = 1; step < 32; step *= 2) {
        value += tw_dev_exchange(value, step);
    }
    return value;
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

/** Bits of an element as a number; heads and tails of them, as in lossless.h. */
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
    static TW_DEVICE uint32_t join(uint32_t head, uint32_t tail)
    {
        return TYPE == TW_TYPE_FP32   ? head << 16 | tail
               : TYPE == TW_TYPE_FP16 ? (head & 0x8000) | (head << 3 & 0x7ff8) | (tail & 7)
                                      : head;
    }
};

/** Where a thread reads or writes: a segment, kept until an element lies in another one. */
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
    uint32_t s = tw_lossless_last(job.n_segments, element, [&](uint32_t i) { return segments[i].first; });
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

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/** A row of a piece: n elements from `element` on, the first one in `column`. */
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

/** The piece of a row of the message. */
TW_DEVICE tw_lossless_cuda_piece_t &tw_lossless_piece_of_row(const tw_lossless_cuda_job_t &job,
                                                             uint32_t n_pieces, uint32_t row)
{
    tw_lossless_cuda_piece_t *pieces = job.pieces;
    return pieces[tw_lossless_last(n_pieces, row, [&](uint32_t i) { return pieces[i].first_row; })];
}

/** What is expected of an element of a row, in the column of this index or, where the piece has no scales of columns, any. */
TW_DEVICE uint16_t tw_lossless_expected_at(const tw_lossless_cuda_job_t &job,
                                           const tw_lossless_cuda_piece_t &piece, uint16_t row,
                                           uint32_t column)
{
    return piece.flags & TW_LOSSLESS_FLAG_COLUMNS
               ? tw_lossless_expected(row, job.columns[piece.first_column + column])
               : row;
}

/** List the rows of a piece that are not all zeros, and count their elements: of the whole thread block, which has THREADS
 *  threads. Ends with a barrier. */
TW_DEVICE void tw_lossless_list_live(const tw_lossless_cuda_job_t &job, tw_lossless_cuda_piece_t &piece)
{
    uint32_t n_live_rows = 0, n_live = 0;
    for (uint32_t base = 0; base < piece.n_rows; base += TW_LOSSLESS_CUDA_THREADS) {
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

/** Elements of a block of the message that are coded. */
TW_DEVICE uint32_t tw_lossless_block_elems(uint32_t n_live, uint32_t block)
{
    uint32_t left = n_live - block * TW_LOSSLESS_BLOCK_ELEMS;
    return left < TW_LOSSLESS_BLOCK_ELEMS ? left : TW_LOSSLESS_BLOCK_ELEMS;
}

TW_DEVICE uint32_t tw_lossless_blocks_of(uint32_t n_live)
{
    return (n_live + TW_LOSSLESS_BLOCK_ELEMS - 1) / TW_LOSSLESS_BLOCK_ELEMS;
}

/* ---- bytes of a message ----------------------------------------------------------------------------------------- */

TW_DEVICE uint32_t tw_lossless_get16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

TW_DEVICE uint32_t tw_lossless_get32(const uint8_t *at)
{
    return tw_lossless_get16(at) | tw_lossless_get16(at + 2) << 16;
}

TW_DEVICE void tw_lossless_put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

TW_DEVICE void tw_lossless_put32(uint8_t *at, uint32_t value)
{
    tw_lossless_put16(at, value);
    tw_lossless_put16(at + 2, value >> 16);
}

/** The checksum of the words from index `first` on, every `step`-th of n: the thread's part of it. `at` is aligned to 2 bytes. */
TW_DEVICE uint32_t tw_lossless_check_words(const uint8_t *at, uint32_t n, uint32_t first, uint32_t step)
{
    uint32_t check = 0;
    for (uint32_t i = first; i < n; i += step) {
        check += tw_entropy_check(i, (uint16_t)tw_dev_load_element<2>(at + 2 * (size_t)i));
    }
    return check;
}

/** Add what the lanes of a warp have to a sum in memory. */
TW_DEVICE void tw_lossless_add(uint32_t *sum, uint32_t value)
{
    value = tw_lossless_total(value);
    if (tw_lossless_lane() == 0) {
        atomicAdd(sum, value);
    }
}

TW_DEVICE void tw_lossless_add(tw_lossless_sum_t *sum, tw_lossless_sum_t value)
{
    value = tw_lossless_total(value);
    if (tw_lossless_lane() == 0 && value) {
        atomicAdd(sum, value);
    }
}

#endif
