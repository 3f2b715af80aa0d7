/** Part of attention.cuh: products of tiles of 64 by 64 in fp32 arithmetic, for attention_scalar.cuh. */
#pragma once

#include "trainer/cuda/attention_head.cuh"

namespace tw_trainer_kernels
{

constexpr uint32_t tile = 64, side = 16, patch = tile / side; /* 16 x 16 threads have 4 x 4 elements each */
constexpr uint32_t quad_elems = 4;
constexpr uint32_t depth = 32;              /* columns of D that a product loads at a time */
constexpr uint32_t depth_pitch = depth + 4; /* row pitch: neighbouring rows are in different banks */
constexpr uint32_t tile_pitch = tile + 4;   /* row pitch of a tile, for the same reason */
constexpr uint32_t pool_elems = 4096;       /* elements of X that add_product loads at a time */

/** The shared memory of a block. */
struct alignas(16) AttentionShared {
    union {
        struct {
            float a[tile * depth_pitch], b[tile * depth_pitch];
        } factors;
        float pool[pool_elems];
    };
    float m[tile * tile_pitch]; /* a tile, transposed */
};

/** One head of one sequence, and the thread's position (x, y) in a tile. */
template <class T>
struct TileHead : AttentionHead<T> {
    uint32_t x, y;

    TW_DEVICE TileHead(const AttentionArgs &args, size_t b, size_t h)
        : AttentionHead<T>(args, b, h), x(threadIdx.x % side), y(threadIdx.x / side)
    {
    }
};

/** Loads four adjacent elements from shared memory, aligned to 16 bytes. */
TW_DEVICE void load_quad(const float *at, float *values)
{
    uint32_t words[quad_elems];
    tw_dev_load_mutable(at, words);
    memcpy(values, words, sizeof(words));
}

TW_DEVICE void store_quad(const float *values, float *at)
{
    uint32_t words[quad_elems];
    memcpy(words, values, sizeof(words));
    tw_dev_store<16>(at, words);
}

/* ---- products of tiles --------------------------------------------------------------------------------- */

/** A thread's 4 x 4 elements of a tile. */
struct Patch {
    float at[patch][patch];
};

/** Returns factor * A B'. A is 64 rows of a (T,D) from a_first on, B is 64 rows of b (T,D) from b_first on.
 *  All threads call it. */
template <class T>
TW_DEVICE Patch multiply_tile(const TileHead<T> &head, AttentionShared *shared, Rows a, uint32_t a_first,
                              Rows b, uint32_t b_first, float factor)
{
    const uint32_t row = threadIdx.x / (depth / octet_elems);
    const uint32_t column = threadIdx.x % (depth / octet_elems) * octet_elems;
    float *to_a = shared->factors.a + row * depth_pitch + column;
    float *to_b = shared->factors.b + row * depth_pitch + column;
    Patch m = {};
    for (uint32_t first = 0; first < head.width; first += depth) {
        float values[octet_elems];
        __syncthreads(); /* no thread still reads the previous factors */
        load_inside<T>(a, a_first + row, head.seq_len, first + column, head.width, head.a.aligned, values);
        store_quad(values, to_a), store_quad(values + quad_elems, to_a + quad_elems);
        load_inside<T>(b, b_first + row, head.seq_len, first + column, head.width, head.a.aligned, values);
        store_quad(values, to_b), store_quad(values + quad_elems, to_b + quad_elems);
        __syncthreads();
        TW_UNROLL
        for (uint32_t d = 0; d < depth; d += quad_elems) {
            float of_a[patch][quad_elems], of_b[patch][quad_elems];
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                load_quad(shared->factors.a + (patch * head.y + i) * depth_pitch + d, of_a[i]);
                load_quad(shared->factors.b + (head.x + side * i) * depth_pitch + d, of_b[i]);
            }
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                TW_UNROLL
                for (uint32_t j = 0; j < patch; j++) {
                    TW_UNROLL
                    for (uint32_t e = 0; e < quad_elems; e++) {
                        m.at[i][j] = tw_dev_fma(of_a[i][e], of_b[j][e], m.at[i][j]);
                    }
                }
            }
        }
    }
    TW_UNROLL
    for (uint32_t i = 0; i < patch; i++) {
        TW_UNROLL
        for (uint32_t j = 0; j < patch; j++) {
            m.at[i][j] *= factor;
        }
    }
    return m;
}

/** A thread's part of the block's sum (64,D), COLUMNS >= D: rows 4 y + i, columns 64 c + 4 x + e. */
template <uint32_t COLUMNS>
struct Sum {
    float at[patch][COLUMNS / side];
};

/** Writes the tile m to shared memory. All threads call it, and may read the tile after the next barrier. */
TW_DEVICE void share_tile(AttentionShared *shared, uint32_t x, uint32_t y, const Patch &m)
{
    __syncthreads();
    TW_UNROLL
    for (uint32_t j = 0; j < patch; j++) {
        const float of_rows[quad_elems] = {m.at[0][j], m.at[1][j], m.at[2][j], m.at[3][j]};
        store_quad(of_rows, shared->m + (x + side * j) * tile_pitch + patch * y);
    }
}

/** Adds M X to sum. M (64,64) is share_tile's tile; X is 64 rows from x_first on. All threads call it. */
template <class T, uint32_t COLUMNS>
TW_DEVICE void add_product(const TileHead<T> &head, AttentionShared *shared, Rows x, uint32_t x_first,
                           Sum<COLUMNS> *sum)
{
    constexpr uint32_t rows_at_once = pool_elems / COLUMNS, octets = COLUMNS / octet_elems;
    for (uint32_t first = 0; first < tile; first += rows_at_once) {
        __syncthreads();
        TW_UNROLL
        for (uint32_t i = threadIdx.x; i < pool_elems / octet_elems; i += threads) {
            float values[octet_elems], *to = shared->pool + i * octet_elems;
            load_inside<T>(x, x_first + first + i / octets, head.seq_len, i % octets * octet_elems,
                           head.width, head.a.aligned, values);
            store_quad(values, to), store_quad(values + quad_elems, to + quad_elems);
        }
        __syncthreads();
        for (uint32_t k = 0; k < rows_at_once; k++) {
            float of_m[patch];
            load_quad(shared->m + (first + k) * tile_pitch + patch * head.y, of_m);
            TW_UNROLL
            for (uint32_t c = 0; c < COLUMNS / tile; c++) {
                float of_x[quad_elems];
                load_quad(shared->pool + k * COLUMNS + c * tile + head.x * quad_elems, of_x);
                TW_UNROLL
                for (uint32_t i = 0; i < patch; i++) {
                    TW_UNROLL
                    for (uint32_t e = 0; e < quad_elems; e++) {
                        float *to = &sum->at[i][c * quad_elems + e];
                        *to = tw_dev_fma(of_m[i], of_x[e], *to);
                    }
                }
            }
        }
    }
}

/** Stores the sum's 64 rows to rows from `first` on. The thread's row i is multiplied by factors[i]. */
template <class T, uint32_t COLUMNS>
TW_DEVICE void write_sum(const TileHead<T> &head, const Sum<COLUMNS> &sum, const float *factors, Rows rows,
                         uint32_t first)
{
    TW_UNROLL
    for (uint32_t i = 0; i < patch; i++) {
        const uint32_t row = first + patch * head.y + i;
        T *to = (T *)rows.at + row * rows.stride;
        TW_UNROLL
        for (uint32_t k = 0; k < COLUMNS / side; k++) {
            const uint32_t column = k / quad_elems * tile + head.x * quad_elems + k % quad_elems;
            if (row < head.seq_len && column < head.width) {
                from_float(factors[i] * sum.at[i][k], to + column);
            }
        }
    }
}

} // namespace tw_trainer_kernels
