/** Private to trainer/model: the output layer and the loss, some rows of logits at a time, which are made and
 *  used up at once. N = B * T rows of C channels, V words. */
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
    double *losses; /* (logit_rows): likewise */
    size_t logit_rows;
} tw_head_t;

/** Rows of logits at a time: about 64 MB of them, so that they and their gradient stay small beside the
 *  weights. */
size_t tw_head_rows(size_t vocab_size, size_t n);
/** The mean loss. If d_norm is not NULL: d_norm (N,C) = the gradient of scale times it; d_weight (V,C) +=
 *  that by the weight, unless it is NULL. */
double tw_head_loss(const tw_head_t *head, float scale, float *d_norm, float *d_weight);
/** The mean loss of each sequence, [N / seq_len]. */
void tw_head_losses(const tw_head_t *head, double *losses);
/** Computes the logits after token `at` of each sequence, [N / seq_len, V]. Targets are not looked at. */
void tw_head_logits(const tw_head_t *head, size_t at, float *logits);

TW_C_END
