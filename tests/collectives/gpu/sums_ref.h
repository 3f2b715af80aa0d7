/** The sums of a GPU in plain code: the kernels are tested against it, and simulated GPUs run it. */
#ifndef TW_TESTS_COLLECTIVES_GPU_SUMS_REF_H
#define TW_TESTS_COLLECTIVES_GPU_SUMS_REF_H

#include "collectives/gpu/sums.h"

TW_C_BEGIN

/** Add up at once, in host memory. */
void tw_gpu_sum_ref(const tw_gpu_sum_t *sum);

TW_C_END

#endif
