/** bench/quant, the benchmark of the codecs. Names begin with qb_, on a GPU with qg_.
 *
 *  To be read in this order: options.c (the command line), main.c (the tables), speed.c, error.c; gpu.h,
 *  gpu.c, gpu_report.c (the same on a GPU). */
#ifndef TW_BENCH_CODECS_BENCH_H
#define TW_BENCH_CODECS_BENCH_H

#include "quant/quant.h"

TW_C_BEGIN

#define QB_MAX_CODECS 16
#define QB_MAX_TYPES 3

typedef enum qb_op {
    QB_ENCODE,
    QB_DECODE,
    QB_DECODE_ADD,
    QB_ENCODE_DELTA,
    QB_DECODE_APPLY,
    QB_REDUCE_ENCODE,
    QB_REDUCE_DECODE,
    QB_OP_COUNT
} qb_op_t;

typedef struct qb_options {
    const char *backend;
    tw_quant_codec_t codecs[QB_MAX_CODECS];
    size_t n_codecs;
    tw_type_t types[QB_MAX_TYPES];
    size_t n_types;
    int ops[QB_OP_COUNT]; /**< which are wanted */
    size_t bytes;         /**< of the source, data larger than cache */
    size_t warm_bytes;    /**< of the source of each thread, data in its cache */
    int cold, warm;       /**< which are wanted */
    int threads;          /**< 0: one, then all cores */
    int cuda;             /**< measure the GPU instead */
    int64_t n_inputs;     /**< of reductions */
    double seconds;       /**< to measure each line for, and what it is compared with */
    int speed, error;     /**< which tables are wanted */
    const char *json, *tensors;
} qb_options_t;

/** One line of the table of speeds. Bytes are of the plain side: what is encoded, decoded into, or each
 *  summed input. */
typedef struct qb_speed {
    qb_op_t op;
    tw_quant_codec_t codec;
    tw_type_t type;
    int threads, cold;
    size_t bytes;
    double op_sec, memcpy_sec; /**< medians, of a pass over `bytes` */
    double moved_bytes;        /**< that the operation has to read and write */
} qb_speed_t;

const char *qb_op_name(qb_op_t op);
/** Reductions take no 2 bits. */
int qb_op_takes(int op, const tw_quant_codec_t *codec);

/** Parse the command line; ends the program on --help and on errors. */
void qb_options_parse(int argc, char **argv, qb_options_t *options);

/** The buffers and threads for one type and number of threads. */
typedef struct qb_arena qb_arena_t;
tw_status_t qb_arena_create(const qb_options_t *options, tw_type_t type, int threads, int cold,
                            qb_arena_t **out);
void qb_arena_destroy(qb_arena_t *arena);
/** Measure one operation; logs its own errors. */
tw_status_t qb_arena_measure(qb_arena_t *arena, tw_quant_t *quant, qb_op_t op, qb_speed_t *speed);

/** Relative RMSE of each codec on n_elems values that `fill` makes, or on a file's tensors. */
tw_status_t qb_error_synthetic(const qb_options_t *options, const tw_quant_codec_t *codec, int heavy_tailed,
                               double *rel_rmse);
tw_status_t qb_error_tensors(const qb_options_t *options, const tw_quant_codec_t *codec, double *rel_rmse);

TW_C_END

#endif
