/* The root of all kinds of models: embeddings, last norm, loss. N = B * T rows of C channels, V words. */
#include "trainer/model/head.h"
#include "trainer/model/ops.h"

/* Arguments of an embedding's threads. Pointers that are not used are NULL. */
typedef struct embed {
    const tw_model_t *model;
    const int32_t *tokens;
    const void *words, *positions; /* (V,C), (n_positions,C) */
    float *d_words, *d_positions;  /* (V,C), (n_positions,C): gradients */
    float *x;                      /* (N,C): the output */
    const float *dx;               /* (N,C): its gradient */
} embed_t;

/** Return the pointer to a tensor of the root in `weights`, or NULL if the model has no such tensor. */
static const void *root_weight(const tw_model_t *model, const void *const *weights, int tensor)
{
    return model->root[tensor] >= 0 ? weights[model->root[tensor]] : NULL;
}

static float *root_grad(const tw_model_t *model, float *const *grads, int tensor)
{
    return model->root[tensor] >= 0 ? grads[model->root[tensor]] : NULL;
}

tw_root_scratch_t tw_root_scratch_carve(tw_carver_t *carver, const tw_model_config_t *config, size_t n)
{
    tw_root_scratch_t scratch = {.logit_rows = tw_head_rows(config->vocab_size, n)};
    scratch.logits = tw_carve(carver, tw_size_mul(scratch.logit_rows, config->vocab_size));
    scratch.losses = tw_carve_bytes(carver, tw_size_mul(scratch.logit_rows, sizeof(double)));
    scratch.stats = (tw_model_norm_stats_t){.mean = tw_carve(carver, n)};
    scratch.stats.rstd = tw_carve(carver, n);
    return scratch;
}

/* ---- embeddings ---------------------------------------------------------------------------------------- */

static void embed_rows(void *ctx, size_t first, size_t n, int thread)
{
    const embed_t *embed = ctx;
    const tw_compute_t *compute = &embed->model->compute;
    size_t c = embed->model->config.n_embd, seq_len = embed->model->seq_len;
    (void)thread;
    for (size_t i = first; i < first + n; i++) {
        tw_weight_read(compute, embed->words, (size_t)embed->tokens[i] * c, c, embed->x + i * c);
        if (embed->positions) {
            tw_weight_add(compute, embed->positions, i % seq_len * c, c, embed->x + i * c);
        }
    }
}

tw_status_t tw_root_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                  float *x)
{
    TW_TRY(tw_model_tokens_check(model, tokens));
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .words = root_weight(model, weights, TW_ROOT_WORDS),
                     .positions = root_weight(model, weights, TW_ROOT_POSITIONS),
                     .x = x};
    tw_pool_ranges(model->compute.pool, model->batch * model->seq_len, 1,
                   TW_SPREAD_LEAST / model->config.n_embd + 1, embed_rows, &embed);
    return TW_OK;
}

/** Add dx to the embeddings' gradients, for some columns. Each thread has its own columns of all rows, so
 *  that gradients of a token that occurs twice are added in order. */
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

void tw_root_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    embed_t embed = {.model = model,
                     .tokens = tokens,
                     .d_words = root_grad(model, grads, TW_ROOT_WORDS),
                     .d_positions = root_grad(model, grads, TW_ROOT_POSITIONS),
                     .dx = dx};
    if (embed.d_words || embed.d_positions) {
        tw_pool_ranges(model->compute.pool, model->config.n_embd, TW_SPREAD_LINE,
                       TW_SPREAD_LEAST / (model->batch * model->seq_len) + 1, embed_columns, &embed);
    }
}

/* ---- the last norm and the loss ------------------------------------------------------------------------ */

/** Return the arguments of the last norm of x. This reads gamma and beta into scratch. */
static tw_model_norm_t last_norm(const tw_model_t *model, const void *const *weights, const float *x)
{
    const tw_root_scratch_t *scratch = model->root_scratch;
    const void *beta = root_weight(model, weights, TW_ROOT_BETA);
    size_t c = model->config.n_embd;
    tw_weight_read(&model->compute, root_weight(model, weights, TW_ROOT_GAMMA), 0, c, scratch->gamma);
    if (beta) {
        tw_weight_read(&model->compute, beta, 0, c, scratch->beta);
    }
    return (tw_model_norm_t){.x = x,
                             .gamma = scratch->gamma,
                             .beta = beta ? scratch->beta : NULL,
                             .n = model->batch * model->seq_len,
                             .c = c,
                             .epsilon = model->config.layer_norm_epsilon,
                             .stats = scratch->stats};
}

/** Apply the last norm to x, into scratch, and return the head's arguments; *norm gets the norm's. */
static tw_head_t root_prepare(const tw_model_t *model, const void *const *weights, const float *x,
                              const int32_t *targets, tw_model_norm_t *norm)
{
    const tw_root_scratch_t *scratch = model->root_scratch;
    const tw_compute_t *compute = &model->compute;
    size_t n = model->batch * model->seq_len, c = model->config.n_embd, v = model->config.vocab_size;
    *norm = last_norm(model, weights, x);
    tw_spread_norm_forward(compute, norm, scratch->norm);
    return (tw_head_t){.compute = compute,
                       .norm = tw_factor(compute, scratch->norm, n * c, c, compute->narrow),
                       .weight = tw_weight_factor(
                           compute, root_weight(model, weights, tw_root_head_tensor(model)), v * c, c),
                       .targets = targets,
                       .n = n,
                       .c = c,
                       .v = v,
                       .seq_len = model->seq_len,
                       .logits = scratch->logits,
                       .losses = scratch->losses,
                       .logit_rows = scratch->logit_rows};
}

tw_status_t tw_root_head(tw_model_t *model, const void *const *weights, const float *x,
                         const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    TW_TRY(tw_model_targets_check(model, targets));
    tw_model_norm_t norm;
    tw_head_t head = root_prepare(model, weights, x, targets, &norm);
    float *d_norm = grads ? model->root_scratch->d_norm : NULL;
    *loss = tw_head_loss(&head, scale, d_norm,
                         grads ? root_grad(model, grads, tw_root_head_tensor(model)) : NULL);
    if (grads) {
        const tw_model_norm_gradients_t to = {.dx = dx,
                                              .dgamma = root_grad(model, grads, TW_ROOT_GAMMA),
                                              .dbeta = root_grad(model, grads, TW_ROOT_BETA)};
        tw_spread_norm_backward(&model->compute, &norm, d_norm, &to);
    }
    return TW_OK;
}

tw_status_t tw_root_losses(tw_model_t *model, const void *const *weights, const float *x,
                           const int32_t *targets, double *losses)
{
    TW_TRY(tw_model_targets_check(model, targets));
    tw_model_norm_t norm;
    tw_head_t head = root_prepare(model, weights, x, targets, &norm);
    tw_head_losses(&head, losses);
    return TW_OK;
}

void tw_root_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits)
{
    tw_model_norm_t norm;
    tw_head_t head = root_prepare(model, weights, x, NULL, &norm);
    tw_head_logits(&head, at, logits);
}
