/** Who of the job is alive: a thread per rank that keeps the connections of the rendezvous, a star around
 *  rank 0. Read this header, state.h, outage.c, then server.c and client.c, the two sides; thread.c is what
 *  drives them.
 *
 *  Every rank sends a sign of life there and back ten times per TW_PEER_TIMEOUT, from a thread of its own, so
 *  a rank that computes is not taken for dead but one that is stopped is. It also says from whom data has
 *  come since the last one: on a link with a long queue signs of life are as late as the data before them,
 *  but whoever gets those data, or a part of them, knows that their sender is alive, or was when it sent
 *  them: a process that is stopped is so for as much longer as its socket's buffer takes to empty. That a
 *  machine acknowledges data says nothing of the process on it, so it does not count.
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
 *  it nobody watches. Should it end before, it has failed, goodbye or not.
 *
 *  All functions may be called from one thread besides the monitor's own. Private to the folder. */
#pragma once

#include "transport/control/connection.h"

TW_C_BEGIN

typedef struct tw_monitor tw_monitor_t;

typedef struct tw_monitor_params {
    int rank, world;
    const int *node_of;           /**< [world] borrowed until the end; NULL: one rank per node */
    tw_connection_t *connections; /**< from the rendezvous, taken (also on failure); NULL in a world of 1 */
    int n_connections;
    double peer_timeout_sec;
    double join_timeout_sec; /**< for tw_monitor_exchange */
} tw_monitor_params_t;

tw_status_t tw_monitor_create(const tw_monitor_params_t *params, tw_monitor_t **out);
/** Everyone gives some bytes and gets everyone's: lists [world], valid until the next exchange or the end.
 *  Collective; blocks until all are there. TW_ERR_PEER: a rank has failed, or has not come within the join
 *  timeout; TW_ERR_NO_MEMORY; both logged. */
tw_status_t tw_monitor_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own, tw_msg_blob_t *lists);
/** Begin to leave; with counts ([world], copied): in order, saying goodbye, and lingering for the others'
 *  goodbyes as said above. Only the first call counts. */
void tw_monitor_leave(tw_monitor_t *monitor, const uint64_t *counts);
/** Whether leaving is over. */
int tw_monitor_has_left(const tw_monitor_t *monitor);
/** Leaves, if that has not begun, and waits until it is over. Accepts NULL. */
void tw_monitor_destroy(tw_monitor_t *monitor);

/** The rank whose failure ended the job, or -1. */
int tw_monitor_failed_rank(const tw_monitor_t *monitor);
/** 1 if `rank` has said goodbye; then *count is the number of messages it sent to this rank. */
int tw_monitor_gone(const tw_monitor_t *monitor, int rank, uint64_t *count);
/** Readable when one of the above has changed; cleared by tw_monitor_clear_event. */
int tw_monitor_event_fd(const tw_monitor_t *monitor);
void tw_monitor_clear_event(tw_monitor_t *monitor);

/** Data has come from `rank`: a sign of life, as good as one of its monitor. Where a link is busy, those wait
 *  behind its data. */
void tw_monitor_heard(tw_monitor_t *monitor, int rank);
/** End the job because of `rank` (possibly this one). Returns at once; the verdict follows soon, and may name
 *  another rank that failed before. */
void tw_monitor_fail(tw_monitor_t *monitor, int rank, const char *reason);
/** The data connection to `rank` broke, or is dead: rank 0 will see whether it has left, or fail it after a
 *  quarter of the timeout, and say why. */
void tw_monitor_suspect(tw_monitor_t *monitor, int rank, const char *why);

TW_C_END
