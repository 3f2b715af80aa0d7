/* A block of GPT-2: middle = x + attention(norm(x)), y = middle + mlp(norm(middle)). The last product of each
 * part also adds the residual, which costs nothing. */
#include "trainer/device/state.h"

/** Return a linear layer. Tensor `tensor` is its weight (in,out), and the tensor after that its bias. */
static tw_device_layer_t layer_of(const tw_device_model_t *m, size_t unit, int tensor, size_t in, size_t out)
{
    return (tw_device_layer_t){.weight = tw_device_weight(m, unit, tensor),
                               .bias = tw_device_weight(m, unit, tensor + 1),
                               .d_weight = tw_device_grad(m, unit, tensor),
                               .d_bias = tw_device_grad(m, unit, tensor + 1),
                               .n = m->model.batch * m->model.seq_len,
                               .in = in,
                               .out = out,
                               .y_stride = out};
}

static tw_device_norm_t gpt2_norm_of(const tw_device_model_t *m, size_t unit, int tensor, float *mean,
                                     float *rstd)
{
    return (tw_device_norm_t){.gamma = tw_device_weight(m, unit, tensor),
                              .beta = tw_device_weight(m, unit, tensor + 1),
                              .d_gamma = tw_device_grad(m, unit, tensor),
                              .d_beta = tw_device_grad(m, unit, tensor + 1),
                              .mean = mean,
                              .rstd = rstd};
}

typedef struct block {
    tw_device_norm_t norm_1, norm_2;
    tw_device_layer_t qkv, projection, fc, mlp_projection;
    size_t n_hidden; /* N * F */
} block_t;

static block_t device_gpt2_block_of(const tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved)
{
    size_t c = m->model.config.n_embd;
    return (block_t){.norm_1 = gpt2_norm_of(m, unit, TW_GPT2_LN_1_W, saved->mean_1, saved->rstd_1),
                     .norm_2 = gpt2_norm_of(m, unit, TW_GPT2_LN_2_W, saved->mean_2, saved->rstd_2),
                     .qkv = layer_of(m, unit, TW_GPT2_QKV_W, c, 3 * c),
                     .projection = layer_of(m, unit, TW_GPT2_ATTN_PROJ_W, c, c),
                     .fc = layer_of(m, unit, TW_GPT2_FC_W, c, 4 * c),
                     .mlp_projection = layer_of(m, unit, TW_GPT2_MLP_PROJ_W, 4 * c, c),
                     .n_hidden = m->model.batch * m->model.seq_len * 4 * c};
}

static tw_status_t gelu(tw_device_model_t *m, const block_t *block, const tw_device_saved_t *saved)
{
    return m->device->kernels->gelu_forward(m->type, saved->hidden, block->n_hidden, m->scratch.hidden,
                                            m->compute);
}

tw_status_t tw_device_gpt2_forward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                   const tw_values_t *x, tw_values_t *y)
{
    const block_t block = device_gpt2_block_of(m, unit, saved);
    tw_values_t *norm = m->scratch.norm;
    TW_TRY(tw_device_norm_forward(m, &block.norm_1, x, norm));
    TW_TRY(tw_device_layer_forward(m, &block.qkv, norm, NULL, saved->qkv));
    TW_TRY(tw_device_attention_forward(m, 0, saved->qkv, saved->qkv, saved));
    TW_TRY(tw_device_layer_forward(m, &block.projection, saved->attended, x, saved->middle));
    TW_TRY(tw_device_norm_forward(m, &block.norm_2, saved->middle, norm));
    TW_TRY(tw_device_layer_forward(m, &block.fc, norm, NULL, saved->hidden));
    TW_TRY(gelu(m, &block, saved));
    return tw_device_layer_forward(m, &block.mlp_projection, m->scratch.hidden, saved->middle, y);
}

/** Do the backward pass of the second half of a block (norm, fc, GELU, projection). d: the gradient of its
 *  output; afterwards the gradient of its input. */
static tw_status_t device_gpt2_mlp_backward(tw_device_model_t *m, const block_t *block,
                                            const tw_device_saved_t *saved, tw_values_t *d)
{
    const tw_device_scratch_t *s = &m->scratch;
    TW_TRY(gelu(m, block, saved));
    TW_TRY(tw_device_layer_backward(m, &block->mlp_projection, s->hidden, d, 0, s->d_hidden));
    TW_TRY(
        m->device->kernels->gelu_backward(m->type, saved->hidden, block->n_hidden, s->d_hidden, m->compute));
    TW_TRY(tw_device_norm_forward(m, &block->norm_2, saved->middle, s->norm));
    TW_TRY(tw_device_layer_backward(m, &block->fc, s->norm, s->d_hidden, 0, s->d_norm));
    return tw_device_norm_backward(m, &block->norm_2, saved->middle, s->d_norm, 1, d);
}

tw_status_t tw_device_gpt2_backward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                    const tw_values_t *x, tw_values_t *d)
{
    const block_t block = device_gpt2_block_of(m, unit, saved);
    const tw_device_scratch_t *s = &m->scratch;
    TW_TRY(device_gpt2_mlp_backward(m, &block, saved, d));
    TW_TRY(tw_device_layer_backward(m, &block.projection, saved->attended, d, 0, s->d_attended));
    TW_TRY(tw_device_attention_backward(m, 0, saved->qkv, saved->qkv, saved, s->d_attended, s->d_qkv));
    TW_TRY(tw_device_norm_forward(m, &block.norm_1, x, s->norm));
    TW_TRY(tw_device_layer_backward(m, &block.qkv, s->norm, s->d_qkv, 0, s->d_norm));
    return tw_device_norm_backward(m, &block.norm_1, x, s->d_norm, 1, d);
}
