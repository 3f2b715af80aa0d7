/** Private to trainer/model: structs, functions and the list of tensors of the Llama family.
 *  N = B * T rows of C channels; H query heads and K key/value heads of D channels; Q = (H + 2K) D columns of
 *  q, k and v; F = n_inner; V words. */
#pragma once

#include "trainer/model/attention.h"
#include "trainer/model/ops.h"

TW_C_BEGIN

/* Tensors that a block may have, in the order of their use; tensors.c says which family has which. */
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
    void *saved;          /* used as block_forward's `saved` if that is NULL */
    float *vector;        /* a vector as fp32, or the gammas of q's and k's heads: max(C, HD, 2D) */
    float *norm, *d_norm; /* (N,C) */
    float *qkv, *d_qkv;   /* (N,Q): q, k and v, with q and k rotated; their gradients */
    float *d_attended;    /* (N,HD) */
    float *hidden;        /* (N,F): input of the down projection; later, in backward, the gradient of gate */
    float *d_hidden;      /* (N,F): the gradient of hidden, then of up */
    float *attention;     /* tw_attention_scratch_elems for each thread */
    tw_root_scratch_t root;
    float *cosines, *sines; /* (T,D/2) */
} tw_llama_scratch_t;

typedef struct tw_llama {
    tw_model_t model; /* first, so that a tw_model_t * can be cast to tw_llama_t * */
    tw_llama_scratch_t scratch;
} tw_llama_t;

/** Activations that a block's forward pass saves for backward, besides x. Backward recomputes norms,
 *  rotations, SwiGLU and attention probabilities. */
typedef struct tw_llama_saved {
    float *qkv;             /* (N,Q): with biases, before norms and rotation */
    float *attended;        /* (N,HD): attention before its projection */
    float *middle;          /* (N,C): x after attention */
    float *gate, *up;       /* (N,F) */
    float *rstd_1, *rstd_2; /* (N) */
} tw_llama_saved_t;

/** Return how many columns q has, k (or v) has, and q, k and v have together. */
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

/** Return how many bytes a block saves for n rows (llama_memory.c). */
size_t tw_llama_saved_bytes(const tw_model_config_t *config, size_t n);
/** Return pointers into a block's saved memory for n rows. */
tw_llama_saved_t tw_llama_saved_at(const tw_model_config_t *config, size_t n, void *saved);
size_t tw_llama_scratch_bytes(const tw_model_config_t *config, size_t batch, size_t seq_len, tw_pool_t *pool);
tw_status_t tw_llama_reserve(tw_model_t *model);

/** Forward and backward pass of a block (llama_block.c), as in ops.h. */
void tw_llama_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved);
void tw_llama_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

TW_C_END
