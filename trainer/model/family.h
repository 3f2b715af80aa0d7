/** The families of models, as rows of a table. A new family that is built like one of these needs only a row
 *  here. Any other family also needs a new kind: see tw_model_kind_t. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** How a model is built. These tables have an entry per kind: functions in model/dispatch.c and
 *  device/create.c, checks in model/config.c, tensors in model/tensors.c, the reader of config.json in
 *  config/pretrained.c and its writer in checkpoint/model_config.c. */
typedef enum tw_model_kind {
    TW_MODEL_KIND_GPT2,  /**< learned positions, layer norms, biases; a weight is [in, out] */
    TW_MODEL_KIND_LLAMA, /**< rotary embeddings, RMS norms, SwiGLU; a weight is [out, in] */
} tw_model_kind_t;

/** Properties of a family. */
typedef struct tw_model_family_row {
    tw_model_kind_t kind;
    const char *name;         /**< value of model_type in config.json, and of model.family */
    const char *architecture; /**< class name in Hugging Face's transformers, as in config.json */
    int has_window;           /**< 1: attention may have a sliding window */
    /** 1: config.json also has use_sliding_window and the first layer with a window */
    int has_first_window;
    int may_have_biases; /**< 1: with attention_bias, q, k, v and o have biases */
    int has_qkv_biases;  /**< 1: q, k and v always have biases; attention_bias is ignored */
    int has_head_norms;  /**< 1: each head of q and k is normalized before its rotation */
    int head_dim;        /**< width of a head if config.json has none; 0: n_embd / n_head */
} tw_model_family_row_t;

/** FAMILY(id, name, architecture, initializers of the row): the list from which enum and rows are made. */
#define TW_MODEL_FAMILIES(FAMILY)                                                                  \
    FAMILY(GPT2, "gpt2", "GPT2LMHeadModel", .kind = TW_MODEL_KIND_GPT2)                            \
    FAMILY(LLAMA, "llama", "LlamaForCausalLM", .kind = TW_MODEL_KIND_LLAMA, .may_have_biases = 1)  \
    FAMILY(MISTRAL, "mistral", "MistralForCausalLM", .kind = TW_MODEL_KIND_LLAMA, .has_window = 1) \
    FAMILY(QWEN2, "qwen2", "Qwen2ForCausalLM", .kind = TW_MODEL_KIND_LLAMA, .has_window = 1,       \
           .has_first_window = 1, .has_qkv_biases = 1)                                             \
    FAMILY(QWEN3, "qwen3", "Qwen3ForCausalLM", .kind = TW_MODEL_KIND_LLAMA, .has_window = 1,       \
           .has_first_window = 1, .may_have_biases = 1, .has_head_norms = 1, .head_dim = 128)

#define TW_MODEL_FAMILY_ID(id, ...) TW_MODEL_##id,
/** TW_MODEL_GPT2, TW_MODEL_LLAMA, ... */
typedef enum tw_model_family {
    TW_MODEL_FAMILIES(TW_MODEL_FAMILY_ID) TW_MODEL_FAMILY_COUNT
} tw_model_family_t;
#undef TW_MODEL_FAMILY_ID

/** Names in the order of the enum, NULL-terminated: the choices of model.family. */
extern const char *const tw_model_family_names[TW_MODEL_FAMILY_COUNT + 1];

/** Return the row of a family, which must be valid. */
const tw_model_family_row_t *tw_model_family_get(tw_model_family_t family);
/** Return "gpt2", "llama", "mistral", "qwen2" or "qwen3"; NULL outside the range. */
const char *tw_model_family_name(tw_model_family_t family);

TW_C_END
