/* Launches of the sums and copies of sums_kernels.cuh. */
#include <cuda_runtime.h>

#include "collectives/gpu/sums_kernels.cuh"
#include "quant/quant.h"

namespace
{

using namespace tw_gpu_sum_kernels;

template <class BODY>
__global__ void __launch_bounds__(threads) kernel(const __grid_constant__ Params params)
{
    BODY::run(params, Place{threadIdx.x, blockIdx.x, gridDim.x, blockIdx.y});
}

struct Launcher {
    typedef void (*pointer)(Params);
    template <class BODY>
    static pointer of()
    {
        return kernel<BODY>;
    }
};

} // namespace

tw_status_t tw_gpu_sum_cuda(const tw_gpu_sum_t *sum, tw_stream_t stream)
{
    Launcher::pointer function = select<Launcher>(sum);
    TW_FAIL_IF(function == nullptr, TW_ERR_INVALID, "cannot sum %s into %s", tw_type_name(sum->in),
               tw_type_name(sum->out));
    return for_each_launch(sum, [&](Params &params, size_t n_segments, size_t blocks) {
        void *args[] = {&params};
        dim3 grid((unsigned)blocks, (unsigned)n_segments);
        return tw_quant_cuda_status(
            cudaLaunchKernel((const void *)function, grid, dim3(threads), args, 0, (cudaStream_t)stream),
            "launch of a sum");
    });
}
