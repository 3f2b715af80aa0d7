/** Private to trainer/checkpoint: a rank's file. Its tensors are called "master/transformer.wte.weight/4096":
 *  the kind, the model's tensor, the first element. */
#pragma once

#include "safetensors/safetensors.h"
#include "trainer/checkpoint/checkpoint.h"

TW_C_BEGIN

/** A run of elements in a file. */
typedef struct tw_shard_range {
    int kind; /**< tw_checkpoint_kind_t */
    size_t tensor, first, n_elems;
    const void *data; /**< fp32, maybe unaligned, in the file's memory */
    int rank;         /**< the rank whose file it is */
} tw_shard_range_t;

/** Write a rank's pieces to `path`. On return the values are no longer needed; tw_safetensors_writer_finish
 *  flushes them to the disk and gives the file its name. Errors of the safetensors writer; TW_ERR_INVALID
 *  (logged): a piece lies outside its tensor. */
tw_status_t tw_shard_write(const char *path, const tw_model_t *model, const tw_checkpoint_piece_t *pieces,
                           size_t n_pieces, tw_safetensors_writer_t **out);
/** Find which range of which tensor a tensor in a rank's file holds. TW_ERR_FORMAT, logged with `path`: it is
 *  nothing that tw_shard_write writes. */
tw_status_t tw_shard_range_of(const char *path, const tw_model_t *model,
                              const tw_safetensors_tensor_t *tensor, int rank, tw_shard_range_t *range);

TW_C_END
