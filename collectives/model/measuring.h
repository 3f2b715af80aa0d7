/** Measuring the cost model when a communicator is made. Readings are what a member measures, before the
 *  members agree on a model. Times are in seconds or seconds per byte, so that of two readings the larger is
 *  the slower. */
#pragma once

#include "collectives/model/bootstrap.h"
#include "collectives/model/model.h"

TW_C_BEGIN

/* ---- measure.c ----------------------------------------------------------------------------------------- */

/** Measure links and processors, all members at once, in a few rounds, and agree on one model that a
 *  disturbed reading or member does not spoil (see estimate.c). Collective; every member gets the same bytes
 *  from member 0. Takes about 0.1 s at 1 Gb/s: four rounds, or up to six if they took less than that. Errors
 *  of the transport; TW_ERR_TIMEOUT (logged) as in bootstrap.h. */
tw_status_t tw_coll_model_measure(tw_bootstrap_t *boot, tw_coll_model_t *model);

/* ---- readings ------------------------------------------------------------------------------------------ */

/** One reading of a tier; all 0 if this member has no such link. It must have doubles alone. */
typedef struct tw_tier_sample {
    double alpha_sec;   /**< see tw_coll_tier_t */
    double message_sec; /**< see tw_coll_tier_t */
    double trip_sec;    /**< from the post of a single message of TW_COLL_TURN_BYTES to its acknowledgement */
    double beta_sec;    /**< see tw_coll_tier_t */
    double cpu_sec;     /**< processor time of this rank per byte of the node's link; spinning counts */
} tw_tier_sample_t;

/** Plain bytes of the short lossless message that is measured. */
#define TW_SAMPLE_SHORT_BYTES ((size_t)16 << 10)

/** One reading of the processor, per byte of the plain tensor. It must have doubles alone. */
typedef struct tw_cpu_sample {
    double copy_sec, reduce_sec;
    double encode_sec[TW_COLL_MODEL_SPEEDS], decode_sec[TW_COLL_MODEL_SPEEDS];
    double encode_short_sec, decode_short_sec; /**< times of the short message, which has its own tables */
} tw_cpu_sample_t;

/** One reading of everything. It must have doubles alone, as it is read as an array of them. */
typedef struct tw_measure_sample {
    tw_tier_sample_t inter, node;
    tw_cpu_sample_t cpu;
} tw_measure_sample_t;

/** The machine that a member runs on; nodes may share one. */
typedef struct tw_measure_host {
    uint64_t boot; /**< equal for all members on a machine */
    double cores;  /**< cores that the member may use */
} tw_measure_host_t;

/* ---- processor.c --------------------------------------------------------------------------------------- */

/** Take one reading of copying, adding and every codec, on the calling thread; 0 for a codec that does not
 *  exist. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_measure_processor(tw_cpu_sample_t *out);

void tw_measure_host_init(tw_measure_host_t *out);

/* ---- links.c ------------------------------------------------------------------------------------------- */

/** The neighbours on one tier: every member sends to the next node, or to the next member of its own node. */
typedef struct tw_measure_link {
    tw_bootstrap_t *boot; /**< borrowed */
    int to;               /**< member, or -1: no neighbour on this tier */
    int *from;            /**< [n_from], members that send to this one */
    int n_from;
    int sharing;        /**< members of this node that send at the same time */
    size_t burst_bytes; /**< bytes of a message when speed is measured: grows until the clock can tell */
} tw_measure_link_t;

/** Find the neighbours. inter: 1 for the tier between nodes, 0 for the one inside a node. TW_ERR_NO_MEMORY
 *  (logged). */
tw_status_t tw_measure_link_init(tw_measure_link_t *link, tw_bootstrap_t *boot, int inter);
void tw_measure_link_cleanup(tw_measure_link_t *link);
/** Take one reading of latency, speed and turn. Collective over all members, also those without a link. */
tw_status_t tw_measure_link_read(tw_measure_link_t *link, tw_tier_sample_t *out);

/* ---- estimate.c ---------------------------------------------------------------------------------------- */

/** A member's report to the others: its best and its typical readings. */
typedef struct tw_estimate_report {
    tw_measure_sample_t best, typical;
    tw_measure_host_t host;
} tw_estimate_report_t;

/** Find best and typical values. readings: [n_readings][n_values], n_readings > 0; best, typical:
 *  [n_values]. */
void tw_estimate_values(const double *readings, int n_readings, int n_values, double *best, double *typical);

/** Make a model. reports: [world], of all members; max_local: members of the largest node. A value that no
 *  member has measured (0) keeps its default. */
void tw_estimate_model(const tw_estimate_report_t *reports, int world, int max_local, tw_coll_model_t *model);

TW_C_END
