/* The shape of a model that weights come from: config.json as transformers writes it beside them. */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "trainer/config/state.h"
#include "trainer/config/table.h"

#define PATH_BYTES 4096
#define NAME "config.json"

/* Its path, of a folder or of a file in it; 0 if it is not there. */
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

static tw_status_t unlike(const char *path, const char *key, const json_t *value, const char *known)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    tw_error("%s: %s is %s; the model here has %s", path, key, text ? text : "?", known);
    free(text);
    return TW_ERR_CONFIG;
}

/* What changes the network without changing a tensor's name or shape. */
static tw_status_t check_kind(const char *path, const json_t *json)
{
    static const struct {
        const char *key, *known; /* JSON; what is not there is so by default */
    } kinds[] = {{"model_type", "\"gpt2\""},
                 {"activation_function", "\"gelu_new\""},
                 {"scale_attn_weights", "true"},
                 {"scale_attn_by_inverse_layer_idx", "false"},
                 {"add_cross_attention", "false"}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const json_t *value = json_object_get(json, kinds[i].key);
        json_t *known = json_loads(kinds[i].known, JSON_DECODE_ANY, NULL);
        int same = !value || json_equal(value, known);
        json_decref(known);
        if (!same) {
            return unlike(path, kinds[i].key, value, kinds[i].known);
        }
    }
    json_int_t width = json_integer_value(json_object_get(json, "n_embd"));
    const json_t *inner = json_object_get(json, "n_inner");
    if (json_is_integer(inner) && json_integer_value(inner) != 4 * width) {
        return unlike(path, "n_inner", inner, "4 * n_embd");
    }
    return TW_OK;
}

static tw_status_t take_key(tw_train_config_t *config, const char *path, const char *key, const json_t *value)
{
    char text[64], before[64], after[64];
    int field = tw_train_field_of(key);
    const tw_config_field_t *of = &tw_train_options_table.fields[field];
    unsigned char *origin = &config->origins[field];
    if (json_is_real(value)) {
        snprintf(text, sizeof(text), "%.15g", json_real_value(value));
    } else {
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    }
    tw_config_format(of, &config->options, before, sizeof(before));
    TW_TRY(tw_config_set(&tw_train_options_table, &config->options, key, text));
    tw_config_format(of, &config->options, after, sizeof(after));
    if (*origin != TW_TRAIN_FROM_FILE && *origin != TW_TRAIN_FROM_COMMAND) {
        *origin = TW_TRAIN_FOLLOWS;
    } else if (strcmp(before, after) != 0) {
        tw_error("%s is %s, but %s says %s; leave it out", key, before, path, after);
        return TW_ERR_CONFIG;
    }
    return TW_OK;
}

/* Dropout trains another network than the one here. */
static void note_dropout(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const char *const names[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    int is_file = config->origins[tw_train_field_of("model.init_from")] == TW_TRAIN_FROM_FILE;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[PATH_BYTES + 32];
        if (json_number_value(json_object_get(json, names[i])) != 0) {
            snprintf(key, sizeof(key), "%s of %s", names[i], path);
            tw_train_note(config, is_file, key, "the model here has no dropout");
        }
    }
}

static tw_status_t take_shape(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const char *const names[] = {"n_layer",     "n_head",     "n_embd",
                                        "n_positions", "vocab_size", "layer_norm_epsilon"};
    TW_TRY(check_kind(path, json));
    note_dropout(config, path, json);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[64];
        const json_t *value = json_object_get(json, names[i]);
        if (json_is_number(value)) {
            snprintf(key, sizeof(key), "model.%s", names[i]);
            TW_TRY(take_key(config, path, key, value));
        }
    }
    return TW_OK;
}

tw_status_t tw_train_pretrained(tw_train_config_t *config)
{
    const tw_train_options_t *o = &config->options;
    char path[PATH_BYTES];
    json_error_t error;
    if (!*o->init_from || *o->preset || o->n_params > 0 || !find_file(o->init_from, path)) {
        return TW_OK;
    }
    json_t *json = json_load_file(path, 0, &error);
    if (!json) {
        tw_error("%s:%d:%d: %s", path, error.line, error.column, error.text);
        return TW_ERR_CONFIG;
    }
    /* another file of that name says nothing of a model */
    tw_status_t status = json_object_get(json, "model_type") ? take_shape(config, path, json) : TW_OK;
    json_decref(json);
    return status;
}
