/** Who of the job is alive: a thread per rank that keeps the connections of the rendezvous, a star around
 *  rank 0. Read this header, state.h, outage.c, then server.c and client.c, the two sides; thread.c is what
 *  drives them.
 *
 *  Rank 0 and every other rank send each other a sign of life ten times per TW_PEER_TIMEOUT, from a thread of
 *  their own, so a rank that computes is not taken for dead but one that is stopped is. It also says from
 *  whom data has come since the last one: on a link with a long queue signs of life are as late as the data
 *  before them, but whoever gets some of those data knows that their sender was alive when it sent them. So a
 *  stopped process is noticed later, by as long as its socket's buffer takes to empty. That a machine
 *  acknowledges data says nothing of the process on it, so it does not count.
 *
 *  Where a queue has just become long, as on a link that has become slow, nothing comes from a rank whose
 *  signs of life wait behind another's data. So while data come in from any other node, all ranks of other
 *  nodes may be silent for 5 s more. A rank that is dead for sure has failed after that: those that need it
 *  stop sending sooner.
 *
 *  Rank 0 notices when a connection closes, or is silent for 0.7 of the timeout (the lowest rank, if several
 *  are), and tells everyone before it acts on that itself; a rank that loses rank 0 names rank 0, and tells
 *  it. If another rank comes to a verdict, it tells rank 0 first, and the verdict counts once rank 0 repeats
 *  it: so all survivors name the same rank. With the link of rank r's node down, the others name r, and the
 *  ranks behind it name 0; with rank 0's own link down, all name 0. Which of the two it was, rank 0 tells
 *  from what it heard of the other nodes meanwhile (outage.h), also when the link has come back; with one
 *  other node nobody can know, and each side names the other. The first verdict stands.
 *
 *  A rank that leaves in order says goodbye, with the number of messages it has sent to each other rank:
 *  whoever has received them all and still waits for that rank knows that it waits in vain. It lingers for up
 *  to 2 s until the others have said so too. Rank 0 stays until all have, for as long as that takes: without
 *  it nobody watches. If it ends before, it has failed, even if it said goodbye.
 *
 *  All functions may be called from one thread besides the monitor's own. Private to the folder. */
#pragma once

#include "transport/control/connection.h"

TW_C_BEGIN

typedef struct tw_monitor tw_monitor_t;

typedef struct tw_monitor_params {
    int rank, world;
    const int *node_of; /**< [world] borrowed until the end; NULL: one rank per node */
    /** connections of the rendezvous, owned from now on (also on failure); NULL in a world of 1 */
    tw_connection_t *connections;
    int n_connections;
    double peer_timeout_sec;
    double join_timeout_sec; /**< limit of tw_monitor_exchange */
} tw_monitor_params_t;

tw_status_t tw_monitor_create(const tw_monitor_params_t *params, tw_monitor_t **out);
/** Give all ranks some bytes and get those of all: lists [world], valid until the next exchange or the end.
 *  Collective; blocks until all are there. TW_ERR_PEER: a rank has failed, or has not come within the join
 *  timeout; TW_ERR_NO_MEMORY; both logged. */
tw_status_t tw_monitor_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own, tw_msg_blob_t *lists);
/** Begin to leave. counts ([world], copied): leave in order, saying goodbye and lingering for the others'
 *  goodbyes as described above; NULL: just leave. Only the first call counts. */
void tw_monitor_leave(tw_monitor_t *monitor, const uint64_t *counts);
int tw_monitor_has_left(const tw_monitor_t *monitor);
/** Leave, unless that has begun, wait until it is over, and free the monitor. Accepts NULL. */
void tw_monitor_destroy(tw_monitor_t *monitor);

/** The rank whose failure ended the job, or -1. */
int tw_monitor_failed_rank(const tw_monitor_t *monitor);
/** Returns 1 if `rank` has said goodbye; then *count is the number of messages that it sent to this rank. */
int tw_monitor_gone(const tw_monitor_t *monitor, int rank, uint64_t *count);
/** A descriptor that is readable when a verdict or a goodbye has come, until tw_monitor_clear_event. */
int tw_monitor_event_fd(const tw_monitor_t *monitor);
void tw_monitor_clear_event(tw_monitor_t *monitor);

/** Note that data has come from `rank`: it counts as a sign of life, since on a busy link those wait behind
 *  data. */
void tw_monitor_heard(tw_monitor_t *monitor, int rank);
/** End the job because of `rank` (possibly this one). Returns at once; the verdict follows soon, and may name
 *  another rank that failed before. */
void tw_monitor_fail(tw_monitor_t *monitor, int rank, const char *reason);
/** Report that the data connection to `rank` broke, or is dead. Rank 0 checks whether that rank has left, or
 *  fails it after a quarter of the timeout, and says why. */
void tw_monitor_suspect(tw_monitor_t *monitor, int rank, const char *why);

TW_C_END
