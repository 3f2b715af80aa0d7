/* The model's keys as a model's shape. */
#include "trainer/shape.h"

tw_status_t tw_trainer_shape(const tw_train_options_t *o, size_t vocab_size, tw_model_config_t *config)
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
                                  .layer_norm_epsilon = o->layer_norm_epsilon};
    return TW_OK;
}
