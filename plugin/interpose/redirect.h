/** Calls of objects that are in the process already; see tw_nccl_redirect. */
#ifndef TW_PLUGIN_INTERPOSE_REDIRECT_H
#define TW_PLUGIN_INTERPOSE_REDIRECT_H

#include "core/core.h"

TW_C_BEGIN

/** A communicator is made: where calls have been redirected, so are those of objects that were loaded since.
 *  Any thread; next to nothing if there are none. TW_ERR_UNSUPPORTED (logged, once): it cannot be done. Then
 *  no further communicator is to be made: on other ranks those calls may be redirected. */
tw_status_t tw_ip_redirect_loaded(void);

TW_C_END

#endif
