/* From readings to a model: what a disturbed reading, or member, may change. */
#include <algorithm>
#include <cstring>

#include "collectives/model/model.h"
#include "tests/collectives/machine.h"
#include "tests/common/fixture.h"

namespace
{

using Estimate = tw::Fixture;

TEST_F(Estimate, QuartileAndMedianOfEachValue)
{
    for (int n = 1; n <= 12; n++) {
        std::vector<double> readings;
        for (int i = 0; i < n; i++) {           /* 1 to n and their tens, in some order */
            double value = (i * 7 + 3) % n + 1; /* 7 and n have no common divisor, but for 7 */
            readings.push_back(n == 7 ? i + 1 : value);
            readings.push_back(10 * readings[readings.size() - 1]);
        }
        double best[2], typical[2];
        tw_estimate_values(readings.data(), n, 2, best, typical);
        EXPECT_EQ(best[0], (n + 1) / 4 + 1) << n;
        EXPECT_EQ(typical[0], (n + 1) / 2.0) << n;
        EXPECT_EQ(best[1], 10 * best[0]);
        EXPECT_EQ(typical[1], 10 * typical[0]);
    }
}

/* Up to half of the readings slow: the quartile stays. One of them too quick: it stays, too, from 3 readings
 * on. */
TEST_F(Estimate, DisturbedReadingsDoNotCount)
{
    for (int n = 3; n <= 12; n++) {
        std::vector<double> readings((size_t)n, 1.0);
        double best, typical;
        for (int i = 0; i < n / 2; i++) {
            readings[(size_t)i] = 10 + i;
        }
        tw_estimate_values(readings.data(), n, 1, &best, &typical);
        EXPECT_EQ(best, 1) << n;
        readings.assign((size_t)n, 1.0);
        readings[0] = 0.1;
        tw_estimate_values(readings.data(), n, 1, &best, &typical);
        EXPECT_EQ(best, 1) << n;
    }
}

TEST_F(Estimate, QuietMachineIsWhatWasRead)
{
    tw_coll_model_t model = tw::model_of(tw::quiet_reports(4));
    tw_measure_sample_t quiet = tw::quiet_sample();
    EXPECT_DOUBLE_EQ(model.inter.alpha_sec, quiet.inter.alpha_sec);
    EXPECT_DOUBLE_EQ(model.inter.beta_sec, quiet.inter.beta_sec);
    EXPECT_DOUBLE_EQ(model.inter.message_sec, quiet.inter.message_sec);
    EXPECT_NEAR(model.inter.busy, 0.13, 1e-9);
    EXPECT_NEAR(model.inter.noise, 0.02, 1e-9);
    EXPECT_DOUBLE_EQ(model.node.beta_sec, quiet.node.beta_sec);
    EXPECT_NEAR(model.node.noise, 0.02, 1e-9);
    EXPECT_DOUBLE_EQ(model.cpu_noise, 0);
    /* four members on one machine of two cores */
    EXPECT_DOUBLE_EQ(model.copy_sec, 2 * quiet.cpu.copy_sec);
    EXPECT_DOUBLE_EQ(model.encode_sec[4], 2 * quiet.cpu.encode_sec[4]);
    /* what the short lossless message took longer than its bytes in a long one */
    const double short_bytes = (double)TW_SAMPLE_SHORT_BYTES;
    EXPECT_NEAR(model.encode_message_sec, 2 * short_bytes * (1 / 0.5e9 - 1 / 16e9), 1e-12);
    EXPECT_NEAR(model.decode_message_sec, 2 * short_bytes * (1 / 0.8e9 - 1 / 25e9), 1e-12);
    /* on a machine each: no contention */
    std::vector<tw_estimate_report_t> apart = tw::quiet_reports(4);
    for (size_t r = 0; r < apart.size(); r++) {
        apart[r].host.boot = r;
    }
    EXPECT_DOUBLE_EQ(tw::model_of(apart).copy_sec, quiet.cpu.copy_sec);
    /* and never less than by default: between messages tables are not in the caches */
    for (tw_estimate_report_t &report : apart) {
        report.best.cpu.encode_short_sec = report.typical.cpu.encode_short_sec = 1 / 20e9;
    }
    tw_coll_model_t dflt;
    tw_coll_model_default(&dflt);
    EXPECT_EQ(tw::model_of(apart).encode_message_sec, dflt.encode_message_sec);
}

/* Whichever it is, and all of its readings slow: they contradict one another. */
TEST_F(Estimate, ADisturbedMemberDoesNotCount)
{
    for (int world = 2; world <= 8; world++) {
        for (int disturbed = 0; disturbed < world; disturbed++) {
            std::vector<tw_estimate_report_t> reports = tw::quiet_reports(world);
            tw_coll_model_t before = tw::model_of(reports);
            tw_estimate_report_t *report = &reports[(size_t)disturbed];
            tw::scale_tier(&report->best.inter, 10);
            tw::scale_tier(&report->best.node, 10);
            tw::scale_codecs(&report->best.cpu, 10);
            tw::scale_tier(&report->typical.inter, 20);
            tw::scale_tier(&report->typical.node, 20);
            tw::scale_codecs(&report->typical.cpu, 20);
            report->best.inter.cpu_sec = report->best.node.cpu_sec = 0;
            tw_coll_model_t after = tw::model_of(reports);
            EXPECT_EQ(memcmp(&before, &after, sizeof(before)), 0) << disturbed << " of " << world;
        }
    }
}

/* The others wait for it. Its readings agree to 5 %: so far it may count for less. */
TEST_F(Estimate, AMemberThatIsSlowerCounts)
{
    for (int world = 2; world <= 8; world++) {
        std::vector<tw_estimate_report_t> reports = tw::quiet_reports(world);
        tw_coll_model_t before = tw::model_of(reports);
        tw_estimate_report_t *slow = &reports[(size_t)world / 2];
        tw::scale_tier(&slow->best.inter, 3);
        tw::scale_codecs(&slow->best.cpu, 4);
        slow->typical = slow->best;
        tw::scale_tier(&slow->typical.inter, 1.05);
        tw_coll_model_t after = tw::model_of(reports);
        EXPECT_NEAR(after.inter.beta_sec / before.inter.beta_sec, 3 - 3 * 0.05, 1e-9);
        EXPECT_DOUBLE_EQ(after.encode_sec[0] / before.encode_sec[0], 4);
        EXPECT_DOUBLE_EQ(after.node.beta_sec, before.node.beta_sec);
    }
}

/* Nodes of 3 and of 1: one member has no link inside its node. */
TEST_F(Estimate, MembersWithoutALinkAreLeftOut)
{
    std::vector<tw_estimate_report_t> reports = tw::quiet_reports(4);
    tw_coll_model_t before = tw::model_of(reports, 3);
    for (size_t r = 1; r < reports.size(); r++) {
        reports[r].best.node = {};
        reports[r].typical.node = {};
        tw_coll_model_t after = tw::model_of(reports, 3);
        EXPECT_EQ(memcmp(&before.node, &after.node, sizeof(before.node)), 0) << r;
    }
    reports[0].best.node = reports[0].typical.node = {};
    tw_coll_model_t dflt;
    tw_coll_model_default(&dflt);
    tw_coll_model_t after = tw::model_of(reports, 3);
    EXPECT_EQ(memcmp(&dflt.node, &after.node, sizeof(dflt.node)), 0);
    EXPECT_DOUBLE_EQ(after.inter.beta_sec, before.inter.beta_sec);
}

TEST_F(Estimate, NoiseIsBounded)
{
    std::vector<tw_estimate_report_t> reports = tw::quiet_reports(3);
    for (tw_estimate_report_t &report : reports) {
        report.typical.inter.beta_sec = report.best.inter.beta_sec * 1.7;
        report.typical.node.beta_sec = report.best.node.beta_sec * 1e9;
    }
    tw_coll_model_t model = tw::model_of(reports);
    EXPECT_NEAR(model.inter.noise, 0.7, 1e-9);
    EXPECT_EQ(model.node.noise, TW_COLL_NOISE_MAX);
}

/* A trip of 150 us is shorter than two ranks' bytes on the link: one message passed at once. On a link that
 * saves nothing up, the bytes are part of the trip. */
TEST_F(Estimate, TurnIsWhatATripCostsBeyondItsBytes)
{
    std::vector<tw_estimate_report_t> reports = tw::quiet_reports(2);
    EXPECT_DOUBLE_EQ(tw::model_of(reports).inter.turn_sec, 150e-6 - 33e-6);
    double bytes_sec = 2 * 32768 * 8 / 955e6;
    for (tw_estimate_report_t &report : reports) {
        report.best.inter.trip_sec = report.typical.inter.trip_sec = 33e-6 + bytes_sec + 70e-6;
    }
    EXPECT_NEAR(tw::model_of(reports).inter.turn_sec, 70e-6, 1e-9);
}

} // namespace
