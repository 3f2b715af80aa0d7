/** The kernels' bodies. A thread holds its strips of a tile in registers between reading and writing, so that memory is
 *  passed over once; the tiles of all segments are dealt out over a persistent grid. */
#ifndef TW_QUANT_CUDA_KERNELS_CUH
#define TW_QUANT_CUDA_KERNELS_CUH

#include "quant/cuda/source.cuh"

/* ---- encoding --------------------------------------------------------------------------------------------------- */

/** In: the largest magnitude of each row's strip; out: of its block. `shared`: zeros, for blocks that extend further than
 *  over neighbouring lanes and rows. */
template <int ROWS>
TW_DEVICE void tw_qk_block_amax(const tw_qk_view &view, uint32_t (&amax)[ROWS], uint32_t *shared)
{
    const tw_qp_tiling_t *tiling = &view.args->tiling;
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
        if (leader && tw_qk_elems(view, u)) {
            atomicMax(&shared[tw_qp_tile_block(&view.args->out, tw_qk_strip(view, u))], amax[u]);
        }
    }
    __syncthreads();
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (tw_qk_has_row(view, u)) {
            amax[u] = shared[tw_qp_tile_block(&view.args->out, tw_qk_strip(view, u))];
        }
    }
}

/** Codes of one strip. */
template <int BITS>
TW_DEVICE void tw_qk_quantize(const tw_qk_view &view, int row, const tw_qk_values &x, float inverse,
                              tw_qk_codes<BITS> &codes)
{
    const tw_qp_args_t &args = *view.args;
    uint32_t q[TW_QS_ELEMS];
    if (args.out.stochastic) {
        uint32_t random[TW_QS_ELEMS];
        uint64_t elem =
            view.segment->first_elem + view.tile.first_elem + tw_qk_strip(view, row) * TW_QS_ELEMS;
        tw_qs_random(args.seed, args.step, view.segment->tensor, elem, random);
        tw_qs_quantize_stochastic(x, inverse, args.out.qmax, random, q);
    } else {
        tw_qs_quantize_nearest(x, inverse, q);
    }
    tw_qs_pack<BITS>(q, codes);
}

/** Quantize and store one row. Returns how many non-finite blocks begin in this strip: 0 or 1. */
template <int BITS>
TW_DEVICE uint32_t tw_qk_put(const tw_qk_view &view, int row, const tw_qp_place_t &place, uint8_t *frame,
                             bool aligned, const tw_qk_values &x, uint32_t amax)
{
    const tw_qp_args_t &args = *view.args;
    uint32_t strip = tw_qk_strip(view, row);
    bool nonfinite = tw_qb_amax_is_nonfinite(amax, (int)args.out.hadamard);
    float scale = tw_qs_scale(tw_qb_float(nonfinite ? 0 : amax), args.out.qmax, args.out.qmax_inv,
                              args.out.scale == TW_QUANT_SCALE_FP32);
    tw_qk_codes<BITS> codes;
    tw_qk_quantize<BITS>(view, row, x, tw_qs_inverse(scale), codes);
    if (nonfinite) {
        scale = tw_qb_float(TW_QB_NAN_BITS);
        for (int w = 0; w < TW_QS_CODE_WORDS(BITS); w++) {
            codes[w] = 0;
        }
    }
    if (tw_qp_strip_is_stored(&view.tile, strip)) {
        tw_qk_store_codes<BITS>(frame + place.codes_offset, aligned, codes);
    }
    bool begins = place.strip == 0 && tw_qp_strip_elems(&view.tile, strip) != 0;
    if (begins) {
        tw_qk_store_scale(frame + place.scale_offset, args.out.scale, aligned, scale);
    }
    return begins && nonfinite;
}

/** Zeros for the scales that the segment's last frame does not use. */
TW_DEVICE void tw_qk_clear_unused_scales(const tw_qk_view &view, uint8_t *frame, bool aligned)
{
    const tw_qp_args_t &args = *view.args;
    uint32_t slot = threadIdx.x;
    if (slot >= TW_QUANT_FRAME_BLOCKS ||
        slot < tw_qp_first_unused_scale(&args.out, &view.tile, view.segment->n_elems)) {
        return;
    }
    uint32_t strip = tw_qp_last_frame_strip(&args.out, &view.tile, slot);
    tw_qk_store_scale(frame + tw_qp_place_of(&args.out, strip).scale_offset, args.out.scale, aligned, 0.0f);
}

template <int BITS, int ROWS>
TW_DEVICE uint32_t tw_qk_encode_tile(const tw_qk_view &view, tw_qk_values (&x)[ROWS], uint32_t *shared)
{
    const tw_qp_args_t &args = *view.args;
    tw_qp_origin_t origin = tw_qp_origin_of_block(&args.out, view.tile.first_block);
    uint8_t *frame = tw_dev_keep(view.segment->dst + origin.frame_offset);
    bool aligned = tw_qp_is_aligned(view.segment->dst);
    uint32_t amax[ROWS], nonfinite = 0;
    if (args.rotate) {
        tw_qk_rotate_rows<ROWS>(view, x);
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        amax[u] = tw_qs_amax_bits(x[u]);
    }
    tw_qk_block_amax<ROWS>(view, amax, shared);
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        tw_qp_place_t place = tw_qp_place_of(&args.out, origin.strip + tw_qk_strip(view, u));
        if (tw_qk_has_row(view, u)) {
            nonfinite += tw_qk_put<BITS>(view, u, place, frame, aligned, x[u], amax[u]);
        }
    }
    tw_qk_clear_unused_scales(view, frame, aligned);
    return nonfinite;
}

/** Encode all tiles of a launch. */
template <class SOURCE, int BITS>
TW_DEVICE void tw_qk_encode(const tw_qp_args_t &args, const uint64_t *words)
{
    /* Maxima of blocks that need more than exchanges. Three sets: while one is in use, the one before it may still be read
     * by slower warps, and the next has been cleared: so one barrier per tile is enough. */
    __shared__ uint32_t shared[3][TW_QP_TILE_BLOCKS_MAX];
    uint32_t segment = 0, nonfinite = 0, turn = 0;
    for (uint32_t i = threadIdx.x; i < TW_QP_TILE_BLOCKS_MAX; i += args.tiling.threads) {
        shared[0][i] = shared[1][i] = shared[2][i] = 0;
    }
    __syncthreads();
    for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
        segment = tw_qp_find((const tw_qp_segment_t *)words, args.n_segments, segment, tile);
        tw_qk_view view = tw_qk_view_tile(args, words, segment, tile);
        float x[SOURCE::rows][TW_QS_ELEMS];
        SOURCE::load(view, x);
        nonfinite += tw_qk_encode_tile<BITS, SOURCE::rows>(view, x, shared[turn]);
        if (args.tiling.through_shared) {
            uint32_t previous = turn == 0 ? 2 : turn - 1;
            for (uint32_t i = threadIdx.x; i < TW_QP_TILE_BLOCKS_MAX; i += args.tiling.threads) {
                shared[previous][i] = 0;
            }
            turn = turn == 2 ? 0 : turn + 1;
        }
    }
    nonfinite = tw_dev_warp_sum(nonfinite);
    if (nonfinite && threadIdx.x % TW_QP_WARP == 0) {
        atomicAdd(args.nonfinite, (unsigned long long)nonfinite);
    }
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

/** dst: type[n], the decoded value. */
template <int TYPE>
struct tw_qk_sink_store {
    static constexpr int type = TYPE;
    static constexpr bool reads = false;
    static TW_DEVICE void finish(const tw_qk_values &x, const tw_qk_plain<TYPE> &, bool exceptional,
                                 tw_qk_plain<TYPE> &words)
    {
        tw_qs_fit<TYPE>(x, exceptional ? TW_QS_SATURATE : TW_QS_IN_RANGE, words);
    }
};

/** dst: type[n], the decoded value is added to it. */
template <int TYPE>
struct tw_qk_sink_apply {
    static constexpr int type = TYPE;
    static constexpr bool reads = true;
    static TW_DEVICE void finish(const tw_qk_values &x, const tw_qk_plain<TYPE> &old, bool,
                                 tw_qk_plain<TYPE> &words)
    {
        float sum[TW_QS_ELEMS];
        tw_qs_widen<TYPE>(old, sum);
        for (int i = 0; i < TW_QS_ELEMS; i++) {
            sum[i] = tw_qs_add_keep(sum[i], x[i]);
        }
        tw_qs_fit<TYPE>(sum, TW_QS_SATURATE, words);
    }
};

/** One row, decoded and handed to the sink. */
template <class SINK, int BITS>
TW_DEVICE void tw_qk_decode_row(const tw_qk_view &view, int row, const tw_qk_codes<BITS> &codes,
                                uint32_t scale_bits, const tw_qk_plain<SINK::type> &old)
{
    const tw_qp_args_t &args = *view.args;
    float scale = tw_qk_scale(scale_bits, args.in.scale), x[TW_QS_ELEMS];
    bool exceptional = tw_qb_may_overflow(scale, BITS, (int)args.in.hadamard, (tw_type_t)SINK::type);
    tw_qk_plain<SINK::type> words;
    tw_qs_dequantize<BITS>(codes, scale, exceptional, x);
    if (args.undo) {
        tw_qk_rotate(view, row, x);
    }
    if (exceptional && tw_qb_scale_is_nonfinite(scale)) {
        for (int i = 0; i < TW_QS_ELEMS; i++) {
            x[i] = tw_qb_float(TW_QB_NAN_BITS);
        }
    }
    SINK::finish(x, old, exceptional, words);
    tw_qk_store<SINK::type>(view, row, view.segment->dst, words);
}

template <class SINK, int BITS, int ROWS>
TW_DEVICE void tw_qk_decode_tile(const tw_qk_view &view)
{
    tw_qk_offsets<ROWS> offsets = tw_qk_input_offsets<ROWS>(view);
    tw_qk_encoded<BITS, ROWS> encoded;
    tw_qk_plain<SINK::type> old[ROWS];
    if (view.whole && tw_qp_is_aligned(view.segment->src)) {
        tw_qk_load_encoded_whole<BITS, ROWS>(view, offsets, view.segment->src, encoded);
    } else {
        tw_qk_load_encoded_any<BITS, ROWS>(view, offsets, view.segment->src, encoded);
    }
    if constexpr (SINK::reads) {
        tw_qk_load_rows<SINK::type, false>(view, view.segment->dst, old);
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        if (tw_qk_has_row(view, u)) {
            tw_qk_decode_row<SINK, BITS>(view, u, encoded.codes[u], encoded.scale[u], old[u]);
        }
    }
}

template <class SINK, int BITS>
TW_DEVICE void tw_qk_decode(const tw_qp_args_t &args, const uint64_t *words)
{
    uint32_t segment = 0;
    for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
        segment = tw_qp_find((const tw_qp_segment_t *)words, args.n_segments, segment, tile);
        tw_qk_decode_tile<SINK, BITS, TW_QP_ROWS_MAX>(tw_qk_view_tile(args, words, segment, tile));
    }
}

/** dst: type[n], the sum of the inputs. */
template <int TYPE, int BITS>
TW_DEVICE void tw_qk_reduce_decode(const tw_qp_args_t &args, const uint64_t *words)
{
    constexpr int rows = TW_QP_ROWS_MAX;
    uint32_t segment = 0;
    for (uint64_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
        segment = tw_qp_find((const tw_qp_segment_t *)words, args.n_segments, segment, tile);
        tw_qk_view view = tw_qk_view_tile(args, words, segment, tile);
        float x[rows][TW_QS_ELEMS];
        tw_qk_plain<TYPE> fitted;
        tw_qk_sum<BITS, rows>(view, x);
        TW_UNROLL
        for (int u = 0; u < rows; u++) {
            if (!tw_qk_has_row(view, u)) {
                continue;
            }
            for (int i = 0; i < TW_QS_ELEMS; i++) {
                x[u][i] = tw_qs_quiet(x[u][i]);
            }
            tw_qs_fit<TYPE>(x[u], TW_QS_INFINITE, fitted);
            tw_qk_store<TYPE>(view, u, view.segment->dst, fitted);
        }
    }
}

#endif
