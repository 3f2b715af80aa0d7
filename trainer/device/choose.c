#include "trainer/device/choose.h"

#include <stdio.h>

/** A launcher lets a rank see either all GPUs of the machine (n > 1), or only the rank's own (n == 1). */
tw_status_t tw_device_gpu_choose(int rank, int local_rank, int n, int *index)
{
    *index = n == 1 ? 0 : local_rank;
    if (*index < n) {
        return TW_OK;
    }
    return tw_fail(
        TW_ERR_UNSUPPORTED,
        "rank %d: it is number %d on its machine, but sees %d GPUs: start as many ranks there as there "
        "are GPUs, or look at CUDA_VISIBLE_DEVICES",
        rank, local_rank, n);
}

tw_status_t tw_device_gpu_refuse(int rank, const tw_device_stranger_t *gpu)
{
    char list[128] = "";
    for (size_t i = 0, at = 0; i < gpu->n_archs && at + 16 < sizeof(list); i++) {
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%d.%d", i > 0 ? ", " : "", gpu->archs[i] / 10,
                               gpu->archs[i] % 10);
    }
    return tw_fail(
        TW_ERR_UNSUPPORTED,
        "rank %d: its GPU, %s, has compute capability %d.%d; this program has kernels for %s: build it "
        "with --define=TW_CUDA_ARCHS=%d%d",
        rank, gpu->name, gpu->major, gpu->minor, list, gpu->major, gpu->minor);
}
