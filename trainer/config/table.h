/** The table of keys, and the keys and values of DeepSpeed that have no effect here. Private to config. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Every key, as a field of tw_train_options_t. Names are dotted paths. */
extern const tw_config_table_t tw_train_options_table;
/** Returns the index of a key in the table, or -1. */
int tw_train_field_of(const char *key);

/** Return why a key of DeepSpeed, or the object around it, has no effect here. NULL: it is not such a key. */
const char *tw_train_ignored_reason(const char *key);
/** Return what to use instead of a DeepSpeed value that the table refuses, or NULL if nothing is known. */
const char *tw_train_instead_of(const char *key, const char *value);
/** List at most `max` of the ignored keys, for the search of the nearest name. Returns their number. */
size_t tw_train_ignored_names(const char **names, size_t max);

TW_C_END
