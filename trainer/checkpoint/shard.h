/** Private to trainer/checkpoint: a shard, a rank's file. Each of its tensors is a piece, named like
 *  "master/transformer.wte.weight/4096": its kind, the model's tensor, and its first element there. */
#pragma once

#include "safetensors/safetensors.h"
#include "trainer/checkpoint/checkpoint.h"

TW_C_BEGIN

/** A range of elements in a shard. */
typedef struct tw_shard_range {
    int kind; /**< tw_checkpoint_kind_t */
    size_t tensor, first, n_elems;
    const void *data; /**< fp32, in the mapped file; may be unaligned */
    int rank;         /**< the rank that wrote the file */
} tw_shard_range_t;

/** Write a rank's pieces. When it returns, the pieces' values may change. The caller then calls
 *  tw_safetensors_writer_finish, which flushes the file to the disk and renames it to `path`. Errors of the
 *  safetensors writer. TW_ERR_INVALID, logged: a piece lies outside its tensor. */
tw_status_t tw_shard_write(const char *path, const tw_model_t *model, const tw_checkpoint_piece_t *pieces,
                           size_t n_pieces, tw_safetensors_writer_t **out);
/** Find the range of the model's tensor that is stored in a shard as `tensor`. TW_ERR_FORMAT, logged with
 *  `path`: tw_shard_write does not write such a tensor. */
tw_status_t tw_shard_range_of(const char *path, const tw_model_t *model,
                              const tw_safetensors_tensor_t *tensor, int rank, tw_shard_range_t *range);

TW_C_END
