/** Private to trainer/data: names of files, as a key gives them: "a.bin", "train_*.bin", "web_*.bin:0.7,
 *  books.bin:0.3". */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_data_name {
    char *path;
    size_t group;  /**< entry of the text; 0 for all where there are no weights */
    double weight; /**< of the group, as it was given; 0: none */
} tw_data_name_t;

typedef struct tw_data_names {
    tw_data_name_t *at; /**< [n], group by group */
    size_t n, n_groups;
} tw_data_names_t;

/** Errors are logged with the name. TW_ERR_NOT_FOUND: nothing matches a pattern; TW_ERR_INVALID: weights that
 *  are none, or that only some have; TW_ERR_NO_MEMORY. */
tw_status_t tw_data_names(const char *text, tw_data_names_t *names);
void tw_data_names_cleanup(tw_data_names_t *names);

TW_C_END
