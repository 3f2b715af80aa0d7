/** Runs of a tiny model on threads of this process, with a folder for their checkpoints. */
#ifndef TW_TESTS_TRAINER_PERSIST_H
#define TW_TESTS_TRAINER_PERSIST_H

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "trainer/trainer.h"
#include "transport/transport.h"

using Sets = std::vector<std::string>;

/** Whether two runs of losses are the same bit for bit, NaN included. */
inline bool are_same(const std::vector<double> &a, const std::vector<double> &b)
{
    return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

class Persist : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=1gbit");
        folder_ = ::testing::TempDir() + "persist." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
        std::ofstream text(folder_ + "/text");
        for (int i = 0; i < 2000; i++) {
            text << "line " << i * i % 97 << " of a text\n";
        }
    }
    void TearDown() override
    {
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    /* The losses of a run by as many ranks, on nodes of so many; `last`: sets of the last rank alone. */
    std::vector<double> run(const std::vector<int> &ranks_per_node, const Sets &more,
                            tw_status_t want = TW_OK, const Sets &last = {})
    {
        Sets sets = {"thinwire.data=" + folder_ + "/text",
                     "thinwire.checkpoint=" + folder_ + "/checkpoints",
                     "thinwire.sequence_length=16",
                     "thinwire.val_sequences=12",
                     "train_batch_size=12",
                     "model.n_layer=2",
                     "model.n_head=2",
                     "model.n_embd=32",
                     "optimizer.params.lr=1e-3"};
        sets.insert(sets.end(), more.begin(), more.end());
        std::vector<const char *> pointers, last_pointers;
        for (const auto &set : sets) {
            pointers.push_back(set.c_str());
        }
        last_pointers = pointers;
        for (const auto &set : last) {
            last_pointers.push_back(set.c_str());
        }
        std::vector<int> nodes = tw::nodes_of(ranks_per_node);
        std::vector<tw_transport_t *> transports(nodes.size());
        EXPECT_EQ(TW_OK, tw_transport_local_create((int)nodes.size(), nodes.data(), transports.data()));
        std::vector<Rank> ranks(nodes.size());
        std::vector<tw_status_t> statuses(nodes.size());
        std::vector<std::thread> threads;
        for (size_t rank = 0; rank < nodes.size(); rank++) {
            threads.emplace_back([&, rank] {
                bool is_last = rank + 1 == nodes.size();
                ranks[rank].stop_step = (int)rank == stop_rank_ ? stop_step_ : 0;
                ranks[rank].on_first = rank == 0 ? on_first_ : nullptr;
                statuses[rank] = run_rank(transports[rank], is_last ? last_pointers : pointers, &ranks[rank]);
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        for (size_t rank = 0; rank < nodes.size(); rank++) {
            tw_transport_destroy(transports[rank]);
            EXPECT_TRUE(are_same(ranks[0].losses, ranks[rank].losses)) << rank;
            EXPECT_EQ(ranks[0].is_stopped, ranks[rank].is_stopped);
            EXPECT_EQ(ranks[0].bad, ranks[rank].bad);
        }
        expect_statuses(want, statuses);
        is_stopped_ = ranks[0].is_stopped;
        bad_ = ranks[0].bad;
        steps_ = ranks[0].steps;
        val_losses_ = ranks[0].val_losses;
        val_loss_ = ranks[0].val_loss;
        inter_node_bytes_ = ranks[0].inter_node_bytes;
        device_bytes_ = ranks[0].device_bytes;
        return ranks[0].losses;
    }
    struct Rank {
        std::vector<double> losses, val_losses;
        std::vector<int> bad;
        std::vector<uint64_t> steps;
        double val_loss = 0;
        uint64_t inter_node_bytes = 0, device_bytes = 0;
        volatile sig_atomic_t stop = 0;
        uint64_t stop_step = 0;
        int is_stopped = 0;
        std::function<void(uint64_t)> on_first;
    };
    /* Who fails gives the job up, of which others may hear before they see what is wrong. */
    void expect_statuses(tw_status_t want, const std::vector<tw_status_t> &statuses)
    {
        int n_want = 0;
        for (tw_status_t status : statuses) {
            n_want += status == want;
            if (want == TW_OK || status != TW_ERR_PEER) {
                EXPECT_EQ(want, status);
            }
        }
        EXPECT_GT(n_want, 0);
        if (want != TW_OK) {
            allow_log("gave the job up");
        }
    }
    static tw_status_t run_rank(tw_transport_t *transport, const std::vector<const char *> &sets, Rank *rank)
    {
        tw_coll_params_t of_world = {};
        of_world.transport = transport;
        of_world.deterministic = 1;
        of_world.progress_thread = 1;
        tw_trainer_params_t params = {};
        params.sets = sets.data();
        params.n_sets = sets.size();
        params.ctx = rank;
        params.stop = &rank->stop;
        params.on_step = [](void *ctx, const tw_trainer_step_t *step) {
            Rank *of = static_cast<Rank *>(ctx);
            of->losses.push_back(step->loss);
            of->bad.push_back(step->is_bad);
            of->steps.push_back(step->step);
            if (!std::isnan(step->val_loss)) {
                of->val_losses.push_back(step->val_loss);
            }
            of->stop = step->step == of->stop_step ? 1 : of->stop;
            if (of->on_first) {
                of->on_first(step->step);
            }
        };
        EXPECT_EQ(TW_OK, tw_coll_create(&of_world, &params.coll));
        tw_trainer_result_t result;
        tw_status_t status = tw_trainer_run(&params, &result);
        if (status == TW_OK && result.steps > 0) { /* checkpoints are not training */
            EXPECT_EQ(1, result.bytes_as_planned);
            EXPECT_EQ(1, result.replicas_equal);
        }
        rank->is_stopped = result.is_stopped;
        rank->val_loss = result.val_loss;
        rank->inter_node_bytes = result.inter_node_bytes;
        rank->device_bytes = result.device_bytes;
        tw_coll_destroy(params.coll);
        return status;
    }
    bool has_step(int step) const
    {
        char name[32];
        snprintf(name, sizeof(name), "/step-%08d", step);
        return access((folder_ + "/checkpoints" + name + "/manifest.json").c_str(), F_OK) == 0;
    }
    /* Change a byte in the middle of a file. */
    void damage(const std::string &path) const
    {
        std::fstream file(folder_ + "/checkpoints/" + path, std::ios::in | std::ios::out | std::ios::binary);
        ASSERT_TRUE(file.good()) << path;
        file.seekg(0, std::ios::end);
        std::streamoff middle = file.tellg() / 2;
        file.seekg(middle);
        int byte = file.get();
        file.seekp(middle);
        file.put((char)(byte ^ 1));
    }
    std::string resume() const
    {
        return "thinwire.resume=" + folder_ + "/checkpoints";
    }
    /* Straight through, with a checkpoint on the way; then from that checkpoint, on the same ranks. */
    void expect_same_losses(const std::vector<int> &ranks_per_node, Sets sets)
    {
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints").c_str()));
        sets.insert(sets.end(), {"thinwire.steps=7", "scheduler.params.total_num_steps=7",
                                 "thinwire.checkpoint_every=4"});
        std::vector<double> whole = run(ranks_per_node, sets);
        ASSERT_EQ(7u, whole.size());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints/step-00000007").c_str()));
        sets.push_back(resume());
        std::vector<double> rest = run(ranks_per_node, sets);
        EXPECT_EQ(std::vector<double>(whole.begin() + 4, whole.end()), rest);
    }

    std::string folder_;
    int stop_rank_ = -1; /* asked to end after stop_step_ */
    uint64_t stop_step_ = 0;
    int is_stopped_ = 0; /* of the last run, as what follows */
    std::vector<int> bad_;
    std::vector<uint64_t> steps_;
    std::vector<double> val_losses_;
    double val_loss_ = 0;
    uint64_t inter_node_bytes_ = 0, device_bytes_ = 0;
    std::function<void(uint64_t)> on_first_; /* after each step, on rank 0 */
};

#endif
