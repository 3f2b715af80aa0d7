/** Measures the cost model when a communicator is made. A reading is what one member measures. All times are
 *  in seconds or seconds per byte, so the larger of two readings is the slower one. */
#pragma once

#include "collectives/model/bootstrap.h"
#include "collectives/model/model.h"

TW_C_BEGIN

/* ---- measure.c ----------------------------------------------------------------------------------------- */

/** Measure links and processors on all members at once, in a few rounds, and agree on one model. A disturbed
 *  reading or member does not spoil the model (see estimate.c). Collective; all members get the same bytes
 *  from member 0. Takes about 0.1 s at 1 Gb/s: four rounds, or up to six if four took less than that.
 *  Returns errors of the transport, and TW_ERR_TIMEOUT (logged) as in bootstrap.h. */
tw_status_t tw_coll_model_measure(tw_bootstrap_t *boot, tw_coll_model_t *model);

/* ---- readings ------------------------------------------------------------------------------------------ */

/** One reading of a tier, all 0 if this member has no such link. It may hold nothing but doubles. */
typedef struct tw_tier_sample {
    double alpha_sec;   /**< see tw_coll_tier_t */
    double message_sec; /**< see tw_coll_tier_t */
    double trip_sec;    /**< from the post of a single message of TW_COLL_TURN_BYTES to its acknowledgement */
    double beta_sec;    /**< see tw_coll_tier_t */
    double cpu_sec; /**< processor seconds of this rank per byte of the node's link, busy waiting included */
} tw_tier_sample_t;

/** Plain bytes of the short lossless message that is measured. */
#define TW_SAMPLE_SHORT_BYTES ((size_t)16 << 10)

/** One reading of the processor, in seconds per byte of the plain tensor. It may hold nothing but doubles. */
typedef struct tw_cpu_sample {
    double copy_sec, reduce_sec;
    double encode_sec[TW_COLL_MODEL_SPEEDS], decode_sec[TW_COLL_MODEL_SPEEDS];
    double encode_short_sec, decode_short_sec; /**< for the short message, with its tables */
} tw_cpu_sample_t;

/** One reading of everything. It is read as an array of doubles, so it may hold nothing else. */
typedef struct tw_measure_sample {
    tw_tier_sample_t inter, node;
    tw_cpu_sample_t cpu;
} tw_measure_sample_t;

/** The machine that a member runs on. Several nodes may be on one machine. */
typedef struct tw_measure_host {
    uint64_t boot; /**< equal for all members on a machine */
    double cores;  /**< cores that the member may use */
} tw_measure_host_t;

/* ---- processor.c --------------------------------------------------------------------------------------- */

/** Measure copying, adding and every codec once, on the calling thread; 0 for a codec that does not exist.
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_measure_processor(tw_cpu_sample_t *out);

void tw_measure_host_init(tw_measure_host_t *out);

/* ---- links.c ------------------------------------------------------------------------------------------- */

/** The neighbours on one tier. Every member sends to the next node, or to the next member of its node. */
typedef struct tw_measure_link {
    tw_bootstrap_t *boot; /**< borrowed */
    int to;               /**< the member to send to; -1: no neighbour on this tier */
    int *from;            /**< [n_from], members that send to this member */
    int n_from;
    int sharing; /**< number of this node's members that send at the same time */
    /** bytes of a message when speed is measured; grows until the clock can measure it */
    size_t burst_bytes;
} tw_measure_link_t;

/** Find the neighbours. inter: 1 for the tier between nodes, 0 for the one inside a node. TW_ERR_NO_MEMORY
 *  (logged). */
tw_status_t tw_measure_link_init(tw_measure_link_t *link, tw_bootstrap_t *boot, int inter);
void tw_measure_link_cleanup(tw_measure_link_t *link);
/** Measure latency, speed and turn once. Collective over all members, also those without a link. */
tw_status_t tw_measure_link_read(tw_measure_link_t *link, tw_tier_sample_t *out);

/* ---- estimate.c ---------------------------------------------------------------------------------------- */

/** A member's report to member 0: the best and typical values of its readings. */
typedef struct tw_estimate_report {
    tw_measure_sample_t best, typical;
    tw_measure_host_t host;
} tw_estimate_report_t;

/** Find the best and typical values. readings: [n_readings > 0][n_values]. best, typical: [n_values]. */
void tw_estimate_values(const double *readings, int n_readings, int n_values, double *best, double *typical);

/** Make a model. reports: [world], of all members. max_local: number of members of the largest node. A value
 *  that no member has measured (0) keeps its default. */
void tw_estimate_model(const tw_estimate_report_t *reports, int world, int max_local, tw_coll_model_t *model);

TW_C_END
