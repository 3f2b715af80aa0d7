/* All calls of trainer/cuda, on the emulated device: their launches, compiled for the CPU. */
#include <cstdlib>

#include "tests/trainer/cuda/emulated.h"
#include "tests/trainer/cuda/memory.h"

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

namespace tw
{

std::string device_lacks()
{
    return "";
}

void *device_take(size_t bytes)
{
    return malloc(bytes > 0 ? bytes : 1);
}

void device_give(void *memory)
{
    free(memory);
}

tw_status_t device_wait(tw_status_t launched)
{
    return launched;
}

} // namespace tw
