/* Whose link is down: decided from what was heard when, without a clock. Times are in heartbeats. */
#include <vector>

#include <gtest/gtest.h>

#include "transport/monitor/outage.h"

namespace
{

constexpr uint64_t beat = 1000, start = 100 * beat;
/* As the monitor has them: silent for 7 is judged, 2.5 is no accident. */
constexpr double silence = 7, missed = 2.5;

/* Rank 0's view of a job; every rank sends a sign of life a beat. */
class Job
{
  public:
    Job(int n_nodes, int ranks_per_node) : world_(n_nodes * ranks_per_node)
    {
        for (int r = 0; r < world_; r++) {
            node_of_.push_back(r / ranks_per_node);
        }
        heard_.assign((size_t)world_, start);
        muted_.assign((size_t)world_, 0);
        EXPECT_EQ(tw_outages_init(&outages, world_, node_of_.data(), (uint64_t)(missed * beat), now), TW_OK);
    }
    ~Job()
    {
        tw_outages_cleanup(&outages);
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    void pass(double beats)
    {
        for (const uint64_t until = now + (uint64_t)(beats * beat); now < until;) {
            now += beat / 4;
            if (now % beat == 0) {
                hear_all();
            }
        }
    }
    void mute(const std::vector<int> &ranks, int on = 1)
    {
        for (int r : ranks) {
            muted_[(size_t)r] = on;
        }
    }
    void close(int rank)
    {
        mute({rank});
        tw_outages_close(&outages, rank);
    }
    int silent(int rank)
    {
        return tw_outages_blame_silent(&outages, rank, heard_[(size_t)rank], now);
    }
    int complaint(int rank)
    {
        return tw_outages_blame_complaint(&outages, rank, now);
    }
    int suspicion(int by, int rank)
    {
        return tw_outages_blame_suspicion(&outages, by, rank, now);
    }

    tw_outages_t outages;
    uint64_t now = start;

  private:
    void hear_all()
    {
        for (int r = 1; r < world_; r++) {
            if (!muted_[(size_t)r]) {
                heard_[(size_t)r] = now;
                tw_outages_hear(&outages, r, now);
            }
        }
    }
    int world_;
    std::vector<int> node_of_, muted_;
    std::vector<uint64_t> heard_;
};

TEST(Outage, OneRankOrOneNodeThatIsSilentIsNamed)
{
    Job job(3, 2);
    job.mute({4});
    job.pass(silence);
    EXPECT_EQ(job.silent(4), 4);
    job.mute({5});
    job.pass(silence);
    EXPECT_EQ(job.silent(4), 4);
}

TEST(Outage, WhoMissesAllOtherNodesAtOnceHasLostItsOwnLink)
{
    Job job(3, 2);
    job.pass(5);
    job.mute({2, 3, 4, 5});
    job.pass(silence);
    EXPECT_EQ(job.silent(2), 0);
    EXPECT_EQ(job.silent(1), 1); /* no link lies between */
}

/* One node is back before the other. */
TEST(Outage, AnOutageThatIsOverForSomeStillCounts)
{
    Job job(4, 1);
    job.mute({1, 2, 3});
    job.pass(4);
    job.mute({1, 3}, 0);
    job.pass(silence - 4);
    EXPECT_EQ(job.silent(2), 0);
}

/* Rank 4 is stopped; for a moment nobody else is heard either. */
TEST(Outage, AMomentWithoutAnySignIsNoOutage)
{
    Job job(3, 2);
    job.mute({4});
    job.pass(2);
    job.mute({1, 2, 3, 5});
    job.pass(2.75);
    tw_outages_hear(&job.outages, 2, job.now);
    job.mute({1, 2, 3, 5}, 0);
    job.pass(silence - 4.75);
    EXPECT_EQ(job.silent(4), 4);
}

/* The same for longer, and whoever is heard first says that it did not run for so long; if that does not
 * explain the silence it was an outage. */
TEST(Outage, WhoRanLateProvesNothing)
{
    for (double late : {0.0, 0.5, 1.5, 3.0}) {
        Job job(3, 2);
        job.mute({2, 3, 4, 5});
        job.pass(4);
        tw_outages_late(&job.outages, 2, (uint64_t)(late * beat));
        job.mute({2, 3, 5}, 0);
        job.pass(silence - 4);
        EXPECT_EQ(job.silent(4), late > 2 ? 4 : 0) << late;
        EXPECT_EQ(job.complaint(3), late > 2.5 ? 3 : 0) << late;
    }
}

/* Nor does a rank 0 that did not run, in pieces too short to be a pause. */
TEST(Outage, Rank0ThatRanLateProvesNothing)
{
    for (double late : {0.5, 2.5}) {
        Job job(3, 2);
        job.mute({2, 3, 4, 5});
        job.pass(2);
        tw_outages_late(&job.outages, 0, (uint64_t)(late * beat));
        job.pass(2);
        tw_outages_late(&job.outages, 0, (uint64_t)(late * beat));
        job.pass(silence - 4);
        EXPECT_EQ(job.silent(4), late > 2 ? 4 : 0) << late;
    }
}

/* What was said of an earlier silence explains no later one. */
TEST(Outage, BeingLateIsForgottenOnceHeard)
{
    Job job(3, 1);
    tw_outages_late(&job.outages, 1, 9 * beat);
    tw_outages_late(&job.outages, 0, 9 * beat);
    job.pass(1);
    job.mute({1, 2});
    job.pass(silence);
    EXPECT_EQ(job.silent(1), 0);
}

TEST(Outage, TwoThatAreSilentOneAfterTheOtherAreNot)
{
    Job job(3, 1);
    job.mute({1});
    job.pass(4);
    job.mute({1}, 0);
    job.pass(1);
    job.mute({2});
    job.pass(silence);
    EXPECT_EQ(job.silent(2), 2);
}

TEST(Outage, AnOutageLongBeforeIsForgotten)
{
    Job job(3, 1);
    job.mute({1, 2});
    job.pass(4);
    job.mute({1, 2}, 0);
    job.pass(1);
    EXPECT_EQ(job.complaint(1), 0);
    job.pass(25);
    EXPECT_EQ(job.complaint(1), 1);
    job.mute({2});
    job.pass(silence);
    EXPECT_EQ(job.silent(2), 2);
}

TEST(Outage, AComplaintOfRank0CountsAgainstWhoWasAlone)
{
    Job job(3, 2);
    job.mute({4, 5});
    job.pass(silence + 1);
    job.mute({4, 5}, 0);
    job.pass(1);
    EXPECT_EQ(job.complaint(4), 4);
    EXPECT_EQ(job.complaint(1), 0); /* on rank 0's node */
}

TEST(Outage, AComplaintAfterRank0sOwnOutageIsTrue)
{
    Job job(3, 2);
    job.mute({2, 3, 4, 5});
    job.pass(silence + 1);
    job.mute({2, 3, 4, 5}, 0);
    job.pass(1);
    EXPECT_EQ(job.complaint(4), 0);
    EXPECT_EQ(job.complaint(2), 0);
}

TEST(Outage, AComplaintAfterRank0WasStoppedIsTrue)
{
    for (double beats : {2.0, 7.0}) { /* a short one nobody has missed */
        Job job(3, 1);
        job.now += (uint64_t)(beats * beat);
        tw_outages_pause(&job.outages, (uint64_t)(beats * beat), job.now);
        job.pass(1);
        EXPECT_EQ(job.complaint(2), beats > missed ? 0 : 2);
    }
}

/* Somebody who is silent since before the pause is still named. */
TEST(Outage, APauseIsNobodysSilence)
{
    Job job(3, 1);
    job.mute({2});
    job.pass(1);
    job.now += 5 * beat;
    tw_outages_pause(&job.outages, 5 * beat, job.now);
    job.pass(silence);
    EXPECT_EQ(tw_outages_blame_silent(&job.outages, 2, start + 5 * beat, job.now), 2);
}

TEST(Outage, WithOneOtherNodeNobodyCanKnow)
{
    for (int ranks_per_node : {1, 3}) {
        Job job(2, ranks_per_node);
        std::vector<int> there;
        for (int r = ranks_per_node; r < 2 * ranks_per_node; r++) {
            there.push_back(r);
        }
        job.mute(there);
        job.pass(silence);
        EXPECT_EQ(job.silent(ranks_per_node), ranks_per_node);
        EXPECT_EQ(job.complaint(ranks_per_node), 0);
        EXPECT_EQ(job.suspicion(ranks_per_node, 1), 1);
    }
}

/* A node that has left is no witness: with one more, nobody can know. */
TEST(Outage, WhoHasLeftIsNoWitness)
{
    Job job(3, 2);
    job.close(2);
    job.pass(1);
    EXPECT_EQ(job.complaint(4), 4); /* 3 is still there */
    job.close(3);
    job.mute({4, 5});
    job.pass(silence);
    EXPECT_EQ(job.silent(4), 4);
    EXPECT_EQ(job.complaint(4), 0);
}

TEST(Outage, OfTwoThatLoseEachOtherTheOneThatWasCutOffIsNamed)
{
    Job job(3, 2);
    job.pass(3);
    EXPECT_EQ(job.suspicion(2, 4), 4);
    EXPECT_EQ(job.suspicion(4, 2), 2);
    job.mute({4, 5});
    job.pass(4);
    job.mute({4, 5}, 0);
    job.pass(1);
    EXPECT_EQ(job.suspicion(4, 2), 4);
    EXPECT_EQ(job.suspicion(4, 1), 4);
    EXPECT_EQ(job.suspicion(2, 4), 4);
    EXPECT_EQ(job.suspicion(0, 4), 4);
}

TEST(Outage, WhoLosesAnotherBehindRank0sLinkDoesNotBlameIt)
{
    Job job(3, 2);
    job.mute({2, 3, 4, 5});
    job.pass(4);
    job.mute({2, 3, 4, 5}, 0);
    job.pass(1);
    EXPECT_EQ(job.suspicion(1, 4), 1);
    EXPECT_EQ(job.suspicion(0, 4), 0);
    EXPECT_EQ(job.suspicion(4, 1), 1);
}

TEST(Outage, WithoutNodesEachRankHasItsOwn)
{
    tw_outages_t outages;
    ASSERT_EQ(tw_outages_init(&outages, 3, nullptr, (uint64_t)(missed * beat), start), TW_OK);
    EXPECT_EQ(tw_outages_blame_silent(&outages, 1, start, start + 7 * beat), 0);
    tw_outages_hear(&outages, 2, start + beat);
    tw_outages_hear(&outages, 2, start + 3 * beat);
    EXPECT_EQ(tw_outages_blame_silent(&outages, 1, start, start + 4 * beat), 1);
    tw_outages_cleanup(&outages);
}

TEST(Outage, AWorldOfOne)
{
    tw_outages_t outages;
    ASSERT_EQ(tw_outages_init(&outages, 1, nullptr, beat, start), TW_OK);
    tw_outages_pause(&outages, 9 * beat, start);
    EXPECT_EQ(tw_outages_blame_complaint(&outages, 0, start + beat), 0);
    tw_outages_cleanup(&outages);
}

/* Of two that ran late, or said so twice, the longer time is excused: nobody's silence of that length is an
 * outage. */
TEST(Outage, TheLongerDelayIsExcused)
{
    for (const bool longer_first : {true, false}) {
        tw_outages_t outages;
        ASSERT_EQ(tw_outages_init(&outages, 3, nullptr, 100, 0), TW_OK);
        tw_outages_late(&outages, 1, longer_first ? 600 : 10);
        tw_outages_late(&outages, 1, longer_first ? 10 : 600);
        EXPECT_EQ(tw_outages_blame_silent(&outages, 2, 0, 1000), 2) << longer_first;
        tw_outages_cleanup(&outages);
    }
}

} // namespace
