/** Makes a cost model from readings in such a way that a disturbed reading does not spoil the model.
 *
 *  A reading is disturbed if another program uses the processor or the link. A disturbed reading is slower,
 *  seldom faster. So:
 *  - Every member measures several times, in rounds that alternate between links and processor. Of each
 *    value it keeps `best`, the lower quartile, and `typical`, the median. `best` is not the very best,
 *    because the burst that a link sends after a stall looks too fast.
 *  - The value of the model is the median of all members' `best`, so one disturbed member does not change
 *    it. But a member that really is slower counts, since the others wait for it. It counts as far as its
 *    readings agree: the value is at least its best - (typical - best).
 *  - The noise of a tier and of the processor becomes part of the model. It says how much slower the typical
 *    reading was than the value. A difference below the noise is no evidence (choose.c). */
#include "collectives/model/measuring.h"

#include <math.h>

void tw_estimate_values(const double *readings, int n_readings, int n_values, double *best, double *typical)
{
    for (int v = 0; v < n_values; v++) {
        double sorted[n_readings];
        for (int i = 0; i < n_readings; i++) {
            sorted[i] = readings[i * n_values + v];
        }
        typical[v] = tw_median(sorted, (size_t)n_readings); /* tw_median has sorted `sorted` */
        best[v] = sorted[(n_readings + 1) / 4];
    }
}

/* ---- over the members ---------------------------------------------------------------------------------- */

/** Returns the lower median of the values that were measured (above 0); 0 if none was. Sorts `values`. */
static double median_of(double *values, int n)
{
    int measured = 0;
    for (int i = 0; i < n; i++) {
        if (values[i] > 0) {
            values[measured++] = values[i];
        }
    }
    if (measured == 0) {
        return 0;
    }
    (void)tw_median(values, (size_t)measured); /* tw_median has sorted `values` */
    return values[(measured - 1) / 2];
}

/** Derive a value (at byte `offset` of a sample) and its typical reading from all members' reports. */
static void estimate_agree(const tw_estimate_report_t *reports, int world, size_t offset, double *value,
                           double *typical)
{
    double bests[world], typicals[world], certain = 0;
    for (int r = 0; r < world; r++) {
        bests[r] = *(const double *)((const char *)&reports[r].best + offset);
        typicals[r] = *(const double *)((const char *)&reports[r].typical + offset);
        certain = fmax(certain, 2 * bests[r] - typicals[r]);
    }
    *value = fmax(median_of(bests, world), certain);
    *typical = fmax(median_of(typicals, world), *value);
}

static void agree_all(const tw_estimate_report_t *reports, int world, tw_measure_sample_t *values,
                      tw_measure_sample_t *typicals)
{
    for (size_t offset = 0; offset < sizeof(*values); offset += sizeof(double)) {
        estimate_agree(reports, world, offset, (double *)((char *)values + offset),
                       (double *)((char *)typicals + offset));
    }
}

/** Returns the most ranks per core on any machine, at least 1. */
static double find_contention(const tw_estimate_report_t *reports, int world)
{
    double most = 1;
    for (int r = 0; r < world; r++) {
        int sharing = 0;
        for (int q = 0; q < world; q++) {
            sharing += reports[q].host.boot == reports[r].host.boot;
        }
        most = fmax(most, sharing / reports[r].host.cores);
    }
    return most;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/** Returns the cost of a message of TW_COLL_TURN_BYTES beyond its bytes and the acknowledgement, if no other
 *  message hides it. A shaped link lets a single message through at once; then no bytes are subtracted. */
static double turn_sec(const tw_tier_sample_t *value, int max_local)
{
    double hops_sec = value->trip_sec - value->alpha_sec,
           bytes_sec = (double)TW_COLL_TURN_BYTES * max_local * value->beta_sec;
    return fmax(0, hops_sec > bytes_sec ? hops_sec - bytes_sec : hops_sec);
}

static double noise_of(double typical, double value)
{
    double noise = typical / value - 1;
    return noise < TW_COLL_NOISE_MAX ? noise : TW_COLL_NOISE_MAX;
}

static void fill_tier(const tw_tier_sample_t *value, const tw_tier_sample_t *typical, int max_local,
                      tw_coll_tier_t *tier)
{
    if (!(value->beta_sec > 0)) {
        return;
    }
    double busy = value->cpu_sec / value->beta_sec;
    *tier = (tw_coll_tier_t){
        .alpha_sec = value->alpha_sec,
        .beta_sec = value->beta_sec,
        .message_sec = value->message_sec,
        .turn_sec = turn_sec(value, max_local),
        .busy = busy < 1 ? busy : 1,
        .noise = noise_of(typical->beta_sec, value->beta_sec),
    };
}

/** Returns the seconds of the short lossless message beyond the cost of its bytes in a long one. */
static double message_sec(double short_sec, double long_sec)
{
    return fmax(0, short_sec - long_sec) * (double)TW_SAMPLE_SHORT_BYTES;
}

static void fill_processor(const tw_cpu_sample_t *value, const tw_cpu_sample_t *typical, double contention,
                           tw_coll_model_t *model)
{
    const tw_quant_codec_t lossless = {.kind = TW_QUANT_LOSSLESS};
    double sum = 0, typical_sum = 0;
    model->copy_sec = value->copy_sec * contention;
    model->reduce_sec = value->reduce_sec * contention;
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        model->encode_sec[i] = value->encode_sec[i] * contention;
        model->decode_sec[i] = value->decode_sec[i] * contention;
        sum += value->encode_sec[i] + value->decode_sec[i];
        typical_sum += typical->encode_sec[i] + typical->decode_sec[i];
    }
    /* measured messages find their tables in the caches, others do not: the default is the lower bound */
    model->encode_message_sec =
        contention *
        fmax(model->encode_message_sec,
             message_sec(value->encode_short_sec, value->encode_sec[tw_coll_model_encoder(&lossless)]));
    model->decode_message_sec =
        contention *
        fmax(model->decode_message_sec,
             message_sec(value->decode_short_sec, value->decode_sec[tw_coll_model_decoder(&lossless)]));
    model->cpu_noise = noise_of(typical_sum, sum);
}

void tw_estimate_model(const tw_estimate_report_t *reports, int world, int max_local, tw_coll_model_t *model)
{
    tw_measure_sample_t value, typical;
    agree_all(reports, world, &value, &typical);
    tw_coll_model_default(model);
    fill_tier(&value.inter, &typical.inter, max_local, &model->inter);
    fill_tier(&value.node, &typical.node, max_local, &model->node);
    fill_processor(&value.cpu, &typical.cpu, find_contention(reports, world), model);
}
