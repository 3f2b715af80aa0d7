/* One call as the interposer sees it: its configuration, results in NCCL's words, and a process whose NCCL
 * lacks it, here for there is no NCCL in it at all. */
#include <map>

#include "plugin/interpose/interpose.h"
#include "plugin/interpose/nccl_calls.h"
#include "tests/common/fixture.h"

namespace
{

using NcclCalls = tw::Fixture;

TEST_F(NcclCalls, ResultsOfStatuses)
{
    const std::map<tw_status_t, ncclResult_t> named = {
        {TW_OK, ncclSuccess},
        {TW_IN_PROGRESS, ncclInProgress},
        {TW_ERR_CUDA, ncclUnhandledCudaError},
        {TW_ERR_PEER, ncclRemoteError},
        {TW_ERR_TIMEOUT, ncclRemoteError},
        {TW_ERR_IO, ncclSystemError},
        {TW_ERR_NO_MEMORY, ncclSystemError},
        {TW_ERR_INVALID, ncclInvalidArgument},
        {TW_ERR_CONFIG, ncclInvalidUsage},
        {TW_ERR_MISMATCH, ncclInvalidUsage},
    };
#define STATUS(name, value, text) name,
    for (tw_status_t status : {TW_STATUS_LIST(STATUS)}) {
        const auto found = named.find(status);
        EXPECT_EQ(tw_ip_result(status), found != named.end() ? found->second : ncclInternalError)
            << tw_status_string(status);
    }
#undef STATUS
}

/* A caller of an older NCCL has a shorter configuration: what is behind its end is not looked at. */
TEST_F(NcclCalls, OptionsAndEvent)
{
    int event = 0;
    tw_ip_option_t foreign = {nullptr, 12, TW_NCCL_OPTION_PLAIN, {1}};
    tw_ip_option_t other = {&foreign, TW_NCCL_VENDOR, TW_NCCL_OPTION_PLAIN + 1, {1}};
    tw_ip_option_t ours = {nullptr, TW_NCCL_VENDOR, TW_NCCL_OPTION_PLAIN, {1}};
    tw_ip_config_t config = {};
    config.size = sizeof(config);
    config.options = &other;
    config.launch_event = &event;
    tw_ip_call_t call = {};
    call.config = (const ncclCollConfig_t *)&config;

    EXPECT_EQ(tw_ip_call_event(&call), nullptr) << "not the Config form";
    call.has_config = 1;
    EXPECT_EQ(tw_ip_call_event(&call), &event);
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN), nullptr);
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN + 1), &other);
    foreign.next = &ours;
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN), &ours);

    config.size = sizeof(config) - 1;
    EXPECT_EQ(tw_ip_call_event(&call), nullptr);
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN), &ours);
    config.size = offsetof(tw_ip_config_t, options) + sizeof(config.options) - 1;
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN), nullptr);
    call.config = nullptr;
    EXPECT_EQ(tw_ip_call_option(&call, TW_NCCL_OPTION_PLAIN), nullptr);
    EXPECT_EQ(tw_ip_call_event(&call), nullptr);
}

TEST_F(NcclCalls, WhatNcclLacks)
{
    expect_log("this process has no libnccl.so.2");
    EXPECT_EQ(tw_ip_real_at("ncclAllGather"), nullptr);
    for (int kind = 0; kind < TW_IP_KINDS; kind++) {
        tw_ip_call_t call = {};
        call.kind = (tw_ip_kind_t)kind;
        const std::string line = "nccl: this NCCL has no " + std::string(tw_ip_kind_name((tw_ip_kind_t)kind));
        expect_log(line);
        EXPECT_EQ(tw_ip_pass(&call), ncclInvalidUsage);
        EXPECT_EQ(log_count(line + " with a configuration"), 0u);
        call.has_config = 1;
        EXPECT_EQ(tw_ip_pass(&call), ncclInvalidUsage);
        EXPECT_EQ(log_count(line + " with a configuration"), 1u);
    }
}

} // namespace
