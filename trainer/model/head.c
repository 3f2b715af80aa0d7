/* Logits and losses. */
#include "trainer/model/head.h"

#include <string.h>

#include "trainer/model/blas.h"
#include "trainer/model/kernels.h"

size_t tw_head_rows(size_t vocab_size, size_t n)
{
    size_t rows = ((size_t)4 << 20) / vocab_size;
    return rows < 16 ? 16 : rows < n ? rows : n;
}

/* Some of the head's rows. */
typedef struct chunk {
    const tw_head_t *head;
    const float *norm; /* (rows,C) */
    size_t first, rows;
} chunk_t;

/* logits = norm w'; returns the sum of the rows' losses, which are added to their sequences' sums [B] if that
 * is not NULL. Logits become the gradient by themselves. */
static double chunk_loss(const chunk_t *chunk, float scale, double *sums)
{
    const tw_head_t *head = chunk->head;
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = chunk->norm, .stride = head->c},
                                          .b = {.at = head->weight, .stride = head->c, .transposed = 1},
                                          .c = head->logits,
                                          .c_stride = head->v,
                                          .rows = chunk->rows,
                                          .cols = head->v,
                                          .inner = head->c,
                                          .alpha = 1.0f});
    double sum = 0.0;
    for (size_t row = 0; row < chunk->rows; row++) {
        size_t at = chunk->first + row;
        double loss =
            tw_cross_entropy_row(head->logits + row * head->v, head->v, (size_t)head->targets[at], scale);
        sum += loss;
        if (sums) {
            sums[at / head->seq_len] += loss;
        }
    }
    return sum;
}

/* d_norm (rows,C) = d_logits w;  d_weight (V,C) += d_logits' norm */
static void chunk_backward(const chunk_t *chunk, float *d_norm, float *d_weight)
{
    const tw_head_t *head = chunk->head;
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = head->logits, .stride = head->v},
                                          .b = {.at = head->weight, .stride = head->c},
                                          .c = d_norm,
                                          .c_stride = head->c,
                                          .rows = chunk->rows,
                                          .cols = head->c,
                                          .inner = head->v,
                                          .alpha = 1.0f});
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = head->logits, .stride = head->v, .transposed = 1},
                                          .b = {.at = chunk->norm, .stride = head->c},
                                          .c = d_weight,
                                          .c_stride = head->c,
                                          .rows = head->v,
                                          .cols = head->c,
                                          .inner = chunk->rows,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
}

/* All rows; d_norm and d_weight, or sums, or none of them. Returns the sum of losses. */
static double all_chunks(const tw_head_t *head, float scale, float *d_norm, float *d_weight, double *sums)
{
    double sum = 0.0;
    for (size_t first = 0; first < head->n; first += head->logit_rows) {
        size_t left = head->n - first;
        chunk_t chunk = {.head = head,
                         .norm = head->norm + first * head->c,
                         .first = first,
                         .rows = left < head->logit_rows ? left : head->logit_rows};
        sum += chunk_loss(&chunk, scale, sums);
        if (d_weight) {
            chunk_backward(&chunk, d_norm + first * head->c, d_weight);
        }
    }
    return sum;
}

double tw_head_loss(const tw_head_t *head, float scale, float *d_norm, float *d_weight)
{
    return all_chunks(head, scale / (float)head->n, d_norm, d_weight, NULL) / (double)head->n;
}

void tw_head_losses(const tw_head_t *head, double *losses)
{
    size_t batch = head->n / head->seq_len;
    memset(losses, 0, batch * sizeof(*losses));
    (void)all_chunks(head, 0.0f, NULL, NULL, losses);
    for (size_t b = 0; b < batch; b++) {
        losses[b] /= (double)head->seq_len;
    }
}
