#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/faults/faults.h"
#include "tests/faults/state.h"

namespace
{

constexpr int kNodes = 3, kRanksPerNode = 2, kWorld = kNodes * kRanksPerNode;
constexpr double kFaultSec = 100, kLimitSec = 6;

uint64_t bit(int rank)
{
    return uint64_t{1} << rank;
}

tw_fault_plan_t plan_of(std::vector<std::pair<tw_fault_kind_t, int>> faults,
                        tw_fault_phase_t phase = TW_FAULT_OPERATION)
{
    tw_fault_plan_t plan = {};
    plan.n_nodes = kNodes;
    plan.ranks_per_node = kRanksPerNode;
    plan.phase = phase;
    for (const auto &fault : faults) {
        plan.faults[plan.n_faults].kind = fault.first;
        plan.faults[plan.n_faults++].rank = fault.second;
    }
    return plan;
}

/* A run in which everybody who is left ends a second after the faults, and names `named`. */
class Story
{
  public:
    Story(const tw_fault_plan_t &plan, uint64_t named) : plan_(plan)
    {
        story_.start_sec = kFaultSec - 1;
        story_.limit_sec = kLimitSec;
        for (int i = 0; i < plan.n_faults; i++) {
            tw_fault_record_t record = {};
            record.rank = plan.faults[i].rank;
            record.fault = i;
            record.at_sec = kFaultSec;
            tw_fault_story_add(&story_, &plan_, &record);
        }
        for (int r = 0; r < kWorld; r++) {
            end(r, named);
        }
    }
    void end(int rank, uint64_t named, tw_status_t status = TW_ERR_PEER, double after_sec = 1)
    {
        tw_fault_record_t record = {};
        record.rank = rank;
        record.fault = -1;
        record.at_sec = kFaultSec + after_sec;
        record.status = status;
        record.named = named;
        tw_fault_story_add(&story_, &plan_, &record);
    }
    tw_fault_verdict_t judge()
    {
        tw_fault_verdict_t verdict;
        tw_fault_judge(&plan_, &story_, &verdict);
        return verdict;
    }
    bool ok()
    {
        tw_fault_verdict_t verdict = judge();
        return tw_fault_verdict_ok(&verdict) != 0;
    }
    tw_fault_story_t story_ = {};

  private:
    tw_fault_plan_t plan_;
};

TEST(FaultJudge, AllNameTheOneThatWasKilled)
{
    Story story(plan_of({{TW_FAULT_KILL, 3}}), bit(3));
    EXPECT_TRUE(story.ok());
    EXPECT_NEAR(1, story.judge().hang_sec, 1e-9);
}

TEST(FaultJudge, WhoHasNotFailedMustNotBeNamed)
{
    Story story(plan_of({{TW_FAULT_STOP, 3}}), bit(3));
    story.end(5, bit(0));
    EXPECT_EQ(1, story.judge().n_wrong_names);
    story.end(5, bit(2)); /* on the victim's node */
    EXPECT_EQ(1, story.judge().n_wrong_names);
    story.end(5, 0);
    EXPECT_EQ(1, story.judge().n_wrong_names);
    EXPECT_EQ("rank 5 blames nobody, in ", std::string(story.judge().why));
    story.end(5, bit(3) | bit(4));
    EXPECT_EQ(1, story.judge().n_wrong_names);
}

TEST(FaultJudge, OfTwoVictimsAllNameTheSame)
{
    tw_fault_plan_t plan = plan_of({{TW_FAULT_KILL, 0}, {TW_FAULT_EXIT, 3}});
    Story story(plan, bit(3));
    EXPECT_TRUE(story.ok());
    story.end(5, bit(0));
    EXPECT_EQ(1, story.judge().n_wrong_names);
    plan.phase = TW_FAULT_RENDEZVOUS; /* they have not met yet */
    Story early(plan, bit(3));
    early.end(5, bit(0));
    EXPECT_TRUE(early.ok());
}

TEST(FaultJudge, BehindALinkBothSidesMayBlameTheOther)
{
    for (tw_fault_kind_t kind : {TW_FAULT_DOWN, TW_FAULT_FLAP, TW_FAULT_LOSS}) {
        Story story(plan_of({{kind, 3}}), bit(2));
        story.end(2, bit(0));
        story.end(3, bit(5));
        EXPECT_TRUE(story.ok());
        story.end(4, bit(0)); /* between them no link has failed */
        EXPECT_EQ(1, story.judge().n_wrong_names);
    }
}

TEST(FaultJudge, WhoIsCutOffFromAllMayBlameItsOwnSide)
{
    Story both(plan_of({{TW_FAULT_DOWN, 2}, {TW_FAULT_DOWN, 4}}), bit(2));
    both.end(0, bit(0));
    both.end(1, bit(0));
    EXPECT_TRUE(both.ok());
    Story one(plan_of({{TW_FAULT_DOWN, 2}, {TW_FAULT_KILL, 4}}), bit(2));
    one.end(1, bit(0)); /* it could see the third node */
    EXPECT_EQ(1, one.judge().n_wrong_names);

    tw_fault_plan_t two_nodes = plan_of({{TW_FAULT_DOWN, 3}});
    two_nodes.n_nodes = 2; /* nobody can know which end of the link it was */
    for (int named = 0; named < 4; named++) {
        Story story(two_nodes, bit(named));
        EXPECT_TRUE(story.ok()) << named;
    }
    two_nodes.faults[0].kind = TW_FAULT_STOP; /* but here they can */
    Story story(two_nodes, bit(2));
    EXPECT_FALSE(story.ok());
}

TEST(FaultJudge, OnlyBeforeTheyMetMayALinkBeBlamedWithoutAName)
{
    for (tw_fault_phase_t phase : {TW_FAULT_RENDEZVOUS, TW_FAULT_OPERATION}) {
        Story story(plan_of({{TW_FAULT_DOWN, 3}}, phase), bit(2));
        story.end(2, 0);
        EXPECT_EQ(phase == TW_FAULT_RENDEZVOUS, story.ok());
        story.end(2, bit(0));
        story.end(0, 0);
        EXPECT_FALSE(story.ok());
    }
}

TEST(FaultJudge, WhoEndsLateOrNeverHangs)
{
    Story story(plan_of({{TW_FAULT_KILL, 3}}), bit(3));
    story.end(4, bit(3), TW_ERR_PEER, kLimitSec * 0.99);
    EXPECT_TRUE(story.ok());
    story.end(4, bit(3), TW_ERR_PEER, kLimitSec * 1.01);
    EXPECT_EQ(1, story.judge().n_hangs);
    story.end(4, bit(3));
    story.story_.has_ended[5] = 0;
    EXPECT_EQ(1, story.judge().n_hangs);
    EXPECT_FALSE(story.ok());
}

TEST(FaultJudge, WrongResultsAndLeftoversCount)
{
    Story story(plan_of({{TW_FAULT_DOWN, 3}}, TW_FAULT_DESTROY), 0);
    for (int r = 0; r < kWorld; r++) {
        story.end(r, 0, TW_OK);
    }
    EXPECT_TRUE(story.ok());
    story.story_.ends[2].n_wrong = 7;
    EXPECT_EQ(1, story.judge().n_wrong_results);
    EXPECT_EQ("rank 2 has 7 wrong elements", std::string(story.judge().why));
    story.story_.ends[2].n_wrong = 0;
    story.story_.n_left_over = 1;
    EXPECT_FALSE(story.ok());
}

TEST(FaultJudge, WaitsForThoseWhoAreLeft)
{
    tw_fault_plan_t plan = plan_of({{TW_FAULT_KILL, 3}, {TW_FAULT_DOWN, 0}});
    Story story(plan, bit(3));
    EXPECT_EQ(0, tw_fault_story_open(&story.story_, &plan));
    story.story_.has_ended[3] = 0; /* killed */
    EXPECT_EQ(0, tw_fault_story_open(&story.story_, &plan));
    story.story_.has_ended[0] = 0; /* behind a link, but alive */
    EXPECT_EQ(1, tw_fault_story_open(&story.story_, &plan));
}

TEST(FaultJudge, RecordsThatMakeNoSenseAreLeftOut)
{
    tw_fault_plan_t plan = plan_of({{TW_FAULT_KILL, 3}});
    tw_fault_story_t story = {};
    for (tw_fault_record_t record :
         {tw_fault_record_t{kWorld, -1, 1, TW_OK, 0, 0, ""}, tw_fault_record_t{-1, -1, 1, TW_OK, 0, 0, ""},
          tw_fault_record_t{0, 1, 1, TW_OK, 0, 0, ""}}) {
        tw_fault_story_add(&story, &plan, &record);
    }
    EXPECT_EQ(kWorld, tw_fault_story_open(&story, &plan));
    EXPECT_EQ(0, story.fault_sec);
}

TEST(FaultNames, AreReadFromTheLog)
{
    EXPECT_EQ(bit(3), tw_fault_names_parse("rank 1: peer 3 failed during the start: timed out"));
    EXPECT_EQ(bit(12), tw_fault_names_parse("rank 12: peer 12 failed"));
    EXPECT_EQ(bit(4) | bit(5), tw_fault_names_parse("rank 0: missing after 2 s: rank 4, 5"));
    EXPECT_EQ(bit(2), tw_fault_names_parse("rank 1: rank 0 refuses: missing after 2 s: rank 2"));
    EXPECT_EQ(bit(0),
              tw_fault_names_parse("rank 1: could not join the job within 2 s; last attempt: refused"));
    EXPECT_EQ(bit(5), tw_fault_names_parse("rank 5: this rank failed: no sign of life for 1.4 s"));
    EXPECT_EQ(0u, tw_fault_names_parse("rank 1: out of memory"));
}

TEST(FaultPlan, DependsOnSeedAndIndexAlone)
{
    tw_fault_plan_t a, b;
    for (uint64_t i = 0; i < 50; i++) {
        tw_fault_plan_make(&a, 7, i, kNodes, kRanksPerNode);
        tw_fault_plan_make(&b, 7, i, kNodes, kRanksPerNode);
        EXPECT_EQ(0, memcmp(&a, &b, sizeof(a)));
        tw_fault_plan_make(&b, 8, i, kNodes, kRanksPerNode);
        EXPECT_NE(0, memcmp(a.faults, b.faults, sizeof(a.faults)));
    }
}

TEST(FaultPlan, EveryKindAndPhaseComesAndAQuarterHasTwo)
{
    constexpr int kPlans = 2000;
    std::set<std::pair<int, int>> seen;
    int n_double = 0;
    for (int i = 0; i < kPlans; i++) {
        tw_fault_plan_t plan;
        tw_fault_plan_make(&plan, 1, static_cast<uint64_t>(i), kNodes, kRanksPerNode);
        seen.emplace(plan.faults[0].kind, plan.phase);
        n_double += plan.n_faults == 2;
        EXPECT_GT(plan.at_op, 0);
        EXPECT_LT(plan.at_op, TW_FAULTS_OPS - 1);
        for (int f = 0; f < plan.n_faults; f++) {
            EXPECT_GE(plan.faults[f].rank, plan.phase == TW_FAULT_AFTER_FIRST ? 1 : 0);
            EXPECT_LT(plan.faults[f].rank, kWorld);
        }
        if (plan.n_faults == 2) {
            EXPECT_NE(plan.faults[0].rank, plan.faults[1].rank);
        }
    }
    EXPECT_EQ(static_cast<size_t>(TW_FAULT_KIND_COUNT * TW_FAULT_PHASE_COUNT), seen.size());
    /* of a binomial distribution, four standard deviations */
    EXPECT_NEAR(kPlans * 0.25, n_double, 4 * std::sqrt(kPlans * 0.25 * 0.75));
}

TEST(FaultPlan, SmallJobsKeepASurvivorAndOneNodeHasNoLink)
{
    for (uint64_t i = 0; i < 200; i++) {
        tw_fault_plan_t plan;
        tw_fault_plan_make(&plan, 1, i, 1, 2);
        EXPECT_NE(TW_FAULT_AFTER_FIRST, plan.phase);
        EXPECT_EQ(1, plan.n_faults);
        EXPECT_TRUE(tw_fault_ends_rank(&plan.faults[0]));
    }
}

} // namespace
