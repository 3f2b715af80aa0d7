/** Private to trainer/model: the output layer and the loss. Logits are computed for a chunk of rows at a
 *  time, and used before the next chunk. N = B * T rows (tokens) of C channels, vocabulary V. */
#pragma once

#include "trainer/model/linear.h"

TW_C_BEGIN

typedef struct tw_head {
    const tw_compute_t *compute;
    tw_matrix_t norm;       /* (N,C): output of the last norm */
    tw_matrix_t weight;     /* (V,C) */
    const int32_t *targets; /* (N), tokens or TW_MODEL_NO_TARGET */
    size_t n, c, v, seq_len;
    float *logits;  /* (logit_rows,V): scratch */
    double *losses; /* (logit_rows): scratch */
    size_t logit_rows;
} tw_head_t;

/** Return how many rows a chunk of logits has. A chunk has at most about 64 MB, little beside the weights. */
size_t tw_head_rows(size_t vocab_size, size_t n);
/** Return the mean loss. Write norm's gradient to d_norm (N,C), add weight's gradient to d_weight (V,C), both
 *  multiplied by scale. d_weight may be NULL; d_norm may be NULL if d_weight is. */
double tw_head_loss(const tw_head_t *head, float scale, float *d_norm, float *d_weight);
/** Compute the mean loss of each sequence, losses [N / seq_len]. */
void tw_head_losses(const tw_head_t *head, double *losses);
/** Compute logits [N / seq_len, V] for the token after token `at` of each sequence. Targets are ignored. */
void tw_head_logits(const tw_head_t *head, size_t at, float *logits);

TW_C_END
