/** Codecs of messages on a GPU, lossless and ecdq: the parameters of their kernels, and how a call becomes
 *  launches. It needs no CUDA: the tests run the same launches on an emulated device. Compiles as C11, C++17
 *  and CUDA.
 *
 *  An element's index counts all elements of all segments. Coded (live) elements are those of rows that are
 *  not all zeros; they also have an index among coded elements. Read lossless_rows.cuh (where elements, rows
 *  and pieces are), then for the encoder lossless_scales, lossless_model, lossless_head and
 *  lossless_encode.cuh, for the decoder lossless_read and lossless_decode.cuh. They do what quant/lossless
 *  does on the host, with its arithmetic (value.h, model.h). Only the order of work differs; results do not,
 *  as all sums are of integers. ecdq has the same scales, head and order of blocks, so it shares these
 *  kernels; its own are in ecdq.cuh. */
#pragma once

#include "quant/cuda/entropy_job.h"
#include "quant/ecdq/ecdq.h"
#include "quant/lossless/tails.h"

TW_C_BEGIN

/** Room for a block's words and escapes (16 bits each), which grow towards each other. A block that needs
 *  more is sent raw. */
#define TW_LOSSLESS_CUDA_ROOM (TW_LOSSLESS_BLOCK_ELEMS - TW_LOSSLESS_BLOCK_ELEMS / 64 * TW_LOSSLESS_RAW_BYTES)
/** words of the room for fp32, where tails may be coded, too */
#define TW_LOSSLESS_CUDA_TAILED_ROOM (TW_LOSSLESS_CUDA_ROOM + TW_LOSSLESS_BLOCK_ELEMS)
/** Words of a block's list of tails, two for each tail. */
#define TW_LOSSLESS_CUDA_LISTED (2 * (TW_LOSSLESS_BLOCK_ELEMS / TW_LOSSLESS_LISTED))

/** A segment that has elements. After the last one comes a sentinel whose `first` is n_elems. */
typedef struct tw_lossless_cuda_segment {
    uint64_t first; /**< index of its first element */
    uint64_t at;    /**< its address */
} tw_lossless_cuda_segment_t;

/** Indices of a piece's lists, in the order of the message. */
#define TW_LOSSLESS_OF_ROWS 0
#define TW_LOSSLESS_OF_CLASSES 1
#define TW_LOSSLESS_OF_COLUMNS 2
#define TW_LOSSLESS_CUDA_LISTS 3

typedef struct tw_lossless_cuda_list {
    uint32_t k, bits;
    uint64_t at; /**< where the list begins, in bits after the header */
} tw_lossless_cuda_list_t;

typedef struct tw_lossless_cuda_piece {
    uint32_t first_elem, n_elems, row_elems, first; /**< see tw_lossless_piece_t */
    uint32_t first_row, n_rows, first_column;
    uint32_t with_columns; /**< 1: its columns may have scales */
    /* Results of kernels about the piece, zeroed before the first one. */
    tw_entropy_sum_t sum, live, deviations[2][2], deviation, own_cost;
    /** n_live: coded elements; first_live: index of the first one */
    uint32_t n_live_rows, n_live, first_live;
    tw_lossless_cuda_list_t lists[TW_LOSSLESS_CUDA_LISTS];
    uint32_t offset, zeros_offset; /**< bytes from the header's end to the piece, and to its ZEROS bits */
    uint32_t row_class, flags;
    int32_t scale;
} tw_lossless_cuda_piece_t;

/** Results that kernels leave for later kernels. */
typedef struct tw_lossless_cuda_state {
    int32_t status;
    /** 1: a block cannot be decoded. It is not in `status`, which other warps read at the same time */
    uint32_t failed;
    uint32_t coded;
    uint32_t bytes, check;                 /**< bytes of the message; bytes under its header's checksum */
    uint32_t head_bytes, n_pieces, n_rows; /**< head_bytes: without the header */
    uint32_t n_live, n_blocks;
    uint32_t own; /**< mask of the classes whose own tables are sent */
    int32_t window;
    uint8_t tables[TW_LOSSLESS_CLASSES][TW_LOSSLESS_TABLE_BYTES];
    tw_lossless_tails_t tails;
    tw_quant_outcome_t outcome; /**< where the outcome goes if the caller wants none */
} tw_lossless_cuda_state_t;

typedef struct tw_lossless_cuda_job {
    tw_type_t type;
    tw_quant_sink_t sink;
    int dithered; /**< 1: the codec is ecdq; step and key are for its encoder */
    int32_t step;
    uint32_t key[2];
    /** sizes of the arrays below; decoders may use less */
    uint32_t n_elems, n_segments, n_pieces, n_rows, n_columns, n_blocks;
    uint32_t src_bytes, at_most;
    uint64_t bound;
    uint8_t *dst;       /**< the message */
    const uint8_t *src; /**< the message to decode */
    tw_quant_outcome_t *outcome;
    /* All below is in the workspace. */
    tw_lossless_cuda_state_t *state;
    tw_lossless_cuda_segment_t *segments;
    tw_lossless_cuda_piece_t *pieces;
    tw_lossless_counts_t *counts; /**< [CLASSES] */
    uint32_t *tail_counts;        /**< see tw_lossless_tail_counts_t */
    uint32_t *symbol_counts;      /**< [n_blocks * TW_ECDQ_SYMBOLS] */
    tw_entropy_cuda_block_t *blocks;
    uint32_t *block_tails;  /**< [n_blocks] `tails` of entries; ecdq: words of a block's tables */
    uint64_t *encode;       /**< [CONTEXTS * SYMBOLS] */
    uint64_t *encode_tails; /**< [TAIL_CONTEXTS * SYMBOLS] */
    uint8_t *tail_symbols;  /**< [TAIL_CONTEXTS * FREQ_SUM], the symbol of each slot */
    uint32_t *tail_slots;   /**< [TAIL_CONTEXTS * SYMBOLS], like slots */
    uint8_t *symbols;       /**< [CONTEXTS * FREQ_SUM], the symbol of each slot */
    uint32_t *slots;        /**< [CONTEXTS * SYMBOLS], freq | first slot << 11 */
    uint16_t *rows;         /**< [n_rows], see tw_lossless_shape_t */
    uint32_t *live_before;  /**< [n_rows] coded elements before the row in its piece */
    uint32_t *live_rows;    /**< [n_rows] for each piece: its rows that are not all zeros */
    int16_t *columns;       /**< [n_columns] */
    uint16_t *heads;        /**< [n_elems] of coded elements: heads; decoding: the expectation, then 9 bits */
    uint16_t *codes;        /**< [n_elems] symbol | context << 5, or ESCAPED | 9 bits | context << 9 */
    /* ecdq's encoder: heads are integers, codes are symbol | class << 5. ecdq's decoder: codes are integers;
     * heads are expectations, but for TW_ECDQ_RAW the offset of the value in the list of escapes. */
    uint16_t *tails;  /**< [n_elems] of coded elements; decoding fp32: first the heads' symbols */
    uint16_t *words;  /**< [n_blocks * tw_lossless_cuda_room]; ecdq: a block's tables first */
    uint16_t *listed; /**< [n_blocks * LISTED], fp32 only */
    uint32_t *lanes;  /**< [n_blocks * LANES] lanes' states at the coder's end */
} tw_lossless_cuda_job_t;

TW_HD static inline uint32_t tw_lossless_cuda_room(const tw_lossless_cuda_job_t *job)
{
    if (job->dithered) {
        return TW_LOSSLESS_BLOCK_ELEMS * (job->type == TW_TYPE_FP32 ? 2 : 1);
    }
    return job->type == TW_TYPE_FP32 ? TW_LOSSLESS_CUDA_TAILED_ROOM : TW_LOSSLESS_CUDA_ROOM;
}

/** Bytes between the header and the lossless codec's head. */
TW_HD static inline uint32_t tw_lossless_cuda_head_at(const tw_lossless_cuda_job_t *job)
{
    return job->dithered ? TW_ECDQ_HEAD_BYTES : 0;
}

#define TW_LOSSLESS_CUDA_ESCAPED 0x8000

typedef enum tw_lossless_cuda_kernel {
    TW_LOSSLESS_CUDA_ROWS,
    TW_LOSSLESS_CUDA_COLUMNS,
    TW_LOSSLESS_CUDA_DEVIATIONS,
    TW_LOSSLESS_CUDA_SCALES,
    TW_LOSSLESS_CUDA_CLASSES,
    TW_LOSSLESS_CUDA_PIECES,
    TW_LOSSLESS_CUDA_COUNT,
    TW_LOSSLESS_CUDA_SAMPLE,
    TW_LOSSLESS_CUDA_MODEL,
    TW_LOSSLESS_CUDA_HEAD,
    TW_LOSSLESS_CUDA_WRITE,
    TW_LOSSLESS_CUDA_GATHER,
    TW_LOSSLESS_CUDA_CODE,
    TW_LOSSLESS_CUDA_LAYOUT,
    TW_LOSSLESS_CUDA_ASSEMBLE,
    TW_LOSSLESS_CUDA_FINISH,
    TW_LOSSLESS_CUDA_OPEN,
    TW_LOSSLESS_CUDA_CHECK,
    TW_LOSSLESS_CUDA_READ,
    TW_LOSSLESS_CUDA_EXPECT,
    TW_LOSSLESS_CUDA_CHECK_BLOCKS,
    TW_LOSSLESS_CUDA_DECODE,
    TW_LOSSLESS_CUDA_SCATTER,
    TW_LOSSLESS_CUDA_CLOSE,
    TW_ECDQ_CUDA_GATHER,
    TW_ECDQ_CUDA_COUNT,
    TW_ECDQ_CUDA_CODE,
    TW_ECDQ_CUDA_ASSEMBLE,
    TW_ECDQ_CUDA_DECODE,
    TW_ECDQ_CUDA_SCATTER,
    TW_LOSSLESS_CUDA_KERNELS
} tw_lossless_cuda_kernel_t;

/** Make the device object of the current GPU, and load the kernels. */
tw_status_t tw_lossless_cuda_device_create(tw_entropy_cuda_device_t *device);

/** Make a codec on a device. `device` is copied. */
tw_status_t tw_messages_stream_create_on(const tw_entropy_cuda_device_t *device,
                                         const tw_quant_codec_t *codec, tw_quant_messages_stream_t **out);

TW_C_END
