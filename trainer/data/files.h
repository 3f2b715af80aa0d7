/** Private to trainer/data: finds files by names, as a key gives them: "a.bin", "train_*.bin",
 *  "web_*.bin:0.7, books.bin:0.3". */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_data_name {
    char *path;
    size_t group;  /**< index of the entry; 0 for all if there are no weights */
    double weight; /**< weight of the entry, as given; 0: none */
} tw_data_name_t;

typedef struct tw_data_names {
    tw_data_name_t *at; /**< [n], group by group */
    size_t n, n_groups;
} tw_data_names_t;

/** List the files. Errors are logged with the name. TW_ERR_NOT_FOUND: nothing matches a pattern;
 *  TW_ERR_INVALID: a weight is wrong, or only some entries have one; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_names(const char *text, tw_data_names_t *names);
void tw_data_names_cleanup(tw_data_names_t *names);

TW_C_END
