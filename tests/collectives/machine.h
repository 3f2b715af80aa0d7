/** Made-up measurements: 2 nodes of 2 ranks on a machine of 2 cores with 1 Gb/s between the nodes, as one was
 *  measured. */
#ifndef TW_TESTS_COLLECTIVES_MACHINE_H
#define TW_TESTS_COLLECTIVES_MACHINE_H

#include <vector>

#include "collectives/model/measuring.h"

namespace tw
{

inline tw_measure_sample_t quiet_sample()
{
    tw_measure_sample_t sample = {};
    sample.inter = {33e-6, 20e-6, 150e-6, 8 / 955e6, 0.13 * 8 / 955e6};
    sample.node = {0.9e-6, 1e-6, 6e-6, 1 / 20e9, 0.65 / 20e9};
    sample.cpu.copy_sec = 1 / 40e9;
    sample.cpu.reduce_sec = 1 / 7e9;
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        const bool is_int4 = i / 4 == TW_QUANT_INT4;
        sample.cpu.encode_sec[i] = is_int4 ? 1 / 10e9 : 1 / 16e9;
        sample.cpu.decode_sec[i] = is_int4 ? 1 / 18e9 : 1 / 25e9;
    }
    sample.cpu.encode_short_sec = 1 / 0.5e9;
    sample.cpu.decode_short_sec = 1 / 0.8e9;
    return sample;
}

/** Reports of `world` members, whose readings scatter by 2 %. */
inline std::vector<tw_estimate_report_t> quiet_reports(int world)
{
    std::vector<tw_estimate_report_t> reports((size_t)world);
    for (tw_estimate_report_t &report : reports) {
        report = {};
        report.best = report.typical = quiet_sample();
        report.typical.inter.beta_sec *= 1.02;
        report.typical.node.beta_sec *= 1.02;
        report.host = {1, 2};
    }
    return reports;
}

inline void scale_tier(tw_tier_sample_t *tier, double factor)
{
    for (double *value : {&tier->alpha_sec, &tier->message_sec, &tier->trip_sec, &tier->beta_sec}) {
        *value *= factor;
    }
}

inline void scale_codecs(tw_cpu_sample_t *cpu, double factor)
{
    for (double &sec : cpu->encode_sec) {
        sec *= factor;
    }
    for (double &sec : cpu->decode_sec) {
        sec *= factor;
    }
}

inline tw_coll_model_t model_of(const std::vector<tw_estimate_report_t> &reports, int max_local = 2)
{
    tw_coll_model_t model;
    tw_estimate_model(reports.data(), (int)reports.size(), max_local, &model);
    return model;
}

} // namespace tw

#endif
