/** Finds the kernel of a job and runs it with a RUNNER, which has `template <class KERNEL> static tw_status_t
 *  run(job, grid)`. One RUNNER launches on a GPU, the tests' one emulates a GPU.
 *
 *  Types and kinds of codes are template parameters. Rotation, rounding, type of scale and block size are
 *  not: each would double the number of kernels, but a branch that all threads take is cheap. */
#pragma once

#include "quant/cuda/kernels.cuh"

/* Kernels with two template parameters: the type of unencoded elements, the kind of codes. */
template <int TYPE, int KIND>
using tw_kernel_encode_plain = tw_kernel_encode<tw_kernel_source_plain<TYPE>, KIND>;
template <int TYPE, int KIND>
using tw_kernel_encode_delta = tw_kernel_encode<tw_kernel_source_delta<TYPE>, KIND>;
template <int TYPE, int KIND>
using tw_kernel_encode_adamw = tw_kernel_encode<tw_kernel_source_adamw<TYPE>, KIND>;
template <int TYPE, int KIND>
using tw_kernel_decode_store = tw_kernel_decode<tw_kernel_sink_store<TYPE>, KIND>;
template <int TYPE, int KIND>
using tw_kernel_decode_apply = tw_kernel_decode<tw_kernel_sink_apply<TYPE>, KIND>;

template <int... KINDS>
struct tw_kernel_kinds {
};
using tw_kernel_all = tw_kernel_kinds<TW_CODE_KINDS>;
using tw_kernel_sums = tw_kernel_kinds<TW_CODE_KINDS_OF_SUMS>; /**< kinds that reductions can sum */

/** Run the kernel for the kind of args.out. Only reduce_encode has another kind for its inputs. */
template <class RUNNER, template <int, int> class KERNEL, int TYPE, int KIND, int... KINDS>
tw_status_t tw_kernel_select_kind(const tw_cuda_job_t *job, uint32_t grid, tw_kernel_kinds<KIND, KINDS...>)
{
    if constexpr (sizeof...(KINDS) > 0) {
        if (job->params.args.out.kind != KIND) {
            return tw_kernel_select_kind<RUNNER, KERNEL, TYPE>(job, grid, tw_kernel_kinds<KINDS...>());
        }
    }
    return RUNNER::template run<KERNEL<TYPE, KIND>>(job, grid);
}

/** Run the kernel of any operation but reduce_encode. */
template <class RUNNER, template <int, int> class KERNEL, class KINDS = tw_kernel_all>
tw_status_t tw_kernel_select(const tw_cuda_job_t *job, uint32_t grid)
{
    switch (job->type) {
    case TW_TYPE_FP32:
        return tw_kernel_select_kind<RUNNER, KERNEL, TW_TYPE_FP32>(job, grid, KINDS());
    case TW_TYPE_BF16:
        return tw_kernel_select_kind<RUNNER, KERNEL, TW_TYPE_BF16>(job, grid, KINDS());
    default:
        return tw_kernel_select_kind<RUNNER, KERNEL, TW_TYPE_FP16>(job, grid, KINDS());
    }
}

/** The kernels of reduce_encode, by the kinds of inputs and output. All its data is encoded: no type. */
template <int IN_KIND, int KIND>
using tw_kernel_reduce_encode = tw_kernel_encode<tw_kernel_source_sum<IN_KIND>, KIND>;

template <class RUNNER, int KIND, int... KINDS>
tw_status_t tw_kernel_select_inputs(const tw_cuda_job_t *job, uint32_t grid, tw_kernel_kinds<KIND, KINDS...>)
{
    if constexpr (sizeof...(KINDS) > 0) {
        if (job->params.args.in.kind != KIND) {
            return tw_kernel_select_inputs<RUNNER>(job, grid, tw_kernel_kinds<KINDS...>());
        }
    }
    return tw_kernel_select_kind<RUNNER, tw_kernel_reduce_encode, KIND>(job, grid, tw_kernel_sums());
}

template <class RUNNER>
tw_status_t tw_kernel_select_reduce_encode(const tw_cuda_job_t *job, uint32_t grid)
{
    return tw_kernel_select_inputs<RUNNER>(job, grid, tw_kernel_sums());
}
