/** Inside the bench of the lossless delta: main.c reports, options.c reads the command line, data.c has the
 *  weights, measure.c the clock. */
#ifndef TW_BENCH_DELTA_DELTA_H
#define TW_BENCH_DELTA_DELTA_H

#include "quant/quant.h"

TW_C_BEGIN

typedef struct delta_options {
    size_t elems;
    uint64_t seed;
    double lr, seconds;
    int contexts;        /**< 1, 2, or 0: both */
    const char *backend; /**< NULL: all there are */
    const char *older_file, *old_file, *new_file;
    const char *json;
} delta_options_t;

/** Weights of three steps in a row, bf16[n] each. */
typedef struct delta_data {
    size_t n;
    uint16_t *older; /**< NULL: not known */
    uint16_t *old, *new;
} delta_data_t;

/** One line. GB are 10^9 bytes of plain weights. */
typedef struct delta_row {
    const char *source; /**< the new weights' file, or "synthetic" */
    double lr;          /**< of synthetic weights; else NAN */
    size_t n_elems;
    const char *backend;
    int contexts;
    size_t message_bytes;
    double bits, floor_bits, above; /**< bits a parameter; above: of the floor, a share of it */
    double encode_gbytes, decode_gbytes, memcpy_gbytes; /**< a second */
    int ok;                                             /**< every bit came back */
} delta_row_t;

/** Ends the program on --help and on errors. */
void delta_options_parse(int argc, char **argv, delta_options_t *options);

/** Make or read the weights; logs its own errors. */
tw_status_t delta_data_create(const delta_options_t *options, delta_data_t *data);
void delta_data_destroy(delta_data_t *data);
/** The entropy of the changes, in bits a parameter, given what a code of so many contexts knows. */
tw_status_t delta_data_entropy(const delta_data_t *data, int contexts, double *bits);

/** Fill the rest of a row whose backend, contexts and floor_bits are set; logs its own errors. */
tw_status_t delta_measure(const delta_options_t *options, const delta_data_t *data, delta_row_t *row);

TW_C_END

#endif
