/** Private to trainer/model: GPT-2's structs, functions and list of tensors. */
#pragma once

#include "trainer/model/attention.h"
#include "trainer/model/ops.h"

TW_C_BEGIN

/* A block's tensors, in their order in the unit; tensors.c has their names and shapes. */
enum {
    TW_GPT2_LN_1_W,
    TW_GPT2_LN_1_B,
    TW_GPT2_QKV_W,
    TW_GPT2_QKV_B,
    TW_GPT2_ATTN_PROJ_W,
    TW_GPT2_ATTN_PROJ_B,
    TW_GPT2_LN_2_W,
    TW_GPT2_LN_2_B,
    TW_GPT2_FC_W,
    TW_GPT2_FC_B,
    TW_GPT2_MLP_PROJ_W,
    TW_GPT2_MLP_PROJ_B,
    TW_GPT2_BLOCK_TENSORS
};

/** Scratch memory, of B * T = N rows. */
typedef struct tw_gpt2_scratch {
    void *saved;              /* used as block_forward's `saved` if that is NULL */
    float *gamma, *bias;      /* vectors as fp32: C, 4C */
    float *norm;              /* (N,C) */
    float *d_norm;            /* (N,C) */
    float *hidden, *d_hidden; /* (N,4C); d_hidden also holds the gradient of qkv (N,3C) */
    float *attention;         /* tw_attention_scratch_elems for each thread */
    tw_root_scratch_t root;
} tw_gpt2_scratch_t;

typedef struct tw_gpt2 {
    tw_model_t model; /* first, so that a tw_model_t * can be cast to tw_gpt2_t * */
    tw_gpt2_scratch_t scratch;
} tw_gpt2_t;

/** Activations that a block's forward pass saves for backward, besides x. Backward recomputes norms, GELU and
 *  attention probabilities. */
typedef struct tw_gpt2_saved {
    float *qkv;                       /* (N,3C) */
    float *attended;                  /* (N,C): attention before its projection */
    float *middle;                    /* (N,C): x after attention */
    float *hidden;                    /* (N,4C): before GELU */
    tw_model_norm_stats_t ln_1, ln_2; /* (N) each */
} tw_gpt2_saved_t;

/** Return how many bytes a block saves for n rows (gpt2_memory.c). */
size_t tw_gpt2_saved_bytes(const tw_model_config_t *config, size_t n);
/** Return pointers into a block's saved memory for n rows. */
tw_gpt2_saved_t tw_gpt2_saved_at(const tw_model_config_t *config, size_t n, void *saved);
size_t tw_gpt2_scratch_bytes(const tw_model_config_t *config, size_t batch, size_t seq_len, tw_pool_t *pool);
tw_status_t tw_gpt2_reserve(tw_model_t *model);

/** Forward and backward pass of a block (gpt2_block.c), as in ops.h. */
void tw_gpt2_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                           float *y, void *saved);
void tw_gpt2_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            const void *saved, float *d, float *const *grads);

TW_C_END
