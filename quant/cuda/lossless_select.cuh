/** Maps the enum of the kernels of codecs of messages to their code. */
#pragma once

#include "quant/cuda/ecdq.cuh"

/** Call runner.run<KERNEL<TYPE>>() for the TYPE that `type` names. */
template <class RUNNER, template <int> class KERNEL>
tw_status_t tw_lossless_select_type(const RUNNER &runner, tw_type_t type)
{
    switch (type) {
    case TW_TYPE_FP32:
        return runner.template run<KERNEL<TW_TYPE_FP32>>();
    case TW_TYPE_FP16:
        return runner.template run<KERNEL<TW_TYPE_FP16>>();
    default:
        return runner.template run<KERNEL<TW_TYPE_BF16>>();
    }
}

template <class RUNNER>
tw_status_t tw_lossless_select(const RUNNER &runner, tw_lossless_cuda_kernel_t kernel, tw_type_t type)
{
    switch (kernel) {
    case TW_LOSSLESS_CUDA_ROWS:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_rows>(runner, type);
    case TW_LOSSLESS_CUDA_COLUMNS:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_columns>(runner, type);
    case TW_LOSSLESS_CUDA_DEVIATIONS:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_deviations>(runner, type);
    case TW_LOSSLESS_CUDA_SCALES:
        return runner.template run<tw_lossless_kernel_scales>();
    case TW_LOSSLESS_CUDA_CLASSES:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_classes>(runner, type);
    case TW_LOSSLESS_CUDA_PIECES:
        return runner.template run<tw_lossless_kernel_pieces>();
    case TW_LOSSLESS_CUDA_COUNT:
        return runner.template run<tw_lossless_kernel_count>();
    case TW_LOSSLESS_CUDA_SAMPLE:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_sample>(runner, type);
    case TW_LOSSLESS_CUDA_MODEL:
        return runner.template run<tw_lossless_kernel_model>();
    case TW_LOSSLESS_CUDA_HEAD:
        return runner.template run<tw_lossless_kernel_head>();
    case TW_LOSSLESS_CUDA_WRITE:
        return runner.template run<tw_lossless_kernel_write>();
    case TW_LOSSLESS_CUDA_GATHER:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_gather>(runner, type);
    case TW_LOSSLESS_CUDA_CODE:
        return runner.template run<tw_lossless_kernel_code>();
    case TW_LOSSLESS_CUDA_LAYOUT:
        return runner.template run<tw_lossless_kernel_layout>();
    case TW_LOSSLESS_CUDA_ASSEMBLE:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_assemble>(runner, type);
    case TW_LOSSLESS_CUDA_FINISH:
        return runner.template run<tw_lossless_kernel_finish>();
    case TW_LOSSLESS_CUDA_OPEN:
        return runner.template run<tw_lossless_kernel_open>();
    case TW_LOSSLESS_CUDA_CHECK:
        return runner.template run<tw_lossless_kernel_check>();
    case TW_LOSSLESS_CUDA_READ:
        return runner.template run<tw_lossless_kernel_read>();
    case TW_LOSSLESS_CUDA_EXPECT:
        return runner.template run<tw_lossless_kernel_expect>();
    case TW_LOSSLESS_CUDA_CHECK_BLOCKS:
        return runner.template run<tw_lossless_kernel_check_blocks>();
    case TW_LOSSLESS_CUDA_DECODE:
        return runner.template run<tw_lossless_kernel_decode>();
    case TW_LOSSLESS_CUDA_SCATTER:
        return tw_lossless_select_type<RUNNER, tw_lossless_kernel_scatter>(runner, type);
    case TW_LOSSLESS_CUDA_CLOSE:
        return runner.template run<tw_lossless_kernel_close>();
    case TW_ECDQ_CUDA_GATHER:
        return tw_lossless_select_type<RUNNER, tw_ecdq_kernel_gather>(runner, type);
    case TW_ECDQ_CUDA_COUNT:
        return runner.template run<tw_ecdq_kernel_count>();
    case TW_ECDQ_CUDA_CODE:
        return tw_lossless_select_type<RUNNER, tw_ecdq_kernel_code>(runner, type);
    case TW_ECDQ_CUDA_ASSEMBLE:
        return tw_lossless_select_type<RUNNER, tw_ecdq_kernel_assemble>(runner, type);
    case TW_ECDQ_CUDA_DECODE:
        return runner.template run<tw_ecdq_kernel_decode>();
    case TW_ECDQ_CUDA_SCATTER:
        return tw_lossless_select_type<RUNNER, tw_ecdq_kernel_scatter>(runner, type);
    case TW_LOSSLESS_CUDA_KERNELS:
        break;
    }
    return TW_ERR_INTERNAL;
}
