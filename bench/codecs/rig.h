/** Measures the operations of block codecs on made-up values, in memory of the host or of a GPU. */
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
/** Return 1 if the operation supports the codec: a reduction needs one whose values may be summed. */
int cb_op_takes(int op, const tw_quant_codec_t *codec);

typedef struct cb_case {
    int op;
    tw_quant_codec_t codec; /**< codec of the inputs, if they are encoded */
    tw_quant_codec_t out;   /**< codec of reduce_encode's output */
    tw_type_t type;
    size_t n_elems, n_segments;
    size_t n_inputs; /**< number of inputs of a reduction */
    double seconds;  /**< time to spend on measuring */
} cb_case_t;

size_t cb_case_bytes(const cb_case_t *c);

/** Medians of the time of one operation, and of a copy. */
typedef struct cb_result {
    double moved_bytes; /**< bytes that the operation must read and write */
    double op_sec;
    double copy_sec; /**< time of a copy that moves as many bytes */
} cb_result_t;

/** Measure in one thread, by its CPU time. A sample is `repeats` operations in a row. *backend is the name of
 *  the backend to use, NULL for the best; the call sets it to the one that was used. */
tw_status_t cb_host_measure(const cb_case_t *c, size_t repeats, const char **backend, cb_result_t *result);
/** Measure on the current GPU: CUDA graphs run the operation many times, on data that are not in the cache.
 *  TW_ERR_UNSUPPORTED (logged): this build has no CUDA. */
tw_status_t cb_gpu_measure(const cb_case_t *c, cb_result_t *result);

/* ---- private to rig.c, host.c and gpu.c ---------------------------------------------------------------- */

/** Byte offsets of a set's buffers; 0 for a buffer that is not needed. `bytes` is the size of a set. */
typedef struct cb_layout {
    size_t plain, target, master, m, v, inputs, output, bytes;
    /** elements of each segment (the last may have fewer); encoded bytes of its input, and of its output */
    size_t segment_elems, segment_in, segment_out;
    size_t input_stride; /**< bytes from one input of a reduction to the next */
    double moved;        /**< bytes that the operation must read and write */
} cb_layout_t;

/** A kind of memory, and the function that copies to it from the host. */
typedef struct cb_memory {
    tw_mem_t mem;
    const char *backend; /**< NULL: the best */
    tw_status_t (*copy)(void *dst, const void *src, size_t bytes);
} cb_memory_t;

/** Several sets of buffers, one after another in `arena`. Each set has all buffers of the operation. */
typedef struct cb_rig {
    const cb_case_t *c;
    const cb_memory_t *memory;
    cb_layout_t at;
    size_t n_sets;
    uint8_t *arena; /**< [n_sets * at.bytes], zeroed, owned by the caller */
    tw_quant_t *in, *out;
    tw_stream_t stream;
    tw_quant_segment_t *segments;
    tw_quant_reduce_segment_t *reduce_segments;
    tw_quant_adamw_segment_t *adamw_segments;
    const void **srcs; /**< [n_segments][n_inputs] */
} cb_rig_t;

/** Make codec contexts and the layout. Then the caller sets n_sets, arena and stream, and calls cb_rig_fill.
 *  Errors are logged. The caller calls cb_rig_cleanup even after an error. */
tw_status_t cb_rig_init(cb_rig_t *rig, const cb_case_t *c, const cb_memory_t *memory);
tw_status_t cb_rig_fill(const cb_rig_t *rig);
/** Run the operation on the buffers of set `set` (from 0); on a GPU, only enqueue it. */
tw_status_t cb_rig_run(cb_rig_t *rig, size_t set);
void cb_rig_cleanup(cb_rig_t *rig);

TW_C_END
