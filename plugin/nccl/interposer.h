/** Connects the plugin with the interposer (libthinwire-nccl.so), which quantizes NCCL's collectives. Either
 *  the job preloads the interposer (LD_PRELOAD), or the net plugin opens it. */
#pragma once

#include "plugin/nccl/log.h"

TW_C_BEGIN

/** Send the plugin's log to NCCL's logger (tw_nccl_log_install), and also the interposer's log, even if it is
 *  loaded later. The net, the collnet and the tuner call this in their init. Warns of misspelt TW_ variables,
 *  once in a process. Any thread. */
void tw_nccl_begin(tw_nccl_logger_t logger);

/** Open the interposer if TW_INTERPOSE asks for it. Called whenever NCCL makes a communicator. The first call
 *  opens libthinwire-nccl.so, and lets it redirect NCCL calls of all shared objects in the process. Later
 *  calls redirect objects that were loaded since. TW_ERR_CONFIG (logged): it failed, and the net's init must
 *  fail, because other ranks may count on the interposer. Any thread. */
tw_status_t tw_interposer_open(void);

/** Returns the secret that the job gave ncclSetEncryption, or NULL. NCCL does not tell plugins the secret,
 *  but a preloaded interposer has seen it. */
const char *tw_interposer_secret(void);

TW_C_END
