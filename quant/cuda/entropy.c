/* Entropy-coded messages on streams: checks calls, and launches their kernels. */
#include "quant/cuda/entropy_job.h"

#include <stdlib.h>

#define MESSAGE_ALIGN_BYTES 16
#define THREADS_OF_MULTIPROCESSOR 2048

tw_status_t tw_entropy_staging_need(tw_entropy_staging_t *staging, size_t n)
{
    if (n > staging->room) {
        uint64_t *grown = realloc(staging->words, n * sizeof(*grown));
        TW_FAIL_IF(!grown, TW_ERR_NO_MEMORY, "quant: out of memory for %zu words", n);
        staging->words = grown;
        staging->room = n;
    }
    return TW_OK;
}

void tw_entropy_staging_cleanup(tw_entropy_staging_t *staging)
{
    free(staging->words);
    *staging = (tw_entropy_staging_t){0};
}

tw_status_t tw_entropy_call_check(const char *operation, const tw_quant_stream_args_t *args,
                                  const void *message, size_t needed)
{
    size_t given = args->workspace ? args->workspace_bytes : 0;
    TW_FAIL_IF(given < needed || (uintptr_t)args->workspace % TW_ENTROPY_CUDA_ALIGN_BYTES, TW_ERR_INVALID,
               "quant: %s needs %zu bytes of workspace, aligned to %zu; given were %zu at %p", operation,
               needed, TW_ENTROPY_CUDA_ALIGN_BYTES, given, args->workspace);
    TW_FAIL_IF((uintptr_t)message % MESSAGE_ALIGN_BYTES || (uintptr_t)args->outcome % sizeof(*args->outcome),
               TW_ERR_INVALID, "quant: %s: the message at %p must be aligned to %d, the outcome at %p to %zu",
               operation, message, MESSAGE_ALIGN_BYTES, (const void *)args->outcome, sizeof(*args->outcome));
    return TW_OK;
}

void tw_entropy_launch(tw_entropy_launching_t *launching, uint32_t kernel, size_t grid, uint32_t threads)
{
    if (launching->status == TW_OK && grid) {
        launching->status =
            launching->device->run(kernel, launching->job, (uint32_t)grid, threads, launching->stream);
    }
}

size_t tw_entropy_launch_persistent(const tw_entropy_launching_t *launching, size_t wanted)
{
    size_t most =
        (size_t)launching->device->n_multiprocessors * (THREADS_OF_MULTIPROCESSOR / TW_ENTROPY_CUDA_THREADS);
    return wanted < most ? wanted : most;
}

tw_status_t tw_entropy_launch_finish(const tw_entropy_launching_t *launching,
                                     const tw_quant_stream_args_t *args, const tw_quant_outcome_t *outcome)
{
    if (launching->status == TW_OK && args->host) {
        return launching->device->copy(args->host, outcome, sizeof(*args->host), launching->stream);
    }
    return launching->status;
}

void tw_entropy_put_outcome(const tw_quant_stream_args_t *args, size_t bytes, tw_status_t status)
{
    tw_quant_outcome_t outcome = {status == TW_OK ? (uint32_t)bytes : 0, status};
    if (args->outcome) {
        *args->outcome = outcome;
    }
    if (args->host) {
        *args->host = outcome;
    }
}
