/** Entropy-coded messages on a GPU: what the lossless delta's and the lossless codec's calls have in common.
 *  No CUDA needed: the tests run the same launches on an emulated device. Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_ENTROPY_CUDA_THREADS 256
#define TW_ENTROPY_CUDA_WARPS (TW_ENTROPY_CUDA_THREADS / 32)
/** Thread blocks that work on one block of a message, or on 65,536 words of anything else. */
#define TW_ENTROPY_CUDA_PARTS 8
/** A coder loads the elements of as many steps at once, long before it needs them. */
#define TW_ENTROPY_CUDA_AHEAD 8

typedef unsigned long long tw_entropy_sum_t; /**< what atomicAdd takes */

/** A block of a message. */
typedef struct tw_entropy_cuda_block {
    uint32_t sizes, check, offset, bytes; /**< offset: in the message */
} tw_entropy_cuda_block_t;

/** A GPU, or what stands in for one. Everything is enqueued on `stream`. */
typedef struct tw_entropy_cuda_device {
    uint32_t n_multiprocessors;
    /** `kernel` is of the codec's list, `job` its parameters, which are copied. */
    tw_status_t (*run)(uint32_t kernel, const void *job, uint32_t grid, uint32_t threads, tw_stream_t stream);
    /** Words of 8 bytes go to device memory; the list is not needed afterwards. */
    tw_status_t (*fill)(void *at, const void *words, size_t n, tw_stream_t stream);
    tw_status_t (*zero)(void *at, size_t bytes, tw_stream_t stream);
    /** From device to pinned host memory. */
    tw_status_t (*copy)(void *host, const void *from, size_t bytes, tw_stream_t stream);
} tw_entropy_cuda_device_t;

/* ---- workspaces ---------------------------------------------------------------------------------------- */

#define TW_ENTROPY_CUDA_ALIGN_BYTES ((size_t)256)

/** Hands out a workspace piece by piece. One that begins at 0 ends at the bytes that a call needs. */
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

/** What goes to the device first is put together here. */
typedef struct tw_entropy_staging {
    uint64_t *words;
    size_t room;
} tw_entropy_staging_t;

/** Room for n words. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_entropy_staging_need(tw_entropy_staging_t *staging, size_t n);
void tw_entropy_staging_cleanup(tw_entropy_staging_t *staging);

/* ---- calls --------------------------------------------------------------------------------------------- */

/** A workspace of `needed` bytes, and everything aligned: else TW_ERR_INVALID, logged. */
tw_status_t tw_entropy_call_check(const char *operation, const tw_quant_stream_args_t *args,
                                  const void *message, size_t needed);

/** A call's launches, one after the other: after an error none is made. */
typedef struct tw_entropy_launching {
    const tw_entropy_cuda_device_t *device;
    const void *job;
    tw_stream_t stream;
    tw_status_t status;
} tw_entropy_launching_t;

/** Nothing for a grid of 0. */
void tw_entropy_launch(tw_entropy_launching_t *launching, uint32_t kernel, size_t grid, uint32_t threads);
/** Thread blocks for so much work of one each, as long as they fit on the device. */
size_t tw_entropy_launch_persistent(const tw_entropy_launching_t *launching, size_t wanted);
/** Tell the host what became of the call, if it wants to know; returns the launches' status. */
tw_status_t tw_entropy_launch_finish(const tw_entropy_launching_t *launching,
                                     const tw_quant_stream_args_t *args, const tw_quant_outcome_t *outcome);

/** Say what became of a call on the host's memory. */
void tw_entropy_put_outcome(const tw_quant_stream_args_t *args, size_t bytes, tw_status_t status);

/* ---- CUDA ---------------------------------------------------------------------------------------------- */

/** The current GPU but for `run`; its own kernels are loaded when this returns. */
tw_status_t tw_entropy_cuda_device_create(tw_entropy_cuda_device_t *device);

TW_C_END
