/* Runs that stop and go on: the losses are those of a run that did not. */
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/safetensors.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "trainer/trainer.h"
#include "transport/transport.h"

namespace
{

using Sets = std::vector<std::string>;

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
    /* The losses of a run by as many ranks, on nodes of so many. */
    std::vector<double> run(const std::vector<int> &ranks_per_node, const Sets &more,
                            tw_status_t want = TW_OK)
    {
        Sets sets = {"thinwire.data=" + folder_ + "/text",
                     "thinwire.checkpoint=" + folder_ + "/checkpoints",
                     "thinwire.sequence_length=16",
                     "thinwire.val_batches=1",
                     "train_batch_size=12",
                     "model.n_layer=2",
                     "model.n_head=2",
                     "model.n_embd=32",
                     "optimizer.params.lr=1e-3"};
        sets.insert(sets.end(), more.begin(), more.end());
        std::vector<const char *> pointers;
        for (const auto &set : sets) {
            pointers.push_back(set.c_str());
        }
        std::vector<int> nodes = tw::nodes_of(ranks_per_node);
        std::vector<tw_transport_t *> transports(nodes.size());
        EXPECT_EQ(TW_OK, tw_transport_local_create((int)nodes.size(), nodes.data(), transports.data()));
        std::vector<std::vector<double>> losses(nodes.size());
        std::vector<tw_status_t> statuses(nodes.size());
        std::vector<std::thread> threads;
        for (size_t rank = 0; rank < nodes.size(); rank++) {
            threads.emplace_back(
                [&, rank] { statuses[rank] = run_rank(transports[rank], pointers, &losses[rank]); });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        for (size_t rank = 0; rank < nodes.size(); rank++) {
            tw_transport_destroy(transports[rank]);
            EXPECT_EQ(losses[0], losses[rank]);
        }
        expect_statuses(want, statuses);
        return losses[0];
    }
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
    static tw_status_t run_rank(tw_transport_t *transport, const std::vector<const char *> &sets,
                                std::vector<double> *losses)
    {
        tw_coll_params_t of_world = {};
        of_world.transport = transport;
        of_world.deterministic = 1;
        of_world.progress_thread = 1;
        tw_trainer_params_t params = {};
        params.sets = sets.data();
        params.n_sets = sets.size();
        params.ctx = losses;
        params.on_step = [](void *ctx, const tw_trainer_step_t *step) {
            static_cast<std::vector<double> *>(ctx)->push_back(step->loss);
        };
        EXPECT_EQ(TW_OK, tw_coll_create(&of_world, &params.world));
        tw_trainer_result_t result;
        tw_status_t status = tw_trainer_run(&params, &result);
        if (status == TW_OK && result.steps > 0) { /* checkpoints are not training */
            EXPECT_EQ(1, result.bytes_as_planned);
            EXPECT_EQ(1, result.replicas_equal);
        }
        tw_coll_destroy(params.world);
        return status;
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
};

TEST_F(Persist, ResumingIsNotHavingStopped)
{
    for (const char *stage : {"0", "1", "2", "3"}) {
        SCOPED_TRACE(stage);
        expect_same_losses({1, 1}, {std::string("zero_optimization.stage=") + stage});
    }
}

TEST_F(Persist, ResumingWithDeltasIsNotHavingStopped)
{
    expect_same_losses({2, 2}, {"zero_optimization.stage=3", "thinwire.delta_exact=y"});
    expect_same_losses({2, 2}, {"zero_optimization.stage=3", "thinwire.delta_bits=4",
                                "zero_optimization.zero_quantized_gradients=y"});
}

/* Other ranks and another stage: the same batches, sums in another order. */
TEST_F(Persist, ResumesOnAnotherWorld)
{
    Sets sets = {"thinwire.steps=4"};
    run({2, 2}, {"zero_optimization.stage=3", "thinwire.steps=2"});
    std::string copy = "cp -r " + folder_ + "/checkpoints " + folder_ + "/two";
    ASSERT_EQ(0, system(copy.c_str()));
    sets.push_back("thinwire.resume=" + folder_ + "/two");
    std::vector<double> want = run({2, 2}, sets);
    ASSERT_EQ(2u, want.size());
    for (const auto &world : std::vector<std::vector<int>>{{1, 1, 1}, {1}, {2}}) {
        for (const char *stage : {"0", "3"}) {
            Sets more = sets;
            more.push_back(std::string("zero_optimization.stage=") + stage);
            std::vector<double> got = run(world, more);
            ASSERT_EQ(2u, got.size());
            EXPECT_NEAR(want[0], got[0], 1e-5 * want[0]);
            EXPECT_NEAR(want[1], got[1], 1e-3 * want[1]);
        }
    }
}

/* Trained weights, saved as transformers reads them, are a start for another run. */
TEST_F(Persist, ASavedModelIsAStart)
{
    std::string saved = folder_ + "/saved";
    std::vector<double> first = run({2}, {"thinwire.steps=8", "thinwire.save_model=" + saved});
    std::vector<double> second =
        run({1}, {"thinwire.steps=1", "model.init_from=" + saved + "/model.safetensors"});
    /* a later checkpoint, of somebody else, is not what is saved */
    std::string later =
        "cp -r " + folder_ + "/checkpoints/step-00000008 " + folder_ + "/checkpoints/step-00000009";
    ASSERT_EQ(0, system(later.c_str()));
    run({1}, {"thinwire.steps=2", "thinwire.save_model=" + saved + ".two"});
    std::string differ = "! cmp -s " + saved + "/model.safetensors " + saved + ".two/model.safetensors";
    EXPECT_EQ(0, system(differ.c_str()));
    EXPECT_LT(second[0], first[0] - 0.02); /* of the same batch: the seed's first */
    tw_safetensors_t *file;
    ASSERT_EQ(TW_OK, tw_safetensors_open((saved + "/model.safetensors").c_str(), &file));
    EXPECT_EQ(28u, tw_safetensors_count(file));
    EXPECT_NE(nullptr, tw_safetensors_find(file, "transformer.h.1.attn.c_attn.weight"));
    tw_safetensors_close(file);
}

/* Before the first step, not at the first checkpoint. */
TEST_F(Persist, AFolderThatCannotBeWrittenIsFoundAtOnce)
{
    expect_log("cannot make this folder");
    EXPECT_TRUE(
        run({1, 1}, {"thinwire.steps=1", "thinwire.checkpoint=" + folder_ + "/text/x"}, TW_ERR_IO).empty());
    expect_log("cannot write into this folder");
    std::string taken = "mkdir -p " + folder_ + "/taken; touch " + folder_ + "/taken/writable.tmp";
    ASSERT_EQ(0, system(taken.c_str()));
    EXPECT_TRUE(
        run({1, 1}, {"thinwire.steps=1", "thinwire.checkpoint=" + folder_ + "/taken"}, TW_ERR_IO).empty());
    run({1, 1}, {"thinwire.steps=1", "thinwire.checkpoint=" + folder_ + "/a/b/c"});
}

TEST_F(Persist, WhatIsDoneIsNotDoneAgain)
{
    EXPECT_EQ(2U, run({1, 1}, {"thinwire.steps=2"}).size());
    EXPECT_TRUE(run({1, 1}, {"thinwire.steps=2", resume()}).empty());
}

TEST_F(Persist, WhatCannotBeResumedIsNamed)
{
    expect_log("checkpoints: no checkpoint there");
    run({1, 1}, {"thinwire.steps=1", resume()}, TW_ERR_NOT_FOUND);
    run({1, 1}, {"thinwire.steps=1"});
    expect_log("of another model");
    run({1, 1}, {"thinwire.steps=2", "model.n_layer=1", resume()}, TW_ERR_MISMATCH);
    expect_log("saved with seed 1, a batch of 12 and sequences of 16 tokens");
    run({1, 1}, {"thinwire.steps=2", "thinwire.seed=2", resume()});
    expect_log("thinwire.save_model needs thinwire.checkpoint");
    run({1, 1}, {"thinwire.checkpoint=", "thinwire.save_model=x"}, TW_ERR_CONFIG);
}

} // namespace
