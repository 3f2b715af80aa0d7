/** Private to config: keys of a model's config.json as keys of ours. */
#pragma once

#include <jansson.h>

#include "trainer/config/state.h"

TW_C_BEGIN

/** Let a key of ours follow from the file. TW_ERR_CONFIG, logged: it is out of range, or somebody has set
 *  another value. */
tw_status_t tw_shape_take(tw_train_config_t *config, const char *path, const char *key, const char *text);
/** The same for a number; does nothing if the value is none. */
tw_status_t tw_shape_take_number(tw_train_config_t *config, const char *path, const char *key,
                                 const json_t *value);

/** A key of the file and the one value that the models here have, as JSON; where it is not there or null it
 *  has that by default. */
typedef struct tw_shape_known {
    const char *key, *value;
} tw_shape_known_t;

/** known: ends with a NULL key. TW_ERR_CONFIG, logged: a key has another value. */
tw_status_t tw_shape_check(const char *path, const json_t *json, const tw_shape_known_t *known);
/** Logs that a key's value is not what the models here have, which is `known`. Returns TW_ERR_CONFIG. */
tw_status_t tw_shape_unlike(const char *path, const char *key, const json_t *value, const char *known);
/** Note keys for dropout: with it, another network was trained than the one here. */
void tw_shape_note_dropout(tw_train_config_t *config, const char *path, const json_t *json);

TW_C_END
