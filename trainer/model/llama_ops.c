/* The table of operations of the Llama family. */
#include "trainer/model/host.h"
#include "trainer/model/llama.h"

/** Return how many tokens a token attends to on average: half of all, or with a window most of the window. */
static double mean_seen(const tw_model_config_t *config, size_t unit, size_t seq_len)
{
    double length = (double)seq_len, window = (double)config->llama.window;
    int is_cut = window > 0.0 && window < length && unit > config->llama.window_from_layer;
    return is_cut ? window - window * window / (2.0 * length) : length / 2.0;
}

static double llama_unit_products(const tw_model_t *model, size_t unit, size_t seq_len)
{
    const tw_model_config_t *config = &model->config;
    double c = (double)config->n_embd, q = (double)tw_llama_q_width(config);
    if (unit == TW_MODEL_ROOT) {
        return (double)config->vocab_size * c;
    }
    double weights = c * ((double)tw_llama_qkv_width(config) + q + 3.0 * (double)config->llama.n_inner);
    return weights + 2.0 * q * mean_seen(config, unit, seq_len);
}

static tw_model_sizes_t llama_sizes(const tw_model_t *model, size_t batch, size_t seq_len)
{
    size_t n = tw_size_mul(batch, seq_len);
    return (tw_model_sizes_t){
        .x_elems = tw_size_mul(n, model->config.n_embd),
        .saved_bytes = tw_llama_saved_bytes(&model->config, n),
        .scratch_bytes = tw_llama_scratch_bytes(&model->config, batch, seq_len, model->compute.pool)};
}

static const tw_model_ops_t llama_ops = {TW_MODEL_HOST_OPS,
                                         .unit_products = llama_unit_products,
                                         .sizes = llama_sizes,
                                         .reserve = tw_llama_reserve,
                                         .block_forward = tw_llama_block_forward,
                                         .block_backward = tw_llama_block_backward};

tw_status_t tw_llama_create(const tw_model_config_t *config, tw_model_t **out)
{
    return tw_model_host_create(config, &llama_ops, sizeof(tw_llama_t), out);
}
