/* The Llama family's root: embeddings at one end, the last norm and the loss at the other. */
#include "trainer/model/head.h"
#include "trainer/model/llama.h"

/* What the parts of an embedding share. */
typedef struct embed {
    const tw_model_t *model;
    const int32_t *tokens;
    const void *words; /* (V,C) */
    float *d_words;    /* (V,C) */
    float *x;          /* (N,C): the output */
    const float *dx;   /* likewise, its gradient */
} embed_t;

static void embed_rows(void *ctx, size_t first, size_t n, int thread)
{
    const embed_t *embed = ctx;
    size_t c = embed->model->config.n_embd;
    (void)thread;
    for (size_t i = first; i < first + n; i++) {
        tw_weight_read(&embed->model->compute, embed->words, (size_t)embed->tokens[i] * c, c,
                       embed->x + i * c);
    }
}

tw_status_t tw_llama_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                   float *x)
{
    TW_TRY(tw_model_tokens_check(model, tokens));
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .words = weights[((tw_llama_t *)model)->root[TW_LLAMA_EMBED]],
                     .x = x};
    tw_pool_ranges(model->compute.pool, model->batch * model->seq_len, 1,
                   TW_SPREAD_LEAST / model->config.n_embd + 1, embed_rows, &embed);
    return TW_OK;
}

/** Columns: a word that comes twice is added to in order. */
static void embed_columns(void *ctx, size_t first, size_t n, int thread)
{
    const embed_t *embed = ctx;
    size_t c = embed->model->config.n_embd;
    (void)thread;
    for (size_t i = 0; i < embed->model->batch * embed->model->seq_len; i++) {
        const float *dx = embed->dx + i * c + first;
        float *word = embed->d_words + (size_t)embed->tokens[i] * c + first;
        for (size_t j = 0; j < n; j++) {
            word[j] += dx[j];
        }
    }
}

void tw_llama_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .d_words = grads[((tw_llama_t *)model)->root[TW_LLAMA_EMBED]],
                     .dx = dx};
    if (!embed.d_words) {
        return;
    }
    tw_pool_ranges(model->compute.pool, model->config.n_embd, TW_SPREAD_LINE,
                   TW_SPREAD_LEAST / (model->batch * model->seq_len) + 1, embed_columns, &embed);
}

/** The place of the output layer's weight: the embedding's, where it has none of its own. */
static int head_place(const tw_llama_t *llama)
{
    int own = llama->root[TW_LLAMA_HEAD];
    return own >= 0 ? own : llama->root[TW_LLAMA_EMBED];
}

/** Last norm into scratch, and what the loss is made of. */
static tw_head_t prepare(const tw_llama_t *llama, const void *const *weights, const float *x,
                         const int32_t *targets)
{
    const tw_model_t *model = &llama->model;
    const tw_llama_scratch_t *scratch = &llama->scratch;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd, v = model->config.vocab_size;
    tw_weight_read(&model->compute, weights[llama->root[TW_LLAMA_NORM]], 0, c, scratch->vector);
    tw_spread_rmsnorm_forward(&model->compute, x, scratch->vector, n, c, model->config.layer_norm_epsilon,
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
                       .losses = scratch->losses,
                       .logit_rows = scratch->logit_rows};
}

tw_status_t tw_llama_head(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(tw_model_targets_check(model, targets));
    const tw_llama_t *llama = (const tw_llama_t *)model;
    const tw_llama_scratch_t *scratch = &llama->scratch;
    tw_head_t head = prepare(llama, weights, x, targets);
    *loss =
        tw_head_loss(&head, scale, grads ? scratch->d_norm : NULL, grads ? grads[head_place(llama)] : NULL);
    if (grads) {
        tw_spread_rmsnorm_backward(&model->compute, scratch->d_norm, x, scratch->vector, head.n, head.c,
                                   scratch->rstd, 0, dx, grads[llama->root[TW_LLAMA_NORM]]);
    }
    return TW_OK;
}

tw_status_t tw_llama_losses(tw_model_t *model, const void *const *weights, const float *x,
                            const int32_t *targets, double *losses)
{
    TW_TRY(tw_model_targets_check(model, targets));
    tw_head_t head = prepare((const tw_llama_t *)model, weights, x, targets);
    tw_head_losses(&head, losses);
    return TW_OK;
}

void tw_llama_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits)
{
    tw_head_t head = prepare((const tw_llama_t *)model, weights, x, NULL);
    tw_head_logits(&head, at, logits);
}
