/** Private to trainer/model: what a kind of model provides. dispatch.c checks arguments that all kinds share
 *  and calls these. */
#ifndef TW_TRAINER_MODEL_OPS_H
#define TW_TRAINER_MODEL_OPS_H

#include "trainer/model/linear.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_model_ops {
    void (*destroy)(tw_model_t *model);
    double (*unit_products)(const tw_model_t *model, size_t unit, size_t seq_len);
    tw_model_sizes_t (*sizes)(const tw_model_t *model, size_t batch, size_t seq_len);
    tw_status_t (*reserve)(tw_model_t *model); /* for model->batch and seq_len, which are valid */
    tw_status_t (*embed_forward)(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                 float *x);
    void (*embed_backward)(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);
    void (*block_forward)(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                          float *y, void *saved);
    void (*block_backward)(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                           const void *saved, float *d, float *const *grads);
    tw_status_t (*head)(tw_model_t *model, const void *const *weights, const float *x, const int32_t *targets,
                        float scale, double *loss, float *dx, float *const *grads);
    tw_status_t (*losses)(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, double *losses);
    void (*logits)(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits);
} tw_model_ops_t;

/** Memory and waiting of a model that computes on a device: as in model.h. */
typedef struct tw_model_device_ops {
    tw_model_sizes_t (*host_sizes)(const tw_model_t *model, size_t batch, size_t seq_len);
    void *(*alloc)(tw_model_t *model, size_t bytes);
    void (*free)(tw_model_t *model, void *memory);
    tw_status_t (*copy)(tw_model_t *model, void *to, const void *from, size_t bytes);
    void (*round_gradients)(tw_model_t *model, int rounds);
    tw_status_t (*finish)(tw_model_t *model);
    tw_status_t (*finish_unit)(tw_model_t *model, size_t unit);
    tw_model_orthogonal_t (*orthogonal)(size_t rows, size_t cols);
    tw_status_t (*orthogonalize)(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                 void *near);
    int (*pin)(tw_model_t *model, void *start, size_t bytes);
    void (*unpin)(tw_model_t *model, void *start);
} tw_model_device_ops_t;

/** The part that all kinds have; a kind's own struct begins with it. */
struct tw_model {
    const tw_model_ops_t *ops;
    const tw_model_device_ops_t *device; /* NULL: this processor */
    tw_model_config_t config;
    tw_model_tensor_t *tensors; /* [n_tensors], by unit; the names are allocated */
    size_t n_tensors;
    tw_model_unit_t *units; /* [n_units] */
    size_t n_units;
    size_t n_params;
    size_t batch, seq_len; /* what was reserved; 0: nothing yet */
    const int32_t *starts; /* of documents (B,T); NULL: a sequence is one */
    tw_compute_t compute;
};

/** What config says of computing. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged; tw_model_cleanup frees what is
 *  there. */
tw_status_t tw_model_compute_init(tw_model_t *model);
/** At least so many threads can multiply. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_compute_threads(tw_model_t *model, size_t n_threads);
/** Frees tensors, their names and units, and what is computed with. */
void tw_model_cleanup(tw_model_t *model);

/** A tensor as a kind's table says it; the model takes a copy of the name. */
typedef struct tw_model_form {
    const char *name;
    size_t rows, cols; /* cols 0: a vector */
    double init_std;
    float init_value;
} tw_model_form_t;

/** Room for n_blocks units beside the root, and n_tensors in all. TW_ERR_NO_MEMORY, logged; tw_model_cleanup
 *  frees what is there. */
tw_status_t tw_model_tables_init(tw_model_t *model, size_t n_blocks, size_t n_tensors);
/** Add a tensor to a unit: those of a unit one after the other, units in order. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_model_tensor_add(tw_model_t *model, size_t unit, const tw_model_form_t *form);

/** Of the initial weights; of what is added to the residual stream, less the deeper the model. */
double tw_model_init_std(const tw_model_t *model, int is_residual);
/** Are these B x T numbers words (targets: or TW_MODEL_NO_TARGET)? TW_ERR_INVALID, logged. */
tw_status_t tw_model_tokens_check(const tw_model_t *model, const int32_t *tokens);
tw_status_t tw_model_targets_check(const tw_model_t *model, const int32_t *targets);

/** The kinds that a config describes; the config is valid. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_gpt2_create(const tw_model_config_t *config, tw_model_t **out);
tw_status_t tw_llama_create(const tw_model_config_t *config, tw_model_t **out);

TW_C_END

#endif
