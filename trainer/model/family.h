/** The families of models: one row for each. A new family that is built like one of these needs only a row
 *  here; another one needs a kind of its own, too: see tw_model_kind_t. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** How a model is built. Each kind has its functions in model/dispatch.c and device/create.c, its check in
 *  model/config.c, its tensors in model/tensors.c, its reader of config.json in config/pretrained.c and its
 *  writer in checkpoint/model_config.c, all of them tables by kind. */
typedef enum tw_model_kind {
    TW_MODEL_KIND_GPT2,  /**< learned positions, layer norms, biases; a weight is [in, out] */
    TW_MODEL_KIND_LLAMA, /**< rotary angles, norms without a mean, gated layers; a weight is [out, in] */
} tw_model_kind_t;

/** What sets a family apart from others of its kind. */
typedef struct tw_model_family_row {
    tw_model_kind_t kind;
    const char *name;         /**< model_type of config.json, and of model.family */
    const char *architecture; /**< class of transformers that config.json names */
    int has_window;           /**< 1: attention may be limited to a window */
    /** 1: config.json says if there is a window, and from which layer on (use_sliding_window) */
    int has_first_window;
    int may_have_biases; /**< 1: with attention_bias, q, k, v and o have biases */
    int has_qkv_biases;  /**< 1: q, k and v have biases, whatever attention_bias says */
    int has_head_norms;  /**< 1: heads of q and k have norms */
    int head_dim;        /**< width of a head if config.json leaves it out; 0: model width over heads */
} tw_model_family_row_t;

/** FAMILY(id, name, architecture, initializers of the row) for each family; enum and rows are made of it. */
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
