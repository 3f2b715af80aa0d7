/* Makes the shape of a model from the configuration's keys under "model". */
#include "trainer/shape.h"

/** Return the fields of a Llama. By default k and v have as many heads as q, heads divide the width, and gate
 *  and up are so wide that a block has as many parameters as GPT-2's. */
static tw_model_llama_t llama_of(const tw_train_options_t *o, size_t n_positions)
{
    size_t inner = ((size_t)o->n_embd * 8 / 3 + 63) / 64 * 64;
    return (tw_model_llama_t){
        .n_kv_head = (size_t)(o->n_kv_head > 0 ? o->n_kv_head : o->n_head),
        .head_dim = (size_t)(o->head_dim > 0 ? o->head_dim : o->n_embd / o->n_head),
        .n_inner = o->n_inner > 0 ? (size_t)o->n_inner : inner,
        .rope = {.theta = o->rope_theta,
                 .type = (tw_model_rope_type_t)o->rope_type,
                 .factor = o->rope_factor,
                 .n_positions = o->rope_positions > 0 ? (size_t)o->rope_positions : n_positions,
                 .low_freq_factor = o->rope_low,
                 .high_freq_factor = o->rope_high,
                 .beta_fast = o->rope_fast,
                 .beta_slow = o->rope_slow,
                 .attention_factor = o->rope_attention},
        .has_head = !o->tied,
        .window = (size_t)o->window,
        .window_from_layer = (size_t)o->window_from_layer,
        .attention_bias = o->attention_bias};
}

static tw_status_t shape_of(const tw_train_options_t *o, size_t vocab_size, tw_model_config_t *config)
{
    size_t vocab = o->vocab_size > 0 ? (size_t)o->vocab_size : vocab_size;
    size_t n_positions = (size_t)(o->n_positions > 0 ? o->n_positions : o->sequence);
    if (*o->preset) {
        return tw_model_config_preset(o->preset, config);
    }
    if (o->n_params > 0) {
        *config = tw_model_config_for_params((size_t)o->n_params, vocab, n_positions);
        return TW_OK;
    }
    *config = (tw_model_config_t){.vocab_size = vocab,
                                  .n_positions = n_positions,
                                  .n_layer = (size_t)o->n_layer,
                                  .n_head = (size_t)o->n_head,
                                  .n_embd = (size_t)o->n_embd,
                                  .layer_norm_epsilon = o->layer_norm_epsilon,
                                  .family = (tw_model_family_t)o->family};
    if (tw_model_family_get(config->family)->kind == TW_MODEL_KIND_LLAMA) {
        config->llama = llama_of(o, n_positions);
    }
    return TW_OK;
}

static tw_type_t products_of(const tw_train_options_t *o)
{
    if (!o->bf16) {
        return TW_TYPE_FP32;
    }
    int is_bf16 = o->products == TW_TRAIN_PRODUCTS_AUTO ? tw_model_has_bf16_products()
                                                        : o->products == TW_TRAIN_PRODUCTS_BF16;
    return is_bf16 ? TW_TYPE_BF16 : TW_TYPE_FP32;
}

tw_status_t tw_trainer_shape(const tw_train_options_t *o, size_t vocab_size, tw_model_config_t *config)
{
    TW_TRY(shape_of(o, vocab_size, config));
    config->products = products_of(o);
    config->fp32_weights = !o->bf16;
    return TW_OK;
}
