/* A Llama block: middle = x + attention(norm(x)), y = middle + mlp(norm(middle)). A weight is (out,in). */
#include "trainer/device/state.h"

/* Arguments that the functions below share. */
typedef struct block {
    tw_device_model_t *m;
    size_t unit, window;
    const int *places; /* places of tensors in the unit; -1: the family has no such tensor */
    tw_device_sizes_t sizes;
    tw_device_saved_t saved;
    const tw_device_scratch_t *scratch;
} block_t;

static block_t device_llama_block_of(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved)
{
    const tw_model_config_t *config = &m->model.config;
    return (block_t){.m = m,
                     .unit = unit,
                     .window = unit > config->llama.window_from_layer ? config->llama.window : 0,
                     .places = m->host->block,
                     .sizes = tw_device_sizes_of(config, m->model.batch, m->model.seq_len),
                     .saved = *saved,
                     .scratch = &m->scratch};
}

/** Return a weight, or NULL if the family has no such tensor. */
static const tw_values_t *llama_weight_of(const block_t *b, int tensor)
{
    return b->places[tensor] >= 0 ? tw_device_weight(b->m, b->unit, b->places[tensor]) : NULL;
}

static float *grad_of(const block_t *b, int tensor)
{
    return b->places[tensor] >= 0 ? tw_device_grad(b->m, b->unit, b->places[tensor]) : NULL;
}

static tw_device_layer_t layer_of(const block_t *b, int tensor, size_t in, size_t out)
{
    return (tw_device_layer_t){.weight = llama_weight_of(b, tensor),
                               .d_weight = grad_of(b, tensor),
                               .n = b->sizes.n,
                               .in = in,
                               .out = out,
                               .y_stride = out,
                               .is_out_in = 1};
}

static tw_device_norm_t llama_norm_of(const block_t *b, int tensor, float *rstd)
{
    return (tw_device_norm_t){
        .gamma = llama_weight_of(b, tensor), .d_gamma = grad_of(b, tensor), .rstd = rstd};
}

/* ---- q, k and v ---------------------------------------------------------------------------------------- */

/* The linear layer of q, k or v, and its first column in a row of qkv. */
typedef struct projection {
    tw_device_layer_t layer;
    size_t at;
} projection_t;

static projection_t projection_of(const block_t *b, int which)
{
    static const int tensors[] = {TW_LLAMA_Q, TW_LLAMA_K, TW_LLAMA_V};
    static const int biases[] = {TW_LLAMA_Q_BIAS, TW_LLAMA_K_BIAS, TW_LLAMA_V_BIAS};
    const size_t q = b->sizes.q, kv = b->sizes.kv, at[] = {0, q, q + kv};
    projection_t projection = {.layer = layer_of(b, tensors[which], b->sizes.c, which == 0 ? q : kv),
                               .at = at[which]};
    projection.layer.bias = llama_weight_of(b, biases[which]);
    projection.layer.d_bias = grad_of(b, biases[which]);
    projection.layer.y_stride = b->sizes.qkv;
    return projection;
}

static tw_status_t qkv_forward(const block_t *b)
{
    for (int which = 0; which < 3; which++) {
        projection_t projection = projection_of(b, which);
        TW_TRY(tw_device_layer_forward(b->m, &projection.layer, b->scratch->norm, NULL,
                                       tw_device_at(b->m, b->saved.qkv, projection.at)));
    }
    return TW_OK;
}

/** Compute d_norm, the gradient of the norm's output. */
static tw_status_t qkv_backward(const block_t *b)
{
    const tw_device_scratch_t *s = b->scratch;
    for (int which = 0; which < 3; which++) {
        projection_t projection = projection_of(b, which);
        TW_TRY(tw_device_layer_backward(b->m, &projection.layer, s->norm,
                                        tw_device_at(b->m, s->d_qkv, projection.at), which > 0, s->d_norm));
    }
    return TW_OK;
}

/** Return the arguments for the saved heads of q, or of k (is_k). */
static tw_cuda_heads_t heads_of(const block_t *b, int is_k)
{
    tw_cuda_heads_t heads = tw_device_heads_args(&b->sizes, &b->m->model.config, is_k);
    heads.gamma = llama_weight_of(b, is_k ? TW_LLAMA_K_NORM : TW_LLAMA_Q_NORM);
    heads.cosines = b->scratch->cosines;
    heads.sines = b->scratch->sines;
    heads.x = tw_device_at(b->m, b->saved.qkv, is_k ? b->sizes.q : 0);
    return heads;
}

/** Write the saved q and k, normed and rotated, to scratch->qkv. Attention reads v where it was saved. */
static tw_status_t device_llama_turn(const block_t *b)
{
    for (int is_k = 0; is_k < 2; is_k++) {
        const tw_cuda_heads_t heads = heads_of(b, is_k);
        TW_TRY(b->m->device->kernels->heads_forward(
            &heads, tw_device_at(b->m, b->scratch->qkv, is_k ? b->sizes.q : 0), b->sizes.qkv, b->m->compute));
    }
    return TW_OK;
}

static tw_status_t turn_backward(const block_t *b)
{
    for (int is_k = 0; is_k < 2; is_k++) {
        const tw_cuda_heads_t heads = heads_of(b, is_k);
        TW_TRY(b->m->device->kernels->heads_backward(
            &heads, tw_device_at(b->m, b->scratch->d_qkv, is_k ? b->sizes.q : 0), b->sizes.qkv,
            grad_of(b, is_k ? TW_LLAMA_K_NORM : TW_LLAMA_Q_NORM), b->scratch->workspace, b->m->compute));
    }
    return TW_OK;
}

/* ---- the two halves ------------------------------------------------------------------------------------ */

static tw_device_layer_t o_layer(const block_t *b)
{
    tw_device_layer_t layer = layer_of(b, TW_LLAMA_O, b->sizes.q, b->sizes.c);
    layer.bias = llama_weight_of(b, TW_LLAMA_O_BIAS);
    layer.d_bias = grad_of(b, TW_LLAMA_O_BIAS);
    return layer;
}

static tw_device_layer_t wide_layer(const block_t *b, int tensor)
{
    return layer_of(b, tensor, b->sizes.c, b->sizes.hidden);
}

static tw_device_layer_t down_layer(const block_t *b)
{
    return layer_of(b, TW_LLAMA_DOWN, b->sizes.hidden, b->sizes.c);
}

static tw_status_t swiglu(const block_t *b)
{
    return b->m->device->kernels->swiglu_forward(b->m->type, b->saved.hidden, b->saved.up,
                                                 b->sizes.n * b->sizes.hidden, b->scratch->hidden,
                                                 b->m->compute);
}

/** Compute middle = x + attention(norm(x)). */
static tw_status_t device_llama_attention_forward(const block_t *b, const tw_values_t *x)
{
    const tw_device_norm_t norm = llama_norm_of(b, TW_LLAMA_NORM_1, b->saved.rstd_1);
    const tw_device_layer_t o = o_layer(b);
    TW_TRY(tw_device_norm_forward(b->m, &norm, x, b->scratch->norm));
    TW_TRY(qkv_forward(b));
    TW_TRY(device_llama_turn(b));
    TW_TRY(tw_device_attention_forward(b->m, b->window, b->scratch->qkv, b->saved.qkv, &b->saved));
    return tw_device_layer_forward(b->m, &o, b->saved.attended, x, b->saved.middle);
}

/** Compute y = middle + mlp(norm(middle)). */
static tw_status_t device_llama_mlp_forward(const block_t *b, tw_values_t *y)
{
    const tw_device_norm_t norm = llama_norm_of(b, TW_LLAMA_NORM_2, b->saved.rstd_2);
    const tw_device_layer_t gate = wide_layer(b, TW_LLAMA_GATE), up = wide_layer(b, TW_LLAMA_UP),
                            down = down_layer(b);
    TW_TRY(tw_device_norm_forward(b->m, &norm, b->saved.middle, b->scratch->norm));
    TW_TRY(tw_device_layer_forward(b->m, &gate, b->scratch->norm, NULL, b->saved.hidden));
    TW_TRY(tw_device_layer_forward(b->m, &up, b->scratch->norm, NULL, b->saved.up));
    TW_TRY(swiglu(b));
    return tw_device_layer_forward(b->m, &down, b->scratch->hidden, b->saved.middle, y);
}

/** Turn d from the gradient of y into the gradient of middle. */
static tw_status_t device_llama_mlp_backward(const block_t *b, tw_values_t *d)
{
    const tw_device_scratch_t *s = b->scratch;
    const tw_device_norm_t norm = llama_norm_of(b, TW_LLAMA_NORM_2, b->saved.rstd_2);
    const tw_device_layer_t gate = wide_layer(b, TW_LLAMA_GATE), up = wide_layer(b, TW_LLAMA_UP),
                            down = down_layer(b);
    TW_TRY(swiglu(b));
    TW_TRY(tw_device_layer_backward(b->m, &down, s->hidden, d, 0, s->d_hidden));
    TW_TRY(b->m->device->kernels->swiglu_backward(b->m->type, b->saved.hidden, b->saved.up,
                                                  b->sizes.n * b->sizes.hidden, s->d_hidden, s->d_gate,
                                                  b->m->compute));
    TW_TRY(tw_device_norm_forward(b->m, &norm, b->saved.middle, s->norm));
    TW_TRY(tw_device_layer_backward(b->m, &gate, s->norm, s->d_gate, 0, s->d_norm));
    TW_TRY(tw_device_layer_backward(b->m, &up, s->norm, s->d_hidden, 1, s->d_norm));
    return tw_device_norm_backward(b->m, &norm, b->saved.middle, s->d_norm, 1, d);
}

/** Turn d from the gradient of middle into the gradient of x. */
static tw_status_t device_llama_attention_backward(const block_t *b, const tw_values_t *x, tw_values_t *d)
{
    const tw_device_scratch_t *s = b->scratch;
    const tw_device_norm_t norm = llama_norm_of(b, TW_LLAMA_NORM_1, b->saved.rstd_1);
    const tw_device_layer_t o = o_layer(b);
    TW_TRY(tw_device_layer_backward(b->m, &o, b->saved.attended, d, 0, s->d_attended));
    TW_TRY(device_llama_turn(b));
    TW_TRY(tw_device_attention_backward(b->m, b->window, s->qkv, b->saved.qkv, &b->saved, s->d_attended,
                                        s->d_qkv));
    TW_TRY(turn_backward(b));
    TW_TRY(tw_device_norm_forward(b->m, &norm, x, s->norm));
    TW_TRY(qkv_backward(b));
    return tw_device_norm_backward(b->m, &norm, x, s->d_norm, 1, d);
}

tw_status_t tw_device_llama_forward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                    const tw_values_t *x, tw_values_t *y)
{
    const block_t block = device_llama_block_of(m, unit, saved);
    TW_TRY(device_llama_attention_forward(&block, x));
    return device_llama_mlp_forward(&block, y);
}

tw_status_t tw_device_llama_backward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                     const tw_values_t *x, tw_values_t *d)
{
    const block_t block = device_llama_block_of(m, unit, saved);
    TW_TRY(device_llama_mlp_backward(&block, d));
    return device_llama_attention_backward(&block, x, d);
}
