/* The Llama family's root: embeddings at one end, the last norm and the loss at the other. */
#include "quant/quant.h"
#include "trainer/model/head.h"
#include "trainer/model/llama.h"

tw_status_t tw_llama_embed_forward(tw_model_t *model, const uint16_t *const *weights, const int32_t *tokens,
                                   float *x)
{
    TW_TRY(tw_model_tokens_check(model, tokens, "token"));
    size_t c = model->config.n_embd;
    const uint16_t *words = weights[((tw_llama_t *)model)->root[TW_LLAMA_EMBED]]; /* (V,C) */
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        tw_convert_to_fp32(TW_TYPE_BF16, words + (size_t)tokens[i] * c, x + i * c, c);
    }
    return TW_OK;
}

void tw_llama_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    size_t c = model->config.n_embd;
    float *words = grads[((tw_llama_t *)model)->root[TW_LLAMA_EMBED]];
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        float *word = words + (size_t)tokens[i] * c;
        for (size_t j = 0; j < c; j++) {
            word[j] += dx[i * c + j];
        }
    }
}

/* The place of the output layer's weight: the embedding's, where it has none of its own. */
static int head_place(const tw_llama_t *llama)
{
    int own = llama->root[TW_LLAMA_HEAD];
    return own >= 0 ? own : llama->root[TW_LLAMA_EMBED];
}

/* Last norm into scratch, and what the loss is made of. */
static tw_head_t prepare(const tw_llama_t *llama, const uint16_t *const *weights, const float *x,
                         const int32_t *targets)
{
    const tw_model_t *model = &llama->model;
    const tw_llama_scratch_t *scratch = &llama->scratch;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd, v = model->config.vocab_size;
    tw_convert_to_fp32(TW_TYPE_BF16, weights[llama->root[TW_LLAMA_NORM]], scratch->vector, c);
    model->compute.kernels->rmsnorm_forward(x, scratch->vector, n, c, model->config.layer_norm_epsilon,
                                            scratch->rstd, scratch->norm);
    const tw_compute_t *compute = &model->compute;
    return (tw_head_t){.compute = compute,
                       .norm = tw_factor(compute, scratch->norm, n * c, c, compute->narrow),
                       .weight = tw_weight_factor(compute, weights[head_place(llama)], v * c, c),
                       .targets = targets,
                       .n = n,
                       .c = c,
                       .v = v,
                       .seq_len = model->seq_len,
                       .logits = scratch->logits,
                       .logit_rows = scratch->logit_rows};
}

tw_status_t tw_llama_head(tw_model_t *model, const uint16_t *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(tw_model_tokens_check(model, targets, "target"));
    const tw_llama_t *llama = (const tw_llama_t *)model;
    const tw_llama_scratch_t *scratch = &llama->scratch;
    tw_head_t head = prepare(llama, weights, x, targets);
    *loss = tw_head_loss(&head, scale, scratch->d_norm, grads ? grads[head_place(llama)] : NULL);
    if (grads) {
        model->compute.kernels->rmsnorm_backward(scratch->d_norm, x, scratch->vector, head.n, head.c,
                                                 scratch->rstd, 0, dx, grads[llama->root[TW_LLAMA_NORM]]);
    }
    return TW_OK;
}

tw_status_t tw_llama_losses(tw_model_t *model, const uint16_t *const *weights, const float *x,
                            const int32_t *targets, double *losses)
{
    TW_TRY(tw_model_tokens_check(model, targets, "target"));
    tw_head_t head = prepare((const tw_llama_t *)model, weights, x, targets);
    tw_head_losses(&head, losses);
    return TW_OK;
}

void tw_llama_logits(tw_model_t *model, const uint16_t *const *weights, const float *x, size_t at,
                     float *logits)
{
    tw_head_t head = prepare((const tw_llama_t *)model, weights, x, NULL);
    tw_head_logits(&head, at, logits);
}
