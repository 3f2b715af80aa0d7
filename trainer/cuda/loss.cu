/* Launches the kernels of loss.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/loss.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_loss_add(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, tw_stream_t stream)
{
    return loss_add(Launcher{stream}, loss, piece);
}

tw_status_t tw_cuda_loss_sums(const tw_cuda_loss_t *loss, size_t group, double *sums, tw_stream_t stream)
{
    return loss_sums(Launcher{stream}, loss, group, sums);
}

tw_status_t tw_cuda_loss_backward(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, float scale,
                                  tw_stream_t stream)
{
    return loss_backward(Launcher{stream}, loss, piece, scale);
}
