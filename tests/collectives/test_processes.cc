/* Every plain algorithm between processes over UCX. */
#include <atomic>
#include <csignal>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "collectives/communicator.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"
#include "tests/common/sanitized.h"

namespace
{

constexpr size_t CHUNK_BYTES = 32 << 10;
constexpr int LIMIT_SEC = 100;

class Processes : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", std::to_string(CHUNK_BYTES));
    }
};

std::vector<tw::Case> cases()
{
    std::vector<tw::Case> all;
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (info->quantized) {
            continue;
        }
        tw::Case c;
        c.op = info->op;
        c.algo = info->name;
        c.type = i % 2 ? TW_TYPE_BF16 : TW_TYPE_FP32;
        for (const std::vector<size_t> &shape : std::vector<std::vector<size_t>>{
                 {1}, {1009}, {7, 0, 300, 1, 64}, {CHUNK_BYTES + 13}, {CHUNK_BYTES / 2 + 1, 3, 5000}}) {
            c.n_elems = shape;
            if (c.op == TW_COLL_BARRIER) {
                c.n_elems.clear();
            }
            for (int variant = 0; variant < 4; variant += tw::is_sanitized ? 3 : 1) {
                c.in_place = variant & 1;
                c.uneven = variant & 2;
                c.reduction = variant & 1 ? TW_COLL_MEAN : TW_COLL_SUM;
                all.push_back(c);
            }
        }
    }
    return all;
}

/* The reference is made once, before the ranks part. */
std::string run_cases(const std::vector<int> &node_of)
{
    const std::vector<tw::Case> all = cases();
    const int world = (int)node_of.size();
    std::vector<tw::Reference> references;
    for (const tw::Case &c : all) {
        references.emplace_back(c, world);
    }
    auto body = [&](tw_coll_t *coll) -> std::string {
        for (size_t i = 0; i < all.size(); i++) {
            tw::Job job(all[i], world, tw_coll_rank(coll));
            tw_status_t status = tw_coll_run(coll, job.args());
            std::string wrong = tw_status_string(status);
            if (status == TW_OK) {
                wrong = job.check(references[i], world);
            }
            if (!wrong.empty()) {
                return all[i].name() + ": " + wrong;
            }
        }
        return "";
    };
    return tw::run_processes(node_of, body, LIMIT_SEC);
}

TEST_F(Processes, ThreeNodesOfOne)
{
    EXPECT_EQ(run_cases(tw::nodes_of({1, 1, 1})), "");
}

TEST_F(Processes, TwoNodesOfThree)
{
    EXPECT_EQ(run_cases(tw::nodes_of({3, 3})), "");
}

TEST_F(Processes, FiveNodesOfOne)
{
    EXPECT_EQ(run_cases(tw::nodes_of({1, 1, 1, 1, 1})), "");
}

TEST_F(Processes, UnevenNodes)
{
    EXPECT_EQ(run_cases(tw::nodes_of({1, 3, 2})), "");
}

std::string expect_create(tw_coll_t *beside, int id, tw_status_t want, int want_id)
{
    tw_coll_params_t params = {};
    params.transport = beside->transport;
    params.id = id;
    tw_coll_t *coll = nullptr;
    tw_status_t status = tw_coll_create(&params, &coll);
    std::string wrong;
    if (status != want) {
        wrong = std::string("id ") + std::to_string(id) + ": " + tw_status_string(status);
    } else if (coll != nullptr && coll->id != want_id) {
        wrong = "agreed on " + std::to_string(coll->id);
    }
    tw_coll_destroy(coll);
    return wrong;
}

TEST_F(Processes, IdsAreAgreed)
{
    auto body = [](tw_coll_t *coll) -> std::string {
        int rank = tw_coll_rank(coll);
        return expect_create(coll, 0, TW_OK, 2) + expect_create(coll, 1, TW_ERR_INVALID, 0) +
               expect_create(coll, rank == 1 ? 7 : 8, TW_ERR_MISMATCH, 0) + expect_create(coll, 9, TW_OK, 9) +
               expect_create(coll, 0, TW_OK, 2);
    };
    EXPECT_EQ(tw::run_processes(tw::nodes_of({2, 1}), body, LIMIT_SEC), "");
}

/* Operations go on until one of them fails. */
tw_status_t run_until_error(tw_coll_t *coll, const tw::Case &usual, const tw::Case &last, int n)
{
    tw_status_t status = TW_OK;
    for (int i = 0; status == TW_OK && i < 1000000; i++) {
        tw::Job job(i == n ? last : usual, tw_coll_size(coll), tw_coll_rank(coll));
        status = tw_coll_run(coll, job.args());
    }
    return status;
}

tw::Case some_case(tw_coll_op_t op)
{
    tw::Case c;
    c.op = op;
    c.algo = "ring";
    c.n_elems = {CHUNK_BYTES};
    return c;
}

TEST_F(Processes, AKilledRankEndsTheOthersOperations)
{
    const tw::Case c = some_case(TW_COLL_ALLREDUCE);
    auto body = [&](tw_coll_t *coll) -> std::string {
        if (tw_coll_rank(coll) == 1) {
            tw::Job job(c, 3, 1);
            for (int i = 0; i < 20; i++) {
                if (tw_coll_run(coll, job.args()) != TW_OK) {
                    return "failed too early";
                }
            }
            raise(SIGKILL);
        }
        tw_status_t status = run_until_error(coll, c, c, 0);
        return status == TW_ERR_PEER ? "" : tw_status_string(status);
    };
    EXPECT_EQ(tw::run_processes({0, 1, 2}, body, LIMIT_SEC), "rank 1: Killed\n");
}

/* Rank 1 cannot post its operation, and then does nothing until the others have ended, or for long. */
constexpr unsigned IDLE_SEC = 8;

TEST_F(Processes, AFailedPostEndsTheOthersOperations)
{
    const tw::Case usual = some_case(TW_COLL_ALLREDUCE);
    tw::Case wrong = usual;
    wrong.algo = "rong";
    void *shared =
        mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    auto *n_ended = new (shared) std::atomic<int>(0);
    auto body = [&](tw_coll_t *coll) -> std::string {
        int bad = tw_coll_rank(coll) == 1;
        double start_sec = tw_time_sec();
        tw_status_t status = run_until_error(coll, usual, bad ? wrong : usual, 10);
        if (bad) {
            while (*n_ended < 2 && tw_time_sec() - start_sec < IDLE_SEC) {
                usleep(10000);
            }
            return status == TW_ERR_INVALID ? "" : tw_status_string(status);
        }
        const double sec = tw_time_sec() - start_sec;
        ++*n_ended;
        if (status != TW_ERR_PEER && status != TW_ERR_MISMATCH) {
            return tw_status_string(status);
        }
        return sec < IDLE_SEC ? "" : "late";
    };
    EXPECT_EQ(tw::run_processes({0, 1, 2}, body, LIMIT_SEC), "");
    munmap(shared, sizeof(std::atomic<int>));
}

TEST_F(Processes, DisagreementEndsTheJob)
{
    const tw::Case usual = some_case(TW_COLL_ALLREDUCE), other = some_case(TW_COLL_ALLGATHER);
    auto body = [&](tw_coll_t *coll) -> std::string {
        tw_status_t status = run_until_error(coll, usual, tw_coll_rank(coll) == 1 ? other : usual, 10);
        return status == TW_ERR_PEER || status == TW_ERR_MISMATCH ? "" : tw_status_string(status);
    };
    EXPECT_EQ(tw::run_processes({0, 1, 2}, body, LIMIT_SEC), "");
}

/* What each rank reads for itself, and operations lean on. */
TEST_F(Processes, VariablesThatDifferAreAMismatch)
{
    auto body = [](tw_coll_t *coll) -> std::string {
        const char *const variables[][2] = {{"TW_COLL_DETERMINISTIC", "y"},
                                            {"TW_COLL_CHECK", "n"},
                                            {"TW_COLL_SCRATCH", "9M"},
                                            {"TW_COLL_MODEL", "inter:beta=1gbit"}};
        std::string wrong;
        for (const auto &variable : variables) {
            const std::string before = getenv(variable[0]) ? getenv(variable[0]) : "";
            if (tw_coll_rank(coll) == 1) {
                setenv(variable[0], variable[1], 1);
            }
            const std::string one = expect_create(coll, 0, TW_ERR_MISMATCH, 0);
            wrong += one.empty() ? "" : std::string(variable[0]) + ": " + one + "; ";
            unsetenv(variable[0]);
            if (!before.empty()) {
                setenv(variable[0], before.c_str(), 1);
            }
        }
        return wrong;
    };
    EXPECT_EQ(tw::run_processes({0, 1}, body, LIMIT_SEC), "");
}

/* A second communicator, for which rank 1 has something else: all say so, and the job goes on. */
std::string make_unlike(tw_coll_t *coll)
{
    static const struct {
        const char *name, *value;
    } terms[] = {
        {nullptr, "deterministic"}, /* as the caller wants it */
        {"TW_COLL_DETERMINISTIC", "y"}, {"TW_COLL_CHECK", "n"},
        {"TW_COLL_SCRATCH", "1M"},      {"TW_COLL_MODEL", "inter:beta=1gbit"},
        {"TW_COLL_MODEL", ""}, /* none: the others are alike again */
    };
    const bool is_other = tw_coll_rank(coll) == 1;
    for (const auto &term : terms) {
        const bool is_alike = !*term.value;
        tw_coll_params_t params = {};
        tw_coll_t *other = nullptr;
        params.transport = coll->transport;
        params.deterministic = is_other && !term.name;
        if (is_other && term.name && !is_alike) {
            setenv(term.name, term.value, 1);
        }
        const tw_status_t status = tw_coll_create(&params, &other);
        tw_coll_destroy(other);
        if (term.name) {
            unsetenv(term.name);
        }
        if (status != (is_alike ? TW_OK : TW_ERR_MISMATCH)) {
            return std::string(term.name ? term.name : "") + "=" + term.value + ": " +
                   tw_status_string(status);
        }
    }
    return "";
}

TEST_F(Processes, WhatMustBeAlikeIsCompared)
{
    EXPECT_EQ(tw::run_processes({0, 1, 2}, make_unlike, LIMIT_SEC), "");
}

} // namespace
