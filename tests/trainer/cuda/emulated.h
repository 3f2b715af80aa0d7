/** Launches the kernels of trainer/cuda on the emulated device. Include it before them. */
#ifndef TW_TESTS_TRAINER_CUDA_EMULATED_H
#define TW_TESTS_TRAINER_CUDA_EMULATED_H

#include "tests/quant/cuda/emulator.h"

#include <cmath>

#define TW_HOST_DEVICE inline

inline float tw_dev_fma(float a, float b, float c)
{
    return std::fma(a, b, c);
}

inline float tw_dev_exp(float x)
{
    return std::exp(x);
}

#include "trainer/cuda/elements.cuh"

namespace tw
{

struct Emulated {
    template <class KERNEL, class ARGS>
    tw_status_t run(uint32_t blocks, const char * /*what*/, const ARGS &args) const
    {
        emulator::launch(
            blocks, tw_trainer_kernels::threads, [&] { KERNEL::run(args); }, [](uint32_t) { return true; });
        return TW_OK;
    }
};

} // namespace tw

#endif
