/** Part of attention.cuh: rows in shared memory and products on tensor cores, for the bf16 kernels.
 *
 *  A block takes 128 rows of one or two matrices, 16 per warp, and keeps them in registers. It loops over
 *  tiles of two other matrices, which all warps read from shared memory. There is one barrier a tile; while a
 *  tile is used, the next is copied. A product's result is in the registers in which the next product needs
 *  its first factor (fragments.cuh). These results, probabilities and gradients of scores, are rounded to
 *  bf16 as in FlashAttention-2; all sums are fp32. A warp skips a tile if its rows attend to none of it, and
 *  tests no masks if they attend to all of it. Heads of widths other than 64, 80, 96 and 128 are padded with
 *  zeros.
 *
 *  Registers on sm_90, from the compiler's report; 8 warps a block:
 *
 *                registers at D = 64, 80, 96, 128    blocks per multiprocessor
 *    forward     128, 128, 164, 170                  2, 2, 1, 1
 *    dq          144, 188, 206, 225                  1
 *    dk, dv      175, 226, 243, 255                  1
 *
 *  A thread spills 24 bytes in forward at D = 80, which lets two blocks fit. It spills 32 for dk, dv at 128.
 *
 *  Registers are the limit: shared memory, 18 to 37 KB, would allow six blocks. With one block two warps
 *  share a quarter of the multiprocessor; each has at least four independent products at a time.
 *
 *  A product of 16 x 8 x 16 is 4096 FLOPs, for which a warp reads 256 bytes of shared memory. A
 *  multiprocessor reads 128 bytes a clock, enough for 2048 FLOPs a clock: half of the tensor cores' peak on
 *  sm_90, all of it on sm_80. On sm_90 mma.sync reaches some 60 % of the peak (arXiv 2402.13499); more needs
 *  wgmma, which reads factors from shared memory. From the L2 cache a block in forward reads 4 TILE D bytes a
 *  tile for 128 TILE D * 4 FLOPs: 128 FLOPs a byte. */
#pragma once

#include "trainer/cuda/attention_head.cuh"

namespace tw_trainer_kernels
{

constexpr uint32_t mma_width_max = 128;
constexpr uint32_t square = 16;               /* rows of a warp; inner dimension of one mma instruction */
constexpr uint32_t mma_rows = square * warps; /* rows of a block */
constexpr float log2_e = 1.44269504f;

/** Elements from a row of shared memory to the next: an odd multiple of 16 bytes, so that eight neighbouring
 *  rows are in different banks. */
template <uint32_t COLUMNS>
constexpr uint32_t mma_pitch = COLUMNS + octet_elems;

/** A block's shared memory: first its own rows, until they are in registers, then two pairs of tiles in turn.
 *  37 KB for COLUMNS 64 and TILE 64, 18 KB for 64 and 32, 35 KB for 128 and 32. */
template <uint32_t COLUMNS, uint32_t TILE>
struct alignas(16) MmaShared {
    union {
        Bf16 rows[mma_rows * mma_pitch<COLUMNS>];
        Bf16 tiles[2][2][TILE * mma_pitch<COLUMNS>];
    };
};

/** Begin to copy ROWS rows from `first` on. Rows past the sequence's end, and columns beyond D, become 0. All
 *  threads call it. The copy is complete after tw_dev_copy_wait and a barrier. */
template <uint32_t COLUMNS, uint32_t ROWS>
TW_DEVICE void begin_rows(const AttentionHead<Bf16> &head, Rows rows, uint32_t first, Bf16 *to)
{
    constexpr uint32_t octets = COLUMNS / octet_elems;
    const bool is_whole = head.a.aligned && first + ROWS <= head.seq_len && head.width == COLUMNS;
    TW_UNROLL
    for (uint32_t i = threadIdx.x; is_whole && i < ROWS * octets; i += threads) {
        const uint32_t row = i / octets, column = i % octets * octet_elems;
        const Bf16 *from = (const Bf16 *)rows.at + (first + row) * rows.stride + column;
        tw_dev_copy_begin<16>(to + row * mma_pitch<COLUMNS> + column, from);
    }
    for (uint32_t i = threadIdx.x; !is_whole && i < ROWS * octets; i += threads) {
        const uint32_t row = i / octets, column = i % octets * octet_elems;
        float values[octet_elems];
        load_inside<Bf16>(rows, first + row, head.seq_len, column, head.width, head.a.aligned, values);
        store_octet(values, to + row * mma_pitch<COLUMNS> + column);
    }
}

/** Return the lane's address in a 16 x 16 square of shared memory for tw_dev_load_squares, which loads four 8
 *  x 8 squares. squares_down orders these down first, then across: for factor a, and for a factor b that is
 *  loaded transposed. squares_across orders them across first: for a b whose columns are rows in memory. */
template <uint32_t COLUMNS>
TW_DEVICE const Bf16 *squares_down(const Bf16 *at)
{
    const uint32_t lane = threadIdx.x % warp_lanes;
    return at + lane % square * mma_pitch<COLUMNS> + lane / square * octet_elems;
}

template <uint32_t COLUMNS>
TW_DEVICE const Bf16 *squares_across(const Bf16 *at)
{
    const uint32_t lane = threadIdx.x % warp_lanes;
    return at + (lane % 8 + lane / square * 8) * mma_pitch<COLUMNS> + lane / 8 % 2 * octet_elems;
}

/** The warp's 16 rows as factor a of products. */
template <uint32_t COLUMNS>
struct MmaRows {
    uint32_t at[COLUMNS / square][4];
};

/** A warp's fp32 result (16,COLUMNS). In lane 4 g + t elements 0 and 1 of at[n] are columns 8 n + 2 t and
 *  8 n + 2 t + 1 of row g; elements 2 and 3 are these columns of row g + 8. */
template <uint32_t COLUMNS>
struct MmaSum {
    float at[COLUMNS / 8][4];
};

/** Loads the block's 128 rows from `first` on by way of `shared`; returns the warp's 16. All threads call
 *  it. */
template <uint32_t COLUMNS>
TW_DEVICE MmaRows<COLUMNS> take_rows(const AttentionHead<Bf16> &head, Rows rows, uint32_t first, Bf16 *shared)
{
    MmaRows<COLUMNS> taken;
    begin_rows<COLUMNS, mma_rows>(head, rows, first, shared);
    tw_dev_copy_wait();
    __syncthreads();
    const Bf16 *own = shared + threadIdx.x / warp_lanes * square * mma_pitch<COLUMNS>;
    TW_UNROLL
    for (uint32_t k = 0; k < COLUMNS / square; k++) {
        tw_dev_load_squares<false>(squares_down<COLUMNS>(own + k * square), taken.at[k]);
    }
    __syncthreads();
    return taken;
}

/** Returns A B'. A is the warp's 16 rows, B the TILE rows in shared memory. All lanes of the warp call it. */
template <uint32_t COLUMNS, uint32_t TILE>
TW_DEVICE MmaSum<TILE> multiply_rows(const MmaRows<COLUMNS> &a, const Bf16 *b)
{
    MmaSum<TILE> sum = {};
    TW_UNROLL
    for (uint32_t k = 0; k < COLUMNS / square; k++) {
        TW_UNROLL
        for (uint32_t n = 0; n < TILE / square; n++) {
            uint32_t words[4];
            tw_dev_load_squares<false>(
                squares_across<COLUMNS>(b + n * square * mma_pitch<COLUMNS> + k * square), words);
            tw_dev_mma(a.at[k], words, sum.at[2 * n]);
            tw_dev_mma(a.at[k], words + 2, sum.at[2 * n + 1]);
        }
    }
    return sum;
}

/** Adds A B to sum. A (16,TILE) is the warp's, and is rounded to bf16; B is the TILE rows in shared memory.
 *  All lanes of the warp call it. */
template <uint32_t COLUMNS, uint32_t TILE>
TW_DEVICE void add_rows(const MmaSum<TILE> &a, const Bf16 *b, MmaSum<COLUMNS> *sum)
{
    TW_UNROLL
    for (uint32_t k = 0; k < TILE / square; k++) {
        const float *left = a.at[2 * k], *right = a.at[2 * k + 1];
        const uint32_t of_a[] = {tw_dev_pack(left[0], left[1]), tw_dev_pack(left[2], left[3]),
                                 tw_dev_pack(right[0], right[1]), tw_dev_pack(right[2], right[3])};
        TW_UNROLL
        for (uint32_t n = 0; n < COLUMNS / square; n++) {
            uint32_t words[4];
            tw_dev_load_squares<true>(squares_down<COLUMNS>(b + k * square * mma_pitch<COLUMNS> + n * square),
                                      words);
            tw_dev_mma(of_a, words, sum->at[2 * n]);
            tw_dev_mma(of_a, words + 2, sum->at[2 * n + 1]);
        }
    }
}

/* ---- the rows of a lane -------------------------------------------------------------------------------- */

/** The elements of a tile that a lane holds: columns column(n, 0) and column(n, 1), for each n below TILE /
 *  8, of rows row(0) and row(1). */
struct MmaPlace {
    uint32_t warp_first, g, t; /* warp_first: the warp's first row; g, t: see fragments.cuh */

    TW_DEVICE explicit MmaPlace(uint32_t first)
        : warp_first(first + threadIdx.x / warp_lanes * square), g(threadIdx.x % warp_lanes / 4),
          t(threadIdx.x % 4)
    {
    }
    TW_DEVICE uint32_t row(uint32_t i) const
    {
        return warp_first + g + 8 * i;
    }
    TW_DEVICE uint32_t warp_last() const
    {
        return warp_first + square - 1;
    }
    TW_DEVICE uint32_t column(uint32_t n, uint32_t e) const
    {
        return 8 * n + 2 * t + e;
    }
};

/** The queries in a warp's rows, and the keys that they attend to ("see" below). */
template <uint32_t TILE>
struct MmaQueries {
    MmaPlace place;
    uint32_t low[2];      /* the first key that each of the lane's two rows sees */
    uint32_t first, last; /* first keys that the warp's first and last rows see */
    bool exist;

    TW_DEVICE MmaQueries(const AttentionHead<Bf16> &head, uint32_t block_first) : place(block_first)
    {
        const uint32_t end = head.seq_len - 1;
        exist = place.warp_first <= end;
        TW_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            low[i] = place.row(i) <= end ? head.first_seen(place.row(i)) : 0;
        }
        first = exist ? head.first_seen(place.warp_first) : 0;
        last = head.first_seen(place.warp_last() < end ? place.warp_last() : end);
    }
    /** Return true if any of the warp's rows sees any key of the tile. All lanes get the same result. */
    TW_DEVICE bool see_some(uint32_t key) const
    {
        return exist && key <= place.warp_last() && key + TILE > first;
    }
    TW_DEVICE bool see_all(uint32_t key) const
    {
        return key + TILE - 1 <= place.warp_first && key >= last;
    }
    TW_DEVICE bool sees(uint32_t i, uint32_t key) const
    {
        return key <= place.row(i) && key >= low[i];
    }
};

/** Stores the warp's rows of a sum, times factors[i]. */
template <uint32_t COLUMNS>
TW_DEVICE void write_rows(const AttentionHead<Bf16> &head, const MmaPlace &place, const MmaSum<COLUMNS> &sum,
                          const float *factors, Rows rows)
{
    TW_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        Bf16 *to = (Bf16 *)rows.at + place.row(i) * rows.stride;
        TW_UNROLL
        for (uint32_t n = 0; n < COLUMNS / 8; n++) {
            const uint32_t column = place.column(n, 0);
            const float low = factors[i] * sum.at[n][2 * i], high = factors[i] * sum.at[n][2 * i + 1];
            const uint32_t pair = tw_dev_pack(low, high);
            if (place.row(i) >= head.seq_len || column >= head.width) {
                continue;
            }
            if (head.a.aligned) {
                tw_dev_store<4>(to + column, &pair);
                continue;
            }
            to[column].bits = (uint16_t)pair;
            if (column + 1 < head.width) {
                to[column + 1].bits = (uint16_t)(pair >> 16);
            }
        }
    }
}

} // namespace tw_trainer_kernels
