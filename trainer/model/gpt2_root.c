/* GPT-2's root: embeddings at one end, the last norm and the loss at the other. N = B * T rows of C channels,
 * V words. */
#include "trainer/model/gpt2.h"
#include "trainer/model/head.h"

/* What the parts of an embedding share. */
typedef struct embed {
    const tw_model_t *model;
    const int32_t *tokens;
    const void *words, *positions;
    float *d_words, *d_positions;
    float *x;        /* (N,C): the output */
    const float *dx; /* likewise, its gradient */
} embed_t;

static void embed_rows(void *ctx, size_t first, size_t n, int thread)
{
    const embed_t *embed = ctx;
    const tw_compute_t *compute = &embed->model->compute;
    size_t c = embed->model->config.n_embd, seq_len = embed->model->seq_len;
    (void)thread;
    for (size_t i = first; i < first + n; i++) {
        tw_weight_read(compute, embed->words, (size_t)embed->tokens[i] * c, c, embed->x + i * c);
        tw_weight_add(compute, embed->positions, i % seq_len * c, c, embed->x + i * c);
    }
}

tw_status_t tw_gpt2_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                  float *x)
{
    TW_TRY(tw_model_tokens_check(model, tokens));
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .words = weights[TW_GPT2_WTE],
                     .positions = weights[TW_GPT2_WPE],
                     .x = x};
    tw_pool_ranges(model->compute.pool, model->batch * model->seq_len, 1,
                   TW_SPREAD_LEAST / model->config.n_embd + 1, embed_rows, &embed);
    return TW_OK;
}

/** Columns: a word that comes twice is added to in order. What is not wanted is NULL. */
static void embed_columns(void *ctx, size_t first, size_t n, int thread)
{
    const embed_t *embed = ctx;
    size_t c = embed->model->config.n_embd, seq_len = embed->model->seq_len;
    (void)thread;
    for (size_t i = 0; i < embed->model->batch * seq_len; i++) {
        const float *dx = embed->dx + i * c + first;
        float *word = embed->d_words ? embed->d_words + (size_t)embed->tokens[i] * c + first : NULL;
        float *position = embed->d_positions ? embed->d_positions + i % seq_len * c + first : NULL;
        for (size_t j = 0; j < n && word; j++) {
            word[j] += dx[j];
        }
        for (size_t j = 0; j < n && position; j++) {
            position[j] += dx[j];
        }
    }
}

void tw_gpt2_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .d_words = grads[TW_GPT2_WTE],
                     .d_positions = grads[TW_GPT2_WPE],
                     .dx = dx};
    tw_pool_ranges(model->compute.pool, model->config.n_embd, TW_SPREAD_LINE,
                   TW_SPREAD_LEAST / (model->batch * model->seq_len) + 1, embed_columns, &embed);
}

/** norm (N,C) = the last norm of x. */
static void last_norm(const tw_model_t *model, const tw_gpt2_scratch_t *scratch, const void *const *weights,
                      const float *x)
{
    const tw_model_config_t *config = &model->config;
    tw_weight_read(&model->compute, weights[TW_GPT2_LN_F_W], 0, config->n_embd, scratch->gamma);
    tw_weight_read(&model->compute, weights[TW_GPT2_LN_F_B], 0, config->n_embd, scratch->bias);
    tw_spread_layernorm_forward(&model->compute, x, scratch->gamma, scratch->bias,
                                model->batch * model->seq_len, config->n_embd, config->layer_norm_epsilon,
                                scratch->stats, scratch->norm);
}

static tw_head_t head_of(const tw_model_t *model, const tw_gpt2_scratch_t *scratch,
                         const void *const *weights, const int32_t *targets)
{
    size_t n = model->batch * model->seq_len, c = model->config.n_embd, v = model->config.vocab_size;
    const tw_compute_t *compute = &model->compute;
    return (tw_head_t){.compute = compute,
                       .norm = tw_factor(compute, scratch->norm, n * c, c, compute->narrow),
                       .weight = tw_weight_factor(compute, weights[TW_GPT2_WTE], v * c, c),
                       .targets = targets,
                       .n = n,
                       .c = c,
                       .v = v,
                       .seq_len = model->seq_len,
                       .logits = scratch->logits,
                       .losses = scratch->losses,
                       .logit_rows = scratch->logit_rows};
}

tw_status_t tw_gpt2_head(tw_model_t *model, const void *const *weights, const float *x,
                         const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(tw_model_targets_check(model, targets));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, targets);
    *loss = tw_head_loss(&head, scale, grads ? scratch->d_norm : NULL, grads ? grads[TW_GPT2_WTE] : NULL);
    if (grads) {
        const tw_layernorm_gradients_t to = {
            .dx = dx, .dgamma = grads[TW_GPT2_LN_F_W], .dbeta = grads[TW_GPT2_LN_F_B]};
        tw_spread_layernorm_backward(&model->compute, scratch->d_norm, x, scratch->gamma, n, c,
                                     scratch->stats, &to);
    }
    return TW_OK;
}

tw_status_t tw_gpt2_losses(tw_model_t *model, const void *const *weights, const float *x,
                           const int32_t *targets, double *losses)
{
    TW_TRY(tw_model_targets_check(model, targets));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, targets);
    tw_head_losses(&head, losses);
    return TW_OK;
}

void tw_gpt2_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits)
{
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, NULL);
    tw_head_logits(&head, at, logits);
}
