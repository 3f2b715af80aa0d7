/* GPT-2's root: embeddings at one end, the last norm and the loss at the other. N = B * T rows of C channels, V words. */
#include "trainer/model/gpt2.h"

#include <string.h>

#include "quant/quant.h"
#include "trainer/model/blas.h"

static tw_status_t check_tokens(const tw_model_t *model, const int32_t *tokens, const char *what)
{
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= model->config.vocab_size) {
            tw_error("model: %s %zu of sequence %zu is %d, but the vocabulary has %zu words", what,
                     i % model->seq_len, i / model->seq_len, (int)tokens[i], model->config.vocab_size);
            return TW_ERR_INVALID;
        }
    }
    return TW_OK;
}

tw_status_t tw_gpt2_embed_forward(tw_model_t *model, const uint16_t *const *weights, const int32_t *tokens,
                                  float *x)
{
    TW_TRY(check_tokens(model, tokens, "token"));
    size_t c = model->config.n_embd;
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        const uint16_t *word = weights[TW_GPT2_WTE] + (size_t)tokens[i] * c;        /* (C) */
        const uint16_t *position = weights[TW_GPT2_WPE] + (i % model->seq_len) * c; /* (C) */
        tw_convert_to_fp32(TW_TYPE_BF16, word, x + i * c, c);
        tw_convert_add_fp32(TW_TYPE_BF16, position, x + i * c, c);
    }
    return TW_OK;
}

void tw_gpt2_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    size_t c = model->config.n_embd;
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        float *word = grads[TW_GPT2_WTE] + (size_t)tokens[i] * c;
        float *position = grads[TW_GPT2_WPE] + (i % model->seq_len) * c;
        for (size_t j = 0; j < c; j++) {
            word[j] += dx[i * c + j];
            position[j] += dx[i * c + j];
        }
    }
}

/* Some rows of the head: their logits, made and used up at once. */
typedef struct chunk {
    const float *norm;      /* (rows,C): output of the last norm */
    const float *wte;       /* (V,C) */
    const int32_t *targets; /* (rows) */
    size_t first;           /* of the N rows */
    size_t rows, c, v, seq_len;
    float *logits; /* (rows,V) */
    double *sums;  /* [B]: each sequence's losses are added there; or NULL */
} chunk_t;

/* logits = norm wte'; returns the sum of the rows' losses. Logits become the gradient by themselves. */
static double chunk_loss(const chunk_t *chunk, float scale)
{
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = chunk->norm, .stride = chunk->c},
                                          .b = {.at = chunk->wte, .stride = chunk->c, .transposed = 1},
                                          .c = chunk->logits,
                                          .c_stride = chunk->v,
                                          .rows = chunk->rows,
                                          .cols = chunk->v,
                                          .inner = chunk->c,
                                          .alpha = 1.0f});
    double sum = 0.0;
    for (size_t row = 0; row < chunk->rows; row++) {
        double loss = tw_cross_entropy_row(chunk->logits + row * chunk->v, chunk->v,
                                           (size_t)chunk->targets[row], scale);
        sum += loss;
        if (chunk->sums) {
            chunk->sums[(chunk->first + row) / chunk->seq_len] += loss;
        }
    }
    return sum;
}

/* d_norm (rows,C) = d_logits wte;  d_wte (V,C) += d_logits' norm */
static void chunk_backward(const chunk_t *chunk, float *d_norm, float *d_wte)
{
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = chunk->logits, .stride = chunk->v},
                                          .b = {.at = chunk->wte, .stride = chunk->c},
                                          .c = d_norm,
                                          .c_stride = chunk->c,
                                          .rows = chunk->rows,
                                          .cols = chunk->c,
                                          .inner = chunk->v,
                                          .alpha = 1.0f});
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = chunk->logits, .stride = chunk->v, .transposed = 1},
                                          .b = {.at = chunk->norm, .stride = chunk->c},
                                          .c = d_wte,
                                          .c_stride = chunk->c,
                                          .rows = chunk->v,
                                          .cols = chunk->c,
                                          .inner = chunk->rows,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
}

/* norm (N,C) = the last norm of x. gamma lies in wide, beta in wide_bias. */
static void last_norm(const tw_model_t *model, const tw_gpt2_scratch_t *scratch,
                      const uint16_t *const *weights, const float *x)
{
    const tw_model_config_t *config = &model->config;
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_LN_F_W], scratch->wide, config->n_embd);
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_LN_F_B], scratch->wide_bias, config->n_embd);
    tw_layernorm_forward(x, scratch->wide, scratch->wide_bias, model->batch * model->seq_len, config->n_embd,
                         config->layer_norm_epsilon, scratch->stats, scratch->norm);
}

/* Logits, loss and, if there are grads, d_norm (N,C) and wte's gradient, some rows at a time. Returns the sum of losses; sums [B], if not
 * NULL: adds those of each sequence. */
static double all_chunks(const tw_model_t *model, const tw_gpt2_scratch_t *scratch, const int32_t *targets,
                         float scale, float *const *grads, double *sums)
{
    size_t n = model->batch * model->seq_len, c = model->config.n_embd;
    double sum = 0.0;
    for (size_t first = 0; first < n; first += scratch->logit_rows) {
        size_t rows = n - first < scratch->logit_rows ? n - first : scratch->logit_rows;
        chunk_t chunk = {.norm = scratch->norm + first * c,
                         .wte = scratch->wide,
                         .targets = targets + first,
                         .first = first,
                         .seq_len = model->seq_len,
                         .sums = sums,
                         .rows = rows,
                         .c = c,
                         .v = model->config.vocab_size,
                         .logits = scratch->logits};
        sum += chunk_loss(&chunk, scale);
        if (grads) {
            chunk_backward(&chunk, scratch->d_norm + first * c, grads[TW_GPT2_WTE]);
        }
    }
    return sum;
}

tw_status_t tw_gpt2_head(tw_model_t *model, const uint16_t *const *weights, const float *x,
                         const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(check_tokens(model, targets, "target"));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd, v = model->config.vocab_size;
    last_norm(model, scratch, weights, x);
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_WTE], scratch->wide, v * c);
    *loss = all_chunks(model, scratch, targets, scale / (float)n, grads, NULL) / (double)n;
    if (grads) {
        tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_LN_F_W], scratch->wide_bias, c);
        tw_layernorm_backward(scratch->d_norm, x, scratch->wide_bias, n, c, scratch->stats, 0, dx,
                              grads[TW_GPT2_LN_F_W], grads[TW_GPT2_LN_F_B]);
    }
    return TW_OK;
}

tw_status_t tw_gpt2_losses(tw_model_t *model, const uint16_t *const *weights, const float *x,
                           const int32_t *targets, double *losses)
{
    TW_TRY(check_tokens(model, targets, "target"));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    last_norm(model, scratch, weights, x);
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_WTE], scratch->wide,
                       model->config.vocab_size * model->config.n_embd);
    memset(losses, 0, model->batch * sizeof(*losses));
    (void)all_chunks(model, scratch, targets, 0.0f, NULL, losses);
    for (size_t b = 0; b < model->batch; b++) {
        losses[b] /= (double)model->seq_len;
    }
    return TW_OK;
}
