/** Part of trainer/cuda (see cuda.h): embeddings, and the norm and rotation of heads of q and k before
 *  attention. N = B * T rows (tokens); row i is the token at position i % T. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/* ---- embedding ----------------------------------------------------------------------------------------- */

typedef struct tw_cuda_embedding {
    tw_type_t weight_type; /**< type of words and positions, fp32 or bf16 */
    tw_type_t type;        /**< type of x and dx, fp32 or bf16 */
    size_t rows, seq_len;  /**< N, T */
    size_t channels;       /**< C */
    const int32_t *tokens; /**< (N), each from 0 to V - 1; the caller must have checked that */
} tw_cuda_embedding_t;

/** Computes x (N,C): each token's row of words (V,C) plus its position's row of positions (T or more rows,
 *  C). positions may be NULL. */
tw_status_t tw_cuda_embedding_forward(const tw_cuda_embedding_t *embedding, const void *words,
                                      const void *positions, void *x, tw_stream_t stream);
/** Adds dx (N,C) to the tokens' rows of d_words (V,C) and to the positions' rows of d_positions (T,C). Either
 *  may be NULL. Rows are added in the order of tokens, so in fp32 the bits are those of trainer/model. */
tw_status_t tw_cuda_embedding_backward(const tw_cuda_embedding_t *embedding, const void *dx, float *d_words,
                                       float *d_positions, tw_stream_t stream);

/* ---- heads of q and k: an optional norm, then a rotation ----------------------------------------------- */

/** Heads of D channels, side by side in each row of a matrix: the heads of q, or of k, or of both if they are
 *  adjacent and have the same gamma. */
typedef struct tw_cuda_heads {
    tw_type_t type;       /**< type of x, y, d and gamma */
    size_t rows, seq_len; /**< N, T */
    size_t heads, width;  /**< width: D, at most 256, and even if heads are rotated */
    const void *gamma;    /**< (D) root-mean-square norm of each head; NULL: none */
    float epsilon;
    const float *cosines, *sines; /**< (T,D/2), made by tw_rope_table; NULL: no rotation */
    const void *x;                /**< the first head of row 0, before norm and rotation */
    size_t x_stride;              /**< elements from a row to the next */
} tw_cuda_heads_t;

/** Computes y, the heads of x normed and rotated, with rows y_stride elements apart. y may be x if y_stride
 *  is x_stride. TW_ERR_INVALID also for a bad width. */
tw_status_t tw_cuda_heads_forward(const tw_cuda_heads_t *heads, void *y, size_t y_stride, tw_stream_t stream);
/** For sums over heads: heads per block at a time; the most blocks (8 on each of 128 multiprocessors). */
#define TW_CUDA_HEADS_OF_BLOCK ((size_t)8)
#define TW_CUDA_HEAD_SLABS_MAX ((size_t)1024)
static inline size_t tw_cuda_head_slabs(const tw_cuda_heads_t *heads)
{
    size_t n = heads->rows * heads->heads;
    size_t slabs = n / TW_CUDA_HEADS_OF_BLOCK + (n % TW_CUDA_HEADS_OF_BLOCK > 0);
    return slabs < TW_CUDA_HEAD_SLABS_MAX ? slabs : TW_CUDA_HEAD_SLABS_MAX;
}
static inline size_t tw_cuda_heads_workspace_bytes(const tw_cuda_heads_t *heads)
{
    return heads->gamma ? tw_cuda_head_slabs(heads) * heads->width * sizeof(float) : 0;
}
/** Turns d, with rows d_stride elements apart, from the gradient of y into that of x. With gamma it also adds
 *  the gradient of gamma to dgamma (D). Then x must still be the input of forward, and `workspace` is
 *  scratch of tw_cuda_heads_workspace_bytes. Without gamma, workspace may be NULL. */
tw_status_t tw_cuda_heads_backward(const tw_cuda_heads_t *heads, void *d, size_t d_stride, float *dgamma,
                                   float *workspace, tw_stream_t stream);

TW_C_END
