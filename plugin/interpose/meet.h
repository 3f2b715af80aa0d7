/** Finds out whether all ranks of a communicator have the interposer, with the same settings. Ranks ask a
 *  registry (registry.h), never one another over the communicator. The registry's address is in the
 *  communicator's id, in bytes that NCCL leaves zero: NCCL 2.19 to 2.32 fill 48 of 128 bytes. NCCL compares
 *  ids by all 128, so all ranks must have the same address there. */
#pragma once

#include "plugin/interpose/policy.h"

TW_C_BEGIN

/** One communicator's entry at the registry, and what this rank has learned there. A communicator that
 *  is split off uses its parent's meeting. Unless dropped, a meeting exists until the process ends. */
typedef struct tw_ip_meeting tw_ip_meeting_t;

/** Open a registry for an id that this process has made, and write the registry's address into the id. The id
 *  stays unchanged if that fails (logged), or if NCCL_COMM_ID is set, because then each rank makes the id
 *  itself. With an unchanged id, no call on the communicator is quantized. */
void tw_ip_meeting_invite(ncclUniqueId *id);
/** Register this rank, before NCCL makes a communicator. ncclSystemError (logged): no memory (*out is NULL),
 *  or this rank cannot know whether it is registered; then NCCL must not be called. */
ncclResult_t tw_ip_meeting_begin(const ncclUniqueId *id, int rank, int world, tw_ip_meeting_t **out);
/** Destroy a meeting, because NCCL did not make the communicator. */
void tw_ip_meeting_drop(tw_ip_meeting_t *meeting);
/** Create a meeting that has the answer `why`: its ranks need not ask, or cannot. NULL: out of memory. */
tw_ip_meeting_t *tw_ip_meeting_settled(tw_ip_reason_t why);
/** Register with a registry of rank 0 of the launcher's job, on the host MASTER_ADDR. This is for
 *  communicators that NCCL began before this process was redirected: their ids name no registry. Waits for
 *  rank 0's registry for at most TW_JOIN_TIMEOUT. Without the launcher's variables, nothing is quantized on
 *  these communicators. TW_ERR_PEER (logged): this rank cannot know whether it is registered. */
tw_status_t tw_ip_meeting_of_job(void);

/** Learn whether all ranks have the library: *why is then TW_IP_REPLACED. Blocks until the registry answers,
 *  which it does at once if all ranks have registered. `meeting` is NULL if the communicator was made without
 *  this library. ncclSystemError (logged): this rank cannot know, and must not go on. Any thread. */
ncclResult_t tw_ip_meeting_ask(tw_ip_meeting_t *meeting, tw_ip_reason_t *why);

TW_C_END
