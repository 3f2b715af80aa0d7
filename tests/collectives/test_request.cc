/* Requests: several in flight, in any order, on several communicators; what happens when ranks stop or
 * fail. */
#include <atomic>
#include <chrono>
#include <memory>
#include <random>

#include "collectives/communicator.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using tw::make_case;

constexpr size_t CHUNK_BYTES = 512;

class Request : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", std::to_string(CHUNK_BYTES));
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
    }
};

int many(int world, int)
{
    return world + 1;
}

/* One case of every algorithm. */
std::vector<tw::Case> one_of_each()
{
    std::vector<tw::Case> cases;
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (info->quantized) {
            continue;
        }
        std::vector<size_t> shape = {3000 + i, 1, 17, 0, 700};
        if (info->op == TW_COLL_BARRIER) {
            shape = {};
        }
        cases.push_back(make_case(info->op, info->name, shape));
    }
    return cases;
}

const std::vector<int> GRID = {0, 0, 1, 2, 2, 2};

TEST_F(Request, SeveralInFlightWaitedForInAnyOrder)
{
    tw::World world(GRID);
    std::vector<tw::Case> cases = one_of_each();
    world.run([&](int rank) {
        std::mt19937 random((unsigned)rank);
        std::vector<std::unique_ptr<tw::Job>> jobs;
        std::vector<tw_coll_request_t *> requests(cases.size());
        std::vector<size_t> order;
        for (size_t i = 0; i < cases.size(); i++) {
            jobs.push_back(std::make_unique<tw::Job>(cases[i], world.size(), rank));
            ASSERT_EQ(tw_coll_post(world.coll(rank), jobs[i]->args(), &requests[i]), TW_OK);
            order.push_back(i);
        }
        std::shuffle(order.begin(), order.end(), random);
        for (size_t i : order) {
            EXPECT_EQ(tw_coll_wait(requests[i]), TW_OK);
            EXPECT_EQ(jobs[i]->check(tw::Reference(cases[i], world.size()), many(world.size(), 0)), "")
                << cases[i].name();
        }
    });
}

TEST_F(Request, TestAndProgressBringItAbout)
{
    tw::World world(GRID);
    tw::Case c = make_case(TW_COLL_ALLREDUCE, "ring", {5000});
    world.run([&](int rank) {
        tw::Job job(c, world.size(), rank);
        tw_coll_request_t *request;
        tw_status_t status;
        ASSERT_EQ(tw_coll_post(world.coll(rank), job.args(), &request), TW_OK);
        while ((status = tw_coll_test(request)) == TW_IN_PROGRESS) {
            EXPECT_EQ(tw_coll_progress(world.coll(rank)), TW_OK);
        }
        EXPECT_EQ(status, TW_OK);
        EXPECT_EQ(job.check(tw::Reference(c, world.size()), many(world.size(), 0)), "");
    });
}

/* Same input, same bits, whoever is late. */
TEST_F(Request, DelaysDoNotChangeTheBits)
{
    std::vector<tw::Case> cases = one_of_each();
    std::vector<std::vector<std::vector<uint8_t>>> results[3];
    for (int round = 0; round < 3; round++) {
        tw::World world(GRID);
        results[round].resize(GRID.size());
        world.run([&](int rank) {
            std::mt19937 random((unsigned)(rank + 100 * round));
            for (const tw::Case &c : cases) {
                tw::Job job(c, world.size(), rank);
                tw_coll_request_t *request;
                tw_status_t status;
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000 * (unsigned)round));
                ASSERT_EQ(tw_coll_post(world.coll(rank), job.args(), &request), TW_OK);
                while ((status = tw_coll_test(request)) == TW_IN_PROGRESS) {
                    if (round > 0 && random() % 8 == 0) {
                        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                    }
                }
                EXPECT_EQ(status, TW_OK);
                results[round][(size_t)rank].push_back(job.result());
            }
        });
    }
    for (size_t r = 0; r < GRID.size(); r++) {
        for (size_t i = 0; i < cases.size(); i++) {
            EXPECT_EQ(results[0][r][i] == results[1][r][i], true) << cases[i].name() << ", rank " << r;
            EXPECT_EQ(results[0][r][i] == results[2][r][i], true) << cases[i].name() << ", rank " << r;
        }
    }
}

/* What fails on one rank in the middle of an operation, for want of memory say, the others cannot end. */
TEST_F(Request, AnOperationThatFailsOnOneRankEndsTheOthers)
{
    tw::World world(GRID);
    tw::Case c = make_case(TW_COLL_ALLREDUCE, "ring", {20000});
    expect_log("rank 1: gave the job up: " + std::string(tw_status_string(TW_ERR_NO_MEMORY)));
    world.run([&](int rank) {
        tw::Job job(c, world.size(), rank);
        tw_coll_request_t *request;
        tw_status_t status = tw_coll_post(world.coll(rank), job.args(), &request);
        if (status == TW_ERR_PEER && rank != 1) { /* it came late, and has heard of it */
            return;
        }
        ASSERT_EQ(status, TW_OK);
        if (rank == 1) {
            tw_sched_fail(request->sched, TW_ERR_NO_MEMORY);
        }
        EXPECT_EQ(tw_coll_wait(request), rank == 1 ? TW_ERR_NO_MEMORY : TW_ERR_PEER);
        EXPECT_EQ(tw_transport_failed_rank(world.transport(rank)), 1);
    });
}

/* A communicator is made while operations of another one are in flight, which some ranks wait for first. */
TEST_F(Request, CommunicatorMadeMeanwhile)
{
    set_env("TW_COLL_TIMEOUT", "20s");
    tw::World world({0, 0, 1, 1});
    set_env("TW_COLL_MODEL", "measure");
    world.run([&](int rank) {
        tw::Case c = make_case(TW_COLL_ALLREDUCE, "ring", {20000});
        tw::Job job(c, world.size(), rank);
        tw_coll_params_t params = tw::params_of(world.transport(rank), nullptr);
        tw_coll_t *second = nullptr;
        tw_coll_request_t *request;
        ASSERT_EQ(tw_coll_post(world.coll(rank), job.args(), &request), TW_OK);
        if (rank % 2) {
            EXPECT_EQ(tw_coll_create(&params, &second), TW_OK);
        }
        EXPECT_EQ(tw_coll_wait(request), TW_OK);
        if (rank % 2 == 0) {
            EXPECT_EQ(tw_coll_create(&params, &second), TW_OK);
        }
        EXPECT_EQ(job.check(tw::Reference(c, world.size()), many(world.size(), 0)), "");
        tw_coll_destroy(second);
    });
}

/* Rows and columns of a grid, and everybody, on one transport, with operations of all three in flight, which
 * every rank waits for in an order of its own. */
TEST_F(Request, SeveralCommunicators)
{
    set_env("TW_COLL_TIMEOUT", "20s");
    tw::World world({0, 0, 0, 1, 1, 1});
    world.run([&](int rank) {
        int row[3] = {rank / 3 * 3 + 2, rank / 3 * 3, rank / 3 * 3 + 1}, column[2] = {rank % 3, rank % 3 + 3};
        tw_coll_params_t row_params = tw::params_of(world.transport(rank), row, 3);
        tw_coll_params_t column_params = tw::params_of(world.transport(rank), column, 2);
        tw_coll_t *rows, *columns;
        ASSERT_EQ(tw_coll_create(&row_params, &rows), TW_OK);
        ASSERT_EQ(tw_coll_create(&column_params, &columns), TW_OK);
        EXPECT_EQ(tw_coll_size(rows), 3);
        EXPECT_EQ(tw_coll_n_nodes(rows), 1);
        EXPECT_EQ(tw_coll_rank(rows), (rank + 1) % 3);
        EXPECT_EQ(tw_coll_size(columns), 2);
        EXPECT_EQ(tw_coll_n_nodes(columns), 2);
        EXPECT_EQ(tw_coll_rank(columns), rank / 3);
        tw::Case c = make_case(TW_COLL_ALLREDUCE, "ring", {2000, 5});
        tw_coll_t *colls[] = {world.coll(rank), rows, columns};
        std::vector<std::unique_ptr<tw::Job>> jobs;
        std::vector<size_t> order;
        tw_coll_request_t *requests[9];
        for (size_t i = 0; i < 9; i++) {
            tw_coll_t *coll = colls[i % 3];
            jobs.push_back(std::make_unique<tw::Job>(c, tw_coll_size(coll), tw_coll_rank(coll)));
            ASSERT_EQ(tw_coll_post(coll, jobs.back()->args(), &requests[i]), TW_OK);
            order.push_back(i);
        }
        std::shuffle(order.begin(), order.end(), std::mt19937((unsigned)rank));
        for (size_t i : order) {
            EXPECT_EQ(tw_coll_wait(requests[i]), TW_OK);
            EXPECT_EQ(jobs[i]->check(tw::Reference(c, tw_coll_size(colls[i % 3])), many(6, 0)), "") << i;
        }
        tw_coll_destroy(rows);
        tw_coll_destroy(columns);
    });
}

/* 200 tiny tensors share messages: one per hop, and the signature. */
TEST_F(Request, TinyTensorsShareMessages)
{
    set_env("TW_COLL_CHUNK", "1M");
    tw::World world(tw::nodes_of({1, 1, 1, 1}));
    world.run([&](int rank) {
        tw::Case c = make_case(TW_COLL_ALLGATHER, "ring", std::vector<size_t>(200, 9));
        tw::Job job(c, 4, rank);
        tw_transport_counters_t before, after;
        tw_transport_inter_node_counters(world.transport(rank), &before);
        EXPECT_EQ(tw_coll_run(world.coll(rank), job.args()), TW_OK);
        tw_transport_inter_node_counters(world.transport(rank), &after);
        EXPECT_EQ(after.messages - before.messages, 3u + 1u);
        EXPECT_EQ(job.check(tw::Reference(c, 4), 0), "");
    });
}

TEST_F(Request, DestroyWhileInFlight)
{
    tw::World world(GRID);
    world.run([&](int rank) {
        std::vector<std::unique_ptr<tw::Job>> jobs;
        if (rank == 3) {
            return;
        }
        for (const tw::Case &c : one_of_each()) {
            tw_coll_request_t *request;
            jobs.push_back(std::make_unique<tw::Job>(c, world.size(), rank));
            ASSERT_EQ(tw_coll_post(world.coll(rank), jobs.back()->args(), &request), TW_OK);
        }
        for (int i = 0; i < 100; i++) {
            EXPECT_EQ(tw_coll_progress(world.coll(rank)), TW_OK);
        }
        EXPECT_EQ(world.coll(rank)->mover.polls, 0) << "messages announce themselves: who waits may sleep";
        world.destroy(rank);
    });
}

/* ---- failure ------------------------------------------------------------------------------------------- */

TEST_F(Request, TimeoutNamesWhatIsAwaited)
{
    set_env("TW_COLL_TIMEOUT", "300ms");
    tw::World world(tw::nodes_of({1, 1, 1}));
    expect_log("has not moved for");
    expect_log("from rank 1");
    world.run([&](int rank) {
        if (rank == 1) {
            return;
        }
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world.size(), rank);
        EXPECT_EQ(tw_coll_run(world.coll(rank), job.args()), TW_ERR_TIMEOUT);
    });
    size_t n_in_time = 0; /* well before fifty times as long */
    for (int sec = 0; sec < 10; sec++) {
        n_in_time += log_count("has not moved for " + std::to_string(sec) + ".");
    }
    EXPECT_GE(n_in_time, 1u);
}

/* An all-reduce of two ranks for which rank 1 does not come. */
void wait_in_vain(tw_coll_t *coll)
{
    tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), 2, 0);
    EXPECT_EQ(tw_coll_run(coll, job.args()), TW_ERR_TIMEOUT);
}

TEST_F(Request, TimeoutOfACommunicator)
{
    set_env("TW_COLL_TIMEOUT", "1000s");
    tw::World world(tw::nodes_of({1, 1}));
    expect_log("(TW_COLL_TIMEOUT): ");
    world.run([&](int rank) {
        tw_coll_params_t params = tw::params_of(world.transport(rank), nullptr, 0, 0);
        tw_coll_t *coll = nullptr;
        params.timeout_sec = 0.2;
        ASSERT_EQ(tw_coll_create(&params, &coll), TW_OK);
        if (rank == 0) {
            wait_in_vain(coll);
        }
        tw_coll_destroy(coll);
    });
}

TEST_F(Request, TimeoutChangesWhileSomebodyWaits)
{
    set_env("TW_COLL_TIMEOUT", "1000s");
    tw::World world(tw::nodes_of({1, 1}));
    expect_log("(TW_COLL_TIMEOUT): ");
    std::thread waiter([&] { wait_in_vain(world.coll(0)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    tw_coll_timeout_set(world.coll(0), 0.2);
    waiter.join();
}

/* A late rank is no error where the operation is patient; what comes after it has its limit again. */
TEST_F(Request, APatientOperationWaitsForLateRanks)
{
    tw::World world(tw::nodes_of({1, 1}));
    expect_log("(TW_COLL_TIMEOUT): ");
    expect_log("rank 0: allreduce (ring, number ");
    expect_log("from rank 1");
    world.run([&](int rank) {
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), 2, rank);
        tw_coll_args_t args = *job.args();
        args.patient = rank == 0;
        tw_coll_timeout_set(world.coll(rank), rank == 0 ? 1e-3 : 1000);
        if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        if (rank == 0) {
            wait_in_vain(world.coll(rank));
        }
    });
}

/* A communicator may be so as a whole, and then it is its own limit that says when to speak. */
TEST_F(Request, APatientCommunicatorWaitsForLateRanks)
{
    tw::World world(tw::nodes_of({1, 1}));
    expect_log("has waited for ");
    world.run([&](int rank) {
        tw_coll_timeout_set(world.coll(rank), rank == 0 ? 1e-3 : 1000);
        if (rank == 0) {
            tw_coll_patient_set(world.coll(0));
        }
        for (int i = 0; i < 2; i++) {
            if (rank == 1) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
            }
            tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), 2, rank);
            EXPECT_EQ(tw_coll_run(world.coll(rank), job.args()), TW_OK);
        }
    });
}

TEST_F(Request, AFailedPeerEndsAllRequests)
{
    tw::World world(GRID);
    expect_log("gave the job up: on purpose");
    world.run([&](int rank) {
        std::vector<std::unique_ptr<tw::Job>> jobs;
        std::vector<tw_coll_request_t *> requests;
        if (rank == 4) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            tw_transport_abort(world.transport(rank), "on purpose");
            return;
        }
        for (const tw::Case &c : one_of_each()) {
            if (c.op == TW_COLL_BROADCAST) { /* does not need everybody */
                continue;
            }
            jobs.push_back(std::make_unique<tw::Job>(c, world.size(), rank));
            tw_coll_request_t *request = nullptr;
            tw_status_t status = tw_coll_post(world.coll(rank), jobs.back()->args(), &request);
            if (status != TW_OK) { /* it has come before */
                EXPECT_EQ(status, TW_ERR_PEER);
                break;
            }
            requests.push_back(request);
        }
        for (tw_coll_request_t *request : requests) {
            EXPECT_EQ(tw_coll_wait(request), TW_ERR_PEER);
        }
        EXPECT_EQ(tw_coll_progress(world.coll(rank)), TW_ERR_PEER);
        EXPECT_EQ(tw_transport_failed_rank(world.transport(rank)), 4);
    });
}

TEST_F(Request, SaysHowLongItTook)
{
    tw::World world(tw::nodes_of({1, 1}));
    std::atomic<bool> posted(false);
    world.run([&](int rank) {
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world.size(), rank);
        tw_coll_args_t args = *job.args();
        tw_coll_request_t *request;
        double took = -1, begin = tw_time_sec();
        args.elapsed_sec = &took;
        while (rank == 1 && !posted) {
            std::this_thread::yield();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(rank * 50));
        ASSERT_EQ(tw_coll_post(world.coll(rank), &args, &request), TW_OK);
        posted = true;
        EXPECT_EQ(tw_coll_wait(request), TW_OK);
        EXPECT_GE(took, rank == 0 ? 0.05 : 0);
        EXPECT_LE(took, tw_time_sec() - begin);
    });
}

TEST_F(Request, SleepsWhileItWaits)
{
    tw::World world(tw::nodes_of({1, 1}));
    world.run([&](int rank) {
        tw::Job job(make_case(TW_COLL_ALLREDUCE, "ring", {4000}), world.size(), rank);
        if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
        }
        std::clock_t before = std::clock();
        EXPECT_EQ(tw_coll_run(world.coll(rank), job.args()), TW_OK);
        if (rank == 0) { /* processor time of all threads: the other one sleeps, too */
            EXPECT_LT((double)(std::clock() - before) / CLOCKS_PER_SEC, 0.2);
        }
    });
}

} // namespace
