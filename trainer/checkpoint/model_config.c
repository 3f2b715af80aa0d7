/* config.json of each family. What it does not say, transformers fills in by its own defaults: all is said
 * that these get wrong. */
#include "trainer/checkpoint/model_config.h"

#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "trainer/checkpoint/files.h"

static const char *dtype_name(tw_type_t type)
{
    return type == TW_TYPE_BF16 ? "bfloat16" : type == TW_TYPE_FP16 ? "float16" : "float32";
}

static json_t *gpt2_json(const tw_model_config_t *config)
{
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:b}", "architectures", "GPT2LMHeadModel",
                     "activation_function", "gelu_new", "vocab_size", (json_int_t)config->vocab_size,
                     "n_positions", (json_int_t)config->n_positions, "n_embd", (json_int_t)config->n_embd,
                     "n_layer", (json_int_t)config->n_layer, "n_head", (json_int_t)config->n_head,
                     "layer_norm_epsilon", config->layer_norm_epsilon, "tie_word_embeddings", 1);
}

/** NULL as JSON where nothing is stretched. */
static json_t *rope_json(const tw_model_rope_t *rope)
{
    json_int_t positions = (json_int_t)rope->n_positions;
    json_t *json;
    switch (rope->type) {
    case TW_MODEL_ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", rope->factor);
    case TW_MODEL_ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor,
                         "low_freq_factor", rope->low_freq_factor, "high_freq_factor", rope->high_freq_factor,
                         "original_max_position_embeddings", positions);
    case TW_MODEL_ROPE_YARN:
        json = json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "yarn", "factor", rope->factor,
                         "beta_fast", rope->beta_fast, "beta_slow", rope->beta_slow,
                         "original_max_position_embeddings", positions);
        if (json && rope->attention_factor > 0.0) {
            json_object_set_new(json, "attention_factor", json_real(rope->attention_factor));
        }
        return json;
    default:
        return json_null();
    }
}

/** Mistral has its window in all layers; the Qwens say from which one on. */
static void add_window(json_t *json, const tw_model_config_t *config)
{
    json_int_t window = (json_int_t)config->llama.window, first = (json_int_t)config->llama.window_from_layer;
    if (config->family == TW_MODEL_LLAMA) {
        return;
    }
    json_object_set_new(json, "sliding_window", window > 0 ? json_integer(window) : json_null());
    if (config->family != TW_MODEL_MISTRAL) {
        json_object_set_new(json, "use_sliding_window", json_boolean(window > 0));
    }
    if (config->family != TW_MODEL_MISTRAL && window > 0) {
        json_object_set_new(json, "max_window_layers", json_integer(first));
    }
}

static json_t *llama_json(const tw_model_config_t *config)
{
    static const char *const architectures[] = {[TW_MODEL_LLAMA] = "LlamaForCausalLM",
                                                [TW_MODEL_MISTRAL] = "MistralForCausalLM",
                                                [TW_MODEL_QWEN2] = "Qwen2ForCausalLM",
                                                [TW_MODEL_QWEN3] = "Qwen3ForCausalLM"};
    const tw_model_llama_t *llama = &config->llama;
    json_t *json = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:b}", "architectures",
        architectures[config->family], "hidden_act", "silu", "vocab_size", (json_int_t)config->vocab_size,
        "max_position_embeddings", (json_int_t)config->n_positions, "hidden_size", (json_int_t)config->n_embd,
        "intermediate_size", (json_int_t)llama->n_inner, "num_hidden_layers", (json_int_t)config->n_layer,
        "num_attention_heads", (json_int_t)config->n_head, "num_key_value_heads",
        (json_int_t)llama->n_kv_head, "head_dim", (json_int_t)llama->head_dim, "rms_norm_eps",
        config->layer_norm_epsilon, "rope_theta", llama->rope.theta, "rope_scaling", rope_json(&llama->rope),
        "tie_word_embeddings", !llama->has_head);
    if (json) {
        add_window(json, config);
    }
    return json;
}

tw_status_t tw_checkpoint_write_config(const char *folder, const tw_model_config_t *config, tw_type_t type)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(path, "%s/config.json", folder));
    json_t *json = config->family == TW_MODEL_GPT2 ? gpt2_json(config) : llama_json(config);
    /* which words begin and end a text is not known here; else transformers takes those of its own example */
    int failed = !json ||
                 json_object_set_new(json, "model_type", json_string(tw_model_family_name(config->family))) ||
                 json_object_set_new(json, "torch_dtype", json_string(dtype_name(type))) ||
                 json_object_set_new(json, "bos_token_id", json_null()) ||
                 json_object_set_new(json, "eos_token_id", json_null()) ||
                 json_dump_file(json, path, JSON_INDENT(2)) != 0;
    json_decref(json);
    if (failed) {
        tw_error("%s: cannot write it: %s", path, strerror(errno));
        return TW_ERR_IO;
    }
    return TW_OK;
}
