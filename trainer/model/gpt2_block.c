/* A block of GPT-2: x + attention(norm(x)), then that + mlp(norm(that)). N = B * T rows of C channels. */
#include "trainer/model/gpt2.h"

#include "quant/quant.h"
#include "trainer/model/blas.h"

/* What the functions of a call share. */
typedef struct block {
    const tw_model_config_t *config;
    const tw_gpt2_scratch_t *scratch;
    const uint16_t *const *weights;
    float *const *grads;
    size_t n, c; /* N, C */
    tw_attention_shape_t attention;
    tw_gpt2_saved_t saved;
} block_t;

static block_t block_of(tw_model_t *model, const uint16_t *const *weights, float *const *grads, void *saved)
{
    tw_gpt2_t *gpt2 = (tw_gpt2_t *)model;
    const tw_model_config_t *config = &model->config;
    size_t n = model->batch * model->seq_len;
    return (block_t){.config = config,
                     .scratch = &gpt2->scratch,
                     .weights = weights,
                     .grads = grads,
                     .n = n,
                     .c = config->n_embd,
                     .attention = {.batch = model->batch,
                                   .seq_len = model->seq_len,
                                   .heads = config->n_head,
                                   .kv_heads = config->n_head,
                                   .width = config->n_embd / config->n_head},
                     .saved = tw_gpt2_saved_parts(config, n, saved)};
}

/* One weight of the block as fp32 [n_elems]; the next call takes its place. */
static const float *widen(const block_t *block, int weight, size_t n_elems)
{
    tw_convert_to_fp32(TW_TYPE_BF16, block->weights[weight], block->scratch->wide, n_elems);
    return block->scratch->wide;
}

/* A vector of at most 4C; likewise, besides one weight. */
static const float *widen_vector(const block_t *block, int weight, size_t n_elems)
{
    tw_convert_to_fp32(TW_TYPE_BF16, block->weights[weight], block->scratch->wide_bias, n_elems);
    return block->scratch->wide_bias;
}

/* y (N,out) = x (N,in) w + b, or += */
static void linear(const block_t *block, int weight, const float *x, size_t in, size_t out, int accumulate,
                   float *y)
{
    const float *w = widen(block, weight, in * out);
    const float *b = widen_vector(block, weight + 1, out);
    tw_linear_forward(x, w, b, block->n, in, out, accumulate, y);
}

/* dx (N,in) = dy (N,out) w', and the gradients of w and b, which follows it. */
static void linear_backward(const block_t *block, int weight, const float *x, const float *dy, size_t in,
                            size_t out, float *dx)
{
    tw_linear_backward_weights(x, dy, block->n, in, out, block->grads[weight], block->grads[weight + 1]);
    tw_linear_backward_input(dy, widen(block, weight, in * out), block->n, in, out, dx);
}

/* A norm's gamma lies in the large scratch, its beta in the small one. */
static void norm_forward(const block_t *block, int weight, const float *x, tw_layernorm_stats_t stats)
{
    const float *gamma = widen(block, weight, block->c);
    const float *beta = widen_vector(block, weight + 1, block->c);
    tw_layernorm_forward(x, gamma, beta, block->n, block->c, block->config->layer_norm_epsilon, stats,
                         block->scratch->norm);
}

static void norm_again(const block_t *block, int weight, const float *x, tw_layernorm_stats_t stats)
{
    const float *gamma = widen(block, weight, block->c);
    const float *beta = widen_vector(block, weight + 1, block->c);
    tw_layernorm_apply(x, gamma, beta, block->n, block->c, stats, block->scratch->norm);
}

/* d (N,C) += the gradient by x of the norm whose output's gradient is in scratch. */
static void norm_backward(const block_t *block, int weight, const float *x, tw_layernorm_stats_t stats,
                          float *d)
{
    const float *gamma = widen(block, weight, block->c);
    tw_layernorm_backward(block->scratch->d_norm, x, gamma, block->n, block->c, stats, 1, d,
                          block->grads[weight], block->grads[weight + 1]);
}

static void copy(const float *src, size_t n_elems, float *dst)
{
    for (size_t i = 0; i < n_elems; i++) {
        dst[i] = src[i];
    }
}

/* middle (N,C) = x + attention(norm(x)) */
static void attention_forward(const block_t *block, const float *x)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    size_t c = block->c;
    norm_forward(block, TW_GPT2_LN_1_W, x, saved->ln_1);
    linear(block, TW_GPT2_QKV_W, block->scratch->norm, c, 3 * c, 0, saved->qkv);
    tw_attention_forward(&block->attention, saved->qkv, block->scratch->attention, saved->attended);
    copy(x, block->n * c, saved->middle);
    linear(block, TW_GPT2_ATTN_PROJ_W, saved->attended, c, c, 1, saved->middle);
}

/* y (N,C) = middle + mlp(norm(middle)) */
static void mlp_forward(const block_t *block, float *y)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    size_t c = block->c;
    norm_forward(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2);
    linear(block, TW_GPT2_FC_W, block->scratch->norm, c, 4 * c, 0, saved->hidden);
    tw_gelu_forward(saved->hidden, block->n * 4 * c, block->scratch->hidden);
    copy(saved->middle, block->n * c, y);
    linear(block, TW_GPT2_MLP_PROJ_W, block->scratch->hidden, 4 * c, c, 1, y);
}

/* d (N,C): the gradient by y becomes that by middle. */
static void mlp_backward(const block_t *block, float *d)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    const tw_gpt2_scratch_t *scratch = block->scratch;
    size_t c = block->c, n_hidden = block->n * 4 * c;
    tw_gelu_forward(saved->hidden, n_hidden, scratch->hidden);
    linear_backward(block, TW_GPT2_MLP_PROJ_W, scratch->hidden, d, 4 * c, c, scratch->d_hidden);
    tw_gelu_backward(saved->hidden, n_hidden, scratch->d_hidden);
    norm_again(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2);
    linear_backward(block, TW_GPT2_FC_W, scratch->norm, scratch->d_hidden, c, 4 * c, scratch->d_norm);
    norm_backward(block, TW_GPT2_LN_2_W, saved->middle, saved->ln_2, d);
}

/* d (N,C): the gradient by middle becomes that by x. */
static void attention_backward(const block_t *block, const float *x, float *d)
{
    const tw_gpt2_saved_t *saved = &block->saved;
    const tw_gpt2_scratch_t *scratch = block->scratch;
    size_t c = block->c;
    float *d_attended = scratch->d_norm, *d_qkv = scratch->d_hidden;
    linear_backward(block, TW_GPT2_ATTN_PROJ_W, saved->attended, d, c, c, d_attended);
    tw_attention_backward(&block->attention, saved->qkv, d_attended, scratch->attention, d_qkv);
    norm_again(block, TW_GPT2_LN_1_W, x, saved->ln_1);
    linear_backward(block, TW_GPT2_QKV_W, scratch->norm, d_qkv, c, 3 * c, scratch->d_norm);
    norm_backward(block, TW_GPT2_LN_1_W, x, saved->ln_1, d);
}

void tw_gpt2_block_forward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                           float *y, void *saved)
{
    (void)unit; /* all blocks are alike */
    block_t block = block_of(model, weights, NULL, saved ? saved : ((tw_gpt2_t *)model)->scratch.saved);
    attention_forward(&block, x);
    mlp_forward(&block, y);
}

void tw_gpt2_block_backward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                            const void *saved, float *d, float *const *grads)
{
    (void)unit;
    block_t block = block_of(model, weights, grads, (void *)(uintptr_t)saved); /* it is only read */
    mlp_backward(&block, d);
    attention_backward(&block, x, d);
}
