/** How the plugin and the interposer (libthinwire-nccl.so) work together. Either the job preloads the
 *  interposer, or the net plugin opens it, and the job needs no LD_PRELOAD. */
#pragma once

#include "plugin/nccl/log.h"

TW_C_BEGIN

/** Send the plugin's log to NCCL's logger (tw_nccl_log_install), and the interposer's log, even if the
 *  interposer is loaded later. Called when the net, the collnet or the tuner begins. Misspelt variables are
 *  named in the log, once in a process. Any thread. */
void tw_nccl_begin(tw_nccl_logger_t logger);

/** Open the interposer, if TW_INTERPOSE asks for it; called whenever NCCL makes a communicator. The first
 *  call in a process opens libthinwire-nccl.so, which lies beside this library or where the linker looks, and
 *  lets it redirect the calls of NCCL that all objects of the process make. Later calls redirect those of
 *  objects that were loaded since. TW_ERR_CONFIG (logged): that failed, and the net must not begin, as other
 *  ranks may count on the interposer. Any thread. */
tw_status_t tw_interposer_open(void);

/** The secret that the job has given ncclSetEncryption. NCCL does not tell a plugin; the interposer has seen
 *  it, if it was preloaded. NULL: none. */
const char *tw_interposer_secret(void);

TW_C_END
