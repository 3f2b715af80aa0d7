/** Private to trainer: a rank's GPU. */
#pragma once

#include "trainer/device/table.h"

TW_C_BEGIN

/** The GPU of a rank: of those that it sees (CUDA_VISIBLE_DEVICES) the one of its number on the machine, or
 *  the only one. (*out)->destroy ends it. TW_ERR_UNSUPPORTED (logged): built without CUDA, no GPU, or none
 *  for this rank, or one that there are no kernels for, no cuBLASLt; TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_device_gpu_open(int rank, int local_rank, tw_device_t **out);
/** How many GPUs this process sees. TW_ERR_UNSUPPORTED (logged): none, or built without CUDA. */
tw_status_t tw_device_gpu_count(int rank, int *n);
TW_C_END
