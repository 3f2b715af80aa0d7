/* A block of the Llama family: x + attention(norm(x)), then that + mlp(norm(that)). Sizes as in llama.h; a
 * weight is (out, in). */
#include <string.h>

#include "quant/quant.h"
#include "trainer/model/blas.h"
#include "trainer/model/llama.h"
#include "trainer/model/rope.h"

/* What the functions of a call share. */
typedef struct block {
    const tw_llama_t *llama;
    const tw_model_config_t *config;
    const tw_llama_scratch_t *scratch;
    const uint16_t *const *weights;
    float *const *grads;
    size_t n, c, q, kv, qkv, inner; /* N, C, HD, KD, Q, F */
    tw_attention_shape_t attention;
    tw_llama_saved_t saved;
} block_t;

static block_t block_of(const tw_llama_t *llama, size_t unit, const uint16_t *const *weights,
                        float *const *grads, void *saved)
{
    const tw_model_t *model = &llama->model;
    const tw_model_config_t *config = &model->config;
    size_t n = model->batch * model->seq_len;
    int has_window = unit > config->llama.window_from_layer;
    return (block_t){.llama = llama,
                     .config = config,
                     .scratch = &llama->scratch,
                     .weights = weights,
                     .grads = grads,
                     .n = n,
                     .c = config->n_embd,
                     .q = tw_llama_q_width(config),
                     .kv = tw_llama_kv_width(config),
                     .qkv = tw_llama_qkv_width(config),
                     .inner = config->llama.n_inner,
                     .attention = {.batch = model->batch,
                                   .seq_len = model->seq_len,
                                   .heads = config->n_head,
                                   .kv_heads = config->llama.n_kv_head,
                                   .width = config->llama.head_dim,
                                   .window = has_window ? config->llama.window : 0},
                     .saved = tw_llama_saved_parts(config, n, saved)};
}

static int has(const block_t *block, int tensor)
{
    return block->llama->block[tensor] >= 0;
}

static float *grad_of(const block_t *block, int tensor)
{
    return block->grads[block->llama->block[tensor]];
}

/* A tensor of the block as fp32 [n_elems], in `to`. */
static const float *widen(const block_t *block, int tensor, size_t n_elems, float *to)
{
    tw_convert_to_fp32(TW_TYPE_BF16, block->weights[block->llama->block[tensor]], to, n_elems);
    return to;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* A weight (out, in) between x (N,in) and y (N,out), whose rows lie y_stride apart. */
typedef struct layer {
    int tensor;
    size_t in, out, y_stride;
} layer_t;

/* y = x w' + beta y */
static void layer_forward(const block_t *block, layer_t layer, const float *x, float beta, float *y)
{
    const float *w = widen(block, layer.tensor, layer.out * layer.in, block->scratch->wide);
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = x, .stride = layer.in},
                                          .b = {.at = w, .stride = layer.in, .transposed = 1},
                                          .c = y,
                                          .c_stride = layer.y_stride,
                                          .rows = block->n,
                                          .cols = layer.out,
                                          .inner = layer.in,
                                          .alpha = 1.0f,
                                          .beta = beta});
}

/* The weight's gradient += dy' x; dx (N,in) = dy w + beta dx */
static void layer_backward(const block_t *block, layer_t layer, const float *x, const float *dy, float beta,
                           float *dx)
{
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = dy, .stride = layer.y_stride, .transposed = 1},
                                          .b = {.at = x, .stride = layer.in},
                                          .c = grad_of(block, layer.tensor),
                                          .c_stride = layer.in,
                                          .rows = layer.out,
                                          .cols = layer.in,
                                          .inner = block->n,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
    const float *w = widen(block, layer.tensor, layer.out * layer.in, block->scratch->wide);
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = dy, .stride = layer.y_stride},
                                          .b = {.at = w, .stride = layer.in},
                                          .c = dx,
                                          .c_stride = layer.in,
                                          .rows = block->n,
                                          .cols = layer.in,
                                          .inner = layer.out,
                                          .alpha = 1.0f,
                                          .beta = beta});
}

static void bias_forward(const block_t *block, layer_t layer, int tensor, float *y)
{
    const float *bias = widen(block, tensor, layer.out, block->scratch->vector);
    for (size_t row = 0; row < block->n; row++) {
        for (size_t o = 0; o < layer.out; o++) {
            y[row * layer.y_stride + o] += bias[o];
        }
    }
}

static void bias_backward(const block_t *block, layer_t layer, int tensor, const float *dy)
{
    float *d_bias = grad_of(block, tensor);
    for (size_t row = 0; row < block->n; row++) {
        for (size_t o = 0; o < layer.out; o++) {
            d_bias[o] += dy[row * layer.y_stride + o];
        }
    }
}

/* ---- q, k and v ---------------------------------------------------------------------------------------- */

/* One of the three, its bias, and where it begins in a row of Q. */
typedef struct part {
    layer_t layer;
    int bias;
    size_t at;
} part_t;

static part_t part_of(const block_t *block, int which)
{
    const part_t parts[] = {
        {{TW_LLAMA_Q, block->c, block->q, block->qkv}, TW_LLAMA_Q_BIAS, 0},
        {{TW_LLAMA_K, block->c, block->kv, block->qkv}, TW_LLAMA_K_BIAS, block->q},
        {{TW_LLAMA_V, block->c, block->kv, block->qkv}, TW_LLAMA_V_BIAS, block->q + block->kv},
    };
    return parts[which];
}

/* qkv (N,Q) of the norm in scratch */
static void qkv_forward(const block_t *block, float *qkv)
{
    for (int which = 0; which < 3; which++) {
        part_t part = part_of(block, which);
        layer_forward(block, part.layer, block->scratch->norm, 0.0f, qkv + part.at);
        if (has(block, part.bias)) {
            bias_forward(block, part.layer, part.bias, qkv + part.at);
        }
    }
}

/* d_norm (N,C) = the gradient by the norm */
static void qkv_backward(const block_t *block, const float *d_qkv, float *d_norm)
{
    for (int which = 0; which < 3; which++) {
        part_t part = part_of(block, which);
        if (has(block, part.bias)) {
            bias_backward(block, part.layer, part.bias, d_qkv + part.at);
        }
        layer_backward(block, part.layer, block->scratch->norm, d_qkv + part.at, which > 0 ? 1.0f : 0.0f,
                       d_norm);
    }
}

/* What is done with each head of q and k between product and attention: a norm where there is one, then the
 * turn. */
typedef struct heads {
    size_t width, pairs, n_q, n;    /* D, D / 2; heads of q, and of q and k */
    const float *q_gamma, *k_gamma; /* [D], or NULL */
    float *d_q_gamma, *d_k_gamma;   /* likewise, backwards */
    double epsilon;
    const float *cosines, *sines;
} heads_t;

/* Both gammas lie in the vector's scratch. */
static heads_t heads_of(const block_t *block)
{
    const tw_model_config_t *config = block->config;
    size_t width = config->llama.head_dim;
    heads_t heads = {.width = width,
                     .pairs = width / 2,
                     .n_q = config->n_head,
                     .n = config->n_head + config->llama.n_kv_head,
                     .epsilon = config->layer_norm_epsilon,
                     .cosines = block->scratch->cosines,
                     .sines = block->scratch->sines};
    if (has(block, TW_LLAMA_Q_NORM)) {
        heads.q_gamma = widen(block, TW_LLAMA_Q_NORM, width, block->scratch->vector);
        heads.k_gamma = widen(block, TW_LLAMA_K_NORM, width, block->scratch->vector + width);
        heads.d_q_gamma = block->grads ? grad_of(block, TW_LLAMA_Q_NORM) : NULL;
        heads.d_k_gamma = block->grads ? grad_of(block, TW_LLAMA_K_NORM) : NULL;
    }
    return heads;
}

/* qkv (N,Q) in scratch = the saved one, normed and turned. */
static void turn(const block_t *block)
{
    heads_t heads = heads_of(block);
    memcpy(block->scratch->qkv, block->saved.qkv, block->n * block->qkv * sizeof(float));
    for (size_t row = 0; row < block->n; row++) {
        size_t angles = row % block->attention.seq_len * heads.pairs;
        for (size_t h = 0; h < heads.n; h++) {
            float *x = block->scratch->qkv + row * block->qkv + h * heads.width;
            const float *gamma = h < heads.n_q ? heads.q_gamma : heads.k_gamma;
            if (gamma) {
                (void)tw_rmsnorm_row(x, gamma, heads.width, heads.epsilon, x);
            }
            tw_rope_turn(x, heads.width, heads.cosines + angles, heads.sines + angles);
        }
    }
}

/* One head: d [D], the gradient by the normed one, becomes that by x. normed: room for D floats. */
static void head_norm_backward(const heads_t *heads, size_t h, const float *x, float *normed, float *d)
{
    int is_q = h < heads->n_q;
    const float *gamma = is_q ? heads->q_gamma : heads->k_gamma;
    float rstd = tw_rmsnorm_row(x, gamma, heads->width, heads->epsilon, normed);
    tw_rmsnorm_row_backward(d, x, gamma, heads->width, rstd, 0, d,
                            is_q ? heads->d_q_gamma : heads->d_k_gamma);
}

/* d_qkv (N,Q) in scratch: the gradient by the turned one becomes that by the saved one. The turned one is
 * used up. */
static void turn_backward(const block_t *block)
{
    heads_t heads = heads_of(block);
    for (size_t row = 0; row < block->n; row++) {
        size_t angles = row % block->attention.seq_len * heads.pairs;
        for (size_t h = 0; h < heads.n; h++) {
            size_t at = row * block->qkv + h * heads.width;
            float *d = block->scratch->d_qkv + at;
            tw_rope_turn_backward(d, heads.width, heads.cosines + angles, heads.sines + angles);
            if (heads.q_gamma) {
                head_norm_backward(&heads, h, block->saved.qkv + at, block->scratch->qkv + at, d);
            }
        }
    }
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static void norm_forward(const block_t *block, int tensor, const float *x, float *rstd)
{
    const float *gamma = widen(block, tensor, block->c, block->scratch->vector);
    tw_rmsnorm_forward(x, gamma, block->n, block->c, block->config->layer_norm_epsilon, rstd,
                       block->scratch->norm);
}

static void norm_again(const block_t *block, int tensor, const float *x, const float *rstd)
{
    const float *gamma = widen(block, tensor, block->c, block->scratch->vector);
    tw_rmsnorm_apply(x, gamma, block->n, block->c, rstd, block->scratch->norm);
}

/* d (N,C) += the gradient by x of the norm whose output's gradient is in scratch. */
static void norm_backward(const block_t *block, int tensor, const float *x, const float *rstd, float *d)
{
    const float *gamma = widen(block, tensor, block->c, block->scratch->vector);
    tw_rmsnorm_backward(block->scratch->d_norm, x, gamma, block->n, block->c, rstd, 1, d,
                        grad_of(block, tensor));
}

/* ---- the two halves ------------------------------------------------------------------------------------ */

static layer_t o_layer(const block_t *block)
{
    return (layer_t){TW_LLAMA_O, block->q, block->c, block->c};
}

static layer_t gate_layer(const block_t *block, int tensor) /* or up */
{
    return (layer_t){tensor, block->c, block->inner, block->inner};
}

static layer_t down_layer(const block_t *block)
{
    return (layer_t){TW_LLAMA_DOWN, block->inner, block->c, block->c};
}

/* middle (N,C) = x + attention(norm(x)) */
static void attention_forward(const block_t *block, const float *x)
{
    const tw_llama_saved_t *saved = &block->saved;
    norm_forward(block, TW_LLAMA_NORM_1, x, saved->rstd_1);
    qkv_forward(block, saved->qkv);
    turn(block);
    tw_attention_forward(&block->attention, block->scratch->qkv, block->scratch->attention, saved->attended);
    memcpy(saved->middle, x, block->n * block->c * sizeof(*x));
    layer_forward(block, o_layer(block), saved->attended, 1.0f, saved->middle);
}

/* y (N,C) = middle + mlp(norm(middle)) */
static void mlp_forward(const block_t *block, float *y)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    norm_forward(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2);
    layer_forward(block, gate_layer(block, TW_LLAMA_GATE), scratch->norm, 0.0f, saved->gate);
    layer_forward(block, gate_layer(block, TW_LLAMA_UP), scratch->norm, 0.0f, saved->up);
    tw_swiglu_forward(saved->gate, saved->up, block->n * block->inner, scratch->hidden);
    memcpy(y, saved->middle, block->n * block->c * sizeof(*y));
    layer_forward(block, down_layer(block), scratch->hidden, 1.0f, y);
}

/* d (N,C): the gradient by y becomes that by middle. */
static void mlp_backward(const block_t *block, float *d)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    size_t n_hidden = block->n * block->inner;
    float *d_gate = scratch->hidden, *d_up = scratch->d_hidden; /* once hidden is used up */
    tw_swiglu_forward(saved->gate, saved->up, n_hidden, scratch->hidden);
    layer_backward(block, down_layer(block), scratch->hidden, d, 0.0f, scratch->d_hidden);
    tw_swiglu_backward(saved->gate, saved->up, n_hidden, scratch->d_hidden, d_gate);
    norm_again(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2);
    layer_backward(block, gate_layer(block, TW_LLAMA_GATE), scratch->norm, d_gate, 0.0f, scratch->d_norm);
    layer_backward(block, gate_layer(block, TW_LLAMA_UP), scratch->norm, d_up, 1.0f, scratch->d_norm);
    norm_backward(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2, d);
}

/* d (N,C): the gradient by middle becomes that by x. */
static void attention_backward(const block_t *block, const float *x, float *d)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    layer_backward(block, o_layer(block), saved->attended, d, 0.0f, scratch->d_attended);
    turn(block);
    tw_attention_backward(&block->attention, scratch->qkv, scratch->d_attended, scratch->attention,
                          scratch->d_qkv);
    turn_backward(block);
    norm_again(block, TW_LLAMA_NORM_1, x, saved->rstd_1);
    qkv_backward(block, scratch->d_qkv, scratch->d_norm);
    norm_backward(block, TW_LLAMA_NORM_1, x, saved->rstd_1, d);
}

void tw_llama_block_forward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                            float *y, void *saved)
{
    const tw_llama_t *llama = (const tw_llama_t *)model;
    block_t block = block_of(llama, unit, weights, NULL, saved ? saved : llama->scratch.saved);
    attention_forward(&block, x);
    mlp_forward(&block, y);
}

void tw_llama_block_backward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads)
{
    block_t block = block_of((const tw_llama_t *)model, unit, weights, grads,
                             (void *)(uintptr_t)saved); /* it is only read */
    mlp_backward(&block, d);
    attention_backward(&block, x, d);
}
