/** What the members measure, before they agree on a model. */
#ifndef TW_COLLECTIVES_MEASURE_H
#define TW_COLLECTIVES_MEASURE_H

#include "collectives/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a member saw of one tier; all 0 without such a link. */
typedef struct tw_tier_sample {
    double alpha_sec, message_sec, turn_sec, beta_sec, busy;
} tw_tier_sample_t;

/** All doubles, the larger the slower. */
typedef struct tw_measure_sample {
    tw_tier_sample_t inter, node;
    double copy_sec, reduce_sec;
    double encode_sec[TW_COLL_MODEL_ENCODERS], decode_sec[TW_COLL_MODEL_DECODERS];
} tw_measure_sample_t;

/** The machine a member runs on: nodes may share one. */
typedef struct tw_measure_host {
    uint64_t boot; /**< the same on all members of a machine */
    double cores;  /**< that the member may use */
} tw_measure_host_t;

void tw_measure_host(tw_measure_host_t *out);

/** Copying, adding and every codec, on the calling thread, which has a core for itself: the times from copy_sec on. */
tw_status_t tw_measure_processor(tw_measure_sample_t *out);

/** Processor time of the calling thread. */
double tw_measure_thread_sec(void);

#ifdef __cplusplus
}
#endif

#endif
