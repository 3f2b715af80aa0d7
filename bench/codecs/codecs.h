/** bench/codecs: bits, error and speed of every codec.
 *
 *  A source gives tensors, which every codec that may have them encodes and decodes, in one thread
 *  (trip.c); or it is "blocks": all operations of block codecs on made-up values, on the host or on a GPU
 *  (rig.h). To be read in this order: options.c (the command line), main.c (the table), set.c, sources.c
 *  and train.c (tensors), entropy.c (the least that they could take), trip.c. */
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
    unsigned sources;    /**< bits: 1 << index in cb_sources */
    const char *backend; /**< NULL: the best; "all": each */
    tw_type_t types[CB_MAX_TYPES];
    size_t n_types;
    int ops[CB_OP_COUNT]; /**< which are wanted */
    size_t bytes;         /**< of the source of "blocks", data larger than cache */
    size_t warm_bytes;    /**< likewise, data in a core's cache */
    int cold, warm;       /**< which are wanted */
    int cuda;             /**< "blocks" on a GPU instead */
    int64_t n_inputs;     /**< inputs of reductions */
    size_t elems;         /**< elements of tensors that are made up */
    uint64_t seed;
    double lr;    /**< of made-up steps */
    size_t steps; /**< of training */
    size_t chunk_elems;
    int contexts;   /**< of the delta: 1, 2, or 0: both */
    double seconds; /**< to measure each line for */
    const char *file, *older_file, *old_file, *new_file;
    const char *json;
} cb_options_t;

/** Parse the command line; ends the program on --help and on errors. `name`: the program's, which decides
 *  what is measured where nothing is said. */
void cb_options_parse(const char *name, int argc, char **argv, cb_options_t *options);

/* ---- tensors ------------------------------------------------------------------------------------------- */

typedef struct cb_tensor {
    tw_type_t type;
    size_t n_elems, row_elems; /**< row_elems: of the last dimension; 0: it has only one */
    void *values;              /**< of `type`, owned */
    /** the tensor one step and two steps before, owned; NULL: not known */
    void *old, *older;
} cb_tensor_t;

/** Tensors of a kind. */
typedef struct cb_set {
    char name[256];
    cb_tensor_t *tensors;
    size_t n_tensors, n_elems, bytes;
    int has_old, has_older; /**< all tensors have it */
} cb_set_t;

/** A source of tensors. `make` fills up to CB_MAX_SETS zeroed sets, which the caller cleans up, also
 *  after an error (logged). NULL: "blocks". */
typedef struct cb_source {
    const char *name;
    tw_status_t (*make)(const cb_options_t *options, cb_set_t *sets);
} cb_source_t;

/** The last one's name is NULL. */
extern const cb_source_t cb_sources[];

/** Memory for tw_buffer_free. All that follow log their own errors. */
tw_status_t cb_alloc(size_t bytes, void **memory);
/** Room for n tensors. */
tw_status_t cb_set_init(cb_set_t *set, const char *name, size_t n);
/** Add one with uninitialised values. */
tw_status_t cb_set_add(cb_set_t *set, tw_type_t type, size_t n_elems, size_t row_elems);
void cb_set_cleanup(cb_set_t *set);

/** Train a GPT-2 of 0.84 M parameters on the King James text: gradients and weights of the last step in
 *  bf16; gradients in fp32, then those that are bf16 numbers of one rank, and sums of two, four and eight
 *  ranks'. */
tw_status_t cb_train(const cb_options_t *options, cb_set_t *sets);

/** Least bits an element of these tensors, where a code knows what the codec's messages tell or both ends
 *  have, for nothing. Of the lossless codec: the scales of row and column; of the delta: the old value's
 *  exponent, with two contexts the previous change, too. NAN: not known, as of codecs that round. */
double cb_floor_bits(const cb_set_t *set, const tw_quant_codec_t *codec, int contexts);

/* ---- rows ---------------------------------------------------------------------------------------------- */

/** One line. Bytes are of the plain side; GB are 10^9 of them. Numbers that are not known are NAN. */
typedef struct cb_row {
    const char *source, *op, *type, *backend, *cache, *codec;
    int contexts;
    size_t chunk_elems; /**< 0: one message */
    size_t n_elems, bytes;
    double moved_bytes; /**< that the operation has to read and write */
    double message_bytes, bits, floor_bits, rel_rmse;
    double op_sec, memcpy_sec, floor_sec; /**< medians; floor: at memcpy's speed */
    double us, gbytes, memcpy_gbytes, floor_gbytes;
    int ok; /**< a codec without loss gave every bit back */
} cb_row_t;

/** Encode and decode a set, in messages of the row's chunk_elems with its backend and contexts, and fill
 *  in what came of it; op_sec: of encoding. Logs its own errors; one is that bits which must come back do
 *  not. */
tw_status_t cb_trip(const cb_options_t *options, const cb_set_t *set, const tw_quant_codec_t *codec,
                    cb_row_t *row, double *decode_sec);

TW_C_END
