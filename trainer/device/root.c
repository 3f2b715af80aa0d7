/* The root unit: embeddings, the last norm, and the loss. */
#include "quant/quant.h"
#include "trainer/device/state.h"

/* ---- places of tensors --------------------------------------------------------------------------------- */

/** Return a weight of the root, or NULL if the model has no such tensor. */
static const tw_values_t *root_weight(const tw_device_model_t *m, int tensor)
{
    int place = m->host->root[tensor];
    return place >= 0 ? tw_device_weight(m, TW_MODEL_ROOT, place) : NULL;
}

static float *root_grad(const tw_device_model_t *m, int tensor)
{
    int place = m->host->root[tensor];
    return place >= 0 ? tw_device_grad(m, TW_MODEL_ROOT, place) : NULL;
}

static size_t count_rows(const tw_device_model_t *m)
{
    return m->model.batch * m->model.seq_len;
}

/** Copy tokens to the device, behind kernels that still read the previous tokens. `tokens` must not change
 *  until the next wait; all calls in this file end with one. */
static tw_status_t put_tokens(tw_device_model_t *m, const int32_t *tokens)
{
    tw_device_t *device = m->device;
    TW_TRY(device->use(device));
    return device->copy(device, m->scratch.tokens, tokens, count_rows(m) * sizeof(*tokens), m->compute);
}

/** Copy model.starts, where the new micro-batch's documents start, to the device. */
static tw_status_t put_documents(tw_device_model_t *m)
{
    size_t bytes = count_rows(m) * sizeof(*m->model.starts);
    return m->model.starts ? m->device->copy(m->device, m->scratch.starts, m->model.starts, bytes, m->compute)
                           : TW_OK;
}

/* ---- embeddings ---------------------------------------------------------------------------------------- */

static tw_cuda_embedding_t embedding_of(const tw_device_model_t *m)
{
    return (tw_cuda_embedding_t){.weight_type = m->type,
                                 .type = m->type,
                                 .rows = count_rows(m),
                                 .seq_len = m->model.seq_len,
                                 .channels = m->model.config.n_embd,
                                 .tokens = m->scratch.tokens};
}

static tw_status_t embed_forward(tw_device_model_t *m, const void *const *weights, const int32_t *tokens,
                                 tw_values_t *x)
{
    const tw_cuda_embedding_t embedding = embedding_of(m);
    TW_TRY(put_tokens(m, tokens));
    TW_TRY(put_documents(m));
    TW_TRY(tw_device_bring(m, TW_MODEL_ROOT, weights));
    TW_TRY(m->device->kernels->embedding_forward(&embedding, root_weight(m, TW_ROOT_WORDS),
                                                 root_weight(m, TW_ROOT_POSITIONS), x, m->compute));
    TW_TRY(tw_device_brought(m, TW_MODEL_ROOT));
    return tw_device_wait_for(m, m->compute);
}

tw_status_t tw_device_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                    float *x)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    TW_TRY(tw_model_tokens_check(model, tokens));
    if (tw_device_is_well(m)) {
        tw_device_note(m, embed_forward(m, weights, tokens, (tw_values_t *)x));
    }
    return m->status;
}

static tw_status_t embed_backward(tw_device_model_t *m, const int32_t *tokens, const tw_values_t *dx,
                                  float *const *grads)
{
    const tw_cuda_embedding_t embedding = embedding_of(m);
    TW_TRY(put_tokens(m, tokens));
    TW_TRY(m->device->kernels->embedding_backward(&embedding, dx, root_grad(m, TW_ROOT_WORDS),
                                                  root_grad(m, TW_ROOT_POSITIONS), m->compute));
    TW_TRY(tw_device_grads_end(m, TW_MODEL_ROOT, grads));
    return tw_device_wait_for(m, m->compute);
}

void tw_device_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, embed_backward(m, tokens, (const tw_values_t *)dx, grads));
    }
}

/* ---- the loss ------------------------------------------------------------------------------------------ */

/* A chunk: rows (tokens) whose logits are computed together. */
typedef struct chunk {
    const tw_values_t *norm; /* (rows,C) */
    tw_values_t *d_norm;     /* (rows,C) */
    size_t rows;
    tw_cuda_loss_t loss;
    tw_cuda_logits_t logits;
} chunk_t;

static chunk_t chunk_at(const tw_device_model_t *m, size_t first)
{
    const tw_device_scratch_t *s = &m->scratch;
    size_t left = count_rows(m) - first, rows = left < s->logit_rows ? left : s->logit_rows;
    size_t c = m->model.config.n_embd, v = m->model.config.vocab_size;
    return (chunk_t){.norm = tw_device_at(m, s->norm, first * c),
                     .d_norm = tw_device_at(m, s->d_norm, first * c),
                     .rows = rows,
                     .loss = {.rows = rows,
                              .targets = s->tokens + first,
                              .max = s->max + first,
                              .sum = s->sum + first,
                              .target = s->target + first},
                     .logits = {.type = m->type, .words = v, .stride = s->logit_stride, .logits = s->logits}};
}

static tw_status_t chunk_forward(tw_device_model_t *m, const chunk_t *chunk, int head)
{
    size_t c = m->model.config.n_embd, v = m->model.config.vocab_size;
    TW_TRY(tw_device_multiply(
        m, &(tw_device_product_t){.a = {.at = chunk->norm, .stride = c},
                                  .b = {.at = root_weight(m, head), .stride = c, .transposed = 1},
                                  .d = chunk->logits.logits,
                                  .type = m->type,
                                  .factors = m->type,
                                  .stride = chunk->logits.stride,
                                  .rows = chunk->rows,
                                  .cols = v,
                                  .inner = c}));
    return m->device->kernels->loss_add(&chunk->loss, &chunk->logits, m->compute);
}

/** Replace the chunk's logits by their gradient, compute d_norm (rows,C) = d_logits w, and add d_logits' *
 *  norm to d_weight (V,C), unless d_weight is NULL. */
static tw_status_t chunk_backward(tw_device_model_t *m, const chunk_t *chunk, int head, float scale)
{
    size_t c = m->model.config.n_embd, v = m->model.config.vocab_size;
    const tw_device_factor_t d_logits = {.at = chunk->logits.logits, .stride = chunk->logits.stride};
    const tw_device_factor_t d_transposed = {
        .at = chunk->logits.logits, .stride = chunk->logits.stride, .transposed = 1};
    float *d_weight = root_grad(m, head);
    TW_TRY(m->device->kernels->loss_backward(&chunk->loss, &chunk->logits, scale, m->compute));
    TW_TRY(tw_device_multiply(m, &(tw_device_product_t){.a = d_logits,
                                                        .b = {.at = root_weight(m, head), .stride = c},
                                                        .d = chunk->d_norm,
                                                        .type = m->type,
                                                        .factors = m->type,
                                                        .stride = c,
                                                        .rows = chunk->rows,
                                                        .cols = c,
                                                        .inner = v}));
    if (!d_weight) {
        return TW_OK;
    }
    return tw_device_multiply(m, &(tw_device_product_t){.a = d_transposed,
                                                        .b = {.at = chunk->norm, .stride = c},
                                                        .c = d_weight,
                                                        .d = d_weight,
                                                        .type = TW_TYPE_FP32,
                                                        .factors = m->type,
                                                        .stride = c,
                                                        .rows = v,
                                                        .cols = c,
                                                        .inner = chunk->rows});
}

static tw_device_norm_t last_norm(const tw_device_model_t *m)
{
    return (tw_device_norm_t){.gamma = root_weight(m, TW_ROOT_GAMMA),
                              .beta = root_weight(m, TW_ROOT_BETA),
                              .d_gamma = root_grad(m, TW_ROOT_GAMMA),
                              .d_beta = root_grad(m, TW_ROOT_BETA),
                              .mean = m->scratch.mean,
                              .rstd = m->scratch.rstd};
}

/** Compute the sum of each sequence's losses, and enqueue their copy to m->losses in host memory. */
static tw_status_t take_losses(tw_device_model_t *m)
{
    const tw_device_scratch_t *s = &m->scratch;
    const tw_cuda_loss_t all = {
        .rows = count_rows(m), .targets = s->tokens, .max = s->max, .sum = s->sum, .target = s->target};
    TW_TRY(m->device->kernels->loss_sums(&all, m->model.seq_len, s->losses, m->compute));
    return m->device->copy(m->device, m->losses, s->losses, m->model.batch * sizeof(*m->losses), m->compute);
}

/** Compute the losses and, unless grads is NULL, the gradients of scale * mean loss. */
static tw_status_t head(tw_device_model_t *m, const void *const *weights, const tw_values_t *x,
                        const int32_t *targets, float scale, tw_values_t *dx, float *const *grads)
{
    size_t n = count_rows(m);
    int place = tw_root_head_tensor(m->host);
    TW_TRY(put_tokens(m, targets));
    TW_TRY(tw_device_bring(m, TW_MODEL_ROOT, weights));
    if (grads) {
        TW_TRY(tw_device_grads_begin(m, TW_MODEL_ROOT, grads));
    }
    const tw_device_norm_t norm = last_norm(m);
    TW_TRY(tw_device_norm_forward(m, &norm, x, m->scratch.norm));
    for (size_t first = 0; first < n; first += m->scratch.logit_rows) {
        chunk_t chunk = chunk_at(m, first);
        TW_TRY(chunk_forward(m, &chunk, place));
        if (grads) {
            TW_TRY(chunk_backward(m, &chunk, place, scale / (float)n));
        }
    }
    TW_TRY(take_losses(m));
    if (grads) {
        TW_TRY(tw_device_norm_backward(m, &norm, x, m->scratch.d_norm, 0, dx));
    }
    TW_TRY(tw_device_brought(m, TW_MODEL_ROOT));
    return tw_device_wait_for(m, m->compute);
}

tw_status_t tw_device_head(tw_model_t *model, const void *const *weights, const float *x,
                           const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    TW_TRY(tw_model_targets_check(model, targets));
    if (tw_device_is_well(m)) {
        tw_device_note(m, head(m, weights, (const tw_values_t *)x, targets, scale, (tw_values_t *)dx, grads));
    }
    *loss = 0;
    for (size_t b = 0; b < model->batch && tw_device_is_well(m); b++) {
        *loss += m->losses[b] / (double)count_rows(m);
    }
    return m->status;
}

tw_status_t tw_device_losses(tw_model_t *model, const void *const *weights, const float *x,
                             const int32_t *targets, double *losses)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    TW_TRY(tw_model_targets_check(model, targets));
    if (tw_device_is_well(m)) {
        tw_device_note(m, head(m, weights, (const tw_values_t *)x, targets, 0, NULL, NULL));
    }
    for (size_t b = 0; b < model->batch && tw_device_is_well(m); b++) {
        losses[b] = m->losses[b] / (double)model->seq_len;
    }
    return m->status;
}

/** Compute the logits of a row. They are copied out through the root's `staged`, which is unused then. */
static tw_status_t sequence_logits(tw_device_model_t *m, size_t row, float *logits)
{
    size_t c = m->model.config.n_embd, v = m->model.config.vocab_size;
    void *staged = m->slots[0].staged;
    TW_TRY(tw_device_multiply(
        m, &(tw_device_product_t){
               .a = {.at = tw_device_at(m, m->scratch.norm, row * c), .stride = c},
               .b = {.at = root_weight(m, tw_root_head_tensor(m->host)), .stride = c, .transposed = 1},
               .d = m->scratch.logits,
               .type = m->type,
               .factors = m->type,
               .stride = v,
               .rows = 1,
               .cols = v,
               .inner = c}));
    TW_TRY(m->device->copy(m->device, staged, m->scratch.logits, v * tw_type_bytes(m->type), m->compute));
    TW_TRY(tw_device_wait_for(m, m->compute));
    tw_convert_to_fp32(m->type, staged, logits, v);
    return TW_OK;
}

static tw_status_t all_logits(tw_device_model_t *m, const void *const *weights, const tw_values_t *x,
                              size_t at, float *logits)
{
    const tw_device_norm_t norm = last_norm(m);
    TW_TRY(tw_device_grads_collect(m));
    TW_TRY(tw_device_bring(m, TW_MODEL_ROOT, weights));
    TW_TRY(tw_device_norm_forward(m, &norm, x, m->scratch.norm));
    for (size_t b = 0; b < m->model.batch; b++) {
        TW_TRY(sequence_logits(m, b * m->model.seq_len + at, logits + b * m->model.config.vocab_size));
    }
    return tw_device_brought(m, TW_MODEL_ROOT);
}

void tw_device_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    if (tw_device_is_well(m)) {
        tw_device_note(m, all_logits(m, weights, (const tw_values_t *)x, at, logits));
    }
}
