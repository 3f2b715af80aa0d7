/** Private to config: maps keys of a model's config.json to keys of ours. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** Set a key of ours from the file. TW_ERR_CONFIG, logged: it is out of range, or the user set another. */
tw_status_t tw_shape_take(tw_train_config_t *config, const char *path, const char *key, const char *text);
/** Do the same with a number; does nothing if the value is no number. */
tw_status_t tw_shape_take_number(tw_train_config_t *config, const char *path, const char *key,
                                 const json_t *value);

/** A key of the file and, as JSON, the only supported value; missing or null means that value. */
typedef struct tw_shape_known {
    const char *key, *value;
} tw_shape_known_t;

/** Check the keys in `known`, which ends with a NULL key. TW_ERR_CONFIG, logged: a key has another value. */
tw_status_t tw_shape_check(const char *path, const json_t *json, const tw_shape_known_t *known);
/** Log that a key's value is not `known`, the supported one. Returns TW_ERR_CONFIG. */
tw_status_t tw_shape_unlike(const char *path, const char *key, const json_t *value, const char *known);
/** Note keys for dropout: there is none here, so training differs from the model's own. */
void tw_shape_note_dropout(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
