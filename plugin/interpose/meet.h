/** Whether all ranks of a communicator have the interposer, with the same settings. They ask at a registry
 *  (registry.h), never over the communicator. The way to the registry is in the communicator's id, in bytes
 *  that NCCL leaves zero (2.19 to 2.32 use 48 of 128, and compare them all). */
#pragma once

#include "plugin/interpose/policy.h"

TW_C_BEGIN

/** Where the ranks of a communicator meet, and those of all that are split off it. It exists until the
 *  process ends. */
typedef struct tw_ip_meeting tw_ip_meeting_t;

/** This process has made an id: open a registry for it, and write where that is into the id. If that fails
 *  (logged), or if NCCL_COMM_ID is set, so that each rank makes the id by itself, the id stays as it is, and
 *  the communicator is left alone. */
void tw_ip_meeting_invite(ncclUniqueId *id);
/** NCCL is about to make a communicator of this id: register. NULL: out of memory. ncclSystemError: this rank
 *  cannot know whether it is registered (logged), and NCCL is not to be asked. */
ncclResult_t tw_ip_meeting_begin(const ncclUniqueId *id, int rank, int world, tw_ip_meeting_t **out);
/** Forget a meeting: NCCL did not make the communicator after all. */
void tw_ip_meeting_drop(tw_ip_meeting_t *meeting);
/** A meeting whose answer is known without asking: all ranks know it, or none of them can ask. */
tw_ip_meeting_t *tw_ip_meeting_settled(tw_ip_reason_t why);
/** Calls of this process have been redirected after NCCL had begun to make communicators: their ranks, all of
 *  the launcher's job, meet at a registry at rank 0 (MASTER_ADDR). Blocks until rank 0 opens it, for
 *  TW_JOIN_TIMEOUT at most. TW_ERR_PEER (logged): this rank cannot know whether it is registered. Where there
 *  are no launcher's variables, those communicators are left alone. */
tw_status_t tw_ip_meeting_of_job(void);

/** Learn whether all ranks have the library: *why is TW_IP_REPLACED then. Blocks until the answer comes,
 *  which is at once when all ranks of the communicator have registered. meeting NULL: this library has not
 *  seen the communicator being made. ncclSystemError, ncclInvalidUsage (logged): this rank cannot know, and
 *  must not go on. Any thread. */
ncclResult_t tw_ip_meeting_ask(tw_ip_meeting_t *meeting, tw_ip_reason_t *why);

TW_C_END
