/** Reader and writer of safetensors files: named tensors in one file, which is memory-mapped for reading.
 *
 *  An open file is never modified, so several threads may use it at the same time, but not while one closes
 *  it.
 *
 *  Format: 8 bytes, the header's length, little-endian; the header, a JSON object {"name": {"dtype": "BF16",
 *  "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}; then the data, with the
 *  tensors back to back, without holes. Offsets count from the start of the data.
 *  Source: https://huggingface.co/docs/safetensors. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_SAFETENSORS_MAX_DIMS 8
#define TW_SAFETENSORS_DTYPE_BYTES 16

/** One tensor. Its pointers are valid until the file is closed. n_elems is the product of dims, 1 for a
 *  scalar. `bytes` is 0 if a dim is 0. */
typedef struct tw_safetensors_tensor {
    const char *name;
    char dtype[TW_SAFETENSORS_DTYPE_BYTES]; /**< dtype as the file spells it: "BF16", "I64" */
    tw_type_t type;                         /**< fp32, bf16, fp16; TW_TYPE_BYTE for every other dtype */
    int n_dims;                             /**< 0: a scalar */
    size_t dims[TW_SAFETENSORS_MAX_DIMS];
    size_t n_elems, bytes;
    const void *data; /**< little-endian elements; may be unaligned, as the header may have any length */
} tw_safetensors_tensor_t;

typedef struct tw_safetensors tw_safetensors_t;

/** Map `path` read-only and check its whole header, so that a tensor's fields need no further check. The
 *  caller owns *out until tw_safetensors_close. TW_ERR_NOT_FOUND or TW_ERR_IO: the file cannot be opened or
 *  mapped; TW_ERR_INVALID: not a regular file; TW_ERR_TRUNCATED: shorter than its header says; TW_ERR_FORMAT:
 *  any other defect; TW_ERR_NO_MEMORY. Each is logged with the names of the file and the tensor. The file
 *  must not shrink while it is open. */
tw_status_t tw_safetensors_open(const char *path, tw_safetensors_t **out);
/** Do what tw_safetensors_open does, with a file of n_bytes that is in memory. `bytes` is borrowed until
 *  close; `label`, the file's name in messages, is copied. */
tw_status_t tw_safetensors_parse(const void *bytes, size_t n_bytes, const char *label,
                                 tw_safetensors_t **out);
/** Close a file and free all that was got from it. Accepts NULL. */
void tw_safetensors_close(tw_safetensors_t *file);

size_t tw_safetensors_count(const tw_safetensors_t *file);
/** Return tensor `index`, borrowed, in the order of the tensors' data; NULL past the last. */
const tw_safetensors_tensor_t *tw_safetensors_get(const tw_safetensors_t *file, size_t index);
/** Find a tensor by its name, in linear time; return NULL if there is none. */
const tw_safetensors_tensor_t *tw_safetensors_find(const tw_safetensors_t *file, const char *name);

/* ---- writing ------------------------------------------------------------------------------------------- */

/** A tensor to be written to a new file. */
typedef struct tw_safetensors_spec {
    const char *name; /**< UTF-8 */
    tw_type_t type;   /**< fp32, bf16 or fp16 */
    int n_dims;       /**< 0: a scalar */
    size_t dims[TW_SAFETENSORS_MAX_DIMS];
} tw_safetensors_spec_t;

/** A file being written from front to end. Until it is finished it is named path + ".tmp", so a file at
 *  `path` is always complete. Only one thread at a time may use it. */
typedef struct tw_safetensors_writer tw_safetensors_writer_t;

/** Start a file with these tensors, in this order. metadata: NULL, or a NULL-terminated list of key, value,
 *  key, value, ... (transformers wants "format", "pt"). TW_ERR_INVALID: a name appears twice, is not UTF-8 or
 *  is "__metadata__", or a type or shape is impossible; TW_ERR_NOT_FOUND: the directory does not exist;
 *  TW_ERR_IO; TW_ERR_NO_MEMORY. Each is logged with the file's name. */
tw_status_t tw_safetensors_writer_create(const char *path, const tw_safetensors_spec_t *specs, size_t n_specs,
                                         const char *const *metadata, tw_safetensors_writer_t **out);
/** Write the next bytes of the tensors' data, as many as the caller likes. TW_ERR_INVALID (logged): more
 *  bytes than the tensors have; TW_ERR_IO. */
tw_status_t tw_safetensors_writer_write(tw_safetensors_writer_t *writer, const void *data, size_t bytes);
/** End a file once all data are written: flush it to the disk and rename it to `path`. Frees the writer in
 *  any case. TW_ERR_INVALID (logged): bytes are missing; TW_ERR_IO. After an error `path` is as it was
 *  before, unless only the flush of the new name has failed: then `path` is the new file. */
tw_status_t tw_safetensors_writer_finish(tw_safetensors_writer_t *writer);
/** Stop writing: remove the unfinished file and free the writer. Accepts NULL. */
void tw_safetensors_writer_destroy(tw_safetensors_writer_t *writer);

TW_C_END
