/* The progress thread: operations from any thread while nobody else moves them. */
#include "collectives/shared.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t n_colls = 3;

/* Ranks over the local transport, each with communicators that share a thread. */
class Progress : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", "512");
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
        ASSERT_EQ(tw_transport_local_create(world, nodes, transports), TW_OK);
    }
    void TearDown() override
    {
        for (int r = 0; r < world; r++) {
            for (tw_coll_t *coll : colls[(size_t)r]) {
                tw_coll_destroy(coll);
            }
            EXPECT_EQ(tw_transport_hook_get(transports[r]), nullptr) << "nothing is left behind";
            tw_transport_destroy(transports[r]);
        }
        tw::Fixture::TearDown();
    }
    void create(int rank, size_t which)
    {
        tw_coll_params_t params = tw::params_of(transports[rank], nullptr, 0, (int)which + 1);
        params.progress_thread = 1;
        EXPECT_EQ(tw_coll_create(&params, &colls[(size_t)rank][which]), TW_OK);
    }
    void run(const std::function<void(int)> &body)
    {
        std::vector<std::thread> threads;
        for (int r = 0; r < world; r++) {
            threads.emplace_back(body, r);
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
    void create_all(size_t n)
    {
        run([&](int rank) {
            for (size_t i = 0; i < n; i++) {
                create(rank, i);
            }
        });
    }
    static tw::Case some_case(size_t i)
    {
        return tw::make_case(i % 2 ? TW_COLL_ALLREDUCE : TW_COLL_ALLGATHER, "ring", {3000 + 7 * i, 1, 0});
    }
    void check(const tw::Job &job, size_t i)
    {
        EXPECT_EQ(job.check(tw::Reference(some_case(i), world), world + 1), "") << i;
    }

    static constexpr int world = 3;
    const int nodes[world] = {0, 0, 1};
    tw_transport_t *transports[world] = {};
    std::array<std::array<tw_coll_t *, n_colls>, world> colls = {};
};

/* A thread for each communicator posts; another one waits. */
TEST_F(Progress, PostsAndWaitsFromAnyThread)
{
    create_all(n_colls);
    run([&](int rank) {
        std::vector<std::thread> threads;
        for (size_t t = 0; t < n_colls; t++) {
            threads.emplace_back([&, t] {
                tw_coll_t *coll = colls[(size_t)rank][t];
                for (size_t i = 0; i < 8; i++) {
                    tw::Job first(some_case(i), world, rank), second(some_case(i + 1), world, rank);
                    tw_coll_request_t *requests[2];
                    tw_coll_plan_t plan;
                    ASSERT_EQ(tw_coll_post(coll, first.args(), &requests[0]), TW_OK);
                    ASSERT_EQ(tw_coll_post(coll, second.args(), &requests[1]), TW_OK);
                    tw_coll_request_plan(requests[1], &plan);
                    EXPECT_STREQ(plan.algo, "ring");
                    std::thread([&] { EXPECT_EQ(tw_coll_wait(requests[1]), TW_OK); }).join();
                    while (tw_coll_test(requests[0]) == TW_IN_PROGRESS) {
                        std::this_thread::yield();
                    }
                    check(first, i);
                    check(second, i + 1);
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        EXPECT_EQ(tw_coll_progress(colls[(size_t)rank][0]), TW_OK);
    });
}

/* What is planned is what is sent, asked for from anywhere. */
TEST_F(Progress, Questions)
{
    create_all(1);
    run([&](int rank) {
        tw_coll_t *coll = colls[(size_t)rank][0];
        tw::Job job(some_case(1), world, rank);
        tw_coll_counters_t before, after;
        uint64_t planned = 0;
        EXPECT_EQ(tw_coll_planned_inter_node_bytes(coll, job.args(), &planned), TW_OK);
        tw_coll_counters_get(coll, &before);
        EXPECT_EQ(tw_coll_run(coll, job.args()), TW_OK);
        tw_coll_counters_get(coll, &after);
        EXPECT_EQ(after.inter_node_bytes - before.inter_node_bytes, planned);
        EXPECT_EQ(tw_coll_nonfinite_blocks(coll), 0u);
        check(job, 1);
    });
}

/* Rank 1 joins in making a communicator only after an operation of another one that rank 0 posts
 * meanwhile. */
TEST_F(Progress, PostsWhileACommunicatorIsMade)
{
    set_env("TW_COLL_TIMEOUT", "20s");
    create_all(1);
    set_env("TW_COLL_MODEL", "measure");
    run([&](int rank) {
        std::thread other;
        if (rank == 0) {
            other = std::thread([&] { create(0, 1); });
        }
        tw::Job job(some_case(1), world, rank);
        EXPECT_EQ(tw_coll_run(colls[(size_t)rank][0], job.args()), TW_OK);
        check(job, 1);
        if (rank == 0) {
            other.join();
        } else {
            create(rank, 1);
        }
    });
}

TEST_F(Progress, AFailedPeerEndsTheWaits)
{
    create_all(2);
    expect_log("gave the job up: " + std::string(tw_status_string(TW_ERR_CANCELED)));
    run([&](int rank) {
        tw::Job job(some_case(1), world, rank);
        tw_coll_t *coll = colls[(size_t)rank][0];
        if (rank == 2) {
            tw_coll_abort(coll);
            EXPECT_EQ(tw_coll_run(coll, job.args()), TW_ERR_CANCELED);
            return;
        }
        EXPECT_EQ(tw_coll_run(coll, job.args()), TW_ERR_PEER);
        EXPECT_EQ(tw_coll_run(colls[(size_t)rank][1], job.args()), TW_ERR_PEER);
    });
}

TEST_F(Progress, TimeoutNamesWhatIsAwaited)
{
    set_env("TW_COLL_TIMEOUT", "200ms");
    create_all(1);
    expect_log("has not moved for");
    run([&](int rank) {
        tw::Job job(some_case(1), world, rank);
        if (rank > 0) {
            return;
        }
        EXPECT_EQ(tw_coll_run(colls[0][0], job.args()), TW_ERR_TIMEOUT);
    });
}

/* Two threads would move the same transport. */
TEST_F(Progress, ATransportHasAThreadForAllOrNone)
{
    const auto create_refused = [&](int has_thread, const char *why) {
        expect_log(why);
        for (tw_transport_t *transport : transports) {
            tw_coll_t *coll = nullptr;
            tw_coll_params_t params = tw::params_of(transport, nullptr, 0, 2);
            params.progress_thread = has_thread;
            EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
            EXPECT_EQ(coll, nullptr);
        }
    };
    run([&](int rank) {
        tw_coll_params_t params = tw::params_of(transports[rank], nullptr, 0, 1);
        EXPECT_EQ(tw_coll_create(&params, &colls[(size_t)rank][0]), TW_OK);
    });
    create_refused(1, "its transport has communicators without a progress thread");
    EXPECT_EQ(tw_shared_find(transports[0])->progress, nullptr);
    for (auto &of_rank : colls) {
        tw_coll_destroy(of_rank[0]);
        of_rank[0] = nullptr;
    }
    create_all(1);
    create_refused(0, "its transport has a progress thread, so it needs one, too");
}

TEST_F(Progress, DestroyWhileInFlight)
{
    create_all(2);
    tw::Job job(some_case(1), world, 0), detached(some_case(2), world, 0);
    tw_coll_request_t *request;
    EXPECT_EQ(tw_coll_post(colls[0][0], job.args(), &request), TW_OK);
    EXPECT_EQ(tw_coll_post(colls[0][0], detached.args(), nullptr), TW_OK);
    tw_coll_destroy(colls[0][0]);
    colls[0][0] = nullptr;
    EXPECT_NE(tw_shared_find(transports[0])->progress, nullptr) << "the other one has it";
}

} // namespace
