/* Functions that all kinds of models share. */
#include "trainer/model/ops.h"

#include <stdlib.h>

static tw_status_t model_check(const tw_model_t *model, const int32_t *tokens, const char *what,
                               int32_t least)
{
    for (size_t i = 0; i < model->batch * model->seq_len; i++) {
        TW_FAIL_IF(tokens[i] < least || tokens[i] >= (int64_t)model->config.vocab_size, TW_ERR_INVALID,
                   "model: %s %zu of sequence %zu is %d, but the vocabulary has %zu words", what,
                   i % model->seq_len, i / model->seq_len, (int)tokens[i], model->config.vocab_size);
    }
    return TW_OK;
}

tw_status_t tw_model_tokens_check(const tw_model_t *model, const int32_t *tokens)
{
    return model_check(model, tokens, "token", 0);
}

tw_status_t tw_model_targets_check(const tw_model_t *model, const int32_t *targets)
{
    return model_check(model, targets, "target", TW_MODEL_NO_TARGET);
}

tw_type_t tw_model_weight_type(const tw_model_t *model)
{
    return model->config.fp32_weights ? TW_TYPE_FP32 : TW_TYPE_BF16;
}

tw_status_t tw_model_compute_init(tw_model_t *model)
{
    model->compute.kernels = tw_kernels();
    model->compute.type = model->config.products;
    model->compute.weight_type = tw_model_weight_type(model);
    return tw_model_compute_threads(model, 1);
}

tw_status_t tw_model_compute_threads(tw_model_t *model, size_t n_threads)
{
    tw_compute_t *compute = &model->compute;
    tw_products_t **products = realloc(compute->products, n_threads * sizeof(tw_products_t *));
    TW_FAIL_IF(!products, TW_ERR_NO_MEMORY, "model: out of memory for the products of %zu threads",
               n_threads);
    compute->products = products;
    for (; compute->n_products < n_threads; compute->n_products++) {
        TW_TRY(tw_products_create(&products[compute->n_products]));
    }
    return TW_OK;
}

tw_status_t tw_model_scratch_alloc(tw_model_t *model, size_t bytes, tw_carver_t *carver)
{
    tw_buffer_free(model->memory);
    model->memory = tw_carve_alloc(bytes, model->batch, model->seq_len);
    *carver = (tw_carver_t){.base = model->memory};
    return model->memory ? TW_OK : TW_ERR_NO_MEMORY;
}

void tw_model_cleanup(tw_model_t *model)
{
    for (size_t t = 0; t < model->n_tensors; t++) {
        free((char *)(uintptr_t)model->tensors[t].name);
    }
    free(model->tensors);
    free(model->units);
    for (size_t i = 0; i < model->compute.n_products; i++) {
        tw_products_destroy(model->compute.products[i]);
    }
    free(model->compute.products);
}
