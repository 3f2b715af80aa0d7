/* Checks sizes that depend on several keys. No values of the keys make its arithmetic overflow. */
#include "trainer/shape.h"

/* Bytes of a parameter: 2 each for weight and gradient, 4 each for the master weight and two moments. */
#define PARAM_BYTES 16

static int is_too_much(size_t bytes)
{
    return bytes > TW_MEMORY_BYTES_MAX;
}

/** Return the bytes of an activation between two layers: fp32 [batch][sequence][width]. */
static size_t activation_bytes(const tw_train_options_t *o, const tw_model_config_t *config)
{
    size_t n_tokens = tw_size_mul((size_t)o->micro_batch, (size_t)o->sequence);
    return tw_size_mul(n_tokens, tw_size_mul(config->n_embd, sizeof(float)));
}

static tw_status_t sizes_check_params(const tw_model_t *model)
{
    const tw_model_config_t *config = tw_model_config_get(model);
    size_t n_params = tw_model_n_params(model);
    if (!is_too_much(tw_size_mul(n_params, PARAM_BYTES))) {
        return TW_OK;
    }
    return tw_fail(
        TW_ERR_CONFIG,
        "model.n_layer %zu and model.n_embd %zu are %zu parameters: no machine has memory for %d bytes "
        "of each",
        config->n_layer, config->n_embd, n_params, PARAM_BYTES);
}

tw_status_t tw_trainer_check_sizes(const tw_train_options_t *o, const tw_model_t *model)
{
    const tw_model_config_t *config = tw_model_config_get(model);
    size_t n_layer = tw_model_n_units(model) - 1, bytes = activation_bytes(o, config);
    TW_TRY(sizes_check_params(model));
    if (!is_too_much(bytes)) {
        /* no overflow: a small multiple of sizes that were checked above */
        tw_model_sizes_t sizes = tw_model_sizes_get(model, (size_t)o->micro_batch, (size_t)o->sequence);
        bytes = tw_size_mul(n_layer, tw_size_add(bytes, sizes.saved_bytes));
    }
    if (!is_too_much(bytes)) {
        return TW_OK;
    }
    return tw_fail(
        TW_ERR_CONFIG,
        "train_micro_batch_size_per_gpu %lld (of train_batch_size %lld) x thinwire.sequence_length %lld "
        "x model.n_embd %zu in model.n_layer %zu layers: no machine has memory for such activations",
        (long long)o->micro_batch, (long long)o->batch, (long long)o->sequence, config->n_embd, n_layer);
}
