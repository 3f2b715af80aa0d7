/** Part of trainer/cuda (see cuda.h): what a token begins with, and what is done with the heads of q and k
 *  between their product and attention. N = B * T rows (tokens); row i is the token at position i % T. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/* ---- embedding ----------------------------------------------------------------------------------------- */

typedef struct tw_cuda_embedding {
    tw_type_t weight_type; /**< type of words and positions, fp32 or bf16 */
    tw_type_t type;        /**< type of x and dx, likewise */
    size_t rows, seq_len;  /**< N, T */
    size_t channels;       /**< C */
    const int32_t *tokens; /**< (N), all of them words: who has them in host memory checks it */
} tw_cuda_embedding_t;

/** x (N,C) = the token's row of words (V,C) + the position's of positions (at least T,C); NULL: no
 *  positions. */
tw_status_t tw_cuda_embedding_forward(const tw_cuda_embedding_t *embedding, const void *words,
                                      const void *positions, void *x, tw_stream_t stream);
/** d_words (V,C) += dx (N,C) at the tokens' rows, d_positions (T,C) += it at the positions'; NULL: not
 *  wanted. Both are added to in the order of tokens, as trainer/model does it: with fp32, the same bits. */
tw_status_t tw_cuda_embedding_backward(const tw_cuda_embedding_t *embedding, const void *dx, float *d_words,
                                       float *d_positions, tw_stream_t stream);

/* ---- heads of q and k: a norm where there is one, then the turn ---------------------------------------- */

/** So many heads of D channels, side by side in each row of a matrix: those of q, those of k, or, where both
 *  are treated alike and lie side by side, of both. */
typedef struct tw_cuda_heads {
    tw_type_t type;       /**< type of x, y, d and gamma */
    size_t rows, seq_len; /**< N, T */
    size_t heads, width;  /**< D: even where they are turned; 256 at most */
    const void *gamma;    /**< (D) root-mean-square norm of each head; NULL: none */
    float epsilon;
    const float *cosines, *sines; /**< (T,D/2), of tw_rope_table; NULL: no turn */
    const void *x;                /**< the first head of row 0, before norm and turn */
    size_t x_stride;              /**< elements from a row to the next */
} tw_cuda_heads_t;

/** y = the heads of x normed and turned, its rows y_stride elements apart. y may be x with the same stride.
 *  Also TW_ERR_INVALID: a width that is not as above. */
tw_status_t tw_cuda_heads_forward(const tw_cuda_heads_t *heads, void *y, size_t y_stride, tw_stream_t stream);
/** Of sums over heads: a block takes so many at a time; eight blocks for each of 128 multiprocessors. */
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
/** d, the gradient by y, rows d_stride elements apart, becomes that by x. With gamma: dgamma (D) += that by
 *  gamma, x must be what it was before forward, and workspace holds tw_cuda_heads_workspace_bytes (0 without
 *  gamma: NULL), contents of no meaning before and after. */
tw_status_t tw_cuda_heads_backward(const tw_cuda_heads_t *heads, void *d, size_t d_stride, float *dgamma,
                                   float *workspace, tw_stream_t stream);

TW_C_END
