/** Detects which ranks of the job are alive. Each rank has a monitor thread, which keeps the connections of
 *  the rendezvous: a star around rank 0. Read this header, state.h and outage.c, then the two sides, server.c
 *  and client.c, and last thread.c, which drives them.
 *
 *  Rank 0 and every other rank send each other a heartbeat ten times per TW_PEER_TIMEOUT. The monitor thread
 *  sends it, so a rank that is busy computing counts as alive, but one that is stopped does not. A heartbeat
 *  also lists the ranks from which data has arrived since the last one. On a link with a long queue,
 *  heartbeats wait behind data; but data that arrive show that their sender was alive when it sent them. So a
 *  stopped process is noticed later by the time that its socket's buffer takes to empty. TCP acknowledgments
 *  do not count, because the machine sends them whether the process runs or not.
 *
 *  When a queue has just become long, as on a link that has become slow, nothing arrives from a rank with
 *  heartbeats that wait behind another rank's data. So while data come in from any other node, all ranks of
 *  other nodes may be silent for 5 s more. A rank still silent after that has failed: ranks that wait for a
 *  dead rank stop sending sooner than that.
 *
 *  Rank 0 notices when a connection closes, or is silent for 0.7 of the timeout. If several ranks are silent,
 *  it blames the lowest. It tells everyone the verdict before it acts on it. A rank that loses rank 0 blames
 *  rank 0 and reports that. Any other verdict of a rank goes to rank 0 first and counts once rank 0 repeats
 *  it, so all survivors name the same rank. If the link of rank r's node is down, the others name r, and the
 *  ranks behind that link name 0. If rank 0's own link is down, all name 0. Rank 0 distinguishes the two
 *  cases by what it heard from other nodes meanwhile (outage.h), also after the link has come back. With only
 *  one other node that is impossible, and each side names the other. The first verdict stands.
 *
 *  A rank that leaves in order says goodbye, with the number of messages it has sent to each other rank. A
 *  rank that has received all of them and still waits for that rank then knows that nothing more will come.
 *  The leaving rank stays for up to 2 s until the others have said goodbye, too. Rank 0 stays until all have,
 *  however long, because without it nobody watches. If it ends before, it has failed, even after a goodbye.
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
    double join_timeout_sec; /**< time limit of tw_monitor_exchange */
} tw_monitor_params_t;

tw_status_t tw_monitor_create(const tw_monitor_params_t *params, tw_monitor_t **out);
/** Send some bytes to all ranks and get the bytes of all: lists [world], valid until the next exchange or
 *  destroy. Collective; blocks until all have arrived. TW_ERR_PEER: a rank has failed, or has sent nothing
 *  within the join timeout; TW_ERR_FORMAT: rank 0 has sent malformed lists; both logged. */
tw_status_t tw_monitor_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own, tw_msg_blob_t *lists);
/** Begin to leave. counts ([world], copied): how many messages were sent to each rank, for the goodbye; NULL:
 *  leave without a goodbye. Only the first call has an effect. */
void tw_monitor_leave(tw_monitor_t *monitor, const uint64_t *counts);
int tw_monitor_has_left(const tw_monitor_t *monitor);
/** Leave if not done yet, wait until the monitor has left, and free it. Accepts NULL. */
void tw_monitor_destroy(tw_monitor_t *monitor);

/** Return the rank that failed and so ended the job, or -1. */
int tw_monitor_failed_rank(const tw_monitor_t *monitor);
/** Return 1 if `rank` has said goodbye. Then *count is the number of messages that it sent to this rank. */
int tw_monitor_gone(const tw_monitor_t *monitor, int rank, uint64_t *count);
/** Return a descriptor, readable from a verdict or a goodbye on, until tw_monitor_clear_event. */
int tw_monitor_event_fd(const tw_monitor_t *monitor);
void tw_monitor_clear_event(tw_monitor_t *monitor);

/** Note that data has come from `rank`. It counts as a sign of life, since on a busy link heartbeats wait
 *  behind data. */
void tw_monitor_heard(tw_monitor_t *monitor, int rank);
/** End the job because of `rank` (possibly this one). Returns at once. The verdict follows soon, and may name
 *  another rank that failed before. */
void tw_monitor_fail(tw_monitor_t *monitor, int rank, const char *reason);
/** Report that the data connection to `rank` is broken or dead. If that rank does not say goodbye within a
 *  quarter of the timeout, rank 0 decides which rank has failed, and logs why. */
void tw_monitor_suspect(tw_monitor_t *monitor, int rank, const char *why);

TW_C_END
