/** The kernels. Each is a struct with its body, its largest number of threads, and how many thread blocks
 *  must fit on a multiprocessor, which limits registers. A thread keeps its strips of a tile in registers
 *  between reading and writing, so that memory is passed over once. A persistent grid loops over all
 *  tiles. */
#pragma once

#include "quant/cuda/source.cuh"

/* ---- encoding ------------------------------------------------------------------------------------------ */

/** Find blocks' largest magnitudes. amax[row] goes in as the maximum of the row's strip, and comes out as the
 *  maximum of the strip's block. `shared` is zeroed memory for maxima of larger blocks
 *  (tiling->through_shared). */
template <int ROWS>
TW_DEVICE void tw_kernel_block_amax(const tw_kernel_view &view, uint32_t (&amax)[ROWS], uint32_t *shared)
{
    const tw_cuda_tiling_t *tiling = &view.args->tiling;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        amax[u] = tw_dev_group_max(amax[u], tiling->lane_steps);
    }
    if constexpr (ROWS == 2) {
        if (tiling->row_steps) {
            amax[0] = amax[1] = max(amax[0], amax[1]);
        }
    }
    if (!tiling->through_shared) {
        return;
    }
    bool leader = (view.lane & ((1u << tiling->lane_steps) - 1)) == 0;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (leader && tw_kernel_elems(view, u)) {
            atomicMax(&shared[tw_cuda_tile_block(&view.args->out, tw_kernel_strip(view, u))], amax[u]);
        }
    }
    __syncthreads();
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (tw_kernel_has_row(view, u)) {
            amax[u] = shared[tw_cuda_tile_block(&view.args->out, tw_kernel_strip(view, u))];
        }
    }
}

/** Quantize one strip to codes. */
template <int KIND>
TW_DEVICE void tw_kernel_quantize(const tw_kernel_view &view, int row, const tw_kernel_values &x,
                                  float inverse, tw_kernel_codes<KIND> &codes)
{
    const tw_cuda_args_t &args = *view.args;
    uint32_t q[TW_STRIP_ELEMS];
    if (args.out.stochastic) {
        uint32_t random[TW_STRIP_ELEMS];
        uint64_t elem =
            view.segment->first_elem + view.tile.first_elem + tw_kernel_strip(view, row) * TW_STRIP_ELEMS;
        tw_strip_random(args.seed, args.step, view.segment->tensor, elem, random);
        tw_strip_quantize_stochastic<KIND>(x, inverse, random, q);
    } else {
        tw_strip_quantize_nearest<KIND>(x, inverse, q);
    }
    tw_strip_pack<KIND>(q, codes);
}

/** Quantize and store one strip. Returns 1 if a non-finite block begins in it, else 0. */
template <int KIND>
TW_DEVICE uint32_t tw_kernel_put(const tw_kernel_view &view, int row, const tw_cuda_place_t &place,
                                 uint8_t *frame, bool aligned, const tw_kernel_values &x, uint32_t amax)
{
    const tw_cuda_args_t &args = *view.args;
    uint32_t strip = tw_kernel_strip(view, row);
    bool nonfinite = tw_block_amax_is_nonfinite(amax, (int)args.out.hadamard);
    float scale = tw_strip_scale(tw_float_of_bits(nonfinite ? 0 : amax), args.out.reach, args.out.reach_inv,
                                 args.out.scale == TW_QUANT_SCALE_FP32);
    tw_kernel_codes<KIND> codes;
    tw_kernel_quantize<KIND>(view, row, x, tw_strip_inverse(scale), codes);
    if (nonfinite) {
        scale = tw_float_of_bits(TW_FLOAT_NAN_BITS);
        for (int w = 0; w < TW_STRIP_CODE_WORDS(KIND); w++) {
            codes[w] = 0;
        }
    }
    if (tw_cuda_strip_is_stored(&view.tile, strip)) {
        tw_kernel_store_codes<KIND>(frame + place.codes_offset, aligned, codes);
    }
    bool begins = place.strip == 0 && tw_cuda_strip_elems(&view.tile, strip) != 0;
    if (begins) {
        tw_kernel_store_scale(frame + place.scale_offset, args.out.scale, aligned, scale);
    }
    return begins && nonfinite;
}

/** Write zeros for the scales that the segment's last frame does not use. */
TW_DEVICE void tw_kernel_clear_unused_scales(const tw_kernel_view &view, uint8_t *frame, bool aligned)
{
    const tw_cuda_args_t &args = *view.args;
    uint32_t slot = threadIdx.x;
    if (slot >= TW_QUANT_FRAME_BLOCKS ||
        slot < tw_cuda_first_unused_scale(&args.out, &view.tile, view.segment->n_elems)) {
        return;
    }
    uint32_t strip = tw_cuda_last_frame_strip(&args.out, &view.tile, slot);
    tw_kernel_store_scale(frame + tw_cuda_place_of(&args.out, strip).scale_offset, args.out.scale, aligned,
                          0.0f);
}

template <int KIND, int ROWS>
TW_DEVICE uint32_t tw_kernel_encode_tile(const tw_kernel_view &view, tw_kernel_values (&x)[ROWS],
                                         uint32_t *shared)
{
    const tw_cuda_args_t &args = *view.args;
    tw_cuda_origin_t origin = tw_cuda_origin_of_block(&args.out, view.tile.first_block);
    uint8_t *frame = tw_dev_keep(view.segment->dst + origin.frame_offset);
    bool aligned = tw_cuda_is_aligned(view.segment->dst);
    uint32_t amax[ROWS], nonfinite = 0;
    if (args.rotate) {
        tw_kernel_rotate_rows<ROWS>(view, x);
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        amax[u] = tw_strip_amax_bits(x[u]);
    }
    tw_kernel_block_amax<ROWS>(view, amax, shared);
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        tw_cuda_place_t place = tw_cuda_place_of(&args.out, origin.strip + tw_kernel_strip(view, u));
        if (tw_kernel_has_row(view, u)) {
            nonfinite += tw_kernel_put<KIND>(view, u, place, frame, aligned, x[u], amax[u]);
        }
    }
    tw_kernel_clear_unused_scales(view, frame, aligned);
    return nonfinite;
}

template <class SOURCE, int KIND>
struct tw_kernel_encode {
    static constexpr int threads_max = TW_CUDA_TILE_STRIPS_MAX / SOURCE::rows,
                         blocks_min = SOURCE::blocks_min;
    static TW_DEVICE void run(const tw_cuda_args_t &args, const uint64_t *words)
    {
        /* Maxima of blocks with tiling.through_shared. There are three sets: this tile's, the previous
         * tile's, which slower warps may still read, and a cleared one for the next tile. So a tile needs one
         * barrier. */
        __shared__ uint32_t shared[3][TW_CUDA_TILE_BLOCKS_MAX];
        uint32_t segment = 0, nonfinite = 0, turn = 0;
        for (uint32_t i = threadIdx.x; i < TW_CUDA_TILE_BLOCKS_MAX; i += args.tiling.threads) {
            shared[0][i] = shared[1][i] = shared[2][i] = 0;
        }
        __syncthreads();
        for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
            segment = tw_cuda_segment_find((const tw_cuda_segment_t *)words, args.n_segments, segment, tile);
            tw_kernel_view view = tw_kernel_view_tile(args, words, segment, tile);
            float x[SOURCE::rows][TW_STRIP_ELEMS];
            SOURCE::load(view, x);
            nonfinite += tw_kernel_encode_tile<KIND, SOURCE::rows>(view, x, shared[turn]);
            if (args.tiling.through_shared) {
                uint32_t previous = turn == 0 ? 2 : turn - 1;
                for (uint32_t i = threadIdx.x; i < TW_CUDA_TILE_BLOCKS_MAX; i += args.tiling.threads) {
                    shared[previous][i] = 0;
                }
                turn = turn == 2 ? 0 : turn + 1;
            }
        }
        nonfinite = tw_dev_warp_sum(nonfinite);
        if (nonfinite && threadIdx.x % TW_CUDA_WARP == 0) {
            atomicAdd(args.nonfinite, (unsigned long long)nonfinite);
        }
    }
};

/* ---- decoding ------------------------------------------------------------------------------------------ */

/** Store the decoded value in dst: type[n]. */
template <int TYPE>
struct tw_kernel_sink_store {
    static constexpr int type = TYPE;
    static constexpr bool reads = false;
    static TW_DEVICE void finish(const tw_kernel_values &x, const tw_kernel_plain<TYPE> &, bool exceptional,
                                 tw_kernel_plain<TYPE> &words)
    {
        tw_strip_fit<TYPE>(x, exceptional ? TW_STRIP_SATURATE : TW_STRIP_IN_RANGE, words);
    }
};

/** Add the decoded value to dst: type[n]. */
template <int TYPE>
struct tw_kernel_sink_apply {
    static constexpr int type = TYPE;
    static constexpr bool reads = true;
    static TW_DEVICE void finish(const tw_kernel_values &x, const tw_kernel_plain<TYPE> &old, bool,
                                 tw_kernel_plain<TYPE> &words)
    {
        float sum[TW_STRIP_ELEMS];
        tw_strip_widen<TYPE>(old, sum);
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            /* the GPU's conversion to fp32 lost the NaN's bits */
            if (TYPE == TW_TYPE_FP16 && tw_strip_is_nan(sum[i])) {
                sum[i] = tw_float_from_fp16((uint16_t)(old[i / 2] >> (16 * (i % 2))));
            }
            sum[i] = tw_float_add_nan(sum[i], x[i]);
        }
        tw_strip_fit<TYPE>(sum, TW_STRIP_SATURATE, words);
    }
};

/** Decode one strip and pass it to the sink. */
template <class SINK, int KIND>
TW_DEVICE void tw_kernel_decode_row(const tw_kernel_view &view, int row, const tw_kernel_codes<KIND> &codes,
                                    uint32_t scale_bits, const tw_kernel_plain<SINK::type> &old)
{
    const tw_cuda_args_t &args = *view.args;
    float scale = tw_kernel_scale(scale_bits, args.in.scale), x[TW_STRIP_ELEMS];
    bool exceptional =
        tw_block_may_overflow(scale, (tw_quant_kind_t)KIND, (int)args.in.hadamard, (tw_type_t)SINK::type);
    tw_kernel_plain<SINK::type> words;
    tw_strip_dequantize<KIND>(codes, scale, exceptional, x);
    if (args.undo) {
        tw_kernel_rotate(view, row, x);
    }
    if (exceptional) {
        bool all = tw_block_scale_is_nonfinite(scale);
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            if (all || tw_strip_is_nan(x[i])) {
                x[i] = tw_float_of_bits(all ? TW_FLOAT_NAN_BITS : TW_FLOAT_NEW_NAN_BITS);
            }
        }
    }
    SINK::finish(x, old, exceptional, words);
    tw_kernel_store<SINK::type>(view, row, view.segment->dst, words);
}

template <class SINK, int KIND, int ROWS>
TW_DEVICE void tw_kernel_decode_tile(const tw_kernel_view &view)
{
    tw_kernel_offsets<ROWS> offsets = tw_kernel_input_offsets<ROWS>(view);
    tw_kernel_encoded<KIND, ROWS> encoded;
    tw_kernel_plain<SINK::type> old[ROWS];
    if (view.whole && tw_cuda_is_aligned(view.segment->src)) {
        tw_kernel_load_encoded_whole<KIND, ROWS>(view, offsets, view.segment->src, encoded);
    } else {
        tw_kernel_load_encoded_any<KIND, ROWS>(view, offsets, view.segment->src, encoded);
    }
    if constexpr (SINK::reads) {
        tw_kernel_load_rows<SINK::type, false>(view, view.segment->dst, old);
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (tw_kernel_has_row(view, u)) {
            tw_kernel_decode_row<SINK, KIND>(view, u, encoded.codes[u], encoded.scale[u], old[u]);
        }
    }
}

template <class SINK, int KIND>
struct tw_kernel_decode {
    static constexpr int threads_max = TW_CUDA_TILE_STRIPS_MAX / TW_CUDA_ROWS_MAX,
                         blocks_min = SINK::reads ? 7 : 8;
    static TW_DEVICE void run(const tw_cuda_args_t &args, const uint64_t *words)
    {
        uint32_t segment = 0;
        for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
            segment = tw_cuda_segment_find((const tw_cuda_segment_t *)words, args.n_segments, segment, tile);
            tw_kernel_decode_tile<SINK, KIND, TW_CUDA_ROWS_MAX>(
                tw_kernel_view_tile(args, words, segment, tile));
        }
    }
};

/** Store the sum of the inputs in dst: type[n]. */
template <int TYPE, int KIND>
struct tw_kernel_reduce_decode {
    static constexpr int threads_max = TW_CUDA_TILE_STRIPS_MAX / TW_CUDA_ROWS_MAX, blocks_min = 5;
    static TW_DEVICE void run(const tw_cuda_args_t &args, const uint64_t *words)
    {
        constexpr int rows = TW_CUDA_ROWS_MAX;
        uint32_t segment = 0;
        for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
            segment = tw_cuda_segment_find((const tw_cuda_segment_t *)words, args.n_segments, segment, tile);
            tw_kernel_view view = tw_kernel_view_tile(args, words, segment, tile);
            float x[rows][TW_STRIP_ELEMS];
            tw_kernel_plain<TYPE> fitted;
            tw_kernel_sum<KIND, rows>(view, x);
            TW_UNROLL
            for (int u = 0; u < rows; u++) {
                if (!tw_kernel_has_row(view, u)) {
                    continue;
                }
                for (int i = 0; i < TW_STRIP_ELEMS; i++) {
                    x[u][i] = tw_strip_quiet(x[u][i]);
                }
                tw_strip_fit<TYPE>(x[u], args.saturate ? TW_STRIP_SATURATE : TW_STRIP_INFINITE, fitted);
                tw_kernel_store<TYPE>(view, u, view.segment->dst, fitted);
            }
        }
    }
};
