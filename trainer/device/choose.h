/** Private to trainer/device: which GPU is a rank's. */
#ifndef TW_TRAINER_DEVICE_CHOOSE_H
#define TW_TRAINER_DEVICE_CHOOSE_H

#include "core/core.h"

TW_C_BEGIN

/** Which of n >= 1 GPUs. TW_ERR_UNSUPPORTED, logged. */
tw_status_t tw_device_gpu_choose(int rank, int local_rank, int n, int *index);

TW_C_END

#endif
