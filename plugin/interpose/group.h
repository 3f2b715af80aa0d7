/** Calls of one thread between ncclGroupStart and ncclGroupEnd. Those that are quantized wait until NCCL has
 *  launched the others, and run then, in order. */
#pragma once

#include "plugin/interpose/meet.h"
#include "plugin/interpose/replace.h"

TW_C_BEGIN

/** 1 between the outermost start and end of this thread. */
int tw_ip_group_is_open(void);
/** Keep a call; the end of the group takes it. The configuration of `ready` need not outlive this.
 *  ncclSystemError: out of memory. */
ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready);
ncclResult_t tw_ip_group_start(void);
ncclResult_t tw_ip_group_end(void);
/** When the group has ended, or what NCCL goes on with then in the background, *out will have a communicator
 *  that comes of `parent`, whose ranks meet at `meeting`. ncclSystemError: out of memory. */
ncclResult_t tw_ip_group_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting);
/** The group ends without running any of the calls. */
void tw_ip_group_drop(void);

TW_C_END
