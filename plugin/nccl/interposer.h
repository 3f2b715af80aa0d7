/** The interposer, opened by the net plugin: a job needs no LD_PRELOAD then. */
#ifndef TW_PLUGIN_NCCL_INTERPOSER_H
#define TW_PLUGIN_NCCL_INTERPOSER_H

#include "core/core.h"

TW_C_BEGIN

/** With TW_INTERPOSE, once in a process: open libthinwire-nccl.so, which lies beside this library or where the linker looks, and let
 *  it redirect what the process's objects call of NCCL. If it cannot be, that is logged, and all stays as it is. */
void tw_interposer_open(void);

TW_C_END

#endif
