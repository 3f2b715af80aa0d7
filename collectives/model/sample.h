/** Readings: what a member of a communicator measures, before the members agree on a model. Times are in
 *  seconds or seconds per byte, so that of two readings the larger is the slower. */
#ifndef TW_COLLECTIVES_MODEL_SAMPLE_H
#define TW_COLLECTIVES_MODEL_SAMPLE_H

#include "collectives/model/model.h"

TW_C_BEGIN

/** One reading of a tier; all 0 if this member has no such link. Only doubles. */
typedef struct tw_tier_sample {
    double alpha_sec;   /**< as in tw_coll_tier_t */
    double message_sec; /**< likewise */
    double trip_sec;    /**< from posting a single message of TW_COLL_TURN_BYTES to its acknowledgement */
    double beta_sec;    /**< as in tw_coll_tier_t */
    double cpu_sec;     /**< processor time of this rank per byte of the node's link; spinning counts */
} tw_tier_sample_t;

/** Plain bytes of the short lossless message that is measured. */
#define TW_SAMPLE_SHORT_BYTES ((size_t)16 << 10)

/** One reading of the processor, per byte of the plain tensor. Only doubles. */
typedef struct tw_cpu_sample {
    double copy_sec, reduce_sec;
    double encode_sec[TW_COLL_MODEL_ENCODERS], decode_sec[TW_COLL_MODEL_DECODERS];
    double encode_short_sec, decode_short_sec; /**< of the short message, which has tables of its own */
} tw_cpu_sample_t;

/** Only doubles. */
typedef struct tw_measure_sample {
    tw_tier_sample_t inter, node;
    tw_cpu_sample_t cpu;
} tw_measure_sample_t;

/** The machine that a member runs on; nodes may share one. */
typedef struct tw_measure_host {
    uint64_t boot; /**< the same for all members on a machine */
    double cores;  /**< that the member may use */
} tw_measure_host_t;

/* ---- processor.c --------------------------------------------------------------------------------------- */

/** One reading of copying, adding and every codec, on the calling thread. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_measure_processor(tw_cpu_sample_t *out);

/** Processor time of the calling thread. */
double tw_measure_thread_sec(void);

void tw_measure_host_init(tw_measure_host_t *out);

TW_C_END

#endif
