/** The lossless delta on a GPU: the parameters of its kernels, and how a call becomes launches. It needs no
 *  CUDA: the tests run the same launches on an emulated device. Compiles as C11, C++17 and CUDA.
 *
 *  Read delta_encode.cuh, then delta_decode.cuh. They do what quant/delta does on the host, with its
 *  arithmetic (value.h, model.h). Code that all entropy-coded messages share is in entropy.cuh. All sums are
 *  of integers, so their order does not matter. */
#pragma once

#include "quant/cuda/entropy_job.h"
#include "quant/delta/model.h"

TW_C_BEGIN

/** Addresses of a segment that has elements. A sentinel, whose `first` is the number of all elements, follows
 *  the last segment. */
typedef struct tw_delta_cuda_segment {
    uint64_t first; /**< index of its first element */
    uint64_t old_values, new_values, states;
} tw_delta_cuda_segment_t;

/** Sums over the sample, zeroed before the first kernel. */
typedef struct tw_delta_cuda_sums {
    uint32_t exponents[256];
    /** by exponent: sums of tw_delta_sample_part, sums of tw_delta_sample_size */
    uint32_t parts[TW_DELTA_EXPONENTS], sizes[TW_DELTA_EXPONENTS];
    uint32_t z[TW_DELTA_CONTEXTS], contexts[TW_DELTA_CONTEXTS]; /**< sums of z; numbers of elements */
    uint32_t symbols[TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS];
} tw_delta_cuda_sums_t;

/** Results that kernels leave for later kernels, zeroed before the first one. */
typedef struct tw_delta_cuda_state {
    int32_t status;
    /** 1: a block cannot be decoded. It is not in `status`, which other warps read at the same time */
    uint32_t failed;
    uint32_t coded;
    uint32_t bytes, check; /**< the message's bytes; its checksum, if it is plain */
    uint32_t head_bytes;   /**< bytes before the entries */
    uint32_t base;
    uint32_t rows[TW_DELTA_EXPONENTS]; /**< see tw_delta_model_t */
    tw_quant_outcome_t outcome;        /**< where the outcome goes if the caller wants none */
} tw_delta_cuda_state_t;

typedef struct tw_delta_cuda_job {
    uint32_t n_elems, n_segments, n_blocks;
    uint32_t second; /**< 1: with states */
    uint32_t tried;  /**< encoding: 1: the message is long enough that coding it is tried */
    uint32_t src_bytes, at_most;
    uint64_t bound;
    uint8_t *dst;       /**< the message */
    const uint8_t *src; /**< the message to decode */
    tw_quant_outcome_t *outcome;
    /* All below is in the workspace. */
    tw_delta_cuda_segment_t *segments;
    tw_delta_cuda_state_t *state;
    tw_delta_cuda_sums_t *sums;
    tw_entropy_cuda_block_t *blocks;
    uint64_t *encode; /**< [TABLES * SYMBOLS] */
    uint8_t *symbols; /**< [TABLES * FREQ_SUM], the symbol of each slot */
    uint32_t *slots;  /**< [TABLES * SYMBOLS], freq | first slot << 11 */
    /** [n_blocks * BLOCK_ELEMS] of each block: words from the beginning, escapes backward from the end */
    uint16_t *words;
    uint32_t *lanes; /**< [n_blocks * LANES] final states of lanes */
} tw_delta_cuda_job_t;

typedef enum tw_delta_cuda_kernel {
    TW_DELTA_CUDA_EXPONENTS,
    TW_DELTA_CUDA_FACTORS,
    TW_DELTA_CUDA_CONTEXTS,
    TW_DELTA_CUDA_SYMBOLS,
    TW_DELTA_CUDA_MODEL,
    TW_DELTA_CUDA_CODE,
    TW_DELTA_CUDA_LAYOUT,
    TW_DELTA_CUDA_ASSEMBLE,
    TW_DELTA_CUDA_FINISH,
    TW_DELTA_CUDA_READ,
    TW_DELTA_CUDA_CHECK,
    TW_DELTA_CUDA_DECODE,
    TW_DELTA_CUDA_APPLY,
    TW_DELTA_CUDA_CLOSE,
    TW_DELTA_CUDA_KERNELS
} tw_delta_cuda_kernel_t;

/** Make the device object of the current GPU, and load the kernels. */
tw_status_t tw_delta_cuda_device_create(tw_entropy_cuda_device_t *device);

/** Make a codec on a device. `device` is copied. */
tw_status_t tw_delta_stream_create_on(const tw_entropy_cuda_device_t *device, tw_quant_delta_stream_t **out);

TW_C_END
