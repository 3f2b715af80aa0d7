/** Sources of values to encode: an array, a difference, a sum of encoded inputs, the result of an AdamW step.
 *  A source fills all rows of a thread with fp32 values, 0 past the segment's end. `rows`: strips per thread.
 *  `blocks_min`: thread blocks that must fit on a multiprocessor, which limits registers. */
#pragma once

#include "quant/cuda/view.cuh"

/* ---- encoded inputs ------------------------------------------------------------------------------------ */

TW_DEVICE const uint8_t *tw_kernel_input(const tw_kernel_view &view, uint32_t k)
{
    const tw_cuda_segment_t *segment = view.segment;
    if (segment->inputs == TW_CUDA_STRIDED) {
        return segment->src + (int64_t)k * segment->stride;
    }
    uint64_t address = segment->inputs == TW_CUDA_LISTED ? view.words[segment->list + k]
                                                         : ((const uint64_t *)segment->base)[k];
    return (const uint8_t *)(uintptr_t)address;
}

/** Offsets of this thread's strips from an input's first byte, the same in all inputs. */
template <int ROWS>
struct tw_kernel_offsets {
    uint64_t frame;
    uint32_t codes[ROWS], scale[ROWS];
};

template <int ROWS>
TW_DEVICE tw_kernel_offsets<ROWS> tw_kernel_input_offsets(const tw_kernel_view &view)
{
    const tw_cuda_codec_t *in = &view.args->in;
    tw_kernel_offsets<ROWS> offsets;
    tw_cuda_origin_t origin = in->block == view.args->out.block
                                  ? tw_cuda_origin_of_block(in, view.tile.first_block)
                                  : tw_cuda_origin_of_elem(in, view.tile.first_elem);
    offsets.frame = origin.frame_offset;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        tw_cuda_place_t place = tw_cuda_place_of(in, origin.strip + tw_kernel_strip(view, u));
        offsets.codes[u] = place.codes_offset;
        offsets.scale[u] = place.scale_offset;
    }
    return offsets;
}

/** This thread's codes and scales of one input, as loaded (scales: by tw_kernel_load_scale). */
template <int KIND, int ROWS>
struct tw_kernel_encoded {
    tw_kernel_codes<KIND> codes[ROWS];
    uint32_t scale[ROWS];
};

/** Load an aligned input's strips of a whole tile, without branches between the loads. */
template <int KIND, int ROWS>
TW_DEVICE void tw_kernel_load_encoded_whole(const tw_kernel_view &view,
                                            const tw_kernel_offsets<ROWS> &offsets, const uint8_t *input,
                                            tw_kernel_encoded<KIND, ROWS> &encoded)
{
    const uint8_t *from = input + offsets.frame;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        tw_kernel_load_codes<KIND>(from + offsets.codes[u], true, encoded.codes[u]);
        encoded.scale[u] = tw_kernel_load_scale(from + offsets.scale[u], view.args->in.scale, true);
    }
}

/** Load any input. Rows that the tile does not use get zeros. */
template <int KIND, int ROWS>
TW_DEVICE void tw_kernel_load_encoded_any(const tw_kernel_view &view, const tw_kernel_offsets<ROWS> &offsets,
                                          const uint8_t *input, tw_kernel_encoded<KIND, ROWS> &encoded)
{
    bool aligned = tw_cuda_is_aligned(input);
    const uint8_t *from = input + offsets.frame;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        encoded.scale[u] = 0;
        for (int w = 0; w < TW_STRIP_CODE_WORDS(KIND); w++) {
            encoded.codes[u][w] = 0;
        }
        if (tw_kernel_elems(view, u) == 0) {
            continue;
        }
        tw_kernel_load_codes<KIND>(from + offsets.codes[u], aligned, encoded.codes[u]);
        encoded.scale[u] = tw_kernel_load_scale(from + offsets.scale[u], view.args->in.scale, aligned);
    }
}

/** Compute sum += input 0, then input 1, ... There are no branches if scales are bf16 and ordinary. */
template <int KIND, int ROWS, int N>
TW_DEVICE void tw_kernel_add(const tw_kernel_view &view, const tw_kernel_encoded<KIND, ROWS> (&inputs)[N],
                             tw_kernel_values (&sum)[ROWS])
{
    uint32_t scale_type = view.args->in.scale;
    bool common = scale_type == TW_QUANT_SCALE_BF16;
    TW_UNROLL
    for (int b = 0; b < N; b++) {
        for (int u = 0; u < ROWS; u++) {
            common = common && tw_strip_scale_is_small(tw_float_of_bits(inputs[b].scale[u] << 16));
        }
    }
    if (common) {
        TW_UNROLL
        for (int b = 0; b < N; b++) {
            for (int u = 0; u < ROWS; u++) {
                tw_strip_accumulate<KIND>(inputs[b].codes[u], tw_float_of_bits(inputs[b].scale[u] << 16),
                                          true, sum[u]);
            }
        }
        return;
    }
    TW_UNROLL
    for (int b = 0; b < N; b++) {
        for (int u = 0; u < ROWS; u++) {
            float scale = tw_kernel_scale(inputs[b].scale[u], scale_type);
            if (tw_strip_scale_is_small(scale)) {
                tw_strip_accumulate<KIND>(inputs[b].codes[u], scale, false, sum[u]);
            } else {
                tw_strip_accumulate_any<KIND>(inputs[b].codes[u], scale, sum[u]);
            }
        }
    }
}

/** Load inputs k .. k + N - 1 at the same time, and add them to sum in order. */
template <int KIND, int ROWS, int N>
TW_DEVICE void tw_kernel_add_inputs(const tw_kernel_view &view, const tw_kernel_offsets<ROWS> &offsets,
                                    uint32_t k, tw_kernel_values (&sum)[ROWS])
{
    const uint8_t *input[N];
    tw_kernel_encoded<KIND, ROWS> encoded[N];
    bool whole = view.whole;
    TW_UNROLL
    for (int b = 0; b < N; b++) {
        input[b] = tw_kernel_input(view, k + (uint32_t)b);
        whole = whole && tw_cuda_is_aligned(input[b]);
    }
    if (whole) {
        TW_UNROLL
        for (int b = 0; b < N; b++) {
            tw_kernel_load_encoded_whole<KIND, ROWS>(view, offsets, input[b], encoded[b]);
        }
    } else {
        TW_UNROLL
        for (int b = 0; b < N; b++) {
            tw_kernel_load_encoded_any<KIND, ROWS>(view, offsets, input[b], encoded[b]);
        }
    }
    tw_kernel_add<KIND, ROWS, N>(view, encoded, sum);
}

/** Compute factor * (input 0 + input 1 + ...). If args.undo is 1, undo the rotation before the factor. */
template <int KIND, int ROWS>
TW_DEVICE void tw_kernel_sum(const tw_kernel_view &view, tw_kernel_values (&x)[ROWS])
{
    constexpr uint32_t batch = TW_CODE_BITS(KIND) == 8 ? 2 : 4;
    const tw_cuda_args_t &args = *view.args;
    tw_kernel_offsets<ROWS> offsets = tw_kernel_input_offsets<ROWS>(view);
    uint32_t n_srcs = view.segment->n_srcs, k = 0;
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            x[u][i] = -0.0f; /* -0 + y is y, also for y = -0 */
        }
    }
    for (; k + batch <= n_srcs; k += batch) {
        tw_kernel_add_inputs<KIND, ROWS, batch>(view, offsets, k, x);
    }
    for (; k < n_srcs; k++) {
        tw_kernel_add_inputs<KIND, ROWS, 1>(view, offsets, k, x);
    }
    if (args.undo) {
        tw_kernel_rotate_rows<ROWS>(view, x);
    }
    TW_UNROLL
    for (int u = 0; u < ROWS; u++) {
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            x[u][i] = tw_float_mul(x[u][i], args.factor);
        }
    }
}

template <int KIND>
struct tw_kernel_source_sum {
    static constexpr int rows = TW_CUDA_ROWS_MAX, blocks_min = 5;
    static TW_DEVICE void load(const tw_kernel_view &view, tw_kernel_values (&x)[rows])
    {
        tw_kernel_sum<KIND, rows>(view, x);
        if (view.whole) {
            return;
        }
        TW_UNROLL
        for (int u = 0; u < rows; u++) { /* codes in the inputs' padding may not be 0 */
            uint32_t n = tw_kernel_elems(view, u);
            for (int i = 0; i < TW_STRIP_ELEMS; i++) {
                x[u][i] = (uint32_t)i < n ? x[u][i] : 0.0f;
            }
        }
    }
};

/* ---- plain arrays -------------------------------------------------------------------------------------- */

/** Values of src: type[n]. */
template <int TYPE>
struct tw_kernel_source_plain {
    static constexpr int rows = TW_CUDA_ROWS_MAX, blocks_min = 7;
    static TW_DEVICE void load(const tw_kernel_view &view, tw_kernel_values (&x)[rows])
    {
        tw_kernel_plain<TYPE> words[rows];
        tw_kernel_load_rows<TYPE, true>(view, view.segment->src, words);
        TW_UNROLL
        for (int u = 0; u < rows; u++) {
            tw_strip_widen<TYPE>(words[u], x[u]);
        }
    }
};

/** Values src - base, with src: fp32[n], base: type[n]. */
template <int TYPE>
struct tw_kernel_source_delta {
    static constexpr int rows = TW_CUDA_ROWS_MAX, blocks_min = 6;
    static TW_DEVICE void load(const tw_kernel_view &view, tw_kernel_values (&x)[rows])
    {
        tw_kernel_plain<TW_TYPE_FP32> src[rows];
        tw_kernel_plain<TYPE> base[rows];
        tw_kernel_load_rows<TW_TYPE_FP32, true>(view, view.segment->src, src);
        tw_kernel_load_rows<TYPE, true>(view, view.segment->base, base);
        TW_UNROLL
        for (int u = 0; u < rows; u++) {
            float y[TW_STRIP_ELEMS];
            tw_strip_widen<TYPE>(base[u], y);
            for (int i = 0; i < TW_STRIP_ELEMS; i++) {
                x[u][i] = tw_float_sub(tw_float_of_bits(src[u][i]), y[i]);
            }
        }
    }
};

/* ---- AdamW --------------------------------------------------------------------------------------------- */

/** Does an AdamW step; its values are new master - replica. src: gradient[n], base: replica, type[n];
 *  words[list], [list + 1], [list + 2]: addresses of master, m, v, fp32[n], which are updated. A thread has
 *  only one row, because it holds five arrays in registers. */
template <int TYPE>
struct tw_kernel_source_adamw {
    static constexpr int rows = 1, blocks_min = 2;

    template <int GRAD_TYPE>
    static TW_DEVICE void load_grad_of(const tw_kernel_view &view, tw_kernel_values &grad)
    {
        tw_kernel_plain<GRAD_TYPE> words[1];
        tw_kernel_load_rows<GRAD_TYPE, true>(view, view.segment->src, words);
        tw_strip_widen<GRAD_TYPE>(words[0], grad);
    }

    static TW_DEVICE void load_grad(const tw_kernel_view &view, tw_kernel_values &grad)
    {
        const tw_cuda_args_t &args = *view.args;
        if (args.grad_type == TW_TYPE_FP32) {
            load_grad_of<TW_TYPE_FP32>(view, grad);
        } else if (args.grad_type == TW_TYPE_BF16) {
            load_grad_of<TW_TYPE_BF16>(view, grad);
        } else {
            load_grad_of<TW_TYPE_FP16>(view, grad);
        }
        float scale = args.grad_scale ? *args.grad_scale : 1.0f;
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            grad[i] = tw_float_mul(grad[i], scale);
        }
    }

    static TW_DEVICE void load(const tw_kernel_view &view, tw_kernel_values (&x)[rows])
    {
        tw_kernel_plain<TW_TYPE_FP32> state[3][1]; /* master, m, v */
        tw_kernel_plain<TYPE> replica_words[1];
        float grad[TW_STRIP_ELEMS], replica[TW_STRIP_ELEMS];
        uint8_t *array[3];
        TW_UNROLL
        for (int s = 0; s < 3; s++) {
            array[s] = (uint8_t *)(uintptr_t)view.words[view.segment->list + (uint32_t)s];
            tw_kernel_load_rows<TW_TYPE_FP32, false>(view, array[s], state[s]);
        }
        tw_kernel_load_rows<TYPE, true>(view, view.segment->base, replica_words);
        load_grad(view, grad);
        tw_strip_widen<TYPE>(replica_words[0], replica);
        uint32_t n = tw_kernel_elems(view, 0);
        TW_UNROLL
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            float m = tw_float_of_bits(state[1][0][i]), v = tw_float_of_bits(state[2][0][i]);
            float master =
                tw_adamw_element(&view.args->adamw, grad[i], tw_float_of_bits(state[0][0][i]), &m, &v);
            state[0][0][i] = tw_float_bits(master);
            state[1][0][i] = tw_float_bits(m);
            state[2][0][i] = tw_float_bits(v);
            x[0][i] = (uint32_t)i < n ? tw_float_sub(master, replica[i]) : 0.0f;
        }
        TW_UNROLL
        for (int s = 0; s < 3; s++) {
            tw_kernel_store<TW_TYPE_FP32>(view, 0, array[s], state[s][0]);
        }
    }
};
