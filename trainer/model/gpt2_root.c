/* GPT-2's root: embeddings at one end, the last norm and the loss at the other. N = B * T rows of C channels,
 * V words. */
#include "trainer/model/gpt2.h"

#include "quant/quant.h"
#include "trainer/model/head.h"

tw_status_t tw_gpt2_embed_forward(tw_model_t *model, const uint16_t *const *weights, const int32_t *tokens,
                                  float *x)
{
    TW_TRY(tw_model_tokens_check(model, tokens, "token"));
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

/* norm (N,C) = the last norm of x. */
static void last_norm(const tw_model_t *model, const tw_gpt2_scratch_t *scratch,
                      const uint16_t *const *weights, const float *x)
{
    const tw_model_config_t *config = &model->config;
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_LN_F_W], scratch->gamma, config->n_embd);
    tw_convert_to_fp32(TW_TYPE_BF16, weights[TW_GPT2_LN_F_B], scratch->bias, config->n_embd);
    model->compute.kernels->layernorm_forward(x, scratch->gamma, scratch->bias, model->batch * model->seq_len,
                                              config->n_embd, config->layer_norm_epsilon, scratch->stats,
                                              scratch->norm);
}

static tw_head_t head_of(const tw_model_t *model, const tw_gpt2_scratch_t *scratch,
                         const uint16_t *const *weights, const int32_t *targets)
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
                       .logit_rows = scratch->logit_rows};
}

tw_status_t tw_gpt2_head(tw_model_t *model, const uint16_t *const *weights, const float *x,
                         const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(tw_model_tokens_check(model, targets, "target"));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, targets);
    *loss = tw_head_loss(&head, scale, scratch->d_norm, grads ? grads[TW_GPT2_WTE] : NULL);
    if (grads) {
        model->compute.kernels->layernorm_backward(scratch->d_norm, x, scratch->gamma, n, c, scratch->stats,
                                                   0, dx, grads[TW_GPT2_LN_F_W], grads[TW_GPT2_LN_F_B]);
    }
    return TW_OK;
}

tw_status_t tw_gpt2_losses(tw_model_t *model, const uint16_t *const *weights, const float *x,
                           const int32_t *targets, double *losses)
{
    TW_TRY(tw_model_tokens_check(model, targets, "target"));
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, targets);
    tw_head_losses(&head, losses);
    return TW_OK;
}

void tw_gpt2_logits(tw_model_t *model, const uint16_t *const *weights, const float *x, size_t at,
                    float *logits)
{
    const tw_gpt2_scratch_t *scratch = &((tw_gpt2_t *)model)->scratch;
    last_norm(model, scratch, weights, x);
    tw_head_t head = head_of(model, scratch, weights, NULL);
    tw_head_logits(&head, at, logits);
}
