/* GPT-2 as a kind of model. */
#include "trainer/model/gpt2.h"

#include <stdlib.h>

static void destroy(tw_model_t *model)
{
    tw_gpt2_t *gpt2 = (tw_gpt2_t *)model;
    tw_gpt2_scratch_cleanup(&gpt2->scratch);
    tw_model_cleanup(model);
    free(gpt2);
}

static double unit_products(const tw_model_t *model, size_t unit, size_t seq_len)
{
    double c = (double)model->config.n_embd;
    return unit == TW_MODEL_ROOT ? (double)model->config.vocab_size * c
                                 : 12.0 * c * c + 2.0 * c * (double)seq_len / 2.0;
}

static tw_model_sizes_t sizes(const tw_model_t *model, size_t batch, size_t seq_len)
{
    size_t n = batch * seq_len;
    return (tw_model_sizes_t){.x_elems = n * model->config.n_embd,
                              .saved_bytes = tw_gpt2_saved_bytes(&model->config, n),
                              .scratch_bytes =
                                  tw_gpt2_scratch_bytes(&model->config, batch, seq_len, model->compute.pool)};
}

static tw_status_t reserve(tw_model_t *model)
{
    tw_gpt2_t *gpt2 = (tw_gpt2_t *)model;
    tw_gpt2_scratch_cleanup(&gpt2->scratch);
    return tw_gpt2_scratch_init(gpt2);
}

static const tw_model_ops_t ops = {.destroy = destroy,
                                   .unit_products = unit_products,
                                   .sizes = sizes,
                                   .reserve = reserve,
                                   .embed_forward = tw_gpt2_embed_forward,
                                   .embed_backward = tw_gpt2_embed_backward,
                                   .block_forward = tw_gpt2_block_forward,
                                   .block_backward = tw_gpt2_block_backward,
                                   .head = tw_gpt2_head,
                                   .losses = tw_gpt2_losses,
                                   .logits = tw_gpt2_logits};

tw_status_t tw_gpt2_create(const tw_model_config_t *config, tw_model_t **out)
{
    tw_gpt2_t *gpt2 = calloc(1, sizeof(*gpt2));
    if (!gpt2) {
        tw_error("model: out of memory");
        return TW_ERR_NO_MEMORY;
    }
    gpt2->model.ops = &ops;
    gpt2->model.config = *config;
    tw_status_t status = tw_model_compute_init(&gpt2->model);
    status = status == TW_OK ? tw_gpt2_tensors(&gpt2->model) : status;
    if (status != TW_OK) {
        destroy(&gpt2->model);
        return status;
    }
    *out = &gpt2->model;
    return TW_OK;
}
