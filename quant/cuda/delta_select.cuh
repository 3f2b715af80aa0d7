/** Maps the enum of the delta's kernels to their code. */
#pragma once

#include "quant/cuda/delta_decode.cuh"

/** Call runner.run<KERNEL>() for the kernel that `kernel` names. */
template <class RUNNER>
tw_status_t tw_delta_select(const RUNNER &runner, tw_delta_cuda_kernel_t kernel)
{
    switch (kernel) {
    case TW_DELTA_CUDA_EXPONENTS:
        return runner.template run<tw_delta_kernel_exponents>();
    case TW_DELTA_CUDA_FACTORS:
        return runner.template run<tw_delta_kernel_factors>();
    case TW_DELTA_CUDA_CONTEXTS:
        return runner.template run<tw_delta_kernel_contexts>();
    case TW_DELTA_CUDA_SYMBOLS:
        return runner.template run<tw_delta_kernel_symbols>();
    case TW_DELTA_CUDA_MODEL:
        return runner.template run<tw_delta_kernel_model>();
    case TW_DELTA_CUDA_CODE:
        return runner.template run<tw_delta_kernel_code>();
    case TW_DELTA_CUDA_LAYOUT:
        return runner.template run<tw_delta_kernel_layout>();
    case TW_DELTA_CUDA_ASSEMBLE:
        return runner.template run<tw_delta_kernel_assemble>();
    case TW_DELTA_CUDA_FINISH:
        return runner.template run<tw_delta_kernel_finish>();
    case TW_DELTA_CUDA_READ:
        return runner.template run<tw_delta_kernel_read>();
    case TW_DELTA_CUDA_CHECK:
        return runner.template run<tw_delta_kernel_check>();
    case TW_DELTA_CUDA_DECODE:
        return runner.template run<tw_delta_kernel_decode>();
    case TW_DELTA_CUDA_APPLY:
        return runner.template run<tw_delta_kernel_apply>();
    case TW_DELTA_CUDA_CLOSE:
        return runner.template run<tw_delta_kernel_close>();
    case TW_DELTA_CUDA_KERNELS:
        break;
    }
    return TW_ERR_INTERNAL;
}
