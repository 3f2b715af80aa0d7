/** Private to trainer/data: expands the value of a key such as thinwire.data to files: "a.bin",
 *  "train_*.bin", "web_*.bin:0.7, books.bin:0.3". */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_data_name {
    char *path;
    size_t group;  /**< index of the entry in the list; 0 if no entry has a weight */
    double weight; /**< weight of the entry; 0 if no entry has one */
} tw_data_name_t;

typedef struct tw_data_names {
    tw_data_name_t *at; /**< [n], group by group */
    size_t n, n_groups;
} tw_data_names_t;

/** List the files of `text`. Errors are logged with the name. TW_ERR_NOT_FOUND: no file matches a pattern;
 *  TW_ERR_INVALID: a malformed weight, or only some entries have one; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_names(const char *text, tw_data_names_t *names);
void tw_data_names_cleanup(tw_data_names_t *names);

TW_C_END
