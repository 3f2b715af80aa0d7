/** How fast block codecs are on a GPU, beside a device-to-device copy in the same run: a table, and lines
 *  of JSON. Built without CUDA, what needs a GPU says so and returns TW_ERR_UNSUPPORTED. */
#ifndef TW_TESTS_GPU_CODEC_REPORT_H
#define TW_TESTS_GPU_CODEC_REPORT_H

#include <stdio.h>

#include "bench/codecs/rig.h"

TW_C_BEGIN

/** What is measured on. */
typedef struct cb_gpu {
    char name[128];
    char driver[64], runtime[16]; /**< "580.65.06 (CUDA 13.0)" and "13.0", for example */
} cb_gpu_t;

/** The current device; TW_ERR_UNSUPPORTED, logged, if there is none. */
tw_status_t cb_gpu_device(cb_gpu_t *device);

/** The fraction of the floor (a copy that moves as many bytes) that is wanted of a case: 0.85 from 64 MB of
 *  the plain tensor on, 0.75 for reduce_encode, which has K streams to read; 0.60 from 1 MB on, where
 *  launching counts; 0 below: anything will do. */
double cb_gpu_bar(const cb_case_t *c);
/** One line, as in the table. */
typedef struct cb_gpu_line {
    const char *op;
    char codec[128];
    tw_type_t type;
    size_t bytes, n_segments;
    double fraction, bar; /**< of the floor */
    int ok;               /**< fraction >= bar */
} cb_gpu_line_t;

typedef struct cb_gpu_report {
    FILE *json;          /**< or NULL */
    const char *command; /**< for the lines of JSON */
    cb_gpu_t device;
    size_t n_lines, n_failed; /**< failed: could not be measured or written */
    size_t n_below;           /**< below their bars */
    cb_gpu_line_t last;       /**< the line that was reported last */
} cb_gpu_report_t;

/** Print the head of a table to stdout. TW_ERR_UNSUPPORTED, logged, if there is no device. */
tw_status_t cb_gpu_report_begin(cb_gpu_report_t *report);
/** Measure, print a line, write a line of JSON. */
tw_status_t cb_gpu_report_case(cb_gpu_report_t *report, const cb_case_t *c);
/** The same with what was measured already. */
tw_status_t cb_gpu_report_result(cb_gpu_report_t *report, const cb_case_t *c, const cb_result_t *result);

TW_C_END

#endif
