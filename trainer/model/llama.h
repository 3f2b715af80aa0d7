/** Private to trainer/model: the Llama family, its memory and its tensors' places.
 *  N = B * T rows of C channels; H heads of q and K of k and v, of D channels each; Q = (H + 2K) D; F =
 *  n_inner; V words. */
#pragma once

#include "trainer/model/attention.h"
#include "trainer/model/ops.h"

TW_C_BEGIN

/* Tensors that a block may have, in the order of their computing; tensors.c says which family has which. */
enum {
    TW_LLAMA_NORM_1,
    TW_LLAMA_Q,
    TW_LLAMA_Q_BIAS,
    TW_LLAMA_K,
    TW_LLAMA_K_BIAS,
    TW_LLAMA_V,
    TW_LLAMA_V_BIAS,
    TW_LLAMA_Q_NORM,
    TW_LLAMA_K_NORM,
    TW_LLAMA_O,
    TW_LLAMA_O_BIAS,
    TW_LLAMA_NORM_2,
    TW_LLAMA_GATE,
    TW_LLAMA_UP,
    TW_LLAMA_DOWN,
    TW_LLAMA_BLOCK_TENSORS
};

/** Scratch memory. */
typedef struct tw_llama_scratch {
    void *saved;          /* what a block saves, if the caller does not want it */
    float *vector;        /* one vector as fp32, or two of a head: max(C, HD, 2D) */
    float *norm, *d_norm; /* (N,C) */
    float *qkv, *d_qkv;   /* (N,Q): q and k rotated; gradients */
    float *d_attended;    /* (N,HD) */
    float *hidden;        /* (N,F): input of the down product; the gradient by gate */
    float *d_hidden;      /* (N,F): the gradient by hidden, then by up */
    float *attention;     /* tiles, of each thread */
    tw_root_scratch_t root;
    float *cosines, *sines; /* (T,D/2) */
} tw_llama_scratch_t;

typedef struct tw_llama {
    tw_model_t model; /* it is first, so that a tw_model_t * is one of these */
    tw_llama_scratch_t scratch;
} tw_llama_t;

/** What a block's backward pass needs of its forward pass besides x; norms, rotations, SwiGLU and
 *  probabilities are computed again. */
typedef struct tw_llama_saved {
    float *qkv;             /* (N,Q): with biases, before norms and rotation */
    float *attended;        /* (N,HD): attention before its projection */
    float *middle;          /* (N,C): x after attention */
    float *gate, *up;       /* (N,F) */
    float *rstd_1, *rstd_2; /* (N) */
} tw_llama_saved_t;

/** Return the widths of q, of k or v, and of all three together. */
static inline size_t tw_llama_q_width(const tw_model_config_t *config)
{
    return config->n_head * config->llama.head_dim;
}
static inline size_t tw_llama_kv_width(const tw_model_config_t *config)
{
    return config->llama.n_kv_head * config->llama.head_dim;
}
static inline size_t tw_llama_qkv_width(const tw_model_config_t *config)
{
    return tw_llama_q_width(config) + 2 * tw_llama_kv_width(config);
}

/** Return the bytes that a block saves of n rows (llama_memory.c). */
size_t tw_llama_saved_bytes(const tw_model_config_t *config, size_t n);
/** Return the parts of a block's saved memory of n rows. */
tw_llama_saved_t tw_llama_saved_at(const tw_model_config_t *config, size_t n, void *saved);
size_t tw_llama_scratch_bytes(const tw_model_config_t *config, size_t batch, size_t seq_len, tw_pool_t *pool);
tw_status_t tw_llama_reserve(tw_model_t *model);

/** Forward and backward pass of a block (llama_block.c), as in ops.h. */
void tw_llama_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved);
void tw_llama_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

TW_C_END
