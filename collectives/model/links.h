/** Measuring links: all members stream to a neighbour at once, as they do in a collective operation, so that
 *  ranks that share a link or a processor are measured sharing it. */
#ifndef TW_COLLECTIVES_MODEL_LINKS_H
#define TW_COLLECTIVES_MODEL_LINKS_H

#include "collectives/model/bootstrap.h"
#include "collectives/model/sample.h"

TW_C_BEGIN

/** The neighbours on one tier: every member sends to the next node, or to the next member of its own node. */
typedef struct tw_measure_link {
    tw_bootstrap_t *boot; /**< borrowed */
    int to;               /**< member, or -1: no neighbour on this tier */
    int *from;            /**< [n_from] members */
    int n_from;
    int sharing;        /**< members of this node that send at the same time */
    size_t burst_bytes; /**< of a message, when speed is measured: grows until the clock can tell */
} tw_measure_link_t;

/** inter: 1 for the tier between nodes, 0 for the one inside a node. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_measure_link_init(tw_measure_link_t *link, tw_bootstrap_t *boot, int inter);
void tw_measure_link_cleanup(tw_measure_link_t *link);
/** One reading of latency, speed and turn. Collective over all members, also those without such a link. */
tw_status_t tw_measure_link_read(tw_measure_link_t *link, tw_tier_sample_t *out);

TW_C_END

#endif
