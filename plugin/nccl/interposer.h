/** The interposer, opened by the net plugin (a job needs no LD_PRELOAD then) or preloaded, and what both
 *  say. */
#ifndef TW_PLUGIN_NCCL_INTERPOSER_H
#define TW_PLUGIN_NCCL_INTERPOSER_H

#include "plugin/nccl/log.h"

TW_C_BEGIN

/** A part of the plugin begins. Its log, and the interposer's if that is in the process by now or later, goes
 *  to NCCL's logger (tw_nccl_log_install); misspelt variables are named there, once in a process. Any
 *  thread. */
void tw_nccl_begin(tw_nccl_logger_t logger);

/** A communicator is made. With TW_INTERPOSE, the first time in a process: open libthinwire-nccl.so, which
 *  lies beside this library or where the linker looks, and let it redirect what the process's objects call of
 *  NCCL; after that, what objects call that were loaded since. TW_ERR_CONFIG (logged): it was asked for, and
 *  cannot be: the net is not to begin, as other ranks may count on it. Any thread. */
tw_status_t tw_interposer_open(void);

TW_C_END

#endif
