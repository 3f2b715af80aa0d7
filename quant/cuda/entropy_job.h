/** Entropy-coded messages on a GPU: what calls of the lossless delta and of codecs of messages have in
 *  common. No CUDA needed: the tests run the same launches on an emulated device. Compiles as C11, C++17 and
 *  CUDA. */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_ENTROPY_CUDA_THREADS 256
#define TW_ENTROPY_CUDA_WARPS (TW_ENTROPY_CUDA_THREADS / 32)
/** Thread blocks per block of a message, or per 65,536 words of anything else. */
#define TW_ENTROPY_CUDA_PARTS 8
/** Steps whose elements a coder loads at once, long before it needs them. */
#define TW_ENTROPY_CUDA_AHEAD 8

typedef unsigned long long tw_entropy_sum_t; /**< the type that atomicAdd takes */

/** A block of a message. */
typedef struct tw_entropy_cuda_block {
    uint32_t sizes, check, offset, bytes; /**< offset: from the beginning of the message */
} tw_entropy_cuda_block_t;

/** A GPU, or its stand-in. Everything is enqueued on `stream`. */
typedef struct tw_entropy_cuda_device {
    uint32_t n_multiprocessors;
    /** Launch a kernel: its number in the codec's list; `job` has its parameters, which are copied. */
    tw_status_t (*run)(uint32_t kernel, const void *job, uint32_t grid, uint32_t threads, tw_stream_t stream);
    /** Copy words of 8 bytes to device memory; the list is not needed afterwards. */
    tw_status_t (*fill)(void *at, const void *words, size_t n, tw_stream_t stream);
    tw_status_t (*zero)(void *at, size_t bytes, tw_stream_t stream);
    /** Copy from the device to pinned host memory. */
    tw_status_t (*copy)(void *host, const void *from, size_t bytes, tw_stream_t stream);
} tw_entropy_cuda_device_t;

/* ---- workspaces ---------------------------------------------------------------------------------------- */

#define TW_ENTROPY_CUDA_ALIGN_BYTES ((size_t)256)

/** Hands out a workspace in pieces. One that begins at address 0 ends at the number of bytes that a call
 *  needs. */
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

/** Where the words that go to the device first are put together. */
typedef struct tw_entropy_staging {
    uint64_t *words;
    size_t room;
} tw_entropy_staging_t;

/** Make room for n words. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_entropy_staging_need(tw_entropy_staging_t *staging, size_t n);
void tw_entropy_staging_cleanup(tw_entropy_staging_t *staging);

/* ---- calls --------------------------------------------------------------------------------------------- */

/** Check that the workspace has `needed` bytes, and that everything is aligned: else TW_ERR_INVALID,
 *  logged. */
tw_status_t tw_entropy_call_check(const char *operation, const tw_quant_stream_args_t *args,
                                  const void *message, size_t needed);

/** A call's launches in a row: after an error, no more are made. */
typedef struct tw_entropy_launching {
    const tw_entropy_cuda_device_t *device;
    const void *job;
    tw_stream_t stream;
    tw_status_t status;
} tw_entropy_launching_t;

/** Launch a kernel; nothing for a grid of 0. */
void tw_entropy_launch(tw_entropy_launching_t *launching, uint32_t kernel, size_t grid, uint32_t threads);
/** The number of thread blocks for `wanted` units of work, but no more than fit on the device at a time. */
size_t tw_entropy_launch_persistent(const tw_entropy_launching_t *launching, size_t wanted);
/** Tell the host the call's outcome, if it wants to know; returns the launches' status. */
tw_status_t tw_entropy_launch_finish(const tw_entropy_launching_t *launching,
                                     const tw_quant_stream_args_t *args, const tw_quant_outcome_t *outcome);

/** Write the outcome of a call on host memory. */
void tw_entropy_put_outcome(const tw_quant_stream_args_t *args, size_t bytes, tw_status_t status);

/* ---- CUDA ---------------------------------------------------------------------------------------------- */

/** Fill in all but `run` for the current GPU; the kernels of this file are loaded when this returns. */
tw_status_t tw_entropy_cuda_device_create(tw_entropy_cuda_device_t *device);

TW_C_END
