/** Part of trainer/cuda (see cuda.h): which GPUs the kernels are compiled for. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Compute capabilities that there is code for, as 10 * major + minor, in ascending order; static storage.
 *  Newer GPUs may run it, too. Returns how many; 0: the compiler does not say. */
size_t tw_cuda_archs(const int **archs);
/** Does the current GPU run the kernels? TW_ERR_UNSUPPORTED: it does not; not logged. TW_ERR_CUDA,
 *  logged. */
tw_status_t tw_cuda_archs_check(void);

TW_C_END
