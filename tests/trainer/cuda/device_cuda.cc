/* A GPU, for the tests that otherwise run on the emulated device. */
#include <cuda_runtime_api.h>

#include "quant/quant.h"
#include "tests/trainer/cuda/memory.h"

namespace tw
{

std::string device_lacks()
{
    int n_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    cudaGetLastError();
    return error != cudaSuccess ? cudaGetErrorString(error) : n_devices == 0 ? "there is no GPU" : "";
}

void *device_take(size_t bytes)
{
    void *memory = nullptr;
    const cudaError_t error =
        cudaMallocManaged(&memory, bytes > 0 ? bytes : 1, (unsigned)cudaMemAttachGlobal);
    return error == cudaSuccess ? memory : nullptr;
}

void device_give(void *memory)
{
    cudaFree(memory);
}

tw_status_t device_wait(tw_status_t launched)
{
    const tw_status_t ended = tw_quant_cuda_status((int)cudaDeviceSynchronize(), "the kernels of a test");
    return launched != TW_OK ? launched : ended;
}

} // namespace tw
