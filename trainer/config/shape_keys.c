/* Maps keys of a model's config.json to keys of this configuration. */
#include "trainer/config/shape_keys.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/config/table.h"

#define PATH_BYTES 4096

tw_status_t tw_shape_take(tw_train_config_t *config, const char *path, const char *key, const char *text)
{
    char before[64], after[64];
    int field = tw_train_field_of(key);
    const tw_config_field_t *of = &tw_train_options_table.fields[field];
    unsigned char *origin = &config->origins[field];
    tw_config_format(of, &config->options, before, sizeof(before));
    TW_TRY(tw_config_set(&tw_train_options_table, &config->options, key, text));
    tw_config_format(of, &config->options, after, sizeof(after));
    if (*origin != TW_TRAIN_FROM_FILE && *origin != TW_TRAIN_FROM_COMMAND) {
        *origin = TW_TRAIN_FOLLOWS;
    } else if (strcmp(before, after) != 0) {
        return tw_fail(TW_ERR_CONFIG, "%s is %s, but %s says %s; leave it out", key, before, path, after);
    }
    return TW_OK;
}

tw_status_t tw_shape_take_number(tw_train_config_t *config, const char *path, const char *key,
                                 const json_t *value)
{
    char text[64];
    if (!json_is_number(value)) {
        return TW_OK;
    }
    if (json_is_real(value)) {
        snprintf(text, sizeof(text), "%.15g", json_real_value(value));
    } else {
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    }
    return tw_shape_take(config, path, key, text);
}

tw_status_t tw_shape_unlike(const char *path, const char *key, const json_t *value, const char *known)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    tw_error("%s: %s is %s; the model here has %s", path, key, text ? text : "missing", known);
    free(text);
    return TW_ERR_CONFIG;
}

/** Return 1 if two values are equal. 1 and 1.0 count as equal. */
static int shape_is_same(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

tw_status_t tw_shape_check(const char *path, const json_t *json, const tw_shape_known_t *known)
{
    for (; known->key; known++) {
        const json_t *value = json_object_get(json, known->key);
        json_t *wanted = json_loads(known->value, JSON_DECODE_ANY, NULL);
        int same = !value || json_is_null(value) || shape_is_same(value, wanted);
        json_decref(wanted);
        if (!same) {
            return tw_shape_unlike(path, known->key, value, known->value);
        }
    }
    return TW_OK;
}

void tw_shape_note_dropout(tw_train_config_t *config, const char *path, const json_t *json)
{
    static const char *const names[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"};
    int is_file = config->origins[tw_train_field_of("model.init_from")] == TW_TRAIN_FROM_FILE;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char key[PATH_BYTES + 32];
        if (json_number_value(json_object_get(json, names[i])) != 0) {
            snprintf(key, sizeof(key), "%s of %s", names[i], path);
            tw_train_note(config, is_file, key, "the model here has no dropout");
        }
    }
}
