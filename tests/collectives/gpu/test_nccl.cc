/* What NCCL answers, and what becomes of it: against functions of the test's own, as NCCL does nothing
 * without a GPU. */
#include "tests/common/fixture.h"

#ifdef TW_HAVE_NCCL

#include <thread>

#include "collectives/gpu/nccl_api.h"

namespace
{

/** What the functions were called with, and what they shall say; one test runs at a time. */
struct Fake {
    ncclResult_t result = ncclSuccess, async = ncclSuccess, end = ncclSuccess;
    int polls_until_done = 0, n_aborts = 0, n_destroys = 0, n_finalizes = 0;
    std::vector<std::string> calls;
};
Fake fake;

ncclComm_t comm()
{
    return reinterpret_cast<ncclComm_t>(&fake);
}

ncclResult_t note(const std::string &call)
{
    fake.calls.push_back(call);
    return fake.result;
}

tw_nccl_api_t fake_api()
{
    tw_nccl_api_t api = {};
    api.ncclGetErrorString = [](ncclResult_t) { return "some words"; };
    api.ncclGetLastError = [](ncclComm_t) { return "the last words"; };
    api.ncclCommGetAsyncError = [](ncclComm_t, ncclResult_t *out) {
        *out = fake.polls_until_done-- > 0 ? ncclInProgress : fake.async;
        return ncclSuccess;
    };
    api.ncclGroupStart = [] { return note("start"); };
    api.ncclGroupEnd = [] {
        note("end");
        return fake.end;
    };
    api.ncclSend = [](const void *, size_t n, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) {
        return note("send " + std::to_string(n) + " of " + std::to_string(type) + " to " +
                    std::to_string(peer));
    };
    api.ncclRecv = [](void *, size_t n, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) {
        return note("recv " + std::to_string(n) + " of " + std::to_string(type) + " from " +
                    std::to_string(peer));
    };
    api.ncclAllGather = [](const void *, void *, size_t n, ncclDataType_t type, ncclComm_t, cudaStream_t) {
        return note("allgather " + std::to_string(n) + " of " + std::to_string(type));
    };
    api.ncclReduceScatter = [](const void *, void *, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t, cudaStream_t) {
        return note("reduce_scatter " + std::to_string(n) + " of " + std::to_string(type) + " by " +
                    std::to_string(op));
    };
    api.ncclAllReduce = [](const void *, void *, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t,
                           cudaStream_t) {
        return note("allreduce " + std::to_string(n) + " of " + std::to_string(type) + " by " +
                    std::to_string(op));
    };
    api.ncclCommAbort = [](ncclComm_t) {
        fake.n_aborts++;
        return ncclSuccess;
    };
    api.ncclCommFinalize = [](ncclComm_t) {
        fake.n_finalizes++;
        return fake.result;
    };
    api.ncclCommDestroy = [](ncclComm_t) {
        fake.n_destroys++;
        return ncclSuccess;
    };
    return api;
}

class GpuNccl : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        fake = Fake();
        api = fake_api();
        wire = tw_nccl_wire_create(&api, comm(), 3, 0, nullptr);
        ASSERT_NE(wire, nullptr);
    }
    void TearDown() override
    {
        wire->destroy(wire);
        tw::Fixture::TearDown();
    }
    tw_nccl_api_t api;
    tw_gpu_wire_t *wire;
};

/* The library that was found when this was built has every function. */
TEST_F(GpuNccl, LibraryHasEveryFunction)
{
    tw_nccl_api_t real = {};
    allow_log("there is no NCCL here");
    if (tw_nccl_load(&real) != TW_OK) {
        GTEST_SKIP() << "no NCCL where this runs";
    }
    EXPECT_STREQ(real.ncclGetErrorString(ncclSuccess), "no error");
    EXPECT_NE(real.ncclAllReduce, nullptr);
}

TEST_F(GpuNccl, CallsAndTypes)
{
    char memory[8];
    EXPECT_EQ(wire->begin(wire), TW_OK);
    EXPECT_EQ(wire->send(wire, 5, memory, 7, nullptr), TW_OK);
    EXPECT_EQ(wire->recv(wire, 6, memory, 8, nullptr), TW_OK);
    tw_gpu_native_t native = {TW_COLL_ALLGATHER, TW_TYPE_BYTE, TW_COLL_SUM, memory, memory, 4};
    EXPECT_EQ(wire->native(wire, &native, nullptr), TW_OK);
    native = {TW_COLL_REDUCE_SCATTER, TW_TYPE_BF16, TW_COLL_MEAN, memory, memory, 3};
    EXPECT_EQ(wire->native(wire, &native, nullptr), TW_OK);
    native = {TW_COLL_ALLREDUCE, TW_TYPE_FP16, TW_COLL_SUM, memory, memory, 2};
    EXPECT_EQ(wire->native(wire, &native, nullptr), TW_OK);
    native.type = TW_TYPE_FP32;
    EXPECT_EQ(wire->native(wire, &native, nullptr), TW_OK);
    EXPECT_EQ(wire->end(wire), TW_OK);
    auto number = [](int value) { return std::to_string(value); };
    std::vector<std::string> want = {"start",
                                     "send 7 of " + number(ncclUint8) + " to 5",
                                     "recv 8 of " + number(ncclUint8) + " from 6",
                                     "allgather 4 of " + number(ncclUint8),
                                     "reduce_scatter 3 of " + number(ncclBfloat16) + " by " + number(ncclAvg),
                                     "allreduce 2 of " + number(ncclFloat16) + " by " + number(ncclSum),
                                     "allreduce 2 of " + number(ncclFloat32) + " by " + number(ncclSum),
                                     "end"};
    EXPECT_EQ(fake.calls, want);
}

TEST_F(GpuNccl, ResultsAreTranslated)
{
    const std::pair<ncclResult_t, tw_status_t> results[] = {
        {ncclUnhandledCudaError, TW_ERR_CUDA}, {ncclSystemError, TW_ERR_IO},
        {ncclInternalError, TW_ERR_NCCL},      {ncclInvalidArgument, TW_ERR_INVALID},
        {ncclInvalidUsage, TW_ERR_INVALID},    {ncclRemoteError, TW_ERR_PEER},
    };
    for (const auto &each : results) {
        expect_log("rank 3: ncclGroupEnd: NCCL error " + std::to_string(each.first) +
                   " (some words): the last words");
        fake.end = each.first;
        EXPECT_EQ(wire->begin(wire), TW_OK);
        EXPECT_EQ(wire->end(wire), each.second);
    }
}

/* Where communicators do not block, calls go on in the background. */
TEST_F(GpuNccl, WaitsForTheBackground)
{
    char memory[8];
    fake.result = ncclInProgress;
    EXPECT_EQ(wire->begin(wire), TW_OK);
    EXPECT_EQ(wire->send(wire, 5, memory, 7, nullptr), TW_OK);
    fake.end = ncclInProgress;
    fake.polls_until_done = 5;
    EXPECT_EQ(wire->end(wire), TW_OK);
    EXPECT_LE(fake.polls_until_done, 0);
    fake.polls_until_done = 2;
    fake.async = ncclRemoteError;
    expect_log("rank 3: ncclGroupEnd: NCCL error 6");
    EXPECT_EQ(wire->begin(wire), TW_OK);
    EXPECT_EQ(wire->end(wire), TW_ERR_PEER);
    fake.result = fake.async = ncclSuccess;
}

/* What happens on the device, or elsewhere, is said once. */
TEST_F(GpuNccl, AsynchronousErrors)
{
    EXPECT_EQ(wire->error(wire), TW_OK);
    fake.polls_until_done = 1;
    EXPECT_EQ(wire->error(wire), TW_OK) << "busy is not an error";
    fake.async = ncclRemoteError;
    expect_log("rank 3: on the device, or on another rank: NCCL error 6");
    EXPECT_EQ(wire->error(wire), TW_ERR_PEER);
    EXPECT_EQ(wire->error(wire), TW_ERR_PEER);
    EXPECT_EQ(log_count("on the device"), 1u);
    wire->abort(wire);
    wire->abort(wire);
    EXPECT_EQ(fake.n_aborts, 1);
    EXPECT_EQ(wire->error(wire), TW_ERR_PEER);
}

TEST_F(GpuNccl, EndsOnce)
{
    tw_gpu_wire_t *other = tw_nccl_wire_create(&api, comm(), 0, 0, nullptr);
    other->destroy(other);
    EXPECT_EQ(fake.n_finalizes, 1);
    EXPECT_EQ(fake.n_destroys, 1);
    other = tw_nccl_wire_create(&api, comm(), 0, 0, nullptr);
    other->abort(other);
    EXPECT_EQ(other->error(other), TW_ERR_NCCL);
    other->destroy(other);
    EXPECT_EQ(fake.n_destroys, 1) << "aborting has freed it";
}

/* A communicator that is somebody else's is left as it is. */
TEST_F(GpuNccl, SharedStays)
{
    tw_gpu_wire_t *other = tw_nccl_wire_create(&api, comm(), 0, 1, nullptr);
    EXPECT_EQ(other->begin(other), TW_OK);
    EXPECT_EQ(other->end(other), TW_OK);
    other->destroy(other);
    other = tw_nccl_wire_create(&api, comm(), 0, 1, nullptr);
    other->abort(other);
    EXPECT_EQ(other->error(other), TW_ERR_NCCL);
    other->destroy(other);
    EXPECT_EQ(fake.n_finalizes + fake.n_destroys + fake.n_aborts, 0);
}

/* Its owner is about to end it: nothing is asked of NCCL any more, also not what was waited for. */
TEST_F(GpuNccl, GateThatIsClosed)
{
    static tw_coll_gate_t gate;
    gate = {};
    tw_gpu_wire_t *other = tw_nccl_wire_create(&api, comm(), 0, 1, &gate);
    EXPECT_EQ(other->begin(other), TW_OK);
    fake.end = ncclInProgress;
    fake.polls_until_done = 1 << 30;
    tw_nccl_api_t closing = fake_api();
    closing.ncclCommGetAsyncError = [](ncclComm_t, ncclResult_t *out) {
        std::thread([] { tw_coll_gate_close(&gate); }).detach();
        *out = ncclInProgress;
        return ncclSuccess;
    };
    EXPECT_EQ(tw_nccl_check_gated(&closing, 0, comm(), &gate, ncclInProgress, "x"), TW_ERR_CANCELED);
    fake.calls.clear();
    EXPECT_EQ(other->end(other), TW_ERR_CANCELED) << "the group was open, and is closed";
    EXPECT_EQ(fake.calls, std::vector<std::string>{"end"});
    EXPECT_EQ(other->begin(other), TW_ERR_CANCELED);
    EXPECT_EQ(other->end(other), TW_OK);
    EXPECT_EQ(other->error(other), TW_ERR_CANCELED);
    EXPECT_EQ(fake.calls.size(), 1u);
    other->destroy(other);

    /* somebody is inside and does not come out */
    tw_coll_gate_t other_gate = {};
    EXPECT_EQ(tw_coll_gate_enter(&other_gate), TW_OK);
    tw_coll_gate_close(&other_gate);
    EXPECT_EQ(tw_coll_gate_enter(&other_gate), TW_ERR_CANCELED);
}

} // namespace

#else

TEST(GpuNccl, Skipped)
{
    GTEST_SKIP() << "no NCCL was found when this was built";
}

#endif
