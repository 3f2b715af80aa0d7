/** From readings to a model that a disturbed reading does not spoil.
 *
 *  A reading is disturbed when something else has the processor or the link. That makes it slower, seldom
 *  faster. So
 *  1. every member repeats its measurements, in rounds that take turns between tiers and processor, and keeps
 *     two values of each: `best`, the lower quartile (not the very best: after a stall a link sends a burst
 *     that it has saved up), and `typical`, the median;
 *  2. over the members, a value is the median of their bests: one disturbed member does not change it. A
 *     member that really is slower counts, since the others wait for it, as far as its own readings agree:
 *     best - (typical - best);
 *  3. the noise of a tier and of the processor, how much slower than the value the typical reading was,
 *     becomes part of the model: a difference smaller than that is no evidence (choose.c). */
#ifndef TW_COLLECTIVES_MODEL_ESTIMATE_H
#define TW_COLLECTIVES_MODEL_ESTIMATE_H

#include "collectives/model/sample.h"

TW_C_BEGIN

/** What a member reports. */
typedef struct tw_estimate_report {
    tw_measure_sample_t best, typical;
    tw_measure_host_t host;
} tw_estimate_report_t;

/** readings: [n_readings][n_values], n_readings > 0; best, typical: [n_values]. */
void tw_estimate_values(const double *readings, int n_readings, int n_values, double *best, double *typical);

/** reports: [world] of all members; max_local: members of the largest node. A value that
 *  no member has measured (0) keeps its default. */
void tw_estimate_model(const tw_estimate_report_t *reports, int world, int max_local, tw_coll_model_t *model);

TW_C_END

#endif
