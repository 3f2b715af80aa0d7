#include "tests/common/process.h"

#include <csignal>
#include <cstdlib>
#include <memory>

#include <unistd.h>

#include "tests/common/fixture.h"

namespace
{

class Process : public tw::Fixture
{
};

TEST_F(Process, SaysWhatItSaidAndHowItEnded)
{
    const process::Result result = process::run({"sh", "-c", "echo out; echo err >&2; exit 3"});
    EXPECT_EQ(result.code, 3);
    EXPECT_EQ(result.out, "out\n");
    EXPECT_EQ(result.err, "err\n");
    EXPECT_TRUE(result.in_time);
    EXPECT_EQ(process::run({"sh", "-c", "kill -SEGV $$"}).code, 128 + SIGSEGV);
    EXPECT_EQ(process::run({"/nowhere/at/all"}).code, 127);
}

TEST_F(Process, OneTextForBothAndAnEnvironment)
{
    process::Spec spec;
    spec.argv = {"sh", "-c", "echo $TW_TEST_WORD; echo err >&2"};
    spec.env = {{"TW_TEST_WORD", "word"}};
    spec.stderr_to = process::Stderr::with_stdout;
    EXPECT_EQ(process::Child(spec).wait().out, "word\nerr\n");
}

TEST_F(Process, ABodyWithWhatComesBefore)
{
    process::Spec spec;
    spec.before = []() { setenv("TW_TEST_WORD", "7", 1); };
    spec.body = []() { return atoi(getenv("TW_TEST_WORD")); };
    EXPECT_EQ(process::Child(spec).wait().code, 7);
    EXPECT_EQ(getenv("TW_TEST_WORD"), nullptr);
}

/* More than a pipe holds, from several, one of which is waited for before the others. */
TEST_F(Process, NobodyBlocksOnAFullPipe)
{
    std::vector<std::unique_ptr<process::Child>> all;
    std::vector<process::Child *> listened;
    for (int i = 0; i < 3; i++) {
        all.push_back(std::make_unique<process::Child>(
            std::vector<std::string>{"sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2"}));
        listened.push_back(all.back().get());
    }
    while (all[0]->pid() > 0 || all[1]->pid() > 0 || all[2]->pid() > 0) {
        process::listen(listened, 20);
    }
    for (const auto &child : all) {
        const process::Result result = child->wait();
        EXPECT_EQ(result.code, 0);
        EXPECT_EQ(result.out.size(), 300000u);
        EXPECT_EQ(result.err.size(), 200000u);
    }
}

/* A child that takes too long is killed; one that leaves a process behind with its pipes open is not waited
 * for. */
TEST_F(Process, Limits)
{
    const process::Result late = process::Child({"sleep", "1000"}).wait(0.1);
    EXPECT_FALSE(late.in_time);
    EXPECT_EQ(late.code, 128 + SIGKILL);
    const process::Result left = process::run({"sh", "-c", "sleep 1000 & echo $!"});
    EXPECT_TRUE(left.in_time);
    EXPECT_EQ(left.code, 0);
    EXPECT_EQ(kill(atoi(left.out.c_str()), SIGKILL), 0);
}

TEST_F(Process, DiesWithItsObject)
{
    pid_t pid = 0;
    {
        process::Child child({"sleep", "1000"});
        pid = child.pid();
        EXPECT_EQ(kill(pid, 0), 0);
    }
    EXPECT_NE(kill(pid, 0), 0);
}

} // namespace
