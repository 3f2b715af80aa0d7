/** Whose link is down? What rank 0 has heard of the other nodes, and when, and the decision that follows from
 *  it. Pure: no clock, no sockets.
 *
 *  A link that fails cuts a node off from all others. So if one node is silent while others are heard, its
 *  link has failed, and if all other nodes are silent at one time, it is rank 0's own link; a later complaint
 *  about rank 0 is judged in the same way. That takes two other nodes: with one, nobody can know which end of
 *  the link it was.
 *
 *  Not every moment in which no other node is heard is an outage: where ranks wait for processors, several
 *  may be late at once. What was sent during an outage arrives after it, while a rank that did not run has
 *  sent nothing, and says so (tw_outages_late). Such time proves nothing; without it nearly half of the
 *  silence must remain. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Signs of life from somewhere. */
typedef struct tw_silence {
    uint64_t heard_ns; /**< when the last one came */
    /** time since then in which this process or the sender did not run, which is not the link's fault */
    uint64_t late_ns;
    uint64_t from_ns, to_ns; /**< the last long silence that has ended */
    uint64_t excused_ns;     /**< time of that silence in which a process did not run */
} tw_silence_t;

typedef struct tw_outages {
    int world;
    const int *node_of;  /**< [world] borrowed; NULL: one rank per node */
    uint64_t long_ns;    /**< a silence so long is no accident */
    tw_silence_t *nodes; /**< [world], by the node's number */
    int *n_here;         /**< [world], ranks of each node that can still be heard */
    tw_silence_t others; /**< all nodes but rank 0's, taken together */
    uint64_t paused_ns;  /**< when this process last began to run again after a long pause; 0: never */
} tw_outages_t;

/** Begin, as if all ranks had just been heard. TW_ERR_NO_MEMORY. */
tw_status_t tw_outages_init(tw_outages_t *outages, int world, const int *node_of, uint64_t long_ns,
                            uint64_t now);
void tw_outages_cleanup(tw_outages_t *outages);
/** Note a sign of life from `rank`. */
void tw_outages_hear(tw_outages_t *outages, int rank, uint64_t now);
/** Note that `rank` did not run for late_ns. Rank 0: this process noticed it itself; another rank: it says so
 *  in its next sign of life. */
void tw_outages_late(tw_outages_t *outages, int rank, uint64_t late_ns);
/** Note that `rank` will not be heard any more, as it has left in order. */
void tw_outages_close(tw_outages_t *outages, int rank);
/** Note that this process did not run for pause_ns: nobody was silent then, but the others may have missed
 *  this process. */
void tw_outages_pause(tw_outages_t *outages, uint64_t pause_ns, uint64_t now);

/** Whom to blame when `rank` has been silent since `heard_ns`: that rank, or 0. */
int tw_outages_blame_silent(const tw_outages_t *outages, int rank, uint64_t heard_ns, uint64_t now);
/** Whom to blame when `rank` says that rank 0 is lost: that rank, or 0. */
int tw_outages_blame_complaint(const tw_outages_t *outages, int rank, uint64_t now);
/** Returns the one of `by` and `suspect` (which is not 0) to blame when `by` has lost its connection to
 *  `suspect`. */
int tw_outages_blame_suspicion(const tw_outages_t *outages, int by, int suspect, uint64_t now);

TW_C_END
