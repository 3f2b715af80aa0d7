/** Private to trainer: opens a rank's GPU. */
#pragma once

#include "trainer/device/table.h"

TW_C_BEGIN

/** Open a rank's GPU: number local_rank of those in CUDA_VISIBLE_DEVICES, or the only one. (*out)->destroy
 *  closes it. TW_ERR_UNSUPPORTED (logged): built without CUDA, no GPU, none for this rank, a GPU that the
 *  kernels were not compiled for, or no cuBLASLt; TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_device_gpu_open(int rank, int local_rank, tw_device_t **out);
/** Count the GPUs that this process sees. TW_ERR_UNSUPPORTED (logged): none, or built without CUDA. */
tw_status_t tw_device_gpu_count(int rank, int *n);
TW_C_END
