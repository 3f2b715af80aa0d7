/* Jobs of processes: shells that say what ranks say, and go wrong in all the ways ranks do. */
#include <csignal>

#include <gtest/gtest.h>

#include "core/core.h"
#include "tests/gpu/job.h"

namespace
{

using tw::gpu::ChildEvent;
using tw::gpu::Children;
using tw::gpu::ChildSpec;
using tw::gpu::JobSpec;
using tw::gpu::Verdict;

ChildSpec shell(const std::string &script)
{
    return {{"/bin/sh", "-c", script}, {}};
}

const char *const both_ok = "echo @begin 0; echo @ok 0; echo @begin 1; echo @ok 1";

JobSpec job(const std::vector<std::string> &scripts)
{
    JobSpec spec;
    spec.name = "a job";
    spec.cases = {"first", "second"};
    for (const std::string &script : scripts) {
        spec.ranks.push_back(shell(script));
    }
    spec.limits = {5, 5, 5, 0.5};
    return spec;
}

std::vector<Verdict> run(const JobSpec &spec)
{
    std::vector<std::string> told;
    std::vector<Verdict> verdicts =
        run_job(spec, [&](const Verdict &verdict) { told.push_back(verdict.name); });
    EXPECT_EQ(verdicts.size(), spec.cases.size() + 1);
    EXPECT_EQ(told.size(), verdicts.size());
    for (size_t i = 0; i < verdicts.size(); i++) {
        EXPECT_EQ(verdicts[i].name, "a job: " + (i < spec.cases.size() ? spec.cases[i] : "end"));
    }
    return verdicts;
}

std::string passed(const std::vector<Verdict> &verdicts)
{
    std::string text;
    for (const Verdict &verdict : verdicts) {
        text += verdict.passed ? '1' : '0';
    }
    return text;
}

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

/* ---- children ---- */

TEST(Children, LinesThenTheEnd)
{
    Children children(
        {{{"/bin/sh", "-c", "read nothing; echo one $WHAT; printf two >&2; exit 3"}, {{"WHAT", "x"}}}});
    const double until = tw_time_sec() + 10;
    EXPECT_EQ(children.n_left(), 1u);
    ChildEvent event = children.next(until);
    EXPECT_EQ(event.kind, ChildEvent::line);
    EXPECT_EQ(event.text, "one x");
    event = children.next(until);
    EXPECT_EQ(event.kind, ChildEvent::line);
    EXPECT_EQ(event.text, "two");
    event = children.next(until);
    EXPECT_EQ(event.kind, ChildEvent::end);
    EXPECT_EQ(event.code, 3);
    EXPECT_EQ(children.n_left(), 0u);
    EXPECT_EQ(children.next(until).kind, ChildEvent::silence);
}

TEST(Children, SilenceIsBounded)
{
    Children children({shell("sleep 100")});
    const double start = tw_time_sec();
    EXPECT_EQ(children.next(start + 0.1).kind, ChildEvent::silence);
    EXPECT_EQ(children.next(start - 1).kind, ChildEvent::silence);
    EXPECT_LT(tw_time_sec() - start, 5);
    children.kill_all();
    const ChildEvent event = children.next(start + 10);
    EXPECT_EQ(event.kind, ChildEvent::end);
    EXPECT_EQ(event.code, 128 + SIGKILL);
}

TEST(Children, AMissingProgram)
{
    Children children({{{"/no/such/program"}, {}}});
    const double until = tw_time_sec() + 10;
    EXPECT_EQ(children.next(until).text, "No such file or directory");
    EXPECT_EQ(children.next(until).code, 127);
}

TEST(Children, DieWithTheirOwner)
{
    pid_t pid = 0;
    {
        Children children({shell("echo $$; exec sleep 100")});
        pid = std::stoi(children.next(tw_time_sec() + 10).text);
        EXPECT_EQ(kill(pid, 0), 0);
    }
    EXPECT_NE(kill(pid, 0), 0);
}

/* ---- jobs ---- */

TEST(Job, AllIsWell)
{
    EXPECT_EQ(passed(run(job({both_ok, both_ok, both_ok}))), "111");
}

TEST(Job, OneRankFindsSomethingWrong)
{
    const auto verdicts = run(job(
        {both_ok,
         "echo some noise; echo @begin 0; echo @wrong 0 byte 3 differs; echo @begin 1; echo @ok 1; exit 1"}));
    EXPECT_EQ(passed(verdicts), "011");
    EXPECT_TRUE(has(verdicts[0].why, "rank 1: byte 3 differs")) << verdicts[0].why;
    EXPECT_TRUE(has(verdicts[0].why, "| some noise")) << verdicts[0].why;
}

TEST(Job, ARankThatHangsInACaseIsNamed)
{
    JobSpec spec = job({both_ok, "echo @begin 0; echo @ok 0; echo @begin 1; echo stuck here; sleep 100"});
    spec.limits.case_sec = 0.3;
    const double start = tw_time_sec();
    const auto verdicts = run(spec);
    EXPECT_LT(tw_time_sec() - start, 4);
    EXPECT_EQ(passed(verdicts), "100");
    EXPECT_TRUE(has(verdicts[1].why, "rank 1 hangs: nothing for 0.")) << verdicts[1].why;
    EXPECT_TRUE(has(verdicts[1].why, "in this case")) << verdicts[1].why;
    EXPECT_TRUE(has(verdicts[1].why, "| stuck here")) << verdicts[1].why;
}

TEST(Job, ARankThatDoesNotBegin)
{
    JobSpec spec = job({"sleep 100", both_ok});
    spec.limits.start_sec = 0.3;
    const auto verdicts = run(spec);
    EXPECT_EQ(passed(verdicts), "000");
    EXPECT_TRUE(has(verdicts[0].why, "rank 0 hangs")) << verdicts[0].why;
    EXPECT_TRUE(has(verdicts[0].why, "before the first case")) << verdicts[0].why;
    EXPECT_TRUE(has(verdicts[1].why, "not run: rank 0 hangs")) << verdicts[1].why;
}

TEST(Job, ARankThatDoesNotEnd)
{
    JobSpec spec = job({both_ok, std::string(both_ok) + "; sleep 100"});
    spec.limits.end_sec = 0.3;
    const auto verdicts = run(spec);
    EXPECT_EQ(passed(verdicts), "110");
    EXPECT_TRUE(has(verdicts[2].why, "rank 1 hangs")) << verdicts[2].why;
    EXPECT_TRUE(has(verdicts[2].why, "after the last case")) << verdicts[2].why;
}

/* The others have a moment to end by themselves, then the job is over. */
TEST(Job, ARankThatCrashes)
{
    const auto verdicts =
        run(job({"echo @begin 0; sleep 100", "echo @begin 0; echo last words; kill -SEGV $$", both_ok}));
    EXPECT_EQ(passed(verdicts), "000");
    EXPECT_TRUE(has(verdicts[0].why, "rank 1 ended with signal 11 (Segmentation fault)")) << verdicts[0].why;
    EXPECT_TRUE(has(verdicts[0].why, "| last words")) << verdicts[0].why;
    EXPECT_FALSE(has(verdicts[0].why, "rank 0")) << verdicts[0].why;
    EXPECT_TRUE(has(verdicts[1].why, "not run: rank 1 ended")) << verdicts[1].why;
}

TEST(Job, ARankThatEndsEarlyOrBadly)
{
    auto verdicts = run(job({both_ok, "echo @begin 0; echo @ok 0"}));
    EXPECT_EQ(passed(verdicts), "100");
    EXPECT_TRUE(has(verdicts[1].why, "rank 1 ended with exit status 0")) << verdicts[1].why;
    verdicts = run(job({both_ok, std::string(both_ok) + "; exit 5"}));
    EXPECT_EQ(passed(verdicts), "110");
    EXPECT_TRUE(has(verdicts[2].why, "rank 1 ended with exit status 5")) << verdicts[2].why;
    verdicts = run(job({"exit 1", "exit 1"}));
    EXPECT_EQ(passed(verdicts), "000");
}

TEST(Job, ARankThatGivesUp)
{
    const auto verdicts = run(job({both_ok, "echo @begin 0; echo @wrong 0 timed out; exit 1"}));
    EXPECT_EQ(passed(verdicts), "001");
    EXPECT_EQ(verdicts[0].why, "rank 1: timed out\n");
    EXPECT_TRUE(has(verdicts[1].why, "not run: a rank had given up")) << verdicts[1].why;
}

TEST(Job, AVictimMustDie)
{
    JobSpec spec = job({both_ok, "echo @begin 0; kill -KILL $$", both_ok});
    spec.victim = 1;
    EXPECT_EQ(passed(run(spec)), "111");
    spec.ranks[1] = shell(both_ok);
    const auto verdicts = run(spec);
    EXPECT_EQ(passed(verdicts), "110");
    EXPECT_TRUE(has(verdicts[2].why, "rank 1 should have been killed, but ended with exit status 0"))
        << verdicts[2].why;
}

/* What does not follow the rules is output. */
TEST(Job, OtherLines)
{
    EXPECT_EQ(passed(run(job({std::string("echo; echo @; echo @ok; echo @ok 7; echo @ok -1; ") + both_ok}))),
              "111");
}

} // namespace
