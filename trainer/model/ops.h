/** Private to trainer/model: the functions that a kind of model provides. dispatch.c checks arguments that
 *  all kinds share and calls these. */
#pragma once

#include "trainer/model/linear.h"
#include "trainer/model/model.h"

TW_C_BEGIN

typedef struct tw_model_ops {
    void (*destroy)(tw_model_t *model);
    double (*unit_products)(const tw_model_t *model, size_t unit, size_t seq_len);
    tw_model_sizes_t (*sizes)(const tw_model_t *model, size_t batch, size_t seq_len);
    tw_status_t (*reserve)(tw_model_t *model); /* for model->batch and model->seq_len, checked before */
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

/** The functions of model.h that handle memory and wait, for a model that computes on a device. */
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

/** Tensors of the root, in their order. */
enum { TW_ROOT_WORDS, TW_ROOT_POSITIONS, TW_ROOT_GAMMA, TW_ROOT_BETA, TW_ROOT_HEAD, TW_ROOT_TENSORS };
/** Most tensors of a block in any kind of model. */
#define TW_MODEL_MOST_TENSORS 16

/** Scratch of the root: parts of a model's scratch. */
typedef struct tw_root_scratch {
    float *gamma, *beta;         /* (C): the last norm's vectors as fp32 */
    float *norm, *d_norm;        /* (N,C) */
    float *logits;               /* (logit_rows,V) */
    double *losses;              /* (logit_rows) */
    size_t logit_rows;           /* rows (tokens) of logits that are computed at a time */
    tw_model_norm_stats_t stats; /* (N) */
} tw_root_scratch_t;

/** The fields that all kinds of models have. A kind's own struct begins with them. */
struct tw_model {
    const tw_model_ops_t *ops;
    const tw_model_device_ops_t *device; /* NULL: the model is on this processor */
    tw_model_config_t config;
    tw_model_tensor_t *tensors; /* [n_tensors], by unit; the names are allocated */
    size_t n_tensors;
    tw_model_unit_t *units; /* [n_units] */
    size_t n_units;
    int root[TW_ROOT_TENSORS]; /* a root tensor's place in its unit; -1: the model has no such tensor */
    int block[TW_MODEL_MOST_TENSORS]; /* a block tensor's place in its unit, or -1; index: the kind's enum */
    size_t n_params;
    size_t batch, seq_len; /* sizes that memory is reserved for; 0: none yet */
    const int32_t *starts; /* where documents start (B,T); NULL: a sequence is one document */
    tw_compute_t compute;
    void *memory;                          /* memory of tw_model_scratch_alloc; NULL: nothing is reserved */
    const tw_root_scratch_t *root_scratch; /* in the kind's scratch; NULL: nothing is reserved */
};

/** Return the root's tensor that is the output layer's weight: the token embedding if the two are tied. */
static inline int tw_root_head_tensor(const tw_model_t *model)
{
    return model->root[TW_ROOT_HEAD] >= 0 ? TW_ROOT_HEAD : TW_ROOT_WORDS;
}

/** Set up model->compute as the config says. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. After an error, too,
 *  tw_model_cleanup frees it. */
tw_status_t tw_model_compute_init(tw_model_t *model);
/** Make a tw_products_t for each of at least n_threads threads. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_compute_threads(tw_model_t *model, size_t n_threads);
/** Free tensors, their names, units, and model->compute. */
void tw_model_cleanup(tw_model_t *model);

/** Fill in tensors, units, root and block from the config (tensors.c). TW_ERR_NO_MEMORY, logged;
 *  tw_model_cleanup frees them. */
tw_status_t tw_model_tensors_init(tw_model_t *model);
/** Check that B x T numbers are tokens of the vocabulary. A target may also be TW_MODEL_NO_TARGET.
 *  TW_ERR_INVALID, logged. */
tw_status_t tw_model_tokens_check(const tw_model_t *model, const int32_t *tokens);
tw_status_t tw_model_targets_check(const tw_model_t *model, const int32_t *targets);

/** Allocate the model's scratch buffer, and free the one before. The model owns it; `carver` divides it.
 *  TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_model_scratch_alloc(tw_model_t *model, size_t bytes, tw_carver_t *carver);

/* ---- root.c: calls of tw_model_ops_t that all kinds share */
/** Carve logits, losses and norm statistics for n tokens. The caller sets the other pointers. */
tw_root_scratch_t tw_root_scratch_carve(tw_carver_t *carver, const tw_model_config_t *config, size_t n);
tw_status_t tw_root_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                  float *x);
void tw_root_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);
tw_status_t tw_root_head(tw_model_t *model, const void *const *weights, const float *x,
                         const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
tw_status_t tw_root_losses(tw_model_t *model, const void *const *weights, const float *x,
                           const int32_t *targets, double *losses);
void tw_root_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits);
/** Make a model of one kind, from a valid config. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_gpt2_create(const tw_model_config_t *config, tw_model_t **out);
tw_status_t tw_llama_create(const tw_model_config_t *config, tw_model_t **out);

TW_C_END
