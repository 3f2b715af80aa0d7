/** The interposer, opened by the net plugin: a job needs no LD_PRELOAD then. */
#ifndef TW_PLUGIN_NCCL_INTERPOSER_H
#define TW_PLUGIN_NCCL_INTERPOSER_H

#include "core/core.h"

TW_C_BEGIN

/** A communicator is made. With TW_INTERPOSE, the first time in a process: open libthinwire-nccl.so, which lies beside this library or
 *  where the linker looks, and let it redirect what the process's objects call of NCCL; after that, what objects call that were loaded
 *  since. If it cannot be, that is logged, once, and all stays as it is. Any thread. */
void tw_interposer_open(void);

TW_C_END

#endif
