/** Part of trainer/cuda (see cuda.h): cross-entropy of N rows (tokens) over a vocabulary of V words. It takes
 *  a piece of the words at a time, so that logits (N,V) are never stored whole:
 *
 *  1. for each piece, from word 0 on: compute logits (N,words) by a product, then call tw_cuda_loss_add
 *  2. tw_cuda_loss_sums computes the losses
 *  3. in training, for each piece: compute the logits again; tw_cuda_loss_backward replaces them by their
 *     gradient, which the caller then uses in two products.
 *
 *  If one piece has all words (for some rows at a time), step 3 can use the logits of step 1. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Each row's targets and statistics so far, in device memory of the caller. */
typedef struct tw_cuda_loss {
    size_t rows; /**< N */
    /** (N) words, not checked by the kernels. A row with a target below 0 has no loss. */
    const int32_t *targets;
    float *max;    /**< (N) the largest logit */
    float *sum;    /**< (N) the sum of exponentials of (logit - max) */
    float *target; /**< (N) the target's logit */
} tw_cuda_loss_t;

/** Logits of words first .. first + words - 1. */
typedef struct tw_cuda_logits {
    tw_type_t type;
    size_t first, words;
    size_t stride; /**< elements from a row to the next */
    void *logits;  /**< (N,words) */
} tw_cuda_logits_t;

/** Add a piece to max, sum and target. The piece with first = 0 must come first: it overwrites them. Other
 *  pieces may come in any order, which affects rounding. */
tw_status_t tw_cuda_loss_add(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, tw_stream_t stream);
/** Sums the losses of each `group` consecutive rows into sums [N / group], fp64 in device memory. group
 *  divides N; if it is T, each sequence has a sum. A row's loss is log(sum) + max - target. */
tw_status_t tw_cuda_loss_sums(const tw_cuda_loss_t *loss, size_t group, double *sums, tw_stream_t stream);
/** Replace the piece's logits by scale * (softmax - is_target), the gradient of scale * sum of losses. */
tw_status_t tw_cuda_loss_backward(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, float scale,
                                  tw_stream_t stream);

TW_C_END
