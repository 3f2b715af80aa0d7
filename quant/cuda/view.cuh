/** What all kernels share: parameters, a thread's view of a tile, loads and stores of strips of elements and
 *  of encoded strips, the rotation. tiling.h says which thread holds which strips; strip.h has their
 *  arithmetic. The tests compile this file for the CPU, with their own header in place of device.cuh. */
#pragma once

#ifdef __CUDACC__
#include "quant/cuda/device.cuh"
#endif

#include "quant/cuda/job.h"
#include "quant/cuda/plain.h"

template <int WORDS>
struct tw_kernel_launch {
    tw_cuda_args_t args;
    uint64_t words[WORDS]; /**< segments, then lists of pointers: see job.h */
};

/* ---- strips in registers ------------------------------------------------------------------------------- */

using tw_kernel_values = float[TW_STRIP_ELEMS];

template <int KIND>
using tw_kernel_codes = uint32_t[TW_STRIP_CODE_WORDS(KIND)];

template <int TYPE>
using tw_kernel_plain = uint32_t[TW_STRIP_PLAIN_WORDS(TYPE)];

template <int TYPE>
constexpr int tw_kernel_bytes = TYPE == TW_TYPE_FP32 ? 4 : 2; /**< bytes of an element */

/* ---- what a thread looks at ---------------------------------------------------------------------------- */

struct tw_kernel_view {
    const tw_cuda_args_t *args;
    const uint64_t *words;
    const tw_cuda_segment_t *segment;
    tw_cuda_tile_t tile;
    uint32_t lane;
    uint32_t first_strip; /**< the thread's strip in row 0; in row u it is 32 u more */
    bool whole;           /**< all threads have all their rows, and all strips are whole */
};

TW_DEVICE tw_kernel_view tw_kernel_view_tile(const tw_cuda_args_t &args, const uint64_t *words,
                                             uint32_t segment, uint64_t tile)
{
    tw_kernel_view view;
    view.args = &args;
    view.words = words;
    view.segment = (const tw_cuda_segment_t *)words + segment;
    view.tile =
        tw_cuda_tile_at(&args.tiling, &args.out, view.segment->n_elems, tile - view.segment->first_tile);
    view.lane = threadIdx.x % TW_CUDA_WARP;
    view.first_strip = tw_cuda_strip(&args.tiling, threadIdx.x, 0);
    view.whole = view.tile.elems == TW_CUDA_TILE_ELEMS_MAX;
    return view;
}

TW_DEVICE uint32_t tw_kernel_strip(const tw_kernel_view &view, int row)
{
    return view.first_strip + TW_CUDA_WARP * (uint32_t)row;
}

TW_DEVICE bool tw_kernel_has_row(const tw_kernel_view &view, int row)
{
    return (uint32_t)row < view.args->tiling.rows;
}

/** The number of the segment's elements in this thread's strip of a row: 0 to 16. */
TW_DEVICE uint32_t tw_kernel_elems(const tw_kernel_view &view, int row)
{
    return tw_kernel_has_row(view, row) ? tw_cuda_strip_elems(&view.tile, tw_kernel_strip(view, row)) : 0;
}

/* ---- plain memory -------------------------------------------------------------------------------------- */

/** Load the first n elements of a strip, one by one, and set the others to 0. */
template <int TYPE>
TW_DEVICE void tw_kernel_load_elements(const uint8_t *from, uint32_t n, tw_kernel_plain<TYPE> &words)
{
    constexpr int bytes = tw_kernel_bytes<TYPE>, per_word = 4 / bytes;
    for (int w = 0; w < TW_STRIP_PLAIN_WORDS(TYPE); w++) {
        words[w] = 0;
        for (int b = 0; b < per_word; b++) {
            int i = w * per_word + b;
            if ((uint32_t)i < n) {
                words[w] |= tw_dev_load_element<bytes>(from + i * bytes) << (16 * b);
            }
        }
    }
}

template <int TYPE>
TW_DEVICE void tw_kernel_store_elements(uint8_t *to, uint32_t n, const tw_kernel_plain<TYPE> &words)
{
    constexpr int bytes = tw_kernel_bytes<TYPE>, per_word = 4 / bytes;
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        if ((uint32_t)i < n) {
            tw_dev_store_element<bytes>(to + i * bytes, words[i / per_word] >> (16 * (i % per_word)));
        }
    }
}

/** Load a whole, aligned strip. CONSTANT: no thread writes there during the kernel. */
template <int TYPE, bool CONSTANT>
TW_DEVICE void tw_kernel_load_whole(const uint8_t *from, tw_kernel_plain<TYPE> &words)
{
    for (int w = 0; w < TW_STRIP_PLAIN_WORDS(TYPE); w += 4) {
        if constexpr (CONSTANT) {
            tw_dev_load<16>(from + 4 * w, words + w);
        } else {
            tw_dev_load_mutable(from + 4 * w, words + w);
        }
    }
}

/** Load the strips of all rows from `array`, whose first element is the segment's first one. */
template <int TYPE, bool CONSTANT, int ROWS>
TW_DEVICE void tw_kernel_load_rows(const tw_kernel_view &view, const uint8_t *array,
                                   tw_kernel_plain<TYPE> (&words)[ROWS])
{
    constexpr uint32_t strip_bytes = TW_STRIP_ELEMS * tw_kernel_bytes<TYPE>,
                       row_bytes = TW_CUDA_WARP * strip_bytes;
    const uint8_t *from =
        array + view.tile.first_elem * tw_kernel_bytes<TYPE> + view.first_strip * strip_bytes;
    bool aligned = tw_cuda_is_aligned(array);
    if (aligned && view.whole) { /* no branch between the loads */
        TW_UNROLL
        for (int u = 0; u < ROWS; u++) {
            tw_kernel_load_whole<TYPE, CONSTANT>(from + u * row_bytes, words[u]);
        }
        return;
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        uint32_t n = tw_kernel_elems(view, u);
        if (aligned && n == TW_STRIP_ELEMS) {
            tw_kernel_load_whole<TYPE, CONSTANT>(from + u * row_bytes, words[u]);
        } else {
            tw_kernel_load_elements<TYPE>(from + u * row_bytes, n, words[u]);
        }
    }
}

/** Swap parts of strips between neighbouring lanes, so that each store of a warp fills whole sectors of 32
 *  bytes. Of each 8 words, the even lane gets the first 4 of both strips, the odd lane the last 4 of both. */
template <int WORDS>
TW_DEVICE void tw_kernel_swap_quads(uint32_t lane, uint32_t (&words)[WORDS])
{
    bool odd = lane & 1;
    TW_UNROLL
    for (int i = 0; i < WORDS; i++) {
        if (i % 8 >= 4) {
            continue;
        }
        uint32_t other = tw_dev_exchange(odd ? words[i] : words[i + 4], 1);
        words[i] = odd ? other : words[i];
        words[i + 4] = odd ? words[i + 4] : other;
    }
}

/** Store a row's strip into `array`. All lanes of the warp must call it. */
template <int TYPE>
TW_DEVICE void tw_kernel_store(const tw_kernel_view &view, int row, uint8_t *array,
                               const tw_kernel_plain<TYPE> &words)
{
    constexpr int n_words = TW_STRIP_PLAIN_WORDS(TYPE), strip_bytes = 4 * n_words;
    uint32_t strip = tw_kernel_strip(view, row), swapped[n_words];
    uint8_t *to = array + view.tile.first_elem * tw_kernel_bytes<TYPE> + strip * strip_bytes;
    for (int i = 0; i < n_words; i++) {
        swapped[i] = words[i];
    }
    tw_kernel_swap_quads(view.lane, swapped);
    if (!tw_cuda_is_aligned(array) || tw_cuda_strip_elems(&view.tile, strip | 1) != TW_STRIP_ELEMS) {
        tw_kernel_store_elements<TYPE>(to, tw_kernel_elems(view, row), words);
        return;
    }
    /* even lane: the beginning of its strip; odd lane: 16 bytes after the beginning of the even lane's */
    to -= view.lane & 1 ? strip_bytes - 16 : 0;
    TW_UNROLL
    for (int i = 0; i < n_words; i += 8) {
        tw_dev_store<16>(to + 4 * i, swapped + i);
        tw_dev_store<16>(to + 4 * i + strip_bytes, swapped + i + 4);
    }
}

/* ---- encoded memory: `aligned` to 16 bytes or not at all ----------------------------------------------- */

template <int KIND>
TW_DEVICE void tw_kernel_load_codes(const uint8_t *from, bool aligned, tw_kernel_codes<KIND> &codes)
{
    if (aligned) {
        tw_dev_load<2 * TW_CODE_BITS(KIND)>(from, codes);
        return;
    }
    for (int w = 0; w < TW_STRIP_CODE_WORDS(KIND); w++) {
        codes[w] = 0;
        for (int b = 0; b < 4; b++) {
            codes[w] |= tw_dev_load_element<1>(from + 4 * w + b) << (8 * b);
        }
    }
}

template <int KIND>
TW_DEVICE void tw_kernel_store_codes(uint8_t *to, bool aligned, const tw_kernel_codes<KIND> &codes)
{
    if (aligned) {
        tw_dev_store<2 * TW_CODE_BITS(KIND)>(to, codes);
        return;
    }
    for (int i = 0; i < 2 * TW_CODE_BITS(KIND); i++) {
        tw_dev_store_element<1>(to + i, codes[i / 4] >> (8 * (i % 4)));
    }
}

/** Load a scale's bits as they are stored. tw_kernel_scale converts them; it is a separate function because
 *  it waits for the load, which other loads need not. */
TW_DEVICE uint32_t tw_kernel_load_scale(const uint8_t *from, uint32_t scale_type, bool aligned)
{
    bool wide = scale_type == TW_QUANT_SCALE_FP32;
    if (aligned) {
        return wide ? tw_dev_load_element<4>(from) : tw_dev_load_element<2>(from);
    }
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
        if (i < 2 || wide) {
            bits |= tw_dev_load_element<1>(from + i) << (8 * i);
        }
    }
    return bits;
}

TW_DEVICE float tw_kernel_scale(uint32_t bits, uint32_t scale_type)
{
    return tw_float_of_bits(scale_type == TW_QUANT_SCALE_FP32 ? bits : bits << 16);
}

TW_DEVICE void tw_kernel_store_scale(uint8_t *to, uint32_t scale_type, bool aligned, float scale)
{
    bool wide = scale_type == TW_QUANT_SCALE_FP32;
    uint32_t bits = tw_float_bits(scale) >> (wide ? 0 : 16);
    if (aligned) {
        if (wide) {
            tw_dev_store_element<4>(to, bits);
        } else {
            tw_dev_store_element<2>(to, bits);
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        if (i < 2 || wide) {
            tw_dev_store_element<1>(to + i, bits >> (8 * i));
        }
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------ */

/** Rotate a row's strip in place. Two neighbouring lanes hold a group; incomplete groups stay as they are. */
TW_DEVICE void tw_kernel_rotate(const tw_kernel_view &view, int row, tw_kernel_values &x)
{
    float y[TW_STRIP_ELEMS], sign = view.lane & 1 ? -1.0f : 1.0f;
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        y[i] = x[i];
    }
    tw_strip_rotate_inside(y);
    bool whole = tw_cuda_group_is_whole(&view.tile, tw_kernel_strip(view, row));
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        float z = tw_strip_butterfly(y[i], tw_dev_exchange(y[i], 1), sign);
        x[i] = whole ? tw_float_mul(z, TW_BLOCK_HADAMARD_NORM) : x[i];
    }
}

template <int ROWS>
TW_DEVICE void tw_kernel_rotate_rows(const tw_kernel_view &view, tw_kernel_values (&x)[ROWS])
{
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (tw_kernel_has_row(view, u)) {
            tw_kernel_rotate(view, u, x[u]);
        }
    }
}
