/* A block of the Llama family: middle = x + attention(norm(x)), y = middle + mlp(norm(middle)). llama.h
 * explains the sizes. A weight is (out,in). */
#include <string.h>

#include "trainer/model/llama.h"
#include "trainer/model/rope.h"

/* Arguments that the functions below share. */
typedef struct block {
    const int *places; /* places of tensors in the unit; -1: the family has no such tensor */
    const tw_model_config_t *config;
    const tw_compute_t *compute;
    const tw_llama_scratch_t *scratch;
    const void *const *weights;
    float *const *grads;
    size_t n, c, q, kv, qkv, inner; /* N, C, HD, KD, Q, F */
    tw_attention_shape_t attention;
    tw_llama_saved_t saved;
} block_t;

static block_t llama_block_of(const tw_llama_t *llama, size_t unit, const void *const *weights,
                              float *const *grads, void *saved)
{
    const tw_model_t *model = &llama->model;
    const tw_model_config_t *config = &model->config;
    size_t n = model->batch * model->seq_len;
    int has_window = unit > config->llama.window_from_layer;
    return (block_t){.places = model->block,
                     .config = config,
                     .compute = &model->compute,
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
                                   .window = has_window ? config->llama.window : 0,
                                   .starts = model->starts},
                     .saved = tw_llama_saved_at(config, n, saved)};
}

static int llama_has(const block_t *block, int tensor)
{
    return block->places[tensor] >= 0;
}

static float *grad_of(const block_t *block, int tensor)
{
    return block->grads[block->places[tensor]];
}

/** Read a tensor of the block as fp32 [n_elems], into `to`. */
static const float *widen(const block_t *block, int tensor, size_t n_elems, float *to)
{
    tw_weight_read(block->compute, block->weights[block->places[tensor]], 0, n_elems, to);
    return to;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* A linear layer: weight (out,in), x (N,in), y (N,out). Rows of y are y_stride apart. */
typedef struct layer {
    int tensor;
    size_t in, out, y_stride;
} layer_t;

static tw_layer_t llama_sizes_of(const block_t *block, layer_t layer)
{
    return (tw_layer_t){block->n, layer.in, layer.out, layer.y_stride, 1};
}

static const void *llama_weight_of(const block_t *block, layer_t layer)
{
    return block->weights[block->places[layer.tensor]];
}

/** input_factor returns a layer's input (N,in) as a factor, output_factor the gradient of its output. */
static tw_matrix_t input_factor(const block_t *block, const float *x, size_t in)
{
    return tw_factor(block->compute, x, block->n * in, in, block->compute->narrow);
}

static tw_matrix_t output_factor(const block_t *block, const float *dy, size_t out)
{
    return tw_factor(block->compute, dy, block->n * out, out, block->compute->narrow_d);
}

/** Compute y = x w' + beta y. */
static void layer_forward(const block_t *block, layer_t layer, tw_matrix_t x, float beta, float *y)
{
    tw_layer_forward(block->compute, llama_sizes_of(block, layer), x, llama_weight_of(block, layer), beta, y);
}

/** Add dy' x to the weight's gradient, unless its pointer is NULL. Compute dx (N,in) = dy w + beta dx. */
static void layer_backward(const block_t *block, layer_t layer, tw_matrix_t x, tw_matrix_t dy, float beta,
                           float *dx)
{
    tw_layer_t sizes = llama_sizes_of(block, layer);
    if (grad_of(block, layer.tensor)) {
        tw_layer_backward_weight(block->compute, sizes, x, dy, grad_of(block, layer.tensor));
    }
    tw_layer_backward_input(block->compute, sizes, dy, llama_weight_of(block, layer), beta, dx);
}

static void llama_bias_forward(const block_t *block, layer_t layer, int tensor, float *y)
{
    const float *bias = widen(block, tensor, layer.out, block->scratch->vector);
    tw_spread_bias_forward(block->compute, bias, (tw_rows_t){block->n, layer.out, layer.y_stride}, 1, y);
}

static void llama_bias_backward(const block_t *block, layer_t layer, int tensor, const float *dy)
{
    tw_spread_bias_backward(block->compute, dy, (tw_rows_t){block->n, layer.out, layer.y_stride},
                            grad_of(block, tensor));
}

/* ---- q, k and v ---------------------------------------------------------------------------------------- */

/* The linear layer of q, k or v, its bias's tensor, and its first column in a row of qkv. */
typedef struct projection {
    layer_t layer;
    int bias;
    size_t at;
} projection_t;

static projection_t projection_of(const block_t *block, int which)
{
    const projection_t projections[] = {
        {{TW_LLAMA_Q, block->c, block->q, block->qkv}, TW_LLAMA_Q_BIAS, 0},
        {{TW_LLAMA_K, block->c, block->kv, block->qkv}, TW_LLAMA_K_BIAS, block->q},
        {{TW_LLAMA_V, block->c, block->kv, block->qkv}, TW_LLAMA_V_BIAS, block->q + block->kv},
    };
    return projections[which];
}

/** Compute qkv (N,Q) from scratch->norm. */
static void qkv_forward(const block_t *block, float *qkv)
{
    tw_matrix_t norm = input_factor(block, block->scratch->norm, block->c);
    for (int which = 0; which < 3; which++) {
        projection_t projection = projection_of(block, which);
        layer_forward(block, projection.layer, norm, 0.0f, qkv + projection.at);
        if (llama_has(block, projection.bias)) {
            llama_bias_forward(block, projection.layer, projection.bias, qkv + projection.at);
        }
    }
}

/** Compute d_norm (N,C), the gradient of the norm's output. */
static void qkv_backward(const block_t *block, const float *d_qkv, float *d_norm)
{
    tw_matrix_t norm = input_factor(block, block->scratch->norm, block->c);
    tw_matrix_t dy = output_factor(block, d_qkv, block->qkv);
    for (int which = 0; which < 3; which++) {
        projection_t projection = projection_of(block, which);
        if (llama_has(block, projection.bias)) {
            llama_bias_backward(block, projection.layer, projection.bias, d_qkv + projection.at);
        }
        layer_backward(block, projection.layer, norm, tw_factor_from(dy, projection.at),
                       which > 0 ? 1.0f : 0.0f, d_norm);
    }
}

/* Arguments of the work on heads of q and k before attention: a norm (in some families), then a rotation. */
typedef struct heads {
    const block_t *block;
    const tw_kernel_set_t *kernels;
    size_t width, pairs, n_q, n;    /* D, D / 2; heads of q; heads of q and k together */
    const float *q_gamma, *k_gamma; /* [D], or NULL */
    float *d_q_gamma, *d_k_gamma;   /* [D], their gradients, or NULL */
    double epsilon;
} heads_t;

/** Return the arguments for a block. This reads the gammas of q and k into scratch->vector. */
static heads_t heads_of(const block_t *block)
{
    const tw_model_config_t *config = block->config;
    size_t width = config->llama.head_dim;
    heads_t heads = {.block = block,
                     .kernels = block->compute->kernels,
                     .width = width,
                     .pairs = width / 2,
                     .n_q = config->n_head,
                     .n = config->n_head + config->llama.n_kv_head,
                     .epsilon = config->layer_norm_epsilon};
    if (llama_has(block, TW_LLAMA_Q_NORM)) {
        heads.q_gamma = widen(block, TW_LLAMA_Q_NORM, width, block->scratch->vector);
        heads.k_gamma = widen(block, TW_LLAMA_K_NORM, width, block->scratch->vector + width);
        heads.d_q_gamma = block->grads ? grad_of(block, TW_LLAMA_Q_NORM) : NULL;
        heads.d_k_gamma = block->grads ? grad_of(block, TW_LLAMA_K_NORM) : NULL;
    }
    return heads;
}

static const float *gamma_of(const heads_t *heads, size_t h)
{
    return h < heads->n_q ? heads->q_gamma : heads->k_gamma;
}

static void over_rows(heads_t *heads, tw_pool_range_t range)
{
    const block_t *block = heads->block;
    tw_pool_ranges(block->compute->pool, block->n, 1, TW_SPREAD_LEAST / block->qkv + 1, range, heads);
}

static void turn_rows(void *ctx, size_t first, size_t n, int thread)
{
    const heads_t *heads = ctx;
    const block_t *block = heads->block;
    const tw_llama_scratch_t *scratch = block->scratch;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        size_t angles = row % block->attention.seq_len * heads->pairs;
        float *x = scratch->qkv + row * block->qkv;
        memcpy(x, block->saved.qkv + row * block->qkv, block->qkv * sizeof(*x));
        for (size_t h = 0; h < heads->n; h++, x += heads->width) {
            const float *gamma = gamma_of(heads, h);
            if (gamma) {
                (void)heads->kernels->rmsnorm_row(x, gamma, heads->width, heads->epsilon, x);
            }
            heads->kernels->rope_turn(x, heads->width, scratch->cosines + angles, scratch->sines + angles);
        }
    }
}

/** Copy the saved qkv (N,Q) to scratch->qkv, with heads of q and k normed and rotated. */
static void llama_turn(const block_t *block)
{
    heads_t heads = heads_of(block);
    over_rows(&heads, turn_rows);
}

/** Rotate gradients back. scratch->qkv is reused: each normed head's rstd overwrites its first element. */
static void turn_back_rows(void *ctx, size_t first, size_t n, int thread)
{
    const heads_t *heads = ctx;
    const block_t *block = heads->block;
    const tw_llama_scratch_t *scratch = block->scratch;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        size_t angles = row % block->attention.seq_len * heads->pairs;
        for (size_t h = 0; h < heads->n; h++) {
            size_t at = row * block->qkv + h * heads->width;
            const float *gamma = gamma_of(heads, h);
            float *normed = scratch->qkv + at;
            heads->kernels->rope_turn_backward(scratch->d_qkv + at, heads->width, scratch->cosines + angles,
                                               scratch->sines + angles);
            if (gamma) {
                normed[0] = heads->kernels->rmsnorm_row(block->saved.qkv + at, gamma, heads->width,
                                                        heads->epsilon, normed);
            }
        }
    }
}

/** Add to the gradients of the head norms' gammas, for some columns of a head. */
static void head_gammas(void *ctx, size_t first, size_t n, int thread)
{
    const heads_t *heads = ctx;
    const block_t *block = heads->block;
    (void)thread;
    for (size_t row = 0; row < block->n; row++) {
        for (size_t h = 0; h < heads->n; h++) {
            size_t at = row * block->qkv + h * heads->width;
            float *d_gamma = h < heads->n_q ? heads->d_q_gamma : heads->d_k_gamma;
            heads->kernels->rmsnorm_row_vector(block->scratch->d_qkv + at + first,
                                               block->saved.qkv + at + first, block->scratch->qkv[at], n,
                                               d_gamma + first);
        }
    }
}

/** Turn the gradients of normed heads into the gradients of the heads before the norm. */
static void head_norm_rows(void *ctx, size_t first, size_t n, int thread)
{
    const heads_t *heads = ctx;
    const block_t *block = heads->block;
    (void)thread;
    for (size_t row = first; row < first + n; row++) {
        for (size_t h = 0; h < heads->n; h++) {
            size_t at = row * block->qkv + h * heads->width;
            float *d = block->scratch->d_qkv + at;
            const tw_model_norm_t norm = {.x = block->saved.qkv + at,
                                          .gamma = gamma_of(heads, h),
                                          .n = 1,
                                          .c = heads->width,
                                          .stats.rstd = &block->scratch->qkv[at]};
            const tw_model_norm_gradients_t to = {.dx = d};
            heads->kernels->norm_backward_input(&norm, d, &to);
        }
    }
}

/** Turn scratch->d_qkv (N,Q) from the gradient of the rotated qkv into the gradient of the saved qkv. This
 *  overwrites scratch->qkv. */
static void turn_backward(const block_t *block)
{
    heads_t heads = heads_of(block);
    over_rows(&heads, turn_back_rows);
    if (heads.q_gamma) {
        tw_pool_ranges(block->compute->pool, heads.width, TW_SPREAD_LINE,
                       TW_SPREAD_LEAST / (block->n * heads.n) + 1, head_gammas, &heads);
        over_rows(&heads, head_norm_rows);
    }
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static tw_model_norm_t llama_norm_of(const block_t *block, int tensor, const float *x, float *rstd)
{
    return (tw_model_norm_t){.x = x,
                             .gamma = widen(block, tensor, block->c, block->scratch->vector),
                             .n = block->n,
                             .c = block->c,
                             .epsilon = block->config->layer_norm_epsilon,
                             .stats.rstd = rstd};
}

static void llama_norm_forward(const block_t *block, int tensor, const float *x, float *rstd)
{
    const tw_model_norm_t norm = llama_norm_of(block, tensor, x, rstd);
    tw_spread_norm_forward(block->compute, &norm, block->scratch->norm);
}

static void norm_again(const block_t *block, int tensor, const float *x, float *rstd)
{
    const tw_model_norm_t norm = llama_norm_of(block, tensor, x, rstd);
    tw_spread_norm_apply(block->compute, &norm, block->scratch->norm);
}

/** Add the gradient of x to d (N,C). The gradient of the norm's output is in scratch->d_norm. */
static void llama_norm_backward(const block_t *block, int tensor, const float *x, float *rstd, float *d)
{
    const tw_model_norm_t norm = llama_norm_of(block, tensor, x, rstd);
    const tw_model_norm_gradients_t to = {.dx = d, .dgamma = grad_of(block, tensor), .accumulate = 1};
    tw_spread_norm_backward(block->compute, &norm, block->scratch->d_norm, &to);
}

/* ---- the two halves ------------------------------------------------------------------------------------ */

static layer_t o_layer(const block_t *block)
{
    return (layer_t){TW_LLAMA_O, block->q, block->c, block->c};
}

static layer_t gate_layer(const block_t *block, int tensor) /* tensor: gate or up */
{
    return (layer_t){tensor, block->c, block->inner, block->inner};
}

static layer_t down_layer(const block_t *block)
{
    return (layer_t){TW_LLAMA_DOWN, block->inner, block->c, block->c};
}

/** Compute middle (N,C) = x + attention(norm(x)). */
static void llama_attention_forward(const block_t *block, const float *x)
{
    const tw_llama_saved_t *saved = &block->saved;
    llama_norm_forward(block, TW_LLAMA_NORM_1, x, saved->rstd_1);
    qkv_forward(block, saved->qkv);
    llama_turn(block);
    tw_attention_forward(block->compute, &block->attention, block->scratch->qkv, block->scratch->attention,
                         saved->attended);
    tw_spread_copy(block->compute, x, block->n * block->c, saved->middle);
    layer_forward(block, o_layer(block), input_factor(block, saved->attended, block->q), 1.0f, saved->middle);
    if (llama_has(block, TW_LLAMA_O_BIAS)) {
        llama_bias_forward(block, o_layer(block), TW_LLAMA_O_BIAS, saved->middle);
    }
}

/** Compute y (N,C) = middle + mlp(norm(middle)). */
static void llama_mlp_forward(const block_t *block, float *y)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    llama_norm_forward(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2);
    tw_matrix_t norm = input_factor(block, scratch->norm, block->c);
    layer_forward(block, gate_layer(block, TW_LLAMA_GATE), norm, 0.0f, saved->gate);
    layer_forward(block, gate_layer(block, TW_LLAMA_UP), norm, 0.0f, saved->up);
    tw_spread_swiglu_forward(block->compute, saved->gate, saved->up, block->n * block->inner,
                             scratch->hidden);
    tw_spread_copy(block->compute, saved->middle, block->n * block->c, y);
    layer_forward(block, down_layer(block), input_factor(block, scratch->hidden, block->inner), 1.0f, y);
}

/** Turn d (N,C) from the gradient of y into the gradient of middle. */
static void llama_mlp_backward(const block_t *block, float *d)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    size_t n_hidden = block->n * block->inner;
    /* d_gate overwrites hidden after its last use */
    float *d_gate = scratch->hidden, *d_up = scratch->d_hidden;
    tw_spread_swiglu_forward(block->compute, saved->gate, saved->up, n_hidden, scratch->hidden);
    layer_backward(block, down_layer(block), input_factor(block, scratch->hidden, block->inner),
                   output_factor(block, d, block->c), 0.0f, scratch->d_hidden);
    tw_spread_swiglu_backward(block->compute, saved->gate, saved->up, n_hidden, scratch->d_hidden, d_gate);
    norm_again(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2);
    tw_matrix_t norm = input_factor(block, scratch->norm, block->c);
    layer_backward(block, gate_layer(block, TW_LLAMA_GATE), norm, output_factor(block, d_gate, block->inner),
                   0.0f, scratch->d_norm);
    layer_backward(block, gate_layer(block, TW_LLAMA_UP), norm, output_factor(block, d_up, block->inner),
                   1.0f, scratch->d_norm);
    llama_norm_backward(block, TW_LLAMA_NORM_2, saved->middle, saved->rstd_2, d);
}

/** Turn d (N,C) from the gradient of middle into the gradient of x. */
static void llama_attention_backward(const block_t *block, const float *x, float *d)
{
    const tw_llama_saved_t *saved = &block->saved;
    const tw_llama_scratch_t *scratch = block->scratch;
    if (llama_has(block, TW_LLAMA_O_BIAS)) {
        llama_bias_backward(block, o_layer(block), TW_LLAMA_O_BIAS, d);
    }
    layer_backward(block, o_layer(block), input_factor(block, saved->attended, block->q),
                   output_factor(block, d, block->c), 0.0f, scratch->d_attended);
    llama_turn(block);
    tw_attention_backward(block->compute, &block->attention, scratch->qkv, scratch->d_attended,
                          scratch->attention, scratch->d_qkv);
    turn_backward(block);
    norm_again(block, TW_LLAMA_NORM_1, x, saved->rstd_1);
    qkv_backward(block, scratch->d_qkv, scratch->d_norm);
    llama_norm_backward(block, TW_LLAMA_NORM_1, x, saved->rstd_1, d);
}

void tw_llama_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved)
{
    const tw_llama_t *llama = (const tw_llama_t *)model;
    block_t block = llama_block_of(llama, unit, weights, NULL, saved ? saved : llama->scratch.saved);
    llama_attention_forward(&block, x);
    llama_mlp_forward(&block, y);
}

void tw_llama_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads)
{
    /* `saved` is only read. */
    block_t block = llama_block_of((const tw_llama_t *)model, unit, weights, grads, (void *)(uintptr_t)saved);
    llama_mlp_backward(&block, d);
    llama_attention_backward(&block, x, d);
}
