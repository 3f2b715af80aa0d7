/** Lines of the log about strangers: anybody may come as often as he likes, and is not to fill it. Private to
 *  the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_STRANGERS_LINES 20 /**< in one span */
#define TW_STRANGERS_SPAN_NS 10000000000ull
#define TW_STRANGERS_MORE_BYTES 48

/** Starts zeroed. */
typedef struct tw_strangers_log {
    uint64_t until_ns; /**< the end of the span */
    uint64_t n;        /**< lines in it, those that were left out included */
} tw_strangers_log_t;

/** 1: one more line may be logged; `more` is to be its end: "", or how many were left out before it. */
int tw_strangers_may_log(tw_strangers_log_t *log, uint64_t now, char more[TW_STRANGERS_MORE_BYTES]);

TW_C_END
