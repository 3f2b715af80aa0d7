/** Redirects NCCL calls of shared objects that the process has loaded; see tw_nccl_redirect. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Call this before a communicator is made. If this process was redirected, it redirects objects that were
 *  loaded since; it is almost free if there are none. Any thread. TW_ERR_UNSUPPORTED (logged, once): it
 *  failed, and no further communicator may be made, because other ranks may have redirected those calls. */
tw_status_t tw_ip_redirect_loaded(void);

TW_C_END
