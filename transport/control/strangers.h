/** Limits the log lines about strangers. They may connect as often as they like, but must not fill the log.
 *  Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_STRANGERS_LINES 20 /**< most lines per span */
#define TW_STRANGERS_SPAN_NS 10000000000ull
#define TW_STRANGERS_MORE_BYTES 48

/** State of the limit; must be zeroed at first. */
typedef struct tw_strangers_log {
    uint64_t until_ns; /**< end of the current span of time */
    uint64_t n;        /**< lines in the span, including suppressed ones */
} tw_strangers_log_t;

/** Returns 1 if one more line may be logged. The line must end with the text `more`: "", or how many lines
 *  before it were suppressed. */
int tw_strangers_may_log(tw_strangers_log_t *log, uint64_t now, char more[TW_STRANGERS_MORE_BYTES]);

TW_C_END
