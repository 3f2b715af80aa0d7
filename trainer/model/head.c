/* Computes logits and losses. */
#include "trainer/model/head.h"

#include <string.h>

#include "trainer/model/model.h"

/* Most elements of a chunk of logits. Every chunk reads and writes the whole gradient of the weight, so few
 * chunks are best. */
#define LOGITS_ELEMS ((size_t)16 << 20)
enum { ROWS_STEP = 16 };

/** Chunks have about the same number of rows, a multiple of ROWS_STEP, which suits matrix products. */
size_t tw_head_rows(size_t vocab_size, size_t n)
{
    size_t most = LOGITS_ELEMS / vocab_size;
    most = most < ROWS_STEP ? ROWS_STEP : most;
    size_t n_chunks = n / most + (n % most > 0);
    size_t rows = n / n_chunks + (n % n_chunks > 0);
    return (rows + ROWS_STEP - 1) / ROWS_STEP * ROWS_STEP;
}

/* A chunk: some consecutive rows (tokens) of the head. */
typedef struct chunk {
    const tw_head_t *head;
    tw_matrix_t norm; /* (rows,C) */
    size_t first, rows;
} chunk_t;

typedef struct rows_call {
    const chunk_t *chunk;
    float scale;
} rows_call_t;

/** Compute the losses of some rows of a chunk. Their gradient overwrites the logits. */
static void rows_loss(void *ctx, size_t first, size_t n, int thread)
{
    const rows_call_t *call = ctx;
    const tw_head_t *head = call->chunk->head;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        int32_t target = head->targets[call->chunk->first + row];
        float *logits = head->logits + row * head->v;
        if (target == TW_MODEL_NO_TARGET) {
            head->losses[row] = 0.0;
            memset(logits, 0, head->v * sizeof(*logits));
            continue;
        }
        head->losses[row] =
            head->compute->kernels->cross_entropy_row(logits, head->v, (size_t)target, call->scale);
    }
}

/** Compute logits = norm w', and return the sum of the chunk's losses. Also add each loss to its sequence's
 *  entry in sums [B], unless sums is NULL. */
static double chunk_loss(const chunk_t *chunk, float scale, double *sums)
{
    const tw_head_t *head = chunk->head;
    tw_spread_product(head->compute, &(tw_product_t){.a = chunk->norm,
                                                     .b = tw_transposed(head->weight),
                                                     .c = head->logits,
                                                     .c_stride = head->v,
                                                     .rows = chunk->rows,
                                                     .cols = head->v,
                                                     .inner = head->c,
                                                     .alpha = 1.0f});
    tw_pool_ranges(head->compute->pool, chunk->rows, 1, TW_SPREAD_LEAST / head->v + 1, rows_loss,
                   &(rows_call_t){chunk, scale});
    double sum = 0.0;
    for (size_t row = 0; row < chunk->rows; row++) {
        sum += head->losses[row];
        if (sums) {
            sums[(chunk->first + row) / head->seq_len] += head->losses[row];
        }
    }
    return sum;
}

static void narrow_rows(void *ctx, size_t first, size_t n, int thread)
{
    const tw_head_t *head = ctx;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        head->compute->kernels->narrow_in_place(head->logits + row * head->v, head->v);
    }
}

/** Return the logits' gradient as a product's factor. In bf16 it is rounded in place. */
static tw_matrix_t logits_factor(const chunk_t *chunk)
{
    const tw_head_t *head = chunk->head;
    if (head->compute->type == TW_TYPE_FP32) {
        return (tw_matrix_t){.at = head->logits, .stride = head->v, .type = TW_TYPE_FP32};
    }
    tw_pool_ranges(head->compute->pool, chunk->rows, 1, TW_SPREAD_LEAST / head->v + 1, narrow_rows,
                   (void *)(uintptr_t)head);
    return (tw_matrix_t){.at = head->logits, .stride = 2 * head->v, .type = TW_TYPE_BF16};
}

/** Compute d_norm (rows,C) = d_logits w, and d_weight (V,C) += d_logits' * norm unless d_weight is NULL. */
static void chunk_backward(const chunk_t *chunk, float *d_norm, float *d_weight)
{
    const tw_head_t *head = chunk->head;
    tw_matrix_t d_logits = logits_factor(chunk);
    tw_spread_product(head->compute, &(tw_product_t){.a = d_logits,
                                                     .b = head->weight,
                                                     .c = d_norm,
                                                     .c_stride = head->c,
                                                     .rows = chunk->rows,
                                                     .cols = head->c,
                                                     .inner = head->v,
                                                     .alpha = 1.0f});
    if (d_weight) {
        tw_spread_product(head->compute, &(tw_product_t){.a = tw_transposed(d_logits),
                                                         .b = chunk->norm,
                                                         .c = d_weight,
                                                         .c_stride = head->c,
                                                         .rows = head->v,
                                                         .cols = head->c,
                                                         .inner = chunk->rows,
                                                         .alpha = 1.0f,
                                                         .beta = 1.0f});
    }
}

/** Process all chunks, and return the sum of losses. d_norm, d_weight and sums may be NULL. */
static double all_chunks(const tw_head_t *head, float scale, float *d_norm, float *d_weight, double *sums)
{
    double sum = 0.0;
    for (size_t first = 0; first < head->n; first += head->logit_rows) {
        size_t left = head->n - first;
        chunk_t chunk = {.head = head,
                         .norm = tw_factor_from(head->norm, first * head->c),
                         .first = first,
                         .rows = left < head->logit_rows ? left : head->logit_rows};
        sum += chunk_loss(&chunk, scale, sums);
        if (d_norm) {
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

void tw_head_logits(const tw_head_t *head, size_t at, float *logits)
{
    tw_matrix_t rows = tw_factor_from(head->norm, at * head->norm.stride); /* one row of each sequence */
    rows.stride = head->seq_len * head->norm.stride;
    tw_spread_product(head->compute, &(tw_product_t){.a = rows,
                                                     .b = tw_transposed(head->weight),
                                                     .c = logits,
                                                     .c_stride = head->v,
                                                     .rows = head->n / head->seq_len,
                                                     .cols = head->v,
                                                     .inner = head->c,
                                                     .alpha = 1.0f});
}
