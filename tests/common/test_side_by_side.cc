#include <cstdlib>

#include "tests/common/fixture.h"
#include "tests/common/process.h"

namespace
{

class SideBySide : public tw::Fixture
{
  protected:
    process::Result run(const std::string &told, const std::string &filter = "*")
    {
        char folder[] = "/tmp/side-by-side-XXXXXX";
        EXPECT_NE(mkdtemp(folder), nullptr);
        process::Spec spec;
        spec.argv = {getenv("EXAMPLE_MAIN"), "--gtest_filter=" + filter};
        spec.env = {{"EXAMPLE", told},
                    {"EXAMPLE_FOLDER", folder},
                    {"XML_OUTPUT_FILE", std::string(folder) + "/report.xml"}};
        spec.stderr_to = process::Stderr::with_stdout;
        process::Child child(spec);
        const process::Result result = child.wait(60);
        report = process::slurp(std::string(folder) + "/report.xml");
        (void)process::run({"rm", "-r", folder});
        return result;
    }
    int count(const std::string &what) const
    {
        int n = 0;
        for (size_t at = 0; (at = report.find(what, at)) != std::string::npos; at++) {
            n++;
        }
        return n;
    }
    std::string report;
};

TEST_F(SideBySide, CasesRunAtOnceAndAllAreReported)
{
    const process::Result result = run("");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_EQ(count("<testcase "), 4) << report;
    EXPECT_EQ(count("</testsuites>"), 1) << report;
    EXPECT_EQ(count("<failure"), 0) << report;
}

TEST_F(SideBySide, WhatFailsFailsTheWhole)
{
    const process::Result result = run("fail");
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.out.find("as told"), std::string::npos) << result.out;
    EXPECT_EQ(count("<testcase "), 4) << report;
    EXPECT_EQ(count("<failure"), 1) << report;
}

TEST_F(SideBySide, WhoDiesFailsTheWhole)
{
    for (const char *how : {"abort", "exit"}) {
        EXPECT_NE(run(how).code, 0) << how;
        EXPECT_EQ(count("it ended without a report"), 1) << report;
    }
}

TEST_F(SideBySide, AFilterLeavesWhatItNames)
{
    EXPECT_EQ(run("abort", "Example.Fails").code, 0);
    EXPECT_EQ(count("<testcase "), 1) << report;
}

} // namespace
