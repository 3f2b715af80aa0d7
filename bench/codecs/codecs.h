/** bench/codecs: measures bits, error and speed of every codec.
 *
 *  A source makes sets of tensors. Every codec that supports their type encodes and decodes each set, in one
 *  thread (trip.c). The source "blocks" is different: it measures all operations of block codecs on made-up
 *  values, on the host or on a GPU (rig.h). Read in this order: options.c (the command line), main.c (the
 *  table), set.c, sources.c and train.c (tensors), entropy.c (a lower limit of bits), trip.c. */
#pragma once

#include "bench/codecs/rig.h"
#include "quant/quant.h"

TW_C_BEGIN

#define CB_MAX_CODECS 16
#define CB_MAX_TYPES 3
#define CB_MAX_SETS 8
#define CB_TEXT_BYTES 64

typedef struct cb_options {
    tw_quant_codec_t codecs[CB_MAX_CODECS];
    size_t n_codecs;
    unsigned sources;    /**< bit i: source i of cb_sources is wanted */
    const char *backend; /**< name; NULL: the best one; "all": every one */
    tw_type_t types[CB_MAX_TYPES];
    size_t n_types;
    int ops[CB_OP_COUNT]; /**< 1: the operation is wanted */
    size_t bytes;         /**< bytes of each case of "blocks" whose data exceeds the caches */
    size_t warm_bytes;    /**< bytes of each case whose data stays in a core's cache */
    int cold, warm;       /**< 1: cases of `bytes`, or of `warm_bytes`, are wanted */
    int cuda;             /**< 1: "blocks" runs on a GPU, not on the host */
    int64_t n_inputs;     /**< number of inputs of a reduction */
    size_t elems;         /**< elements of a made-up tensor */
    uint64_t seed;
    double lr;    /**< learning rate of made-up steps */
    size_t steps; /**< training steps of the source "training" */
    size_t chunk_elems;
    int contexts;   /**< contexts of the delta: 1 or 2; 0: both */
    double seconds; /**< time to spend on each line */
    const char *file, *older_file, *old_file, *new_file;
    const char *json;
} cb_options_t;

/** Parse the command line. Ends the program on --help or an error. The program's `name` selects defaults. */
void cb_options_parse(const char *name, int argc, char **argv, cb_options_t *options);

/* ---- tensors ------------------------------------------------------------------------------------------- */

typedef struct cb_tensor {
    tw_type_t type;
    size_t n_elems, row_elems; /**< row_elems: length of the last dimension; 0: a vector */
    void *values;              /**< of `type`, owned */
    /** values of the tensor one training step before, and two steps before; owned; NULL: not known */
    void *old, *older;
} cb_tensor_t;

/** Tensors that are measured together. */
typedef struct cb_set {
    char name[256];
    cb_tensor_t *tensors;
    size_t n_tensors, n_elems, bytes;
    int has_old, has_older; /**< 1: all tensors have `old`, or `older` */
} cb_set_t;

/** A source of tensors. `make` gets CB_MAX_SETS zeroed sets and fills some of them. The caller cleans up all,
 *  even after an error (logged). `make` is NULL for "blocks". */
typedef struct cb_source {
    const char *name;
    tw_status_t (*make)(const cb_options_t *options, cb_set_t *sets);
} cb_source_t;

/** All sources; the last entry's name is NULL. */
extern const cb_source_t cb_sources[];

/** Allocate memory, to be freed with tw_buffer_free. This and all functions below log their errors. */
tw_status_t cb_alloc(size_t bytes, void **memory);
/** Make an empty set with space for n tensors. */
tw_status_t cb_set_init(cb_set_t *set, const char *name, size_t n);
/** Add a tensor whose values are not initialised. */
tw_status_t cb_set_add(cb_set_t *set, tw_type_t type, size_t n_elems, size_t row_elems);
void cb_set_cleanup(cb_set_t *set);

/** The source "training": train a GPT-2 of 0.84 M parameters on the King James text, and make sets of the
 *  last step: gradients and weights in bf16, gradients in fp32, one rank's bf16 gradients widened to fp32,
 *  and fp32 sums of the bf16 gradients of 2, 4 and 8 ranks. */
tw_status_t cb_train(const cb_options_t *options, cb_set_t *sets);

/** Return a lower limit of the bits per element of a code that has the codec's side information for free. For
 *  the lossless codec that is the scales of row and column. For the delta it is the old value's exponent, and
 *  with two contexts also the previous change. Return NAN if no limit is known, as for codecs that round. */
double cb_floor_bits(const cb_set_t *set, const tw_quant_codec_t *codec, int contexts);

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** One line of the table. `bytes` is the size of the plain values; a GB is 10^9 bytes. NAN: not known. */
typedef struct cb_row {
    const char *source, *op, *type, *backend, *cache, *codec;
    int contexts;
    size_t chunk_elems; /**< 0: one message */
    size_t n_elems, bytes;
    double moved_bytes; /**< bytes that the operation must read and write */
    double message_bytes, bits, floor_bits, rel_rmse;
    double op_sec, memcpy_sec, floor_sec; /**< medians; floor_sec: time of moved_bytes at memcpy's speed */
    double us, gbytes, memcpy_gbytes, floor_gbytes;
    int ok; /**< 1: decoded values have the same bits (lossless codecs), or are finite (other codecs) */
} cb_row_t;

/** Encode and decode a set, with the row's chunk_elems, backend and contexts, and fill in the row's results.
 *  op_sec becomes the time to encode. If row->ok is 0, it is an error. */
tw_status_t cb_trip(const cb_options_t *options, const cb_set_t *set, const tw_quant_codec_t *codec,
                    cb_row_t *row, double *decode_sec);

TW_C_END
