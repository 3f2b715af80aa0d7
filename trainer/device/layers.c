/* Layers that all families use. All functions here enqueue on the compute stream. */
#include "trainer/device/state.h"

/* ---- products ------------------------------------------------------------------------------------------ */

tw_status_t tw_device_multiply(tw_device_model_t *m, const tw_device_product_t *product)
{
    return m->device->products->run(m->device->products, product, m->compute);
}

/** Return the weight as a factor (in,out), or (out,in) if `transposed`. It may be stored either way. */
static tw_device_factor_t layer_weight_of(const tw_device_layer_t *layer, int transposed)
{
    return (tw_device_factor_t){.at = layer->weight,
                                .stride = layer->is_out_in ? layer->in : layer->out,
                                .transposed = layer->is_out_in != transposed};
}

tw_status_t tw_device_layer_forward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                    const tw_values_t *x, const tw_values_t *c, tw_values_t *y)
{
    return tw_device_multiply(m, &(tw_device_product_t){.a = {.at = x, .stride = layer->in},
                                                        .b = layer_weight_of(layer, 0),
                                                        .c = c,
                                                        .d = y,
                                                        .type = m->type,
                                                        .factors = m->type,
                                                        .stride = layer->y_stride,
                                                        .bias = layer->bias,
                                                        .rows = layer->n,
                                                        .cols = layer->out,
                                                        .inner = layer->in});
}

static tw_status_t backward_weight(tw_device_model_t *m, const tw_device_layer_t *layer, const tw_values_t *x,
                                   const tw_values_t *dy)
{
    tw_device_factor_t in = {.at = x, .stride = layer->in}, out = {.at = dy, .stride = layer->y_stride};
    tw_device_product_t product = {.a = layer->is_out_in ? out : in,
                                   .b = layer->is_out_in ? in : out,
                                   .c = layer->d_weight,
                                   .d = layer->d_weight,
                                   .type = TW_TYPE_FP32,
                                   .factors = m->type,
                                   .stride = layer->is_out_in ? layer->in : layer->out,
                                   .rows = layer->is_out_in ? layer->out : layer->in,
                                   .cols = layer->is_out_in ? layer->in : layer->out,
                                   .inner = layer->n};
    product.a.transposed = 1;
    return tw_device_multiply(m, &product);
}

static tw_status_t backward_bias(tw_device_model_t *m, const tw_device_layer_t *layer, const tw_values_t *dy)
{
    const tw_cuda_rows_t rows = {
        .type = m->type, .rows = layer->n, .channels = layer->out, .stride = layer->y_stride};
    return m->device->kernels->bias_backward(&rows, dy, layer->d_bias, m->scratch.workspace, m->compute);
}

tw_status_t tw_device_layer_backward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                     const tw_values_t *x, const tw_values_t *dy, int accumulate,
                                     tw_values_t *dx)
{
    if (layer->d_weight) {
        TW_TRY(backward_weight(m, layer, x, dy));
    }
    if (layer->bias) {
        TW_TRY(backward_bias(m, layer, dy));
    }
    return tw_device_multiply(m, &(tw_device_product_t){.a = {.at = dy, .stride = layer->y_stride},
                                                        .b = layer_weight_of(layer, 1),
                                                        .c = accumulate ? dx : NULL,
                                                        .d = dx,
                                                        .type = m->type,
                                                        .factors = m->type,
                                                        .stride = layer->in,
                                                        .rows = layer->n,
                                                        .cols = layer->in,
                                                        .inner = layer->out});
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static tw_cuda_norm_t norm_args(const tw_device_model_t *m, const tw_device_norm_t *norm,
                                const tw_values_t *x)
{
    return (tw_cuda_norm_t){.type = m->type,
                            .rows = m->model.batch * m->model.seq_len,
                            .channels = m->model.config.n_embd,
                            .epsilon = (float)m->model.config.layer_norm_epsilon,
                            .x = x,
                            .gamma = norm->gamma,
                            .beta = norm->beta,
                            .mean = norm->beta ? norm->mean : NULL,
                            .rstd = norm->rstd};
}

tw_status_t tw_device_norm_forward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                   tw_values_t *y)
{
    const tw_cuda_norm_t args = norm_args(m, norm, x);
    return m->device->kernels->norm_forward(&args, y, m->compute);
}

tw_status_t tw_device_norm_backward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                    const tw_values_t *dy, int accumulate, tw_values_t *d)
{
    const tw_cuda_norm_t args = norm_args(m, norm, x);
    const tw_cuda_norm_gradients_t gradients = {.dy = dy,
                                                .dx = d,
                                                .accumulate = accumulate,
                                                .dgamma = norm->d_gamma,
                                                .dbeta = norm->beta ? norm->d_beta : NULL,
                                                .workspace = m->scratch.workspace};
    return m->device->kernels->norm_backward(&args, &gradients, m->compute);
}

/* ---- attention ----------------------------------------------------------------------------------------- */

static tw_cuda_attention_t attention_args(const tw_device_model_t *m, size_t window, const tw_values_t *qk,
                                          const tw_values_t *v, const tw_device_saved_t *saved,
                                          tw_device_sizes_t *sizes)
{
    *sizes = tw_device_sizes_of(&m->model.config, m->model.batch, m->model.seq_len);
    tw_cuda_attention_t args = tw_device_attention_args(sizes);
    args.window = window;
    args.starts = m->model.starts ? m->scratch.starts : NULL;
    args.q = qk;
    args.k = tw_device_at(m, qk, sizes->q);
    args.v = tw_device_at(m, v, sizes->q + sizes->kv);
    args.lse = saved->lse;
    return args;
}

tw_status_t tw_device_attention_forward(tw_device_model_t *m, size_t window, const tw_values_t *qk,
                                        const tw_values_t *v, const tw_device_saved_t *saved)
{
    tw_device_sizes_t s;
    const tw_cuda_attention_t args = attention_args(m, window, qk, v, saved, &s);
    return m->device->kernels->attention_forward(&args, saved->attended, s.q, m->compute);
}

tw_status_t tw_device_attention_backward(tw_device_model_t *m, size_t window, const tw_values_t *qk,
                                         const tw_values_t *v, const tw_device_saved_t *saved,
                                         const tw_values_t *dy, tw_values_t *d_qkv)
{
    tw_device_sizes_t s;
    const tw_cuda_attention_t args = attention_args(m, window, qk, v, saved, &s);
    const tw_cuda_attention_gradients_t gradients = {.y = saved->attended,
                                                     .dy = dy,
                                                     .y_stride = s.q,
                                                     .dy_stride = s.q,
                                                     .dq = d_qkv,
                                                     .dk = tw_device_at(m, d_qkv, s.q),
                                                     .dv = tw_device_at(m, d_qkv, s.q + s.kv),
                                                     .dq_stride = s.qkv,
                                                     .dk_stride = s.qkv,
                                                     .dv_stride = s.qkv,
                                                     .workspace = m->scratch.workspace};
    return m->device->kernels->attention_backward(&args, &gradients, m->compute);
}
