/* Launches the kernels of bias.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/bias.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_bias_backward(const tw_cuda_rows_t *rows, const void *dy, float *dbias, float *workspace,
                                  tw_stream_t stream)
{
    return bias_backward(Launcher{stream}, rows, dy, dbias, workspace);
}
