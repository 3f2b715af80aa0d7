/** Private to core: the parsers that only configuration tables need; the others are in core.h. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Parse text as a number or a word; TW_ERR_INVALID, silent. Words are compared without regard to case. */
tw_status_t tw_parse_double(const char *text, double *value);
tw_status_t tw_parse_int(const char *text, int64_t *value);
tw_status_t tw_parse_bool(const char *text, int *value);
/** Index of `text` in the NULL-terminated `choices`. */
tw_status_t tw_parse_choice(const char *text, const char *const *choices, int *index);

TW_C_END
