/** Calls of one thread between ncclGroupStart and ncclGroupEnd. Those that are to be quantized wait until
 *  NCCL has launched the others, and then run in order. */
#pragma once

#include "plugin/interpose/meet.h"
#include "plugin/interpose/replace.h"

TW_C_BEGIN

/** 1 between the outermost start and end of this thread. */
int tw_ip_group_is_open(void);
/** Keep a call until the group ends. The configuration of `ready` need not outlive this. ncclSystemError: out
 *  of memory. */
ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready);
ncclResult_t tw_ip_group_start(void);
ncclResult_t tw_ip_group_end(void);
/** Expect a communicator that comes of `parent`, whose ranks meet at `meeting`: *out will have it when the
 *  group has ended, or later, when NCCL is done in the background. ncclSystemError: out of memory. */
ncclResult_t tw_ip_group_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting);
/** Drop the calls: the group ends without running any of them. */
void tw_ip_group_drop(void);

TW_C_END
