/* Lists the GPU architectures that this file is compiled for. All kernels are compiled for the same ones. */
#include "trainer/cuda/archs.h"

#include <cuda_runtime.h>

#include "quant/quant.h"

namespace
{

__global__ void probe()
{
}

} // namespace

size_t tw_cuda_archs(const int **archs)
{
#ifdef __CUDA_ARCH_LIST__
    static const int list[] = {__CUDA_ARCH_LIST__}; /* such as 750, 900 */
    static int tens[sizeof(list) / sizeof(list[0])];
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        tens[i] = list[i] / 10;
    }
    *archs = tens;
    return sizeof(list) / sizeof(list[0]);
#else
    *archs = NULL;
    return 0;
#endif
}

tw_status_t tw_cuda_archs_check(void)
{
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)probe);

    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return TW_ERR_UNSUPPORTED;
    }
    return tw_quant_cuda_status((int)error, "cudaFuncGetAttributes");
}
