/* Reads config.json of Llama, Mistral, Qwen2 and Qwen3, as transformers 4 and 5 write it. */
#include "trainer/config/pretrained_llama.h"

#include <math.h>
#include <string.h>

#include "trainer/config/shape_keys.h"
#include "trainer/model/family.h"

/** Return the row of the model's family. model.family must be set already. */
static const tw_model_family_row_t *family_of(const tw_train_config_t *config)
{
    return tw_model_family_get((tw_model_family_t)config->options.family);
}

static tw_status_t take_count(tw_train_config_t *config, const char *path, const char *key, json_int_t value)
{
    json_t *number = json_integer(value);
    tw_status_t status = tw_shape_take_number(config, path, key, number);
    json_decref(number);
    return status;
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

static tw_status_t llama_take_sizes(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const struct {
        const char *theirs, *ours;
    } keys[] = {{"num_hidden_layers", "model.n_layer"},
                {"num_attention_heads", "model.n_head"},
                {"hidden_size", "model.n_embd"},
                {"intermediate_size", "model.n_inner"},
                {"max_position_embeddings", "model.n_positions"},
                {"vocab_size", "model.vocab_size"}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = json_object_get(json, keys[i].theirs);
        if (!json_is_integer(value)) {
            return tw_shape_unlike(path, keys[i].theirs, value, "a whole number there");
        }
        TW_TRY(tw_shape_take_number(config, path, keys[i].ours, value));
    }
    return TW_OK;
}

/** Read the keys that may be missing, since transformers has defaults for them. */
static tw_status_t take_others(tw_train_config_t *config, const char *path, const json_t *json)
{
    const json_t *epsilon = json_object_get(json, "rms_norm_eps"), *heads;
    int is_tied = json_is_true(json_object_get(json, "tie_word_embeddings"));
    TW_TRY(json_is_number(epsilon) ? tw_shape_take_number(config, path, "model.layer_norm_epsilon", epsilon)
                                   : tw_shape_take(config, path, "model.layer_norm_epsilon", "1e-6"));
    heads = json_object_get(json, "num_key_value_heads");
    TW_TRY(take_count(config, path, "model.n_kv_head",
                      json_is_integer(heads) ? json_integer_value(heads) : config->options.n_head));
    const json_t *width = json_object_get(json, "head_dim");
    json_int_t usual = family_of(config)->head_dim;
    usual = usual > 0 ? usual : (json_int_t)(config->options.n_embd / config->options.n_head);
    TW_TRY(take_count(config, path, "model.head_dim",
                      json_is_integer(width) ? json_integer_value(width) : usual));
    return tw_shape_take(config, path, "model.tie_word_embeddings", is_tied ? "true" : "false");
}

/** Read attention_bias. A Qwen2 always has biases of q, k and v, without this key; true is refused. */
static tw_status_t take_biases(tw_train_config_t *config, const char *path, const json_t *json)
{
    const json_t *value = json_object_get(json, "attention_bias");
    int has = json_is_true(value);
    if (has && !family_of(config)->may_have_biases) {
        return tw_shape_unlike(path, "attention_bias", value, "false");
    }
    return tw_shape_take(config, path, "model.attention_bias", has ? "true" : "false");
}

/* ---- rotary angles ------------------------------------------------------------------------------------- */

/** Compute YaRN's factor of cosines and sines. `of` is mscale or mscale_all_dim of config.json. */
static double mscale(double factor, double of)
{
    return factor <= 1.0 ? 1.0 : 0.1 * of * log(factor) + 1.0;
}

static tw_status_t take_mscale(tw_train_config_t *config, const char *path, const json_t *rope)
{
    char text[64];
    double of = json_number_value(json_object_get(rope, "mscale"));
    double of_all = json_number_value(json_object_get(rope, "mscale_all_dim"));
    if (of == 0.0 || of_all == 0.0 || json_is_number(json_object_get(rope, "attention_factor"))) {
        return TW_OK;
    }
    double factor = config->options.rope_factor;
    snprintf(text, sizeof(text), "%.15g", mscale(factor, of) / mscale(factor, of_all));
    return tw_shape_take(config, path, "model.rope_scaling.attention_factor", text);
}

/** Read the keys that scale rotary angles. Refuse all other keys, except those that other functions check. */
static tw_status_t take_scaling(tw_train_config_t *config, const char *path, json_t *rope)
{
    static const char *const taken[] = {"factor",          "original_max_position_embeddings",
                                        "low_freq_factor", "high_freq_factor",
                                        "beta_fast",       "beta_slow",
                                        "attention_factor"};
    static const char *const others[] = {"rope_type", "type",           "rope_theta",           "mscale",
                                         "truncate",  "mscale_all_dim", "partial_rotary_factor"};
    const char *name;
    json_t *value;
    json_object_foreach(rope, name, value)
    {
        int found = json_is_null(value);
        for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]) && !found; i++) {
            char key[96];
            found = strcmp(name, taken[i]) == 0;
            snprintf(key, sizeof(key), "model.rope_scaling.%s", taken[i]);
            TW_TRY(found ? tw_shape_take_number(config, path, key, value) : TW_OK);
        }
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]) && !found; i++) {
            found = strcmp(name, others[i]) == 0;
        }
        if (!found) {
            return tw_shape_unlike(path, name, value, "no such scaling of rotary angles");
        }
    }
    return take_mscale(config, path, rope);
}

static tw_status_t take_rope(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const tw_shape_known_t known[] = {
        {"truncate", "true"}, {"partial_rotary_factor", "1"}, {NULL, NULL}};
    static const char *const types[] = {"default", "linear", "llama3", "yarn"};
    json_t *rope = json_object_get(json, "rope_parameters");
    rope = json_is_object(rope) ? rope : json_object_get(json, "rope_scaling");
    const json_t *theta = json_object_get(rope, "rope_theta"), *type = json_object_get(rope, "rope_type");
    theta = theta ? theta : json_object_get(json, "rope_theta");
    type = type ? type : json_object_get(rope, "type");
    TW_TRY(json_is_number(theta) ? tw_shape_take_number(config, path, "model.rope_theta", theta)
                                 : tw_shape_take(config, path, "model.rope_theta", "10000"));
    const char *name = type ? json_string_value(type) : "default";
    for (size_t i = 0; name && i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, types[i]) == 0) {
            TW_TRY(tw_shape_take(config, path, "model.rope_scaling.rope_type", name));
            TW_TRY(rope ? tw_shape_check(path, rope, known) : TW_OK);
            return i > 0 ? take_scaling(config, path, rope) : TW_OK;
        }
    }
    return tw_shape_unlike(path, "rope_type", type, "default, linear, llama3 or yarn");
}

/* ---- windows ------------------------------------------------------------------------------------------- */

/** Return the length of the attention window, or 0 if there is no window. */
static json_int_t window_of(const tw_model_family_row_t *family, const json_t *json)
{
    const json_t *window = json_object_get(json, "sliding_window");
    if (!family->has_first_window) {
        return window ? json_integer_value(window) : 4096;
    }
    int is_used = json_is_true(json_object_get(json, "use_sliding_window"));
    return is_used ? json_integer_value(window) : 0;
}

static json_int_t first_of_windows(const tw_model_family_row_t *family, const json_t *json)
{
    const json_t *first = json_object_get(json, "max_window_layers");
    return !family->has_first_window ? 0 : json_is_integer(first) ? json_integer_value(first) : 28;
}

/** Check "layer_types", which lists the kind of attention of each layer. It may be missing. */
static tw_status_t check_layer_types(const char *path, const json_t *json, json_int_t window,
                                     json_int_t first)
{
    size_t i;
    const json_t *types = json_object_get(json, "layer_types"), *type;
    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type);
        int has_window = window > 0 && (json_int_t)i >= first;
        if (!name || strcmp(name, has_window ? "sliding_attention" : "full_attention") != 0) {
            return tw_shape_unlike(path, "layer_types", types,
                                   "windows in all layers from max_window_layers on");
        }
    }
    return TW_OK;
}

static tw_status_t take_window(tw_train_config_t *config, const char *path, const json_t *json)
{
    const tw_model_family_row_t *family = family_of(config);
    json_int_t window = family->has_window ? window_of(family, json) : 0;
    json_int_t first = window > 0 ? first_of_windows(family, json) : 0;
    TW_TRY(check_layer_types(path, json, window, first));
    TW_TRY(take_count(config, path, "model.sliding_window", window));
    return take_count(config, path, "model.max_window_layers", first);
}

tw_status_t tw_train_pretrained_llama(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const tw_shape_known_t known[] = {
        {"hidden_act", "\"silu\""}, {"mlp_bias", "false"}, {"partial_rotary_factor", "1"}, {NULL, NULL}};
    TW_TRY(tw_shape_check(path, json, known));
    tw_shape_note_dropout(config, path, json);
    TW_TRY(llama_take_sizes(config, path, json));
    TW_TRY(take_others(config, path, json));
    TW_TRY(take_biases(config, path, json));
    TW_TRY(take_rope(config, path, json));
    return take_window(config, path, json);
}
