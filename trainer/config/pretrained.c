/* Reads the shape of a pretrained model from config.json, which transformers writes beside the weights. */
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "trainer/config/pretrained_llama.h"
#include "trainer/config/shape_keys.h"
#include "trainer/input.h"
#include "trainer/model/family.h"

#define PATH_BYTES 4096
#define NAME "config.json"

/** Find config.json in a folder of weights, or beside a weights file. Returns 0 if it does not exist. */
static int find_file(const char *weights, char path[PATH_BYTES])
{
    struct stat info;
    char copy[PATH_BYTES];
    if (snprintf(copy, sizeof(copy), "%s", weights) >= PATH_BYTES - (int)sizeof(NAME)) {
        return 0;
    }
    int is_folder = stat(weights, &info) == 0 && S_ISDIR(info.st_mode);
    snprintf(path, PATH_BYTES, "%.*s/%s", PATH_BYTES - (int)sizeof(NAME) - 1,
             is_folder ? weights : dirname(copy), NAME);
    return access(path, R_OK) == 0;
}

static tw_status_t take_gpt2(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const tw_shape_known_t known[] = {{"activation_function", "\"gelu_new\""},
                                             {"scale_attn_weights", "true"},
                                             {"scale_attn_by_inverse_layer_idx", "false"},
                                             {"add_cross_attention", "false"},
                                             {NULL, NULL}};
    static const char *const names[] = {"n_layer",     "n_head",     "n_embd",
                                        "n_positions", "vocab_size", "layer_norm_epsilon"};
    TW_TRY(tw_shape_check(path, json, known));
    json_int_t width = json_integer_value(json_object_get(json, "n_embd"));
    const json_t *inner = json_object_get(json, "n_inner");
    if (json_is_integer(inner) && json_integer_value(inner) != 4 * width) {
        return tw_shape_unlike(path, "n_inner", inner, "4 * n_embd");
    }
    tw_shape_note_dropout(config, path, json);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[64];
        snprintf(key, sizeof(key), "model.%s", names[i]);
        TW_TRY(tw_shape_take_number(config, path, key, json_object_get(json, names[i])));
    }
    return TW_OK;
}

static tw_status_t take_shape(tw_train_config_t *config, const char *path, const json_t *json)
{
    const json_t *type = json_object_get(json, "model_type");
    const char *name = json_string_value(type);
    static tw_status_t (*const readers[])(tw_train_config_t *, const char *, const json_t *) = {
        [TW_MODEL_KIND_GPT2] = take_gpt2, [TW_MODEL_KIND_LLAMA] = tw_train_pretrained_llama};
    for (int i = 0; name && i < TW_MODEL_FAMILY_COUNT; i++) {
        const tw_model_family_row_t *family = tw_model_family_get((tw_model_family_t)i);
        if (strcmp(name, family->name) == 0) {
            TW_TRY(tw_shape_take(config, path, "model.family", name));
            return readers[family->kind](config, path, json);
        }
    }
    return tw_shape_unlike(path, "model_type", type, "gpt2, llama, mistral, qwen2 or qwen3");
}

tw_status_t tw_train_pretrained(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    char path[PATH_BYTES];
    json_error_t error;
    if (!*o->init_from || *o->preset || o->n_params > 0 || !find_file(o->init_from, path)) {
        return TW_OK;
    }
    FILE *file;
    TW_TRY(tw_input_open(path, &file));
    json_t *json = json_loadf(file, 0, &error);
    fclose(file);
    TW_FAIL_IF(!json, TW_ERR_CONFIG, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    /* a config.json without model_type does not describe a model */
    tw_status_t status = json_object_get(json, "model_type") ? take_shape(config, path, json) : TW_OK;
    json_decref(json);
    return status;
}
