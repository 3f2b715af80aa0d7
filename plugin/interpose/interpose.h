/** libthinwire-nccl.so: NCCL's collectives between nodes, quantized, for a job that knows nothing of it. It
 *  stands between the job and libnccl: preloaded, or put there by the net plugin. Read in this order:
 *    wrappers.c    the functions that a job calls
 *    nccl_calls.h  NCCL's real functions, and one call of a collective
 *    policy.h      which calls are quantized, and how
 *    meet.h        whether all ranks of a communicator have this library; registry.h, where they tell
 *    comms.h       communicators, and where their ranks are
 *    replace.h     a call done by the library's collectives, on the caller's stream and communicator
 *    group.h       calls between ncclGroupStart and ncclGroupEnd
 *    report.h      what was saved, and what was left alone
 *    gpu.h         what else is needed of CUDA
 *    redirect.h    calls of objects that are in the process already
 *    lines.h       where log lines go
 *
 *  Here is what a job may call, found with dlsym; see TW_NCCL_OPTION_PLAIN for a single call. */
#pragma once

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** vendorId of an ncclConfigExt_t that is for this library. */
#define TW_NCCL_VENDOR 0x7457
/** optionId; its value is an int, 1: this call stays plain. It must be the same on all ranks, like all of a
 *  call's configuration. */
#define TW_NCCL_OPTION_PLAIN 1

/** Use other values for TW_INTERPOSE_GATHERS and TW_INTERPOSE_SUMS from now on: "plain", or a codec; NULL:
 *  leave it. On all ranks, between the same calls; any thread, but not between ncclGroupStart and
 *  ncclGroupEnd. Returns 0 (ncclSuccess), or 4 (ncclInvalidArgument, the reason is logged) and nothing has
 *  changed. */
int tw_nccl_set_policy(const char *gathers, const char *sums);

/** The net plugin calls this for each communicator that NCCL makes. The first call lets the ranks of the job
 *  meet (meet.h) and redirects the calls of NCCL that the objects of this process make to this library; later
 *  ones do so for objects that were loaded since. Returns how many addresses it has changed, perhaps none, or
 *  -1: it failed, and no communicator may be made (the reason is logged, once). Any thread. */
int tw_nccl_redirect(void);
/** Returns 1 if the job's calls come here: it has made, or is making, a communicator through this library. */
int tw_nccl_is_wrapped(void);
/** For the net plugin, which NCCL does not tell: the secret that the job has given ncclSetEncryption for
 *  NCCL's own sockets; NULL: none. The text stays valid. Any thread. */
const char *tw_nccl_secret(void);
/** For the net plugin: from now on all lines go to NCCL's logger; NULL: they stay where they are. Misspelt
 *  variables are named there, unless that was done before, here or by the caller (has_named). Any thread. */
void tw_nccl_log_to(tw_nccl_logger_t logger, int has_named);

TW_C_END
