/* The functions of model.h. They check arguments, then call the functions of the model's kind. */
#include "trainer/model/model.h"

#include <pthread.h>
#include <string.h>

#include "trainer/model/config.h"
#include "trainer/model/ops.h"

static tw_status_t checked;

static void check_products(void)
{
    checked = tw_products_check(tw_product_run);
}

/** Check oneDNN's products once in a process, and log an error once. Every call returns the result. */
static tw_status_t check_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, check_products);
    return checked;
}

tw_status_t tw_model_create(const tw_model_config_t *config, tw_model_t **out)
{
    static tw_status_t (*const creates[])(const tw_model_config_t *, tw_model_t **) = {
        [TW_MODEL_KIND_GPT2] = tw_gpt2_create, [TW_MODEL_KIND_LLAMA] = tw_llama_create};
    TW_TRY(tw_model_config_check(config));
    TW_TRY(check_once());
    return creates[tw_model_family_get(config->family)->kind](config, out);
}

void tw_model_destroy(tw_model_t *model)
{
    if (model) {
        model->ops->destroy(model);
    }
}

const tw_model_config_t *tw_model_config_get(const tw_model_t *model)
{
    return &model->config;
}

size_t tw_model_n_params(const tw_model_t *model)
{
    return model->n_params;
}

size_t tw_model_n_units(const tw_model_t *model)
{
    return model->n_units;
}

const tw_model_tensor_t *tw_model_tensors(const tw_model_t *model, size_t *n_tensors)
{
    *n_tensors = model->n_tensors;
    return model->tensors;
}

const tw_model_unit_t *tw_model_unit_get(const tw_model_t *model, size_t unit)
{
    return &model->units[unit];
}

double tw_model_unit_products(const tw_model_t *model, size_t unit, size_t seq_len)
{
    return model->ops->unit_products(model, unit, seq_len);
}

/** A multiplication, with its addition, counts as 2 operations in forward and twice that in backward. */
double tw_model_step_flops(const tw_model_t *model, size_t batch, size_t seq_len)
{
    double products = 0.0;
    for (size_t unit = 0; unit < model->n_units; unit++) {
        products += tw_model_unit_products(model, unit, seq_len);
    }
    return 6.0 * products * (double)batch * (double)seq_len;
}

/* ---- computing ----------------------------------------------------------------------------------------- */

tw_model_sizes_t tw_model_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len)
{
    return model->ops->sizes(model, batch, seq_len);
}

tw_model_sizes_t tw_model_host_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len)
{
    return model->device ? model->device->host_sizes(model, batch, seq_len)
                         : tw_model_sizes_get(model, batch, seq_len);
}

tw_status_t tw_model_set_pool(tw_model_t *model, tw_pool_t *pool)
{
    TW_FAIL_IF(model->batch > 0, TW_ERR_INVALID, "model: its threads are chosen before memory is reserved");
    TW_TRY(tw_model_compute_threads(model, (size_t)tw_pool_threads(pool)));
    model->compute.pool = pool;
    return TW_OK;
}

tw_pool_t *tw_model_pool(const tw_model_t *model)
{
    return model->compute.pool;
}

tw_status_t tw_model_reserve(tw_model_t *model, size_t batch, size_t seq_len)
{
    TW_FAIL_IF(batch < 1 || seq_len < 1 || seq_len > model->config.n_positions, TW_ERR_INVALID,
               "model: no micro-batch of %zu sequences of %zu tokens: lengths go from 1 to n_positions %zu",
               batch, seq_len, model->config.n_positions);
    model->batch = batch;
    model->seq_len = seq_len;
    model->starts = NULL;
    return model->ops->reserve(model);
}

void tw_model_set_documents(tw_model_t *model, const int32_t *starts)
{
    model->starts = starts;
}

int tw_model_is_on_device(const tw_model_t *model)
{
    return model->device != NULL;
}

void *tw_model_alloc(tw_model_t *model, size_t bytes)
{
    if (model->device) {
        return model->device->alloc(model, bytes);
    }
    void *memory = tw_buffer_alloc_zero(bytes);
    if (!memory) {
        tw_error("model: out of memory for %zu bytes of activations", bytes);
    }
    return memory;
}

void tw_model_free(tw_model_t *model, void *memory)
{
    if (model->device) {
        model->device->free(model, memory);
    } else {
        tw_buffer_free(memory);
    }
}

tw_status_t tw_model_copy(tw_model_t *model, void *to, const void *from, size_t bytes)
{
    if (model->device) {
        return model->device->copy(model, to, from, bytes);
    }
    memcpy(to, from, bytes);
    return TW_OK;
}

int tw_model_round_gradients(tw_model_t *model, int rounds)
{
    if (model->device) {
        model->device->round_gradients(model, rounds);
    }
    return model->device && rounds;
}

tw_status_t tw_model_finish(tw_model_t *model)
{
    return model->device ? model->device->finish(model) : TW_OK;
}

tw_status_t tw_model_finish_unit(tw_model_t *model, size_t unit)
{
    return model->device ? model->device->finish_unit(model, unit) : TW_OK;
}

int tw_model_pin(tw_model_t *model, void *start, size_t bytes)
{
    return model->device ? model->device->pin(model, start, bytes) : 0;
}

void tw_model_unpin(tw_model_t *model, void *start)
{
    if (model->device) {
        model->device->unpin(model, start);
    }
}

tw_status_t tw_model_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                   float *x)
{
    return model->ops->embed_forward(model, weights, tokens, x);
}

void tw_model_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads)
{
    model->ops->embed_backward(model, tokens, dx, grads);
}

void tw_model_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved)
{
    model->ops->block_forward(model, unit, weights, x, y, saved);
}

void tw_model_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads)
{
    model->ops->block_backward(model, unit, weights, x, saved, d, grads);
}

tw_status_t tw_model_head(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads)
{
    return model->ops->head(model, weights, x, targets, scale, loss, dx, grads);
}

tw_status_t tw_model_losses(tw_model_t *model, const void *const *weights, const float *x,
                            const int32_t *targets, double *losses)
{
    return model->ops->losses(model, weights, x, targets, losses);
}

void tw_model_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits)
{
    model->ops->logits(model, weights, x, at, logits);
}
