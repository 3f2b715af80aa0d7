/** Calls of objects that are in the process already; see tw_nccl_redirect. */
#ifndef TW_PLUGIN_INTERPOSE_REDIRECT_H
#define TW_PLUGIN_INTERPOSE_REDIRECT_H

#include "core/core.h"

TW_C_BEGIN

/** A communicator is made: where calls have been redirected, so are those of objects that were loaded since. Any thread; next to
 *  nothing if there are none. */
void tw_ip_redirect_loaded(void);

TW_C_END

#endif
