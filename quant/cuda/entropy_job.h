/** Entropy-coded messages on a GPU: what calls of the lossless delta and of codecs of messages share. It
 *  needs no CUDA: the tests run the same launches on an emulated device. Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_ENTROPY_CUDA_THREADS 256
#define TW_ENTROPY_CUDA_WARPS (TW_ENTROPY_CUDA_THREADS / 32)
/** Thread blocks for each block of a message, or for each 65,536 words of other data. */
#define TW_ENTROPY_CUDA_PARTS 8
/** The number of steps whose elements a coder loads at once, ahead of their use. */
#define TW_ENTROPY_CUDA_AHEAD 8

typedef unsigned long long tw_entropy_sum_t; /**< the type that atomicAdd takes */

/** A block of a message. sizes and check are those of its entry. */
typedef struct tw_entropy_cuda_block {
    uint32_t sizes, check, offset, bytes; /**< offset: from the beginning of the message */
} tw_entropy_cuda_block_t;

/** A GPU, or the tests' emulation of one. Each function enqueues its work on `stream`. */
typedef struct tw_entropy_cuda_device {
    uint32_t n_multiprocessors;
    /** Launch a kernel, by its number in the codec's enum. *job, its parameters, is copied. */
    tw_status_t (*run)(uint32_t kernel, const void *job, uint32_t grid, uint32_t threads, tw_stream_t stream);
    /** Copy n words of 8 bytes to device memory. The caller may free `words` when this returns. */
    tw_status_t (*fill)(void *at, const void *words, size_t n, tw_stream_t stream);
    tw_status_t (*zero)(void *at, size_t bytes, tw_stream_t stream);
    /** Copy from the device to pinned host memory. */
    tw_status_t (*copy)(void *host, const void *from, size_t bytes, tw_stream_t stream);
} tw_entropy_cuda_device_t;

/* ---- workspaces ---------------------------------------------------------------------------------------- */

#define TW_ENTROPY_CUDA_ALIGN_BYTES ((size_t)256)

/** Hands out parts of a workspace. If `at` begins at 0, it ends as the number of bytes needed. */
typedef struct tw_entropy_arena {
    uintptr_t at;
} tw_entropy_arena_t;

static inline void *tw_entropy_arena_take(tw_entropy_arena_t *arena, size_t n, size_t elem_bytes)
{
    uintptr_t at = arena->at;
    size_t align = TW_ENTROPY_CUDA_ALIGN_BYTES;
    arena->at += (n * elem_bytes + align - 1) / align * align;
    return (void *)at;
}

/** Host memory for the words that a call copies to the device before its kernels run. */
typedef struct tw_entropy_staging {
    uint64_t *words;
    size_t room;
} tw_entropy_staging_t;

/** Make room for n words. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_entropy_staging_need(tw_entropy_staging_t *staging, size_t n);
void tw_entropy_staging_cleanup(tw_entropy_staging_t *staging);

/* ---- calls --------------------------------------------------------------------------------------------- */

/** Returns TW_ERR_INVALID (logged) if the workspace is below `needed` bytes or a pointer is not aligned. */
tw_status_t tw_entropy_call_check(const char *operation, const tw_quant_stream_args_t *args,
                                  const void *message, size_t needed);

/** The launches of one call. After an error the following ones do nothing. */
typedef struct tw_entropy_launching {
    const tw_entropy_cuda_device_t *device;
    const void *job;
    tw_stream_t stream;
    tw_status_t status;
} tw_entropy_launching_t;

/** Launch a kernel. A grid of 0 launches nothing. */
void tw_entropy_launch(tw_entropy_launching_t *launching, uint32_t kernel, size_t grid, uint32_t threads);
/** The grid for `wanted` thread blocks' work: no more thread blocks than the device runs at a time. */
size_t tw_entropy_launch_persistent(const tw_entropy_launching_t *launching, size_t wanted);
/** Copy the outcome to args->host, if that is not NULL. Returns the status of the launches. */
tw_status_t tw_entropy_launch_finish(const tw_entropy_launching_t *launching,
                                     const tw_quant_stream_args_t *args, const tw_quant_outcome_t *outcome);

/** Write the outcome of a call whose memory is the host's. */
void tw_entropy_put_outcome(const tw_quant_stream_args_t *args, size_t bytes, tw_status_t status);

/* ---- CUDA ---------------------------------------------------------------------------------------------- */

/** Fill in all members but `run` for the current GPU, and load the kernels that all codecs share. */
tw_status_t tw_entropy_cuda_device_create(tw_entropy_cuda_device_t *device);

TW_C_END
