/** From a job to the kernel that does it. A RUNNER has `template <class KERNEL> static tw_status_t run(job,
 *  grid)`: one launches on a GPU, the tests' one emulates.
 *
 *  Types and bits are template parameters. Rotation, rounding, type of scale and block size are not: they are
 *  the same for all threads, a branch costs nothing beside memory, and each would double the kernels to
 *  compile. */
#ifndef TW_QUANT_CUDA_SELECT_CUH
#define TW_QUANT_CUDA_SELECT_CUH

#include "quant/cuda/kernels.cuh"

/* Kernels by plain type and bits. */
template <int TYPE, int BITS>
using tw_kernel_encode_plain = tw_kernel_encode<tw_kernel_source_plain<TYPE>, BITS>;
template <int TYPE, int BITS>
using tw_kernel_encode_delta = tw_kernel_encode<tw_kernel_source_delta<TYPE>, BITS>;
template <int TYPE, int BITS>
using tw_kernel_encode_adamw = tw_kernel_encode<tw_kernel_source_adamw<TYPE>, BITS>;
template <int TYPE, int BITS>
using tw_kernel_decode_store = tw_kernel_decode<tw_kernel_sink_store<TYPE>, BITS>;
template <int TYPE, int BITS>
using tw_kernel_decode_apply = tw_kernel_decode<tw_kernel_sink_apply<TYPE>, BITS>;

/** SUMS: of reductions, which know no 2 bits. */
template <class RUNNER, template <int, int> class KERNEL, int TYPE, bool SUMS>
tw_status_t tw_kernel_select_bits(const tw_cuda_job_t *job, uint32_t grid)
{
    /* Only reductions have two codecs, and reduce_decode has its inputs' twice. */
    if (job->params.args.out.bits == 8) {
        return RUNNER::template run<KERNEL<TYPE, 8>>(job, grid);
    }
    if constexpr (!SUMS) {
        if (job->params.args.out.bits == 2) {
            return RUNNER::template run<KERNEL<TYPE, 2>>(job, grid);
        }
    }
    return RUNNER::template run<KERNEL<TYPE, 4>>(job, grid);
}

/** All operations but reduce_encode. */
template <class RUNNER, template <int, int> class KERNEL, bool SUMS = false>
tw_status_t tw_kernel_select(const tw_cuda_job_t *job, uint32_t grid)
{
    switch (job->type) {
    case TW_TYPE_FP32:
        return tw_kernel_select_bits<RUNNER, KERNEL, TW_TYPE_FP32, SUMS>(job, grid);
    case TW_TYPE_BF16:
        return tw_kernel_select_bits<RUNNER, KERNEL, TW_TYPE_BF16, SUMS>(job, grid);
    default:
        return tw_kernel_select_bits<RUNNER, KERNEL, TW_TYPE_FP16, SUMS>(job, grid);
    }
}

/** reduce_encode has no plain side: by the bits of its inputs and of its output. */
template <int IN_BITS, int BITS>
using tw_kernel_reduce_encode = tw_kernel_encode<tw_kernel_source_sum<IN_BITS>, BITS>;

template <class RUNNER>
tw_status_t tw_kernel_select_reduce_encode(const tw_cuda_job_t *job, uint32_t grid)
{
    if (job->params.args.in.bits == 8) {
        return tw_kernel_select_bits<RUNNER, tw_kernel_reduce_encode, 8, true>(job, grid);
    }
    return tw_kernel_select_bits<RUNNER, tw_kernel_reduce_encode, 4, true>(job, grid);
}

#endif
