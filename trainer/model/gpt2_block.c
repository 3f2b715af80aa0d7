/* A GPT-2 block: middle = x + attention(norm(x)), y = middle + mlp(norm(middle)). Arrays have N = B * T
 * rows. */
#include "trainer/model/gpt2.h"

/* Arguments that the functions below share. */
typedef struct block {
    const tw_model_config_t *config;
    const tw_compute_t *compute;
    const tw_gpt2_scratch_t *scratch;
    const void *const *weights;
    float *const *grads;
    size_t n, c; /* N, C */
    tw_attention_shape_t attention;
    tw_gpt2_saved_t saved;
} block_t;

static block_t gpt2_block_of(tw_model_t *model, const void *const *weights, float *const *grads, void *saved)
{
    tw_gpt2_t *gpt2 = (tw_gpt2_t *)model;
    const tw_model_config_t *config = &model->config;
    size_t n = model->batch * model->seq_len;
    return (block_t){.config = config,
                     .compute = &model->compute,
                     .scratch = &gpt2->scratch,
                     .weights = weights,
                     .grads = grads,
                     .n = n,
                     .c = config->n_embd,
                     .attention = {.batch = model->batch,
                                   .seq_len = model->seq_len,
                                   .heads = config->n_head,
                                   .kv_heads = config->n_head,
                                   .width = config->n_embd / config->n_head,
                                   .starts = model->starts},
                     .saved = tw_gpt2_saved_at(config, n, saved)};
}

/** Read a vector of at most 4C elements as fp32 into scratch->bias. */
static const float *bias_of(const block_t *block, int weight, size_t n_elems)
{
    tw_weight_read(block->compute, block->weights[weight], 0, n_elems, block->scratch->bias);
    return block->scratch->bias;
}

/** Read a vector of C elements as fp32 into scratch->gamma. */
static const float *gamma_of(const block_t *block, int weight)
{
    tw_weight_read(block->compute, block->weights[weight], 0, block->c, block->scratch->gamma);
    return block->scratch->gamma;
}

/* A linear layer. Tensor `weight` is its weight (in,out), and the tensor after that its bias. */
typedef struct layer {
    int weight;
    size_t in, out;
} layer_t;

static tw_layer_t sizes_of(const block_t *block, layer_t layer)
{
    return (tw_layer_t){block->n, layer.in, layer.out, layer.out, 0};
}

/** Compute y (N,out) = x (N,in) w + b, or add it to y. */
static void linear(const block_t *block, layer_t layer, const float *x, int accumulate, float *y)
{
    const tw_compute_t *compute = block->compute;
    const tw_rows_t rows = {block->n, layer.out, layer.out};
    tw_spread_bias_forward(compute, bias_of(block, layer.weight + 1, layer.out), rows, accumulate, y);
    tw_matrix_t factor = tw_factor(compute, x, block->n * layer.in, layer.in, compute->narrow);
    tw_layer_forward(compute, sizes_of(block, layer), factor, block->weights[layer.weight], 1.0f, y);
}

/** Compute dx (N,in) = dy (N,out) w', and add to the gradients of b and (unless its pointer is NULL) of w. */
static void linear_backward(const block_t *block, layer_t layer, const float *x, const float *dy, float *dx)
{
    const tw_compute_t *compute = block->compute;
    const tw_rows_t rows = {block->n, layer.out, layer.out};
    float *d_weight = block->grads[layer.weight];
    tw_matrix_t dy_factor = tw_factor(compute, dy, block->n * layer.out, layer.out, compute->narrow_d);
    tw_spread_bias_backward(compute, dy, rows, block->grads[layer.weight + 1]);
    if (d_weight) {
        tw_matrix_t x_factor = tw_factor(compute, x, block->n * layer.in, layer.in, compute->narrow);
        tw_layer_backward_weight(compute, sizes_of(block, layer), x_factor, dy_factor, d_weight);
    }
    tw_layer_backward_input(compute, sizes_of(block, layer), dy_factor, block->weights[layer.weight], 0.0f,
                            dx);
}

/** Return the arguments of a norm of x. Tensor `weight` is gamma, and the tensor after that beta. */
static tw_model_norm_t gpt2_norm_of(const block_t *block, int weight, const float *x,
                                    tw_model_norm_stats_t stats)
{
    return (tw_model_norm_t){.x = x,
                             .gamma = gamma_of(block, weight),
                             .beta = bias_of(block, weight + 1, block->c),
                             .n = block->n,
                             .c = block->c,
                             .epsilon = block->config->layer_norm_epsilon,
                             .stats = stats};
}

static void gpt2_norm_forward(const block_t *block, int weight, const float *x, tw_model_norm_stats_t stats)
{
    const tw_model_norm_t norm = gpt2_norm_of(block, weight, x, stats);
    tw_spread_norm_forward(block->compute, &norm, block->scratch->norm);
}

static void norm_again(const block_t *block, int weight, const float *x, tw_model_norm_stats_t stats)
{
    const tw_model_norm_t norm = gpt2_norm_of(block, weight, x, stats);
    tw_spread_norm_apply(block->compute, &norm, block->scratch->norm);
}

/** Add the gradient of x to d (N,C). The gradient of the norm's output is in scratch->d_norm. */
static void gpt2_norm_backward(const block_t *block, int weight, const float *x, tw_model_norm_stats_t stats,
                               float *d)
{
    const tw_model_norm_t norm = gpt2_norm_of(block, weight, x, stats);
    const tw_model_norm_gradients_t to = {
        .dx = d, .dgamma = block->grads[weight], .dbeta = block->grads[weight + 1], .accumulate = 1};
    tw_spread_norm_backward(block->compute, &norm, block->scratch->d_norm, &to);
}

/** Compute middle (N,C) = x + attention(norm(x)). */
static void gpt2_attention_forward(const block_t *block, const float *x)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    size_t c = block->c;
    gpt2_norm_forward(block, TW_GPT2_LN_1_W, x, saved->ln_1);
    linear(block, (layer_t){TW_GPT2_QKV_W, c, 3 * c}, block->scratch->norm, 0, saved->qkv);
    tw_attention_forward(block->compute, &block->attention, saved->qkv, block->scratch->attention,
                         saved->attended);
    tw_spread_copy(block->compute, x, block->n * c, saved->middle);
    linear(block, (layer_t){TW_GPT2_ATTN_PROJ_W, c, c}, saved->attended, 1, saved->middle);
}

/** Compute y (N,C) = middle + mlp(norm(middle)). */
static void gpt2_mlp_forward(const block_t *block, float *y)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    size_t c = block->c;
    gpt2_norm_forward(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2);
    linear(block, (layer_t){TW_GPT2_FC_W, c, 4 * c}, block->scratch->norm, 0, saved->hidden);
    tw_spread_gelu_forward(block->compute, saved->hidden, block->n * 4 * c, block->scratch->hidden);
    tw_spread_copy(block->compute, saved->middle, block->n * c, y);
    linear(block, (layer_t){TW_GPT2_MLP_PROJ_W, 4 * c, c}, block->scratch->hidden, 1, y);
}

/** Turn d (N,C) from the gradient of y into the gradient of middle. */
static void gpt2_mlp_backward(const block_t *block, float *d)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    const tw_gpt2_scratch_t *scratch = block->scratch;
    size_t c = block->c, n_hidden = block->n * 4 * c;
    tw_spread_gelu_forward(block->compute, saved->hidden, n_hidden, scratch->hidden);
    linear_backward(block, (layer_t){TW_GPT2_MLP_PROJ_W, 4 * c, c}, scratch->hidden, d, scratch->d_hidden);
    tw_spread_gelu_backward(block->compute, saved->hidden, n_hidden, scratch->d_hidden);
    norm_again(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2);
    linear_backward(block, (layer_t){TW_GPT2_FC_W, c, 4 * c}, scratch->norm, scratch->d_hidden,
                    scratch->d_norm);
    gpt2_norm_backward(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2, d);
}

/** Turn d (N,C) from the gradient of middle into the gradient of x. */
static void gpt2_attention_backward(const block_t *block, const float *x, float *d)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    const tw_gpt2_scratch_t *scratch = block->scratch;
    size_t c = block->c;
    float *d_attended = scratch->d_norm, *d_qkv = scratch->d_hidden;
    linear_backward(block, (layer_t){TW_GPT2_ATTN_PROJ_W, c, c}, saved->attended, d, d_attended);
    tw_attention_backward(block->compute, &block->attention, saved->qkv, d_attended, scratch->attention,
                          d_qkv);
    norm_again(block, TW_GPT2_LN_1_W, x, saved->ln_1);
    linear_backward(block, (layer_t){TW_GPT2_QKV_W, c, 3 * c}, scratch->norm, d_qkv, scratch->d_norm);
    gpt2_norm_backward(block, TW_GPT2_LN_1_W, x, saved->ln_1, d);
}

void tw_gpt2_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                           float *y, void *saved)
{
    (void)unit; /* all blocks have the same layout */
    block_t block = gpt2_block_of(model, weights, NULL, saved ? saved : ((tw_gpt2_t *)model)->scratch.saved);
    gpt2_attention_forward(&block, x);
    gpt2_mlp_forward(&block, y);
}

void tw_gpt2_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            const void *saved, float *d, float *const *grads)
{
    (void)unit;
    /* `saved` is only read, though the struct is not const. */
    block_t block = gpt2_block_of(model, weights, grads, (void *)(uintptr_t)saved);
    gpt2_mlp_backward(&block, d);
    gpt2_attention_backward(&block, x, d);
}
