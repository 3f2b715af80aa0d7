/** Private to core: one value of a configuration table, and names that no table knows. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** A parsed value; which member holds it follows from the field's type. */
typedef union tw_config_value {
    int flag;       /* BOOL, ENUM, INT32 */
    int64_t number; /* INT */
    double real;    /* DOUBLE, COUNT, TIME, RATE */
    size_t bytes;   /* BYTES */
    char *string;   /* STRING, SECRET */
} tw_config_value_t;

/** Parse `text` as the field's type; does not check the range. A string is a copy, the caller's to free.
 *  TW_ERR_INVALID (silent) or TW_ERR_NO_MEMORY. */
tw_status_t tw_config_value_parse(const tw_config_field_t *field, const char *text, tw_config_value_t *value);
/** 1 if the field has no range or the value is in it. */
int tw_config_value_in_range(const tw_config_field_t *field, const tw_config_value_t *value);
void tw_config_value_load(const tw_config_field_t *field, const void *options, tw_config_value_t *value);
/** Store a value; the string that was there is freed. */
void tw_config_value_store(const tw_config_field_t *field, void *options, const tw_config_value_t *value);
/** 1 if the field's value is a string, which the options struct then owns. */
int tw_config_is_string(const tw_config_field_t *field);
int tw_config_has_range(const tw_config_field_t *field);

/** Warn about every TW_ variable of the environment that is not known, naming the nearest name; only_near:
 *  only about those that have a near name. Returns how many there were. */
size_t tw_config_check_entries(const char *const *known, size_t n_known, int only_near);

TW_C_END
