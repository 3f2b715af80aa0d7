/** Reader and writer of safetensors files: named tensors in one file, memory-mapped to be read.
 *
 *  An open file is only read, so any threads may use it at the same time, except to close it.
 *
 *  Format: 8 bytes little-endian length of the header; the header, a JSON object {"name": {"dtype": "BF16",
 *  "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}; then the data, in which the
 *  tensors lie back to back without holes, offsets counting from its start.
 *  Source: https://huggingface.co/docs/safetensors. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_SAFETENSORS_MAX_DIMS 8
#define TW_SAFETENSORS_DTYPE_BYTES 16

/** One tensor; all that it points to lives as long as the file is open. n_elems is the product of dims, 1 for
 *  a scalar. bytes may be 0. */
typedef struct tw_safetensors_tensor {
    const char *name;
    char dtype[TW_SAFETENSORS_DTYPE_BYTES]; /**< dtype as the file spells it: "BF16", "I64" */
    tw_type_t type;                         /**< fp32, bf16, fp16; TW_TYPE_BYTE for every other dtype */
    int n_dims;                             /**< 0: a scalar */
    size_t dims[TW_SAFETENSORS_MAX_DIMS];
    size_t n_elems, bytes;
    const void *data; /**< little-endian elements; may be unaligned, as the header's length is free */
} tw_safetensors_tensor_t;

typedef struct tw_safetensors tw_safetensors_t;

/** Map `path` read-only and check its whole header, so that a tensor's fields need no further check. *out is
 *  the caller's until tw_safetensors_close. TW_ERR_NOT_FOUND or TW_ERR_IO: it cannot be opened or mapped;
 *  TW_ERR_INVALID: not a regular file; TW_ERR_TRUNCATED: shorter than it says; TW_ERR_FORMAT: anything else
 *  that is wrong with it; TW_ERR_NO_MEMORY. All are logged with the file's and the tensor's name. The file
 *  must not shrink while it is open. */
tw_status_t tw_safetensors_open(const char *path, tw_safetensors_t **out);
/** Do the same with a file of n_bytes that is in memory already; `bytes` is borrowed until close, `label`
 *  names it in messages and is copied. */
tw_status_t tw_safetensors_parse(const void *bytes, size_t n_bytes, const char *label,
                                 tw_safetensors_t **out);
/** Frees everything that was got from the file. Accepts NULL. */
void tw_safetensors_close(tw_safetensors_t *file);

/** Return the number of tensors, and one of them, in the file's order; NULL past the last. Borrowed. */
size_t tw_safetensors_count(const tw_safetensors_t *file);
const tw_safetensors_tensor_t *tw_safetensors_get(const tw_safetensors_t *file, size_t index);
/** Find a tensor by its name, comparing one after the other; NULL if there is none. */
const tw_safetensors_tensor_t *tw_safetensors_find(const tw_safetensors_t *file, const char *name);

/* ---- writing ------------------------------------------------------------------------------------------- */

/** A tensor that a new file will have. */
typedef struct tw_safetensors_spec {
    const char *name; /**< UTF-8 */
    tw_type_t type;   /**< fp32, bf16 or fp16 */
    int n_dims;       /**< 0: a scalar */
    size_t dims[TW_SAFETENSORS_MAX_DIMS];
} tw_safetensors_spec_t;

/** A file being written, its data from the front to the end. Until it is finished it is called path + ".tmp",
 *  so a file at `path` is always whole. One thread at a time. */
typedef struct tw_safetensors_writer tw_safetensors_writer_t;

/** Start a file with these tensors, in this order. metadata: NULL, or a NULL-terminated list of key, value,
 *  key, value, ... (transformers wants "format", "pt"). TW_ERR_INVALID: a name is there twice, not UTF-8 or
 *  "__metadata__", or a type or shape is impossible; TW_ERR_IO, TW_ERR_NOT_FOUND (the folder),
 *  TW_ERR_NO_MEMORY. All are logged with the file's name. */
tw_status_t tw_safetensors_writer_create(const char *path, const tw_safetensors_spec_t *specs, size_t n_specs,
                                         const char *const *metadata, tw_safetensors_writer_t **out);
/** Write the next bytes of data, in pieces of any size. TW_ERR_INVALID: more than the tensors have (logged);
 *  TW_ERR_IO. */
tw_status_t tw_safetensors_writer_write(tw_safetensors_writer_t *writer, const void *data, size_t bytes);
/** End a file once all data are written: flush it to the disk and give it its name. Frees the writer in any
 *  case. TW_ERR_INVALID: bytes are missing (logged); TW_ERR_IO. After an error there is no file, or the old
 *  one. */
tw_status_t tw_safetensors_writer_finish(tw_safetensors_writer_t *writer);
/** Give the file up and remove it. Accepts NULL. */
void tw_safetensors_writer_destroy(tw_safetensors_writer_t *writer);

TW_C_END
