/* The table of operations of GPT-2. */
#include "trainer/model/gpt2.h"
#include "trainer/model/host.h"

static double gpt2_unit_products(const tw_model_t *model, size_t unit, size_t seq_len)
{
    double c = (double)model->config.n_embd;
    return unit == TW_MODEL_ROOT ? (double)model->config.vocab_size * c
                                 : 12.0 * c * c + 2.0 * c * (double)seq_len / 2.0;
}

static tw_model_sizes_t gpt2_sizes(const tw_model_t *model, size_t batch, size_t seq_len)
{
    size_t n = batch * seq_len;
    return (tw_model_sizes_t){.x_elems = n * model->config.n_embd,
                              .saved_bytes = tw_gpt2_saved_bytes(&model->config, n),
                              .scratch_bytes =
                                  tw_gpt2_scratch_bytes(&model->config, batch, seq_len, model->compute.pool)};
}

static const tw_model_ops_t gpt2_ops = {TW_MODEL_HOST_OPS,
                                        .unit_products = gpt2_unit_products,
                                        .sizes = gpt2_sizes,
                                        .reserve = tw_gpt2_reserve,
                                        .block_forward = tw_gpt2_block_forward,
                                        .block_backward = tw_gpt2_block_backward};

tw_status_t tw_gpt2_create(const tw_model_config_t *config, tw_model_t **out)
{
    return tw_model_host_create(config, &gpt2_ops, sizeof(tw_gpt2_t), out);
}
