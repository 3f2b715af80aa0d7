/* The progress thread over UCX, TCP and shared memory: every call from any thread at the same time. */
#include <atomic>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/collectives/processes.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

constexpr int LIMIT_SEC = 100;
constexpr int N_COLLS = 3, N_TURNS = 6;

class ProgressProcesses : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", "32K"); /* both kinds of messages: sent at once, and after a handshake */
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    }
};

tw::Case some_case(int i)
{
    static const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};
    tw::Case c;
    c.op = ops[i % 3];
    c.algo = c.op == TW_COLL_ALLGATHER ? "ring" : i % 2 ? "one_hop" : "two_hop";
    c.codec = i % 2 ? "int4:block=64" : "int8";
    c.sizes = {i % 4 ? 40000u + (size_t)i : 300007u, 3};
    return c;
}

/* A rank's operation, with what it needs until it has ended. */
struct Turn {
    Turn(const tw::Case &the_case, tw_coll_t *the_coll) : c(the_case), coll(the_coll)
    {
        tw::prepare(c, tw_coll_size(coll), tw_coll_rank(coll), &mine);
        asked = std::make_unique<tw::RankCase>(c, &mine, 1);
        status = tw_coll_post(coll, &asked->args, &request);
    }
    std::string check() const
    {
        return status == TW_OK
                   ? tw::check_rank(c, tw_coll_size(coll), tw_coll_n_nodes(coll), tw_coll_rank(coll), mine)
                   : tw::name_of(c) + ": " + tw_status_string(status);
    }

    const tw::Case c;
    tw_coll_t *coll;
    tw::RankBuffers mine;
    std::unique_ptr<tw::RankCase> asked;
    tw_coll_request_t *request = nullptr;
    tw_status_t status;
};

/* What is wrong, from any thread. */
class Complaints
{
  public:
    void add(const std::string &what)
    {
        const std::lock_guard<std::mutex> guard(lock);
        text += what.empty() ? "" : what + "; ";
    }
    std::string get()
    {
        const std::lock_guard<std::mutex> guard(lock);
        return text;
    }

  private:
    std::mutex lock;
    std::string text;
};

/* Two operations at a time: one is tested for here while another thread waits for the other one. */
void take_turns(tw_coll_t *coll, int first, Complaints &wrong)
{
    for (int i = first; i < first + N_TURNS; i++) {
        Turn a(some_case(i), coll), b(some_case(i + 1), coll);
        if (a.status != TW_OK || b.status != TW_OK) {
            wrong.add("post failed");
            return;
        }
        std::thread other([&] { b.status = tw_coll_wait(b.request); });
        while ((a.status = tw_coll_test(a.request)) == TW_IN_PROGRESS) {
            std::this_thread::yield();
        }
        other.join();
        wrong.add(a.check());
        wrong.add(b.check());
    }
}

/* Counters never fall, planned bytes are always the same. */
void ask(tw_coll_t *coll, const std::atomic<bool> &done, Complaints &wrong)
{
    const tw::Case c = some_case(1);
    tw::RankBuffers mine;
    tw::prepare(c, tw_coll_size(coll), tw_coll_rank(coll), &mine);
    const tw::RankCase asked(c, &mine, 1);
    uint64_t sent = 0, planned = 0, again = 0;
    bool ok = tw_coll_planned_inter_node_bytes(coll, &asked.args, &planned) == TW_OK;
    while (!done && ok) {
        tw_coll_counters_t counters;
        tw_coll_counters_get(coll, &counters);
        const uint64_t now = counters.inter_node_bytes + counters.in_node_bytes;
        ok = now >= sent && tw_coll_nonfinite_blocks(coll) == 0 && tw_coll_progress(coll) == TW_OK &&
             tw_coll_planned_inter_node_bytes(coll, &asked.args, &again) == TW_OK && again == planned;
        sent = now;
        std::this_thread::yield();
    }
    wrong.add(ok ? "" : "questions have wrong answers");
}

std::vector<int> all_ranks(const tw_coll_t *coll)
{
    std::vector<int> ranks((size_t)tw_coll_size(coll));
    for (size_t r = 0; r < ranks.size(); r++) {
        ranks[r] = (int)r;
    }
    return ranks;
}

/* Threads on several communicators; meanwhile others come and go, and somebody asks. */
std::string all_at_once(tw_coll_t *coll)
{
    const std::vector<int> ranks = all_ranks(coll);
    std::vector<tw_coll_t *> colls = {coll};
    Complaints wrong;
    while (colls.size() < N_COLLS) {
        tw_coll_t *next = nullptr;
        if (tw_coll_group_create(coll, ranks.data(), (int)ranks.size(), &next) != TW_OK) {
            return "no further communicator";
        }
        colls.push_back(next);
    }
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    std::thread asks([&] { ask(coll, done, wrong); });
    for (size_t t = 0; t < colls.size(); t++) {
        threads.emplace_back([&, t] { take_turns(colls[t], (int)t, wrong); });
    }
    for (int i = 0; i < 2; i++) {
        tw_coll_t *passing = nullptr;
        if (tw_coll_group_create(coll, ranks.data(), (int)ranks.size(), &passing) != TW_OK) {
            wrong.add("no communicator meanwhile");
            break;
        }
        take_turns(passing, i, wrong);
        tw_coll_destroy(passing);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    done = true;
    asks.join();
    for (size_t t = 1; t < colls.size(); t++) {
        tw_coll_destroy(colls[t]);
    }
    return wrong.get();
}

TEST_F(ProgressProcesses, AllAtOnceOverTcp)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({1, 1, 1}), all_at_once, LIMIT_SEC, 1), "");
}

TEST_F(ProgressProcesses, AllAtOnceOverSharedMemory)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({3}), all_at_once, LIMIT_SEC, 1), "");
}

TEST_F(ProgressProcesses, AllAtOnceOverBoth)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({2, 2}), all_at_once, LIMIT_SEC, 1), "");
}

/* A rank dies while threads of the others post, test and wait: all of them hear of it, and for good. */
TEST_F(ProgressProcesses, AKilledRankEndsAllWaits)
{
    set_env("TW_PEER_TIMEOUT", "3s");
    auto body = [](tw_coll_t *coll) -> std::string {
        const std::vector<int> ranks = all_ranks(coll);
        tw_coll_t *second = nullptr;
        if (tw_coll_group_create(coll, ranks.data(), (int)ranks.size(), &second) != TW_OK) {
            return "no second communicator";
        }
        Complaints wrong;
        std::vector<std::thread> threads;
        const bool dies = tw_coll_rank(coll) == 1;
        for (int t = 0; t < 4; t++) {
            threads.emplace_back([&, t] {
                tw_coll_t *mine = t / 2 ? second : coll;
                tw_status_t status = TW_OK;
                /* two threads of a communicator: a post each, in an order that is not the same everywhere */
                tw_coll_args_t args = {};
                args.op = TW_COLL_BARRIER;
                for (int i = 0; status == TW_OK; i++) {
                    tw_coll_request_t *request;
                    status = tw_coll_post(mine, &args, &request);
                    while (status == TW_OK && t % 2 && (status = tw_coll_test(request)) == TW_IN_PROGRESS) {
                        status = TW_OK;
                        std::this_thread::yield();
                    }
                    status = status == TW_OK && t % 2 == 0 ? tw_coll_wait(request) : status;
                    if (dies && i == 200) {
                        raise(SIGKILL);
                    }
                }
                wrong.add(status == TW_ERR_PEER ? "" : tw_status_string(status));
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        tw_coll_destroy(second);
        return wrong.get();
    };
    EXPECT_EQ(tw::run_processes(tw::nodes_of({1, 1, 1}), body, LIMIT_SEC, 1), "rank 1: Killed\n");
}

} // namespace
