/** Limits log lines about strangers, who may come as often as they like and must not fill the log. Private to
 *  the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_STRANGERS_LINES 20 /**< most lines in one span of time */
#define TW_STRANGERS_SPAN_NS 10000000000ull
#define TW_STRANGERS_MORE_BYTES 48

/** Starts zeroed. */
typedef struct tw_strangers_log {
    uint64_t until_ns; /**< when the span ends */
    uint64_t n;        /**< lines in the span, including those that were left out */
} tw_strangers_log_t;

/** Returns 1 if one more line may be logged; it must end with `more`: "", or how many were left out before
 *  it. */
int tw_strangers_may_log(tw_strangers_log_t *log, uint64_t now, char more[TW_STRANGERS_MORE_BYTES]);

TW_C_END
