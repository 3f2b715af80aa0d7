/** Part of trainer/cuda (see cuda.h): the GPU architectures that the kernels are compiled for. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** List the compute capabilities that kernels are compiled for, as 10 * major + minor, ascending, in static
 *  storage. Newer GPUs may run the code, too. Returns how many, or 0 if the compiler gives no list. */
size_t tw_cuda_archs(const int **archs);
/** Check that the current GPU can run the kernels. TW_ERR_UNSUPPORTED (not logged) if not; TW_ERR_CUDA. */
tw_status_t tw_cuda_archs_check(void);

TW_C_END
