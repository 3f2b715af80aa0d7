/** The operations of block codecs on made-up values, in memory of the host or of a GPU. */
#pragma once

#include "quant/quant.h"

TW_C_BEGIN

typedef enum cb_op {
    CB_ENCODE,
    CB_DECODE,
    CB_DECODE_ADD,
    CB_ENCODE_DELTA,
    CB_DECODE_APPLY,
    CB_REDUCE_ENCODE,
    CB_REDUCE_DECODE,
    CB_ADAMW,
    CB_OP_COUNT
} cb_op_t;

const char *cb_op_name(int op);
/** Return 1 if the operation takes the codec: reductions need one that sums. */
int cb_op_takes(int op, const tw_quant_codec_t *codec);

typedef struct cb_case {
    int op;
    tw_quant_codec_t codec; /**< of the inputs, if the operation has encoded ones */
    tw_quant_codec_t out;   /**< reduce_encode: of its output */
    tw_type_t type;
    size_t n_elems, n_segments;
    size_t n_inputs; /**< of reductions */
    double seconds;  /**< to measure for */
} cb_case_t;

size_t cb_case_bytes(const cb_case_t *c);

/** Times are medians of one operation. */
typedef struct cb_result {
    double moved_bytes; /**< that the operation has to read and write */
    double op_sec;
    double copy_sec; /**< of a copy that reads and writes as many */
} cb_result_t;

/** Measure in one thread, of which the processor time counts, so many times in a row. *backend: NULL: the
 *  best; the name of the one that was used comes back. */
tw_status_t cb_host_measure(const cb_case_t *c, size_t repeats, const char **backend, cb_result_t *result);
/** Measure graphs that run it many times, on data that is not in the cache, on the current GPU.
 *  TW_ERR_UNSUPPORTED (logged): this was built without CUDA. */
tw_status_t cb_gpu_measure(const cb_case_t *c, cb_result_t *result);

/* ---- private to rig.c, host.c and gpu.c ---------------------------------------------------------------- */

/** Offsets in a set of buffers; what an operation does not need is empty. */
typedef struct cb_layout {
    size_t plain, target, master, m, v, inputs, output, bytes;
    size_t segment_elems, segment_in, segment_out; /**< of all segments but the last, encoded in bytes */
    size_t input_stride;                           /**< bytes from one input of a reduction to the next */
    double moved;                                  /**< bytes that the operation has to read and write */
} cb_layout_t;

/** How a memory is filled. */
typedef struct cb_memory {
    tw_mem_t mem;
    const char *backend; /**< NULL: the best */
    tw_status_t (*copy)(void *dst, const void *src, size_t bytes);
} cb_memory_t;

/** Several sets of buffers in a row, each with all that the operation needs. */
typedef struct cb_rig {
    const cb_case_t *c;
    const cb_memory_t *memory;
    cb_layout_t at;
    size_t n_sets;
    uint8_t *arena; /**< [n_sets * at.bytes], zeroed, the caller's */
    tw_quant_t *in, *out;
    tw_stream_t stream;
    tw_quant_segment_t *segments;
    tw_quant_reduce_segment_t *reduce_segments;
    tw_quant_adamw_segment_t *adamw_segments;
    const void **srcs; /**< [n_segments][n_inputs] */
} cb_rig_t;

/** Contexts and layout; then the caller sets n_sets, arena and stream, and fills it. Errors are logged, and
 *  followed by cb_rig_cleanup. */
tw_status_t cb_rig_init(cb_rig_t *rig, const cb_case_t *c, const cb_memory_t *memory);
tw_status_t cb_rig_fill(const cb_rig_t *rig);
/** Run, or on a GPU enqueue, the operation on one set of buffers. */
tw_status_t cb_rig_run(cb_rig_t *rig, size_t set);
void cb_rig_cleanup(cb_rig_t *rig);

TW_C_END
