/* NCCL's thread is never kept, whatever a codec has to do. */
#include <algorithm>
#include <cmath>

#include "tests/common/fixture.h"
#include "tests/plugin/nccl/collnet/group.h"
#include "tests/plugin/nccl/net/strict.h"

namespace
{

using namespace group;

constexpr size_t n_elems = (size_t)16 << 20;

class Strict : public testing::TestWithParam<const char *>
{
};

/* An all-reduce of 64 MB: encoding, sums and sending take far longer than a copy; no call does, and none
 * sleeps. */
TEST_P(Strict, NoCallSleepsOrWorksForLong)
{
    EXPECT_EQ(
        run(2,
            [](const Place &place) {
                auto net = version(12);
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = join(*net, place), *mhandles[2] = {};
                const double most_sec = strict::copy_sec(4 * n_elems) / 4;
                std::vector<float> send(n_elems, 1), receive(n_elems);
                strict::Longest call;
                expect(net->register_memory(comm, send.data(), 4 * n_elems, &mhandles[0]) == TW_NCCL_SUCCESS,
                       "regMr");
                expect(net->register_memory(comm, receive.data(), 4 * n_elems, &mhandles[1]) ==
                           TW_NCCL_SUCCESS,
                       "regMr");
                strict::without_sleep([&] {
                    for (int round = 0; round < strict::rounds; round++) {
                        void *request = nullptr;
                        int done = 0, size = 0;
                        std::fill(send.begin(), send.end(), 1.0f); /* the last round's was cleared */
                        while (request == nullptr) {
                            expect(call([&] {
                                       return net->allreduce(comm, send.data(), receive.data(), n_elems,
                                                             TW_NCCL_FLOAT32, TW_NCCL_SUM, &request);
                                   }) == TW_NCCL_SUCCESS,
                                   "iallreduce");
                        }
                        while (!done) {
                            expect(call([&] { return net->test(request, &done, &size); }) == TW_NCCL_SUCCESS,
                                   "test");
                        }
                        call.end_round();
                    }
                });
                expect(std::fabs(receive[0] - 2) < 0.1f && std::fabs(receive[n_elems - 1] - 2) < 0.1f,
                       "the sum");
                expect(call.best_sec() < most_sec, "a call took " + std::to_string(call.best_sec()) + " s");
                for (void *mhandle : mhandles) {
                    expect(net->deregister_memory(comm, mhandle) == TW_NCCL_SUCCESS, "deregMr");
                }
                expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            {{"TW_ALLREDUCE_CODEC", GetParam()}}),
        "");
}

INSTANTIATE_TEST_SUITE_P(Codecs, Strict, testing::Values("exact", "int8"));

} // namespace
