/** Private to config: maps keys of a model's config.json to keys of this configuration. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** Set `key` to a value of the file. TW_ERR_CONFIG, logged: out of range, or the user set another value. */
tw_status_t tw_shape_take(tw_train_config_t *config, const char *path, const char *key, const char *text);
/** Call tw_shape_take with a number of the file. Does nothing if `value` is not a number. */
tw_status_t tw_shape_take_number(tw_train_config_t *config, const char *path, const char *key,
                                 const json_t *value);

/** A key of config.json and its only supported value, as JSON. A missing or null key counts as this value. */
typedef struct tw_shape_known {
    const char *key, *value;
} tw_shape_known_t;

/** Check the keys in `known`, which ends with a NULL key. TW_ERR_CONFIG, logged: a key has another value. */
tw_status_t tw_shape_check(const char *path, const json_t *json, const tw_shape_known_t *known);
/** Log that a key has an unsupported value; `known` is the supported one. Returns TW_ERR_CONFIG. */
tw_status_t tw_shape_unlike(const char *path, const char *key, const json_t *value, const char *known);
/** Note keys for dropout. There is no dropout here, so training differs from the model's original one. */
void tw_shape_note_dropout(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
