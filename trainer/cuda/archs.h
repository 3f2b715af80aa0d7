/** Part of trainer/cuda (see cuda.h): which GPUs the kernels are compiled for. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** List the compute capabilities that there is code for, as 10 * major + minor, ascending; static storage.
 *  Newer GPUs may run it, too. Returns how many; 0 if the compiler does not tell. */
size_t tw_cuda_archs(const int **archs);
/** Check that the current GPU can run the kernels. TW_ERR_UNSUPPORTED: it cannot; not logged. TW_ERR_CUDA,
 *  logged. */
tw_status_t tw_cuda_archs_check(void);

TW_C_END
