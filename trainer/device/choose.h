/** Private to trainer/device: chooses a rank's GPU. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Choose the rank's GPU of n >= 1 visible ones. TW_ERR_UNSUPPORTED, logged: there is none for local_rank. */
tw_status_t tw_device_gpu_choose(int rank, int local_rank, int n, int *index);

/** A GPU that the kernels were not compiled for. */
typedef struct tw_device_stranger {
    const char *name;
    int major, minor; /**< the GPU's compute capability */
    const int *archs; /**< [n_archs]: capabilities the kernels were compiled for, 10 * major + minor */
    size_t n_archs;
} tw_device_stranger_t;

/** Log that the kernels were not compiled for the GPU. Returns TW_ERR_UNSUPPORTED. */
tw_status_t tw_device_gpu_refuse(int rank, const tw_device_stranger_t *gpu);

TW_C_END
