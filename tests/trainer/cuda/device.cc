/* All calls of trainer/cuda, on the emulated device: their launches, compiled for the CPU. */
#include "tests/trainer/cuda/emulated.h"

/* In place of launch.cuh. */
#define TW_TRAINER_CUDA_LAUNCH_CUH

namespace tw_trainer_kernels
{

struct Launcher : tw::Emulated {
    explicit Launcher(tw_stream_t /*stream*/)
    {
    }
};

} // namespace tw_trainer_kernels

#include "trainer/cuda/attention.cu"
#include "trainer/cuda/bias.cu"
#include "trainer/cuda/embedding.cu"
#include "trainer/cuda/heads.cu"
#include "trainer/cuda/loss.cu"
#include "trainer/cuda/norm.cu"
#include "trainer/cuda/optimizer.cu"
#include "trainer/cuda/pointwise.cu"
