/** Private to trainer/model: the output layer and the loss. Logits are made some rows at a time, and consumed
 *  at once. N = B * T rows of C channels, V words. */
#pragma once

#include "trainer/model/linear.h"

TW_C_BEGIN

typedef struct tw_head {
    const tw_compute_t *compute;
    tw_matrix_t norm;       /* (N,C): output of the last norm */
    tw_matrix_t weight;     /* (V,C) */
    const int32_t *targets; /* (N), words or TW_MODEL_NO_TARGET */
    size_t n, c, v, seq_len;
    float *logits;  /* (logit_rows,V): scratch */
    double *losses; /* (logit_rows): scratch */
    size_t logit_rows;
} tw_head_t;

/** Return the rows of logits that are made at a time: about 64 MB, so that they and their gradient stay small
 *  beside the weights. */
size_t tw_head_rows(size_t vocab_size, size_t n);
/** Return the mean loss. d_norm (N,C) becomes the gradient of scale * loss by norm; the gradient by
 *  weight is added to d_weight (V,C). Either may be NULL: not wanted; d_weight only with d_norm. */
double tw_head_loss(const tw_head_t *head, float scale, float *d_norm, float *d_weight);
/** Compute the mean loss of each sequence, [N / seq_len]. */
void tw_head_losses(const tw_head_t *head, double *losses);
/** Compute the logits after token `at` of each sequence, [N / seq_len, V]; targets are ignored. */
void tw_head_logits(const tw_head_t *head, size_t at, float *logits);

TW_C_END
