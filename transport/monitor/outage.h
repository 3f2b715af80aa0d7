/** Whose link is down? What rank 0 has heard of the other nodes, and when, and the decision that follows from
 *  it. Pure: no clock, no sockets.
 *
 *  A link that fails cuts a node off from all others. So what is silent on one node while other nodes are
 *  heard is behind that node's link, and when all other nodes are silent at one time it is rank 0's own link;
 *  a rank that complains of rank 0 afterwards is judged by the same. That takes two other nodes: with one,
 *  nobody can know which end of the link it was.
 *
 *  Nor is any moment in which no other node is heard an outage: where ranks wait for processors, several may
 *  be late at once. What was sent during an outage comes after it, while a rank that did not run has sent
 *  nothing, and says so (tw_outages_late). That time proves nothing, and what remains must be nearly half of
 *  the silence that is judged. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Signs of life from somewhere. */
typedef struct tw_silence {
    uint64_t heard_ns; /**< the last one */
    /** so much of the silence since then this process or the sender did not run: not the link's fault */
    uint64_t late_ns;
    uint64_t from_ns, to_ns; /**< the last long silence that is over */
    uint64_t excused_ns;     /**< its late_ns */
} tw_silence_t;

typedef struct tw_outages {
    int world;
    const int *node_of;  /**< [world] borrowed; NULL: one rank per node */
    uint64_t long_ns;    /**< a silence so long is no accident */
    tw_silence_t *nodes; /**< [world] by number of the node */
    int *n_here;         /**< [world] ranks of the node that can still be heard */
    tw_silence_t others; /**< all nodes but rank 0's, as one */
    uint64_t paused_ns;  /**< when this process last began to run again after a long pause; 0: never */
} tw_outages_t;

/** Begin, as if all ranks had just been heard. TW_ERR_NO_MEMORY. */
tw_status_t tw_outages_init(tw_outages_t *outages, int world, const int *node_of, uint64_t long_ns,
                            uint64_t now);
void tw_outages_cleanup(tw_outages_t *outages);
/** A sign of life from `rank`. */
void tw_outages_hear(tw_outages_t *outages, int rank, uint64_t now);
/** `rank` did not run for late_ns. 0: this process itself noticed; another rank: its sign of life, heard
 *  next, says so. */
void tw_outages_late(tw_outages_t *outages, int rank, uint64_t late_ns);
/** `rank` will not be heard any more, and that is in order. */
void tw_outages_close(tw_outages_t *outages, int rank);
/** This process did not run for pause_ns: that time is nobody's silence, but the others may have missed this
 *  process. */
void tw_outages_pause(tw_outages_t *outages, uint64_t pause_ns, uint64_t now);

/** Whom to blame when `rank` has been silent since `heard_ns`: that rank, or 0. */
int tw_outages_blame_silent(const tw_outages_t *outages, int rank, uint64_t heard_ns, uint64_t now);
/** Whom to blame when `rank` says that rank 0 is lost: that rank, or 0. */
int tw_outages_blame_complaint(const tw_outages_t *outages, int rank, uint64_t now);
/** Whom to blame when `by` has lost its connection to `suspect`, which is not 0: one of the two. */
int tw_outages_blame_suspicion(const tw_outages_t *outages, int by, int suspect, uint64_t now);

TW_C_END
