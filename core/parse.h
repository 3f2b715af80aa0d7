/** Private to core: parsers that only configuration tables need. The others are in core.h. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Parse the whole text, or return TW_ERR_INVALID (silent). The case of words does not matter. */
tw_status_t tw_parse_double(const char *text, double *value);
tw_status_t tw_parse_int(const char *text, int64_t *value);
tw_status_t tw_parse_bool(const char *text, int *value);
/** Find the index of `text` in `choices`, which ends with NULL. */
tw_status_t tw_parse_choice(const char *text, const char *const *choices, int *index);

TW_C_END
