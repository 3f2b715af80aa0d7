/** Reader of safetensors files: named tensors in one memory-mapped file.
 *
 *  Format: 8 bytes little-endian length of the header; the header, a JSON object {"name": {"dtype": "BF16", "shape": [2, 3],
 *  "data_offsets": [begin, end]}, ..., "__metadata__": {...}}; then the data, in which the tensors lie back to back without
 *  holes, offsets counting from its start.
 *  Source: https://huggingface.co/docs/safetensors. */
#ifndef TW_SAFETENSORS_SAFETENSORS_H
#define TW_SAFETENSORS_SAFETENSORS_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW_SAFETENSORS_MAX_DIMS 8
#define TW_SAFETENSORS_DTYPE_BYTES 16

/** One tensor; everything in it lives as long as the file is open. */
typedef struct tw_safetensors_tensor {
    const char *name;
    char dtype[TW_SAFETENSORS_DTYPE_BYTES]; /**< as the file says: "BF16", "I64" */
    tw_type_t type;                         /**< fp32, bf16, fp16; TW_TYPE_BYTE for every other dtype */
    int n_dims;                             /**< 0: a scalar */
    size_t dims[TW_SAFETENSORS_MAX_DIMS];
    size_t n_elems, bytes;
    const void *data; /**< little-endian elements; may be unaligned, as the header's length is free */
} tw_safetensors_tensor_t;

typedef struct tw_safetensors tw_safetensors_t;

/** Map `path` read-only and check its header whole. TW_ERR_NOT_FOUND or TW_ERR_IO: it cannot be opened;
 *  TW_ERR_TRUNCATED: shorter than it says; TW_ERR_FORMAT: anything else that is wrong with it; all logged with the file's
 *  and the tensor's name. The file must not shrink while it is open. */
tw_status_t tw_safetensors_open(const char *path, tw_safetensors_t **out);
/** The same for a file that is in memory already; `bytes` is borrowed until close, `label` is for messages. */
tw_status_t tw_safetensors_parse(const void *bytes, size_t n_bytes, const char *label,
                                 tw_safetensors_t **out);
/** Accepts NULL. */
void tw_safetensors_close(tw_safetensors_t *file);

/** Tensors, in the order in which they lie in the file. */
size_t tw_safetensors_count(const tw_safetensors_t *file);
const tw_safetensors_tensor_t *tw_safetensors_get(const tw_safetensors_t *file, size_t index);
/** By name; NULL if there is none. */
const tw_safetensors_tensor_t *tw_safetensors_find(const tw_safetensors_t *file, const char *name);

#ifdef __cplusplus
}
#endif

#endif
