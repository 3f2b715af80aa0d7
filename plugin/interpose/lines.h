/** Writes the interposer's log lines. They go to NCCL's logger once the net plugin has passed that on, and
 *  until then to stderr, in the form of NCCL's lines. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Print a line that users see at every TW_LOG_LEVEL. It goes to stderr if NCCL_DEBUG would keep it out of
 *  NCCL's log. Any thread; the caller must hold no lock that a logger could take. */
__attribute__((format(printf, 1, 2))) void tw_ip_print(const char *format, ...);

/** Have `print` called when the process ends, while NCCL and its logger still exist. It is called only if
 *  lines go to NCCL's logger at that time. Call this before the job's first call. */
void tw_ip_lines_last(void (*print)(void));

TW_C_END
