/** What the members measure, before they agree on a model (estimate.h). */
#ifndef TW_COLLECTIVES_MODEL_MEASURE_H
#define TW_COLLECTIVES_MODEL_MEASURE_H

#include "collectives/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A reading of one tier; all doubles, the larger the slower; all 0 without such a link. */
typedef struct tw_tier_sample {
    double alpha_sec;   /**< as in tw_coll_tier_t */
    double message_sec; /**< likewise */
    double trip_sec;    /**< from a message of TW_COLL_TURN_BYTES, alone, to its acknowledgement */
    double beta_sec;    /**< as in tw_coll_tier_t */
    double cpu_sec;     /**< processor time of this rank per byte of the node's link; spinning counts */
} tw_tier_sample_t;

/** A reading of the processor, per byte of the plain side; all doubles. */
typedef struct tw_cpu_sample {
    double copy_sec, reduce_sec;
    double encode_sec[TW_COLL_MODEL_ENCODERS], decode_sec[TW_COLL_MODEL_DECODERS];
} tw_cpu_sample_t;

/** All doubles. */
typedef struct tw_measure_sample {
    tw_tier_sample_t inter, node;
    tw_cpu_sample_t cpu;
} tw_measure_sample_t;

/** The machine a member runs on: nodes may share one. */
typedef struct tw_measure_host {
    uint64_t boot; /**< the same on all members of a machine */
    double cores;  /**< that the member may use */
} tw_measure_host_t;

void tw_measure_host_init(tw_measure_host_t *out);

/** One reading of copying, adding and every codec, on the calling thread. */
tw_status_t tw_measure_processor(tw_cpu_sample_t *out);

/** Processor time of the calling thread. */
double tw_measure_thread_sec(void);

/** The neighbours on one tier: every member sends to the next node, or to the next member of its own. */
typedef struct tw_measure_link {
    const tw_coll_peers_t *peers; /**< borrowed */
    int to;                       /**< member, or -1: nobody on this tier */
    int *from;                    /**< [n_from] members */
    int n_from;
    int sharing;        /**< members of this node that send at the same time */
    size_t burst_bytes; /**< of a message, when speed is measured: grows until the clock can tell */
} tw_measure_link_t;

tw_status_t tw_measure_link_init(tw_measure_link_t *link, const tw_coll_peers_t *peers, int inter);
void tw_measure_link_cleanup(tw_measure_link_t *link);
/** One reading: latency, speed, turn. Collective over all members, also those without such a link. */
tw_status_t tw_measure_link_read(tw_measure_link_t *link, tw_tier_sample_t *out);

#ifdef __cplusplus
}
#endif

#endif
