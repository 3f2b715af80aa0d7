/* Launches the kernels of embedding.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/embedding.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_embedding_forward(const tw_cuda_embedding_t *embedding, const void *words,
                                      const void *positions, void *x, tw_stream_t stream)
{
    return embedding_forward(Launcher{stream}, embedding, words, positions, x);
}

tw_status_t tw_cuda_embedding_backward(const tw_cuda_embedding_t *embedding, const void *dx, float *d_words,
                                       float *d_positions, tw_stream_t stream)
{
    return embedding_backward(Launcher{stream}, embedding, dx, d_words, d_positions);
}
