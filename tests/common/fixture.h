/** The fixture of every test that runs Thinwire code (//tests/common:fixture):
 *
 *      using Transport = tw::Fixture;    // or: class Transport : public tw::Fixture { ... };
 *      TEST_F(Transport, JoinRefusesBadToken)
 *      {
 *          expect_log("wrong token");    // before or after the call that logs it
 *          ...
 *      }
 *
 *  A test fails when
 *    - a warning or error was logged that no expect_log() covers,
 *    - an expect_log() was never met,
 *    - a file descriptor is open at its end that was not open at its start.
 *  Unexpected lines and, as far as TW_LOG_LEVEL lets them through, all others go to stderr as well.
 *
 *  The log is captured in this process: a forked child has a copy, and calls unexpected_logs() itself if it
 *  wants to know. All functions may be called from any thread. A subclass with its own SetUp or TearDown
 *  calls the one here. */
#ifndef TW_TESTS_COMMON_FIXTURE_H
#define TW_TESTS_COMMON_FIXTURE_H

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/core.h"

namespace tw
{

/** Captures what is logged while it lives. There is one at a time. */
class LogCapture
{
  public:
    LogCapture();
    ~LogCapture();
    LogCapture(const LogCapture &) = delete;
    LogCapture &operator=(const LogCapture &) = delete;

    struct Line {
        tw_log_level_t level;
        std::string where; /**< file:line */
        std::string text;
    };

    /** Warnings and errors that contain `substring` are expected, at least one. */
    void expect(const std::string &substring);
    /** Like expect, but there may be none. */
    void allow(const std::string &substring);
    /** Lines of any captured level that contain `substring`. */
    size_t count(const std::string &substring) const;
    std::vector<Line> lines() const;
    /** Warnings and errors that nothing covers, as "level file:line: text". */
    std::vector<std::string> unexpected() const;
    /** Substrings of expect() that no warning or error contained. */
    std::vector<std::string> unmet() const;

  private:
    static void sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message);
    bool covered(const Line &line) const;

    mutable std::mutex mutex_;
    std::vector<Line> lines_;
    std::vector<std::string> expected_, allowed_;
};

/** Open descriptors of this process: number -> what it is, as /proc says. */
std::map<int, std::string> open_descriptors();

/** Set (nullopt: unset) an environment variable for the lifetime of the object. */
class ScopedEnv
{
  public:
    ScopedEnv(const std::string &name, const std::optional<std::string> &value);
    ~ScopedEnv();
    ScopedEnv(const ScopedEnv &) = delete;
    ScopedEnv &operator=(const ScopedEnv &) = delete;

  private:
    std::string name_;
    std::optional<std::string> before_;
};

class Fixture : public ::testing::Test
{
  protected:
    void SetUp() override;
    void TearDown() override;

    void expect_log(const std::string &substring)
    {
        log_->expect(substring);
    }
    void allow_log(const std::string &substring)
    {
        log_->allow(substring);
    }
    /** How many captured lines contain `substring`; lines of `info` and beyond need capture_level first. */
    size_t log_count(const std::string &substring) const
    {
        return log_->count(substring);
    }
    std::vector<std::string> unexpected_logs() const
    {
        return log_->unexpected();
    }
    /** Capture lines up to this level until the end of the test (at the start: warn, or TW_LOG_LEVEL if more
     *  verbose). */
    void capture_level(tw_log_level_t level)
    {
        tw_log_set_level(level);
    }
    /** Set an environment variable until the end of the test; nullopt unsets it. */
    void set_env(const std::string &name, const std::optional<std::string> &value);
    /** Unset all variables whose names begin with `prefix`, until the end of the test. */
    void unset_env(const std::string &prefix);
    /** Descriptors whose description contains `substring` may stay open: for what libraries keep until
     *  exit. */
    void allow_descriptors(const std::string &substring)
    {
        allowed_descriptors_.push_back(substring);
    }

  private:
    void check_log();
    void check_descriptors();

    std::unique_ptr<LogCapture> log_;
    tw_log_level_t level_before_ = TW_LOG_WARN;
    std::map<int, std::string> descriptors_before_;
    std::vector<std::string> allowed_descriptors_;
    std::vector<std::unique_ptr<ScopedEnv>> env_;
};

} // namespace tw

#endif
