#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

using Log = tw::Fixture;

/* Two lines, and the end of the process: what reaches stderr is the test. */
[[noreturn]] void log_and_exit(const char *level)
{
    if (level != nullptr) {
        setenv("TW_LOG_LEVEL", level, 1);
    } else {
        unsetenv("TW_LOG_LEVEL");
    }
    tw_error("line of error");
    tw_warn("line of warn");
    tw_info("line of info");
    tw_debug("line of debug");
    tw_trace("line of trace");
    exit(0);
}

/* In a process of its own: the level is read from the environment once. */
void expect_stderr(const char *level, const std::string &pattern)
{
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(log_and_exit(level), ::testing::ExitedWithCode(0), pattern);
}

const std::string stamp = "[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} thinwire ";

} // namespace

TEST(LogDeathTest, DefaultIsWarnOnStderr)
{
    expect_stderr(nullptr, "^" + stamp + "error line of error\n" + stamp + "warn line of warn\n$");
}

TEST(LogDeathTest, LevelFromTheEnvironment)
{
    expect_stderr("error", "^" + stamp + "error line of error\n$");
    expect_stderr("info", "warn line of warn\n" + stamp + "info line of info\n$");
    expect_stderr("debug", "info line of info\n" + stamp + "debug line of debug\n$");
    expect_stderr("TRACE", "debug line of debug\n" + stamp + "trace line of trace\n$");
}

TEST(LogDeathTest, ABadLevelIsSaidOnceAndWarnHolds)
{
    expect_stderr("loud",
                  "^" + stamp +
                      "error config: TW_LOG_LEVEL=loud: expected one of error, warn, info, debug, trace\n" +
                      stamp + "error line of error\n" + stamp + "warn line of warn\n$");
}

TEST_F(Log, LevelsAreFiltered)
{
    const tw_log_level_t levels[] = {TW_LOG_ERROR, TW_LOG_WARN, TW_LOG_INFO, TW_LOG_DEBUG, TW_LOG_TRACE};
    expect_log("at level");
    for (tw_log_level_t limit : levels) {
        tw_log_set_level(limit);
        EXPECT_EQ(tw_log_level(), limit);
        size_t before = log_count("at level");
        for (tw_log_level_t level : levels) {
            TW_LOG_AT(level, "at level %d", int(level));
        }
        EXPECT_EQ(log_count("at level") - before, size_t(limit) + 1);
        /* Also without the macro. */
        for (tw_log_level_t level : levels) {
            tw_log(level, "f", 1, "at level %d", int(level));
        }
        EXPECT_EQ(log_count("at level") - before, 2 * (size_t(limit) + 1));
    }
}

TEST_F(Log, ArgumentsOfASilentLineAreNotEvaluated)
{
    int evaluated = 0;
    tw_log_set_level(TW_LOG_INFO);
    tw_debug("%d", ++evaluated);
    EXPECT_EQ(evaluated, 0);
    tw_info("%d", ++evaluated);
    EXPECT_EQ(evaluated, 1);
}

TEST_F(Log, MacrosAreStatements)
{
    bool no = false;
    if (no) {
        tw_error("never");
    } else {
        tw_debug("never either");
    }
    EXPECT_EQ(log_count("never"), 0u);
}

TEST(LogSink, GetsLevelPlaceAndText)
{
    tw_log_set_level(TW_LOG_WARN);
    tw::LogCapture capture;
    tw_warn("rank %d: %s", 3, "peer 5");
    int line = __LINE__ - 1;
    ASSERT_EQ(capture.lines().size(), 1u);
    EXPECT_EQ(capture.lines()[0].level, TW_LOG_WARN);
    EXPECT_EQ(capture.lines()[0].text, "rank 3: peer 5");
    EXPECT_NE(capture.lines()[0].where.find("test_log.cc:" + std::to_string(line)), std::string::npos);
}

TEST_F(Log, LongLinesAreCut)
{
    for (size_t length : {size_t(4094), size_t(4095), size_t(4096), size_t(100000)}) {
        tw::LogCapture capture;
        capture.allow("x");
        std::string text(length, 'x');
        tw_warn("%s", text.c_str());
        ASSERT_EQ(capture.lines().size(), 1u);
        std::string logged = capture.lines()[0].text;
        if (length < 4096) {
            EXPECT_EQ(logged, text);
        } else {
            EXPECT_EQ(logged, std::string(4092, 'x') + "...");
        }
    }
}

/* The counter is not atomic: the log calls its sink one at a time (tsan looks on as well). */
TEST(LogSink, OneCallAtATime)
{
    struct State {
        size_t lines = 0;
        bool inside = false, overlapped = false;
    } state;
    tw_log_set_level(TW_LOG_WARN);
    tw_log_set_sink(
        [](void *ctx, tw_log_level_t, const char *, int, const char *) {
            auto *s = static_cast<State *>(ctx);
            s->overlapped |= s->inside;
            s->inside = true;
            s->lines++;
            std::this_thread::yield();
            s->inside = false;
        },
        &state);
    const size_t n_threads = 8, n_lines = 500;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n_threads; t++) {
        threads.emplace_back([] {
            for (size_t i = 0; i < n_lines; i++) {
                tw_warn("line %zu", i);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    tw_log_set_sink(nullptr, nullptr);
    EXPECT_EQ(state.lines, n_threads * n_lines);
    EXPECT_FALSE(state.overlapped);
}

/* Errors wait, of this thread alone; they can be compared, logged as they were, or dropped. */
TEST(LogSink, ErrorsCanBeKeptBack)
{
    uint64_t hashes[3];
    tw_log_set_level(TW_LOG_WARN);
    for (int i = 0; i < 3; i++) {
        tw::LogCapture capture;
        tw_log_held_t held, inner;
        tw_log_keep_begin(&held);
        EXPECT_EQ(tw_log_held_hash(&held), 0u);
        tw_error("first %d", i / 2);
        tw_log_keep_begin(&inner);
        tw_error("of somebody else");
        tw_log_keep_end(&inner);
        tw_error("second");
        int line = __LINE__ - 1;
        tw_warn("no error");
        std::thread([] { tw_error("of another thread"); }).join();
        tw_log_keep_end(&held);
        hashes[i] = tw_log_held_hash(&held);
        ASSERT_EQ(capture.lines().size(), 2u);
        tw_log_held_cleanup(&inner, 0);
        tw_log_held_cleanup(&held, i == 0);
        tw_error("as ever");
        ASSERT_EQ(capture.lines().size(), i == 0 ? 5u : 3u);
        if (i == 0) {
            EXPECT_EQ(capture.lines()[2].text, "first 0");
            EXPECT_EQ(capture.lines()[3].text, "second");
            EXPECT_NE(capture.lines()[3].where.find("test_log.cc:" + std::to_string(line)),
                      std::string::npos);
        }
    }
    EXPECT_EQ(hashes[0], hashes[1]);
    EXPECT_NE(hashes[0], hashes[2]);
}

TEST(LogTable, IsWhatTheLevelsAre)
{
    ASSERT_EQ(tw_log_config_table.n_fields, 1u);
    EXPECT_STREQ(tw_log_config_table.fields[0].name, "TW_LOG_LEVEL");
    const char *const *names = tw_log_config_table.fields[0].choices;
    EXPECT_STREQ(names[TW_LOG_ERROR], "error");
    EXPECT_STREQ(names[TW_LOG_TRACE], "trace");
    EXPECT_EQ(names[TW_LOG_TRACE + 1], nullptr);
}
