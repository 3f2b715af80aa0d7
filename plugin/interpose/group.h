/** Calls between ncclGroupStart and ncclGroupEnd, of one thread: what is quantized waits until NCCL has
 *  launched the rest, and is run after it, in order. */
#ifndef TW_PLUGIN_INTERPOSE_GROUP_H
#define TW_PLUGIN_INTERPOSE_GROUP_H

#include "plugin/interpose/meet.h"
#include "plugin/interpose/replace.h"

TW_C_BEGIN

/** 1 between the outermost start and end of this thread. */
int tw_ip_group_is_open(void);
/** Keep a call until the group ends, which takes it. The configuration of `ready` need not outlive this.
 *  ncclSystemError: out of memory. */
ncclResult_t tw_ip_group_add(const tw_ip_ready_t *ready);
ncclResult_t tw_ip_group_start(void);
ncclResult_t tw_ip_group_end(void);
/** A communicator will be in *out when the group has ended, and meets there. ncclSystemError: out of
 *  memory. */
ncclResult_t tw_ip_group_expect(ncclComm_t *out, tw_ip_meeting_t *meeting);
/** The group ends, and nothing of it is done. */
void tw_ip_group_drop(void);

TW_C_END

#endif
