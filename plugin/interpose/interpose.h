/** libthinwire-nccl.so quantizes NCCL's collectives between nodes for a job that was not changed. It
 *  intercepts the job's calls of libnccl, because it is preloaded or because the net plugin redirects them.
 *  Read in this order:
 *    wrappers.c    the functions that a job calls
 *    nccl_calls.h  NCCL's real functions, and one call of a collective
 *    policy.h      which calls are quantized, and how
 *    meet.h        whether all ranks of a communicator have this library, by a registry (registry.h)
 *    comms.h       communicators, and whether they span nodes
 *    replace.h     runs a call by the library's collectives, on the caller's stream and communicator
 *    group.h       calls between ncclGroupStart and ncclGroupEnd
 *    report.h      the bytes that were saved, and the calls that were left to NCCL
 *    gpu.h         other calls of CUDA
 *    redirect.h    redirects the calls of shared objects that the process has loaded
 *    lines.h       where log lines go
 *
 *  A job may call the functions below, which it finds with dlsym. TW_NCCL_OPTION_PLAIN exempts one call. */
#pragma once

#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** vendorId of an ncclConfigExt_t (one option in a call's configuration) that is for this library. */
#define TW_NCCL_VENDOR 0x7457
/** optionId. Its value is an int; 1 means that this call stays plain (not quantized). All ranks must pass the
 *  same value, as they must for a call's whole configuration. */
#define TW_NCCL_OPTION_PLAIN 1

/** Override TW_INTERPOSE_GATHERS and TW_INTERPOSE_SUMS from now on. Each text is "plain" or a codec; NULL
 *  keeps the present value. All ranks must call this between the same collectives, and outside of groups. Any
 *  thread. Returns 0 (ncclSuccess), or 4 (ncclInvalidArgument, logged) without changing anything. */
int tw_nccl_set_policy(const char *gathers, const char *sums);

/** The net plugin calls this for each communicator that NCCL makes. The first call finds all shared objects
 *  of this process that call NCCL, redirects those calls to this library, and lets the job's ranks meet
 *  (meet.h). Later calls redirect objects that were loaded since. Returns the number of addresses changed,
 *  which may be 0. Returns -1 (logged, once) on failure: then no communicator may be made. Any thread. */
int tw_nccl_redirect(void);
/** Returns 1 if the job's calls reach this library: it has begun to make a communicator through a wrapper. */
int tw_nccl_is_wrapped(void);
/** Returns the secret that the job gave ncclSetEncryption for NCCL's own sockets, or NULL if it gave none.
 *  The net plugin calls this, because NCCL does not tell it the secret. The text stays valid. Any thread. */
const char *tw_nccl_secret(void);
/** The net plugin calls this to send all further log lines to NCCL's logger; NULL changes nothing. Warns of
 *  misspelt TW_ variables, unless this library or the caller (has_named: 1) has done so. Any thread. */
void tw_nccl_log_to(tw_nccl_logger_t logger, int has_named);

TW_C_END
