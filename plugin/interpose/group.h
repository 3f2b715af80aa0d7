/** Calls of one thread between ncclGroupStart and ncclGroupEnd. Calls that will be quantized are kept until
 *  ncclGroupEnd has launched NCCL's own calls, and then run in order. */
#pragma once

#include "plugin/interpose/meet.h"
#include "plugin/interpose/replace.h"

TW_C_BEGIN

/** Returns 1 between the outermost ncclGroupStart and ncclGroupEnd of the calling thread. */
int tw_ip_group_is_open(void);
/** Keep a call until the group ends. Copies `ready` without its configuration. ncclSystemError: out of
 *  memory; `ready` was dropped. */
ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready);
ncclResult_t tw_ip_group_start(void);
ncclResult_t tw_ip_group_end(void);
/** Note that NCCL will derive a communicator from `parent`, and that its ranks meet at `meeting`. NCCL writes
 *  the handle to *out at the group's end, or later in the background. ncclSystemError: out of memory. */
ncclResult_t tw_ip_group_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting);
/** End the group without running the calls that were kept. */
void tw_ip_group_drop(void);

TW_C_END
