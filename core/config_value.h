/** Private to core: one value of a configuration table, and names that no table knows. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A parsed value. The field's type tells which member holds it. */
typedef union tw_config_value {
    int flag;       /* BOOL, ENUM, INT32 */
    int64_t number; /* INT */
    double real;    /* DOUBLE, COUNT, TIME, RATE */
    size_t bytes;   /* BYTES */
    char *string;   /* STRING, SECRET */
} tw_config_value_t;

/** Parse `text` as a value of the field's type, without checking the range. A string is a copy that the
 *  caller frees. TW_ERR_INVALID (silent) or TW_ERR_NO_MEMORY. */
tw_status_t tw_config_value_parse(const tw_config_field_t *field, const char *text, tw_config_value_t *value);
/** Returns 1 if the field has no range or the value is in it. */
int tw_config_value_in_range(const tw_config_field_t *field, const tw_config_value_t *value);
void tw_config_value_load(const tw_config_field_t *field, const void *options, tw_config_value_t *value);
/** Store a value in the options. Frees the string that it replaces. */
void tw_config_value_store(const tw_config_field_t *field, void *options, const tw_config_value_t *value);
/** Returns 1 if the field's value is a string; the options struct owns a stored string. */
int tw_config_is_string(const tw_config_field_t *field);
int tw_config_has_range(const tw_config_field_t *field);

/** Warn about every environment variable that begins with TW_ and is not in `known`, and name the nearest
 *  one. only_near 1: do not warn about those without a near name. Returns the number of warnings. */
size_t tw_config_check_entries(const char *const *known, size_t n_known, int only_near);

TW_C_END
