/* NCCL's logger as the log, and results. */
#include "plugin/nccl/log.h"

#include <cstdarg>
#include <string>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

struct Line {
    tw_nccl_log_level_t level;
    unsigned long subsystems;
    std::string file, text;
};

std::vector<Line> lines;

void logger(tw_nccl_log_level_t level, unsigned long subsystems, const char *file, int, const char *format,
            ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    lines.push_back({level, subsystems, file, text});
}

class NcclLog : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        lines.clear();
        set_env("TW_LOG_LEVEL", std::nullopt);
    }
};

TEST_F(NcclLog, LinesGoToNcclsLoggerAtItsLevels)
{
    tw_nccl_log_install(logger);
    tw_error("a %d%%", 1);
    tw_warn("b");
    tw_info("c");
    tw_log_set_level(TW_LOG_TRACE);
    tw_trace("%%s stays");
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[0].level, TW_NCCL_LOG_WARN);
    EXPECT_EQ(lines[0].text, "thinwire: a 1%");
    EXPECT_NE(lines[0].file.find("test_log.cc"), std::string::npos);
    EXPECT_EQ(lines[1].level, TW_NCCL_LOG_WARN);
    EXPECT_EQ(lines[2].level, TW_NCCL_LOG_INFO);
    EXPECT_NE(lines[2].subsystems & TW_NCCL_SUBSYSTEM_INIT, 0u);
    EXPECT_EQ(lines[3].level, TW_NCCL_LOG_TRACE);
    EXPECT_EQ(lines[3].text, "thinwire: %s stays");
}

TEST_F(NcclLog, TheUsersLevelStays)
{
    set_env("TW_LOG_LEVEL", "warn");
    tw_nccl_log_install(logger);
    tw_info("not asked for");
    tw_warn("asked for");
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].text, "thinwire: asked for");
}

/* NCCL shows no line unless NCCL_DEBUG says so. */
TEST_F(NcclLog, WhatNcclWouldNotShowIsOnStderr)
{
    const std::pair<const char *, bool> levels[] = {{nullptr, true}, {"VERSION", true}, {"", true},
                                                    {"warn", false}, {"INFO", false},   {"TRACE", false}};
    tw_nccl_log_install(logger);
    for (auto [level, is_hidden] : levels) {
        set_env("NCCL_DEBUG", level != nullptr ? std::optional<std::string>(level) : std::nullopt);
        testing::internal::CaptureStderr();
        tw_error("a");
        tw_warn("b");
        tw_info("c");
        std::string said = testing::internal::GetCapturedStderr();
        EXPECT_EQ(said.find("[-1] NCCL WARN thinwire: a\n") != std::string::npos, is_hidden) << said;
        EXPECT_EQ(said.find("[-1] NCCL WARN thinwire: b\n") != std::string::npos, is_hidden) << said;
        EXPECT_EQ(said.find("thinwire: c"), std::string::npos) << said;
    }
    EXPECT_EQ(lines.size(), 18u);
}

TEST_F(NcclLog, NoLoggerLeavesTheLogAlone)
{
    expect_log("here as before");
    tw_nccl_log_install(nullptr);
    tw_warn("here as before");
    EXPECT_TRUE(lines.empty());
}

TEST_F(NcclLog, EveryStatusIsAResult)
{
    EXPECT_EQ(tw_nccl_result(TW_OK), TW_NCCL_SUCCESS);
    EXPECT_EQ(tw_nccl_result(TW_IN_PROGRESS), TW_NCCL_SUCCESS);
    for (tw_status_t status : {TW_ERR_PEER, TW_ERR_TIMEOUT, TW_ERR_AUTH}) {
        EXPECT_EQ(tw_nccl_result(status), TW_NCCL_REMOTE_ERROR);
    }
    EXPECT_EQ(tw_nccl_result(TW_ERR_NO_MEMORY), TW_NCCL_SYSTEM_ERROR);
    EXPECT_EQ(tw_nccl_result(TW_ERR_CONFIG), TW_NCCL_INVALID_USAGE);
    EXPECT_EQ(tw_nccl_result(TW_ERR_INVALID), TW_NCCL_INVALID_ARGUMENT);
#define NOT_SUCCESS(name, value, text)                            \
    if (value < 0) {                                              \
        EXPECT_NE(tw_nccl_result(name), TW_NCCL_SUCCESS) << text; \
    }
    TW_STATUS_LIST(NOT_SUCCESS)
#undef NOT_SUCCESS
}

} // namespace
