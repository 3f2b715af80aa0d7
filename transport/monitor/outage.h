/** Decides whose link is down, from what rank 0 has heard of the other nodes and when. Pure functions: no
 *  clock, no sockets.
 *
 *  A link that fails cuts its node off from all others. So if one node is silent while others are heard, that
 *  node's link has failed. If all other nodes are silent at the same time, rank 0's own link has failed. A
 *  later complaint about rank 0 is judged in the same way. This needs two other nodes: with one, nobody can
 *  know which end of the link failed.
 *
 *  Silence of all other nodes is not always an outage: where ranks wait for processors, several may be late
 *  at once. Messages sent during an outage arrive after it. But a rank that did not run has sent nothing, and
 *  says so (tw_outages_late). That time proves nothing. After it is subtracted, nearly half of the silence
 *  must remain to count as an outage. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Signs of life from one node, or from several together. */
typedef struct tw_silence {
    uint64_t heard_ns; /**< when the last sign of life came */
    /** time since heard_ns in which this process or the sender did not run: not the link's fault */
    uint64_t late_ns;
    uint64_t from_ns, to_ns; /**< begin and end of the last long silence that has ended */
    uint64_t excused_ns;     /**< time in that silence in which a process did not run */
} tw_silence_t;

typedef struct tw_outages {
    int world;
    const int *node_of;  /**< [world] borrowed; NULL: one rank per node */
    uint64_t long_ns;    /**< a silence of this length is no accident */
    tw_silence_t *nodes; /**< [world], by the node's number */
    int *n_here;         /**< [world], ranks of each node that can still be heard */
    tw_silence_t others; /**< all nodes but rank 0's, taken together */
    uint64_t paused_ns;  /**< when this process last began to run again after a long pause; 0: never */
} tw_outages_t;

/** Initialize, as if all ranks had just been heard. TW_ERR_NO_MEMORY. */
tw_status_t tw_outages_init(tw_outages_t *outages, int world, const int *node_of, uint64_t long_ns,
                            uint64_t now);
void tw_outages_cleanup(tw_outages_t *outages);
/** Note a sign of life from `rank`. */
void tw_outages_hear(tw_outages_t *outages, int rank, uint64_t now);
/** Note that `rank` did not run for late_ns. This process noticed that itself (rank 0), or the rank reported
 *  it in its next heartbeat. */
void tw_outages_late(tw_outages_t *outages, int rank, uint64_t late_ns);
/** Note that `rank` has left in order and will not be heard again. */
void tw_outages_close(tw_outages_t *outages, int rank);
/** Note that this process did not run for pause_ns. Nobody counts as silent for that time, but the others may
 *  have missed this process. */
void tw_outages_pause(tw_outages_t *outages, uint64_t pause_ns, uint64_t now);

/** Return the rank to blame when `rank` has been silent since `heard_ns`: that rank, or 0. */
int tw_outages_blame_silent(const tw_outages_t *outages, int rank, uint64_t heard_ns, uint64_t now);
/** Return the rank to blame when `rank` says that it has lost rank 0: that rank, or 0. */
int tw_outages_blame_complaint(const tw_outages_t *outages, int rank, uint64_t now);
/** Return the rank to blame when `by` has lost its connection to `suspect` (not 0): `by` or `suspect`. */
int tw_outages_blame_suspicion(const tw_outages_t *outages, int by, int suspect, uint64_t now);

TW_C_END
