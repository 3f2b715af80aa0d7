/** The twin of the sums on a GPU: what the kernels are tested against, and what simulated GPUs run. */
#ifndef TW_TESTS_COLLECTIVES_GPU_SUMS_REF_H
#define TW_TESTS_COLLECTIVES_GPU_SUMS_REF_H

#include "collectives/gpu/sums.h"

TW_C_BEGIN

/** At once, in host memory. */
void tw_gpu_sum_ref(const tw_gpu_sum_t *sum);

TW_C_END

#endif
