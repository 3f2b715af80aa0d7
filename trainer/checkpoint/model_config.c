/* Writes config.json for each family of models. transformers replaces a missing key by its own default, so
 * every key is written for which that default would be wrong. */
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
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:b}", "architectures",
                     tw_model_family_get(config->family)->architecture, "activation_function", "gelu_new",
                     "vocab_size", (json_int_t)config->vocab_size, "n_positions",
                     (json_int_t)config->n_positions, "n_embd", (json_int_t)config->n_embd, "n_layer",
                     (json_int_t)config->n_layer, "n_head", (json_int_t)config->n_head, "layer_norm_epsilon",
                     config->layer_norm_epsilon, "tie_word_embeddings", 1);
}

/** Return the scaling of rotary angles as JSON, or JSON's null if there is none. */
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

static void add_window(json_t *json, const tw_model_config_t *config)
{
    const tw_model_family_row_t *family = tw_model_family_get(config->family);
    json_int_t window = (json_int_t)config->llama.window, first = (json_int_t)config->llama.window_from_layer;
    if (family->has_window) {
        json_object_set_new(json, "sliding_window", window > 0 ? json_integer(window) : json_null());
    }
    if (family->has_first_window) {
        json_object_set_new(json, "use_sliding_window", json_boolean(window > 0));
    }
    if (family->has_first_window && window > 0) {
        json_object_set_new(json, "max_window_layers", json_integer(first));
    }
}

static json_t *llama_json(const tw_model_config_t *config)
{
    const tw_model_llama_t *llama = &config->llama;
    json_t *json = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:b}", "architectures",
        tw_model_family_get(config->family)->architecture, "hidden_act", "silu", "vocab_size",
        (json_int_t)config->vocab_size, "max_position_embeddings", (json_int_t)config->n_positions,
        "hidden_size", (json_int_t)config->n_embd, "intermediate_size", (json_int_t)llama->n_inner,
        "num_hidden_layers", (json_int_t)config->n_layer, "num_attention_heads", (json_int_t)config->n_head,
        "num_key_value_heads", (json_int_t)llama->n_kv_head, "head_dim", (json_int_t)llama->head_dim,
        "rms_norm_eps", config->layer_norm_epsilon, "rope_theta", llama->rope.theta, "rope_scaling",
        rope_json(&llama->rope), "tie_word_embeddings", !llama->has_head);
    if (json && llama->attention_bias) {
        json_object_set_new(json, "attention_bias", json_true());
    }
    if (json) {
        add_window(json, config);
    }
    return json;
}

/* ---- which tokens begin, end and fill a text ----------------------------------------------------------- */

/** Load a JSON file. Returns NULL if it does not exist or is not JSON. */
static json_t *model_config_load(const char *folder, const char *name)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return length < (int)sizeof(path) ? json_load_file(path, 0, NULL) : NULL;
}

/** Return the id of the token with this text, or NULL. */
static json_t *id_of_text(const char *folder, const char *text)
{
    size_t i;
    json_t *entry, *tokenizer = model_config_load(folder, "tokenizer.json"),
                   *vocab = model_config_load(folder, "vocab.json");
    json_t *id = json_object_get(json_object_get(json_object_get(tokenizer, "model"), "vocab"), text);
    id = id ? id : json_object_get(vocab, text);
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, entry)
    {
        const char *content = json_string_value(json_object_get(entry, "content"));
        id = content && strcmp(content, text) == 0 ? json_object_get(entry, "id") : id;
    }
    json_incref(id);
    json_decref(tokenizer);
    json_decref(vocab);
    return id;
}

/** Return the id of a special token by its text in tokenizer_config.json, a string or an object; or NULL. */
static json_t *id_by_tokenizer(const char *folder, const char *name)
{
    json_t *config = model_config_load(folder, "tokenizer_config.json"),
           *token = json_object_get(config, name);
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    json_t *id = text ? id_of_text(folder, text) : NULL;
    json_decref(config);
    return id;
}

/** Return the id of a special token ("bos_token") from the first of a folder's files that has it, or NULL. */
static json_t *id_in(const char *folder, const char *name)
{
    static const char *const files[] = {"config.json", "generation_config.json"};
    char key[32];
    snprintf(key, sizeof(key), "%s_id", name);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        json_t *json = model_config_load(folder, files[i]), *id = json_object_get(json, key);
        id = json_is_integer(id) || json_is_array(id) ? json_incref(id) : NULL;
        json_decref(json);
        if (id) {
            return id;
        }
    }
    return id_by_tokenizer(folder, name);
}

/** Add the ids of special tokens, null if unknown. For missing keys transformers would use its defaults. */
static int add_tokens(json_t *json, const char *const *sources)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token"};
    int failed = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[32];
        json_t *id = NULL;
        for (const char *const *source = sources; *source && !id; source++) {
            id = **source ? id_in(*source, names[i]) : NULL;
        }
        snprintf(key, sizeof(key), "%s_id", names[i]);
        failed |= json_object_set_new(json, key, id ? id : json_null());
    }
    return failed;
}

tw_status_t tw_checkpoint_write_config(const char *folder, const tw_model_config_t *config, tw_type_t type,
                                       const char *const *sources)
{
    static json_t *(*const writers[])(const tw_model_config_t *) = {
        [TW_MODEL_KIND_GPT2] = gpt2_json, [TW_MODEL_KIND_LLAMA] = llama_json};
    char path[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(path, "%s/config.json", folder));
    const tw_model_family_row_t *family = tw_model_family_get(config->family);
    json_t *json = writers[family->kind](config);
    int failed = !json || json_object_set_new(json, "model_type", json_string(family->name)) ||
                 json_object_set_new(json, "torch_dtype", json_string(dtype_name(type))) ||
                 add_tokens(json, sources) || json_dump_file(json, path, JSON_INDENT(2)) != 0;
    json_decref(json);
    return failed ? tw_fail(TW_ERR_IO, "%s: cannot write it: %s", path, strerror(errno)) : TW_OK;
}
