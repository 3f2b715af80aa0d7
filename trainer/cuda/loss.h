/** Part of trainer/cuda (see cuda.h): cross-entropy of N rows over V words, a piece of the words at a time,
 *  so that logits (N,V) never exist whole:
 *
 *  1. for pieces of words, from word 0 on: logits (N,words) by a product, then tw_cuda_loss_add
 *  2. tw_cuda_loss_sums: the losses
 *  3. for training: for each piece the logits again by a product, then tw_cuda_loss_backward turns them into
 *  their gradient, which two products consume.
 *
 *  One piece of all words (of some rows at a time) needs no second product: 1, 2 and 3 follow one another. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** What has been found of each row so far, in the caller's memory: 12 bytes a row. */
typedef struct tw_cuda_loss {
    size_t rows; /**< N */
    /** (N) words; a row with a target below 0 has no loss. The kernels do not check them. */
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

/** Add a piece. One with first = 0 begins anew: it ignores what is in max, sum and target. The others may
 *  follow in any order, but rounding follows the order. */
tw_status_t tw_cuda_loss_add(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, tw_stream_t stream);
/** Writes sums [N / group] fp64, device memory: the losses of `group` neighbouring rows each; group divides N
 *  (N: one sum; T: one a sequence). A row's loss is log(sum) + max - target. */
tw_status_t tw_cuda_loss_sums(const tw_cuda_loss_t *loss, size_t group, double *sums, tw_stream_t stream);
/** Turn the piece's logits into the gradient of scale * sum of losses: scale * (softmax - [is target]). */
tw_status_t tw_cuda_loss_backward(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, float scale,
                                  tw_stream_t stream);

TW_C_END
