/* The fixture's own test: what must make a test fail does. Each inner test runs in GoogleTest's result
 * recorder. */
#include "tests/common/fixture.h"

#include <functional>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest-spi.h>

namespace
{

/* A fixture run by hand, with what its test would do. */
class Inner : public tw::Fixture
{
  public:
    explicit Inner(std::function<void(Inner &)> body) : body_(std::move(body))
    {
    }
    void TestBody() override
    {
    }
    void run()
    {
        SetUp();
        body_(*this);
        TearDown();
    }
    using Fixture::allow_descriptors;
    using Fixture::allow_log;
    using Fixture::capture_level;
    using Fixture::expect_log;
    using Fixture::log_count;
    using Fixture::set_env;
    using Fixture::unexpected_logs;

  private:
    std::function<void(Inner &)> body_;
};

/* The failures of such a run. */
std::vector<std::string> failures(const std::function<void(Inner &)> &body)
{
    ::testing::TestPartResultArray results;
    {
        ::testing::ScopedFakeTestPartResultReporter reporter(
            ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
        Inner(body).run();
    }
    std::vector<std::string> found;
    for (int i = 0; i < results.size(); i++) {
        found.push_back(results.GetTestPartResult(i).message());
    }
    return found;
}

using Strings = std::vector<std::string>;

} // namespace

TEST(Fixture, QuietTestPasses)
{
    EXPECT_EQ(failures([](Inner &) { tw_info("only information"); }), Strings());
}

TEST(Fixture, UnexpectedWarningOrErrorFails)
{
    for (tw_log_level_t level : {TW_LOG_WARN, TW_LOG_ERROR}) {
        Strings found = failures([&](Inner &) { tw_log(level, "file.c", 7, "rank 3: trouble"); });
        ASSERT_EQ(found.size(), 1u);
        EXPECT_NE(found[0].find("unexpected log line: "), std::string::npos);
        EXPECT_NE(found[0].find("file.c:7: rank 3: trouble"), std::string::npos);
    }
}

TEST(Fixture, WarningOfAnotherThreadFails)
{
    EXPECT_EQ(failures([](Inner &) { std::thread([] { tw_warn("elsewhere"); }).join(); }).size(), 1u);
}

TEST(Fixture, ExpectedBeforeOrAfter)
{
    EXPECT_EQ(failures([](Inner &test) {
                  test.expect_log("trouble");
                  tw_error("rank 3: trouble");
                  tw_warn("more trouble");
              }),
              Strings());
    EXPECT_EQ(failures([](Inner &test) {
                  tw_error("rank 3: trouble");
                  EXPECT_EQ(test.unexpected_logs().size(), 1u);
                  test.expect_log("rank 3: trouble");
                  EXPECT_EQ(test.unexpected_logs().size(), 0u);
              }),
              Strings());
}

TEST(Fixture, ExpectedButNotLoggedFails)
{
    Strings found = failures([](Inner &test) {
        test.expect_log("trouble");
        test.capture_level(TW_LOG_INFO);
        tw_info("trouble"); /* no complaint, so it does not count */
    });
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("expected a log line with \"trouble\""), std::string::npos);
}

TEST(Fixture, AllowedMayBeOrNot)
{
    auto body = [](bool log) {
        return [log](Inner &test) {
            test.allow_log("slow");
            if (log) {
                tw_warn("slow start");
            }
        };
    };
    EXPECT_EQ(failures(body(false)), Strings());
    EXPECT_EQ(failures(body(true)), Strings());
}

TEST(Fixture, CountsLinesOfCapturedLevels)
{
    tw_log_level_t before = tw_log_level();
    EXPECT_EQ(failures([](Inner &test) {
                  test.capture_level(TW_LOG_DEBUG);
                  tw_debug("chose ring");
                  tw_info("chose tree");
                  tw_trace("chose nothing");
                  EXPECT_EQ(test.log_count("chose"), 2u);
                  EXPECT_EQ(test.log_count("chose ring"), 1u);
              }),
              Strings());
    EXPECT_EQ(tw_log_level(), before);
}

TEST(Fixture, LeakedDescriptorFails)
{
    int fd = -1;
    Strings found = failures([&](Inner &) { fd = open("/dev/null", O_RDONLY); });
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("leaked descriptor " + std::to_string(fd) + ": /dev/null"), std::string::npos);
    /* It was there before the next one starts. */
    EXPECT_EQ(failures([](Inner &) {}), Strings());
    /* Another file under the same number is another descriptor. */
    found = failures([&](Inner &) {
        close(fd);
        fd = open("/dev/zero", O_RDONLY);
    });
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("/dev/zero"), std::string::npos);
    close(fd);
}

TEST(Fixture, AllowedDescriptorMayStay)
{
    int fd = -1;
    EXPECT_EQ(failures([&](Inner &test) {
                  test.allow_descriptors("/dev/null");
                  fd = open("/dev/null", O_RDONLY);
              }),
              Strings());
    close(fd);
}

TEST(Fixture, EnvironmentIsRestored)
{
    setenv("TW_FIXTURE_A", "outer", 1);
    unsetenv("TW_FIXTURE_B");
    EXPECT_EQ(failures([](Inner &test) {
                  test.set_env("TW_FIXTURE_A", "inner");
                  test.set_env("TW_FIXTURE_A", std::nullopt);
                  EXPECT_EQ(getenv("TW_FIXTURE_A"), nullptr);
                  test.set_env("TW_FIXTURE_B", "inner");
                  EXPECT_STREQ(getenv("TW_FIXTURE_B"), "inner");
              }),
              Strings());
    EXPECT_STREQ(getenv("TW_FIXTURE_A"), "outer");
    EXPECT_EQ(getenv("TW_FIXTURE_B"), nullptr);
    unsetenv("TW_FIXTURE_A");
}
