/** The table of keys, and the keys and values that mean nothing here. Private to config. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Every key in force, as fields of tw_train_options_t; names are dotted paths. */
extern const tw_config_table_t tw_train_options_table;
/** Returns the index of a key in the table, or -1. */
int tw_train_field_of(const char *key);

/** Return why a known DeepSpeed key, or the object around it, means nothing here; NULL if not so. */
const char *tw_train_ignored_reason(const char *key);
/** Return what to use in place of a value of DeepSpeed's that the table refuses; NULL if nothing is known. */
const char *tw_train_instead_of(const char *key, const char *value);
/** List the ignored keys, for a search of the nearest name; return how many were written, at most `max`. */
size_t tw_train_ignored_names(const char **names, size_t max);

TW_C_END
