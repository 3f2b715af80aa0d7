/** Redirects the calls of objects that are in the process already; see tw_nccl_redirect. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Call this when a communicator is made: if calls have been redirected, it redirects those of objects that
 *  were loaded since. Any thread; it costs next to nothing if there are none. TW_ERR_UNSUPPORTED (logged,
 *  once): it failed, and no further communicator may be made: other ranks may have redirected those calls. */
tw_status_t tw_ip_redirect_loaded(void);

TW_C_END
