/** Speed of the codecs on a GPU, beside a device-to-device copy in the same run: bench/quant --device cuda
 *  and gpu_check. Built without CUDA, everything here says so and returns TW_ERR_UNSUPPORTED. */
#ifndef TW_BENCH_CODECS_GPU_H
#define TW_BENCH_CODECS_GPU_H

#include "bench/codecs/bench.h"

TW_C_BEGIN

/** The operations of qb_op_t, and one more. */
enum { QG_ADAMW = QB_OP_COUNT, QG_OP_COUNT };

typedef struct qg_case {
    int op;
    tw_quant_codec_t codec; /**< of the inputs, if the operation has encoded ones */
    tw_quant_codec_t out;   /**< reduce_encode: of its output */
    tw_type_t type;
    size_t n_elems, n_segments;
    size_t n_inputs; /**< of reductions */
    double seconds;  /**< to measure for */
} qg_case_t;

/** Times are medians of one operation, of graphs that run it many times, on data that is not in the cache. */
typedef struct qg_result {
    double moved_bytes; /**< that the operation has to read and write */
    double op_sec;
    double copy_sec; /**< of a copy that reads and writes as many */
} qg_result_t;

/** What is measured on. */
typedef struct qg_gpu {
    char name[128];
    char driver[64], runtime[16]; /**< "580.65.06 (CUDA 13.0)" and "13.0", for example */
} qg_gpu_t;

const char *qg_op_name(int op);
/** The current device; TW_ERR_UNSUPPORTED, logged, if there is none. */
tw_status_t qg_device(qg_gpu_t *device);
tw_status_t qg_measure(const qg_case_t *c, qg_result_t *result);

/** The fraction of the floor (a copy that moves as many bytes) that is wanted of a case: 0.85 from 64 MB of
 *  the plain tensor on, 0.75 for reduce_encode, which has K streams to read; 0.60 from 1 MB on, where
 *  launching counts; 0 below: anything will do. */
double qg_bar(const qg_case_t *c);
/** One line, as in the table. */
typedef struct qg_line {
    const char *op;
    char codec[128];
    tw_type_t type;
    size_t bytes, n_segments;
    double fraction, bar; /**< of the floor */
    int ok;               /**< fraction >= bar */
} qg_line_t;

typedef struct qg_report {
    FILE *json;          /**< or NULL */
    const char *command; /**< for the lines of JSON */
    qg_gpu_t device;
    size_t n_lines, n_failed; /**< failed: could not be measured or written */
    size_t n_below;           /**< below their bars */
    qg_line_t last;           /**< the line that was reported last */
} qg_report_t;

/** Print the head of a table to stdout. TW_ERR_UNSUPPORTED, logged, if there is no device. */
tw_status_t qg_report_begin(qg_report_t *report);
/** Measure, print a line, write a line of JSON. */
tw_status_t qg_report_case(qg_report_t *report, const qg_case_t *c);
/** The same with what was measured already. */
tw_status_t qg_report_result(qg_report_t *report, const qg_case_t *c, const qg_result_t *result);
/** What bench/quant measures: every codec, type and operation that is asked for, on 1 MB and on `bytes`. */
tw_status_t qg_report_options(qg_report_t *report, const qb_options_t *options);

TW_C_END

#endif
