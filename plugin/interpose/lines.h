/** Where the interposer's lines go: to NCCL's logger, once the net plugin has handed it over; until then to
 *  stderr, in the form of NCCL's lines. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Print a line that every user of the library is to see, whatever TW_LOG_LEVEL says: on stderr where
 *  NCCL_DEBUG would keep it out of NCCL's log. Any thread; hold no lock that a logger could want. */
__attribute__((format(printf, 1, 2))) void tw_ip_print(const char *format, ...);

/** Where lines go to NCCL's logger, `print` is called when the process ends, while NCCL is still there.
 *  Call this before the job calls anything. */
void tw_ip_lines_last(void (*print)(void));

TW_C_END
