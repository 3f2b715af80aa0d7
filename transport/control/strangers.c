#include "transport/control/strangers.h"

#include <stdio.h>

int tw_strangers_may_log(tw_strangers_log_t *log, uint64_t now, char more[TW_STRANGERS_MORE_BYTES])
{
    more[0] = '\0';
    if (now >= log->until_ns) {
        if (log->n > TW_STRANGERS_LINES) {
            (void)snprintf(more, TW_STRANGERS_MORE_BYTES, " (%llu more lines left out)",
                           (unsigned long long)(log->n - TW_STRANGERS_LINES));
        }
        *log = (tw_strangers_log_t){.until_ns = now + TW_STRANGERS_SPAN_NS};
    }
    return log->n++ < TW_STRANGERS_LINES;
}
