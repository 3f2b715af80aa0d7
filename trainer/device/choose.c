#include "trainer/device/choose.h"

/* Launchers either show all GPUs to all ranks of a machine, or each its own alone. */
tw_status_t tw_device_gpu_choose(int rank, int local_rank, int n, int *index)
{
    *index = n == 1 ? 0 : local_rank;
    if (*index < n) {
        return TW_OK;
    }
    tw_error(
        "rank %d: it is number %d on its machine, but sees %d GPUs: start as many ranks there as there are "
        "GPUs, or look at CUDA_VISIBLE_DEVICES",
        rank, local_rank, n);
    return TW_ERR_UNSUPPORTED;
}
