/* Runs that stop and go on: the losses are those of a run that did not. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <xxhash.h>

#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/safetensors.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "trainer/checkpoint/checkpoint.h"
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
            EXPECT_EQ(ranks[0].losses, ranks[rank].losses);
            EXPECT_EQ(ranks[0].is_stopped, ranks[rank].is_stopped);
        }
        expect_statuses(want, statuses);
        is_stopped_ = ranks[0].is_stopped;
        return ranks[0].losses;
    }
    struct Rank {
        std::vector<double> losses;
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
            of->stop = step->step == of->stop_step ? 1 : of->stop;
            if (of->on_first) {
                of->on_first(step->step);
            }
        };
        EXPECT_EQ(TW_OK, tw_coll_create(&of_world, &params.world));
        tw_trainer_result_t result;
        tw_status_t status = tw_trainer_run(&params, &result);
        if (status == TW_OK && result.steps > 0) { /* checkpoints are not training */
            EXPECT_EQ(1, result.bytes_as_planned);
            EXPECT_EQ(1, result.replicas_equal);
        }
        rank->is_stopped = result.is_stopped;
        tw_coll_destroy(params.world);
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
    int is_stopped_ = 0;
    std::function<void(uint64_t)> on_first_; /* after each step, on rank 0 */
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
    Sets sets = {"thinwire.steps=4", "scheduler.params.total_num_steps=4"};
    allow_log("there are steps of another run, up to step 4"); /* the same ones, again */
    run({2, 2}, {"zero_optimization.stage=3", "thinwire.steps=2", "scheduler.params.total_num_steps=4"});
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
    allow_log("there are steps of another run, up to step ");
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
    expect_log("of another model: model.n_layer was 2 when it was saved, and is 1 now");
    run({1, 1}, {"thinwire.steps=2", "model.n_layer=1", resume()}, TW_ERR_MISMATCH);
    expect_log("of another model: model.n_head was 2 when it was saved, and is 1 now");
    run({1, 1}, {"thinwire.steps=2", "model.n_head=1", resume()}, TW_ERR_MISMATCH);
    expect_log("of another model: model.layer_norm_epsilon was 1e-05 when it was saved, and is 0.0001 now");
    run({1, 1}, {"thinwire.steps=2", "model.layer_norm_epsilon=1e-4", resume()}, TW_ERR_MISMATCH);
    expect_log("saved with seed 1, a batch of 12 and sequences of 16 tokens");
    allow_log("scheduler.params.total_num_steps 1 -> 2");
    run({1, 1}, {"thinwire.steps=2", "thinwire.seed=2", resume()});
    expect_log("thinwire.save_model needs thinwire.checkpoint");
    run({1, 1}, {"thinwire.checkpoint=", "thinwire.save_model=x"}, TW_ERR_CONFIG);
}

/* What decides collectives is the same on all ranks, or nothing begins. */
TEST_F(Persist, TextsThatDifferAreNamed)
{
    for (const char *key : {"thinwire.checkpoint", "thinwire.resume", "thinwire.save_model"}) {
        expect_log(std::string("rank 1: ") + key + " is '" + folder_ + "/other', on rank 0 it is '");
        run({1, 1}, {"thinwire.steps=1"}, TW_ERR_MISMATCH, {key + ("=" + folder_ + "/other")});
    }
    EXPECT_NE(0, access((folder_ + "/checkpoints").c_str(), F_OK)); /* nothing has begun */
}

/* A place on a node is its own: what is read there counts. */
TEST_F(Persist, DataThatDifferAreNamed)
{
    ASSERT_EQ(0, system(("cd " + folder_ +
                         "; cp text copy; sed 3s/line/lime/ text > other; head -c 20000 text > "
                         "short")
                            .c_str()));
    run({1, 1}, {"thinwire.steps=1"}, TW_OK, {"thinwire.data=" + folder_ + "/copy"});
    expect_log("rank 1: data.checksum is '");
    run({1, 1}, {"thinwire.steps=1"}, TW_ERR_MISMATCH, {"thinwire.data=" + folder_ + "/other"});
    expect_log("rank 1: data.train_tokens is '19000', on rank 0 it is '");
    expect_log("rank 1: data.val_tokens is '1000', on rank 0 it is '");
    run({1, 1}, {"thinwire.steps=1"}, TW_ERR_MISMATCH, {"thinwire.data=" + folder_ + "/short"});
}

/* Each rank reads its own part of a model: of the same one, or nobody begins. */
TEST_F(Persist, WeightsThatDifferAreNamed)
{
    auto save = [&](const char *name, const char *seed) {
        run({1, 1}, {"thinwire.steps=1", seed, "thinwire.checkpoint=" + folder_ + "/of." + name,
                     "thinwire.save_model=" + folder_ + "/" + name});
        return "model.init_from=" + folder_ + "/" + name;
    };
    std::string one = save("one", "thinwire.seed=1"), other = save("other", "thinwire.seed=2");
    ASSERT_EQ(0, system(("cp -r " + folder_ + "/one " + folder_ + "/copy; mkdir " + folder_ +
                         "/nowhere; cp " + folder_ + "/one/config.json " + folder_ + "/nowhere")
                            .c_str()));
    EXPECT_EQ(1u, run({1, 1}, {"thinwire.steps=1", one, "thinwire.checkpoint="}, TW_OK,
                      {"model.init_from=" + folder_ + "/copy"})
                      .size());
    expect_log("rank 1: model.init_from, a checksum of the weights there, is '");
    run({1, 1}, {"thinwire.steps=1", one, "thinwire.checkpoint="}, TW_ERR_MISMATCH, {other});
    expect_log("rank 1: model.init_from is '', on rank 0 it is '(given)'");
    allow_log("rank 1: model.n_positions is '0', on rank 0 it is '16'"); /* as its config.json says */
    allow_log("rank 1: model.vocab_size is '0', on rank 0 it is '256'");
    run({1, 1}, {"thinwire.steps=1", one, "thinwire.checkpoint="}, TW_ERR_MISMATCH, {"model.init_from="});
    expect_log("/nowhere");
    expect_log("rank 0: rank 1 cannot begin with model.init_from, and says why itself");
    run({1, 1}, {"thinwire.steps=1", one, "thinwire.checkpoint="}, TW_ERR_NOT_FOUND,
        {"model.init_from=" + folder_ + "/nowhere"});
}

/* A run that has saved nothing yet has nothing to go on from; what others have left is theirs. */
TEST_F(Persist, WhatAnotherRunHasLeftIsNotGoneOnFrom)
{
    run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint_every=2"});
    tw_checkpoint_others_t others;
    ASSERT_EQ(TW_OK, tw_checkpoint_claim((folder_ + "/checkpoints").c_str(), 1, &others));
    EXPECT_EQ(2u, others.n_steps);
    EXPECT_EQ(4u, others.last_step);
    expect_log("the run that began last here (0000000000000001) has saved no step; step-00000004 is another "
               "run's: name it");
    run({1, 1}, {"thinwire.steps=6", resume()}, TW_ERR_NOT_FOUND);
}

/* A new run in a used folder never goes on from what another has left there, however far that came. */
TEST_F(Persist, ANewRunInAUsedFolderKeepsToItself)
{
    const char *total = "scheduler.params.total_num_steps=6";
    run({1, 1}, {"thinwire.steps=6", "thinwire.checkpoint_every=3", total});
    expect_log("/checkpoints: there are steps of another run, up to step 6: this one will not go on from "
               "them, and replaces those of the same number; to go on is thinwire.resume");
    run({1, 1}, {"thinwire.steps=2", total, "thinwire.seed=2"});
    EXPECT_EQ(0, access((folder_ + "/checkpoints/step-00000003").c_str(), F_OK)); /* somebody's */
    std::vector<double> rest = run({1, 1}, {"thinwire.steps=4", total, "thinwire.seed=2", resume()});
    EXPECT_EQ(2u, rest.size());
    EXPECT_EQ(1u, log_count("there are steps of another run")); /* not again */

    /* by its name any step is gone on from; what that run had come to before is another's then */
    expect_log(
        "there are steps of another run, up to step 6: this one will not go on from them, and replaces "
        "those of the same number");
    EXPECT_EQ(1u, run({1, 1}, {"thinwire.steps=4", total,
                               "thinwire.resume=" + folder_ + "/checkpoints/step-00000003"})
                      .size());
}

TEST_F(Persist, WhatIsOtherThanWhenItWasSavedIsSaid)
{
    run({1, 1}, {"thinwire.steps=2"});
    expect_log("this run goes on with other than it was saved with: ");
    expect_log("optimizer.params.weight_decay 0.1 -> 0.2");
    expect_log("scheduler.params.total_num_steps 2 -> 3 (the learning rate's schedule is another: it ends "
               "there)");
    expect_log("thinwire.val_share 0.05 -> 0.1");
    expect_log("data.train_tokens ");
    run({1, 1},
        {"thinwire.steps=3", "optimizer.params.weight_decay=0.2", "thinwire.val_share=0.1", resume()});
    std::ofstream(folder_ + "/text", std::ios::app) << "one line more, of another text\n";
    expect_log("data.checksum ");
    run({1, 1},
        {"thinwire.steps=4", "optimizer.params.weight_decay=0.2", "thinwire.val_share=0.1", resume()});
}

/* What a loss is compared with is saved: at once, not from the second step on. */
TEST_F(Persist, AJumpIsSeenInTheFirstStepToo)
{
    const char *total = "scheduler.params.total_num_steps=4";
    run({1, 1}, {"thinwire.steps=2", total});
    expect_log("step 3: the loss jumped from about ");
    run({1, 1}, {"thinwire.steps=4", total, "thinwire.loss_jump=0.5", resume()}, TW_ERR_MISMATCH);
}

/* As a program has left it that knew of no runs: what cannot be compared is said, once. */
TEST_F(Persist, AnOlderProgramsCheckpointIsGoneOnFrom)
{
    const char *total = "scheduler.params.total_num_steps=6";
    std::string path = folder_ + "/checkpoints/step-00000002/manifest.json";
    run({1, 1}, {"thinwire.steps=2", total});
    json_t *json = json_load_file(path.c_str(), 0, nullptr), *body = json_object_get(json, "body");
    for (const char *key : {"run", "recent_loss", "facts", "model"}) {
        EXPECT_EQ(0, json_object_del(body, key)) << key;
    }
    char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS), checksum[17];
    snprintf(checksum, sizeof(checksum), "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    free(text);
    json_object_set_new(json, "xxh3", json_string(checksum));
    ASSERT_EQ(0, json_dump_file(json, path.c_str(), 0));
    json_decref(json);
    ASSERT_EQ(0, unlink((folder_ + "/checkpoints/run").c_str()));
    expect_log(
        "saved by an older program: whether it had the same model.n_head, model.layer_norm_epsilon, data "
        "and schedule cannot be checked");
    EXPECT_EQ(2u, run({1, 1}, {"thinwire.steps=4", total, resume()}).size());
    EXPECT_EQ(2u, run({1, 1}, {"thinwire.steps=6", total, resume()}).size());
    EXPECT_EQ(1u, log_count("saved by an older program"));
}

/* ---- a run that is left alone -------------------------------------------------------------------------- */

const char *const kAuto = "thinwire.resume=auto";
const Sets kSix = {"thinwire.steps=6", "thinwire.checkpoint_every=2", "thinwire.checkpoint_keep=9", kAuto};

/* The same command, again and again: anew, on from the newest, and then nothing. */
TEST_F(Persist, GoesOnByItself)
{
    std::vector<double> whole = run({2, 2}, kSix);
    ASSERT_EQ(6u, whole.size());
    EXPECT_TRUE(has_step(2) && has_step(4) && has_step(6));
    ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints/step-00000006").c_str()));
    EXPECT_EQ(std::vector<double>(whole.begin() + 4, whole.end()), run({2, 2}, kSix));
    EXPECT_TRUE(run({2, 2}, kSix).empty());
    expect_log("thinwire.resume is auto: that is from thinwire.checkpoint, which names no folder");
    run({1, 1}, {kAuto, "thinwire.checkpoint="}, TW_ERR_CONFIG);
}

/* A start from given weights is one only where there is nothing newer. */
TEST_F(Persist, GoesOnRatherThanBeginWithAModel)
{
    std::string saved = folder_ + "/saved";
    run({1, 1},
        {"thinwire.steps=2", "thinwire.save_model=" + saved, "thinwire.checkpoint=" + folder_ + "/others"});
    Sets sets = kSix;
    sets.push_back("model.init_from=" + saved);
    std::vector<double> whole = run({1, 1}, sets);
    ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints/step-00000006").c_str()));
    EXPECT_EQ(std::vector<double>(whole.begin() + 4, whole.end()), run({1, 1}, sets));
}

/* Whatever is wrong with the newest, and whichever rank sees it: all go on from the one before. */
TEST_F(Persist, WhatIsDamagedIsPassedOver)
{
    std::vector<double> whole = run({1, 1, 1}, kSix), two(whole.begin() + 2, whole.end()),
                        four(whole.begin() + 4, whole.end());
    std::string folder = folder_ + "/checkpoints/", newest = folder + "step-00000006/";
    auto again = [&](const char *what, const std::vector<double> &want, const std::string &named) {
        SCOPED_TRACE(what);
        expect_log(named);
        expect_log("step 6 is damaged: going back to the one before it");
        allow_log("rank 0: rank 1 cannot resume, and says why itself");
        allow_log("rank 0: rank 2 cannot resume, and says why itself");
        EXPECT_EQ(want, run({1, 1, 1}, kSix));
        EXPECT_EQ(0, access((folder + "step-00000006.damaged").c_str(), F_OK));
        EXPECT_TRUE(has_step(6)); /* it was done again */
    };
    damage("step-00000006/shard-00001.safetensors"); /* rank 1's: no other reads it */
    again("a shard", four, "step-00000006/shard-00001.safetensors: this shard is damaged");
    damage("step-00000006/manifest.json");
    again("the manifest", four, "step-00000006/manifest.json: damaged");
    ASSERT_EQ(0, truncate((newest + "manifest.json").c_str(), 10));
    again("a short manifest", four, "step-00000006/manifest.json: damaged");
    ASSERT_EQ(0, unlink((newest + "manifest.json").c_str()));
    again("no manifest", four, "step-00000006: no checkpoint there");
    ASSERT_EQ(0, unlink((newest + "shard-00002.safetensors").c_str()));
    again("no shard", four, "shard-00002.safetensors: this shard is missing");
    ASSERT_EQ(0, truncate((newest + "shard-00000.safetensors").c_str(), 100));
    damage("step-00000004/shard-00002.safetensors");
    expect_log("step 4 is damaged: going back to the one before it");
    expect_log("step-00000004/shard-00002.safetensors: this shard is damaged");
    again("two of them", two, "shard-00000.safetensors: this shard has 100 bytes");
}

TEST_F(Persist, WhereNothingIsWholeNothingBegins)
{
    run({1, 1}, {"thinwire.steps=2", kAuto});
    damage("step-00000002/shard-00001.safetensors");
    expect_log("step-00000002/shard-00001.safetensors: this shard is damaged");
    expect_log("step 2 is damaged: there is none before it");
    expect_log("rank 0: rank 1 cannot resume, and says why itself");
    run({1, 1}, {"thinwire.steps=4", kAuto}, TW_ERR_FORMAT);
    EXPECT_TRUE(has_step(2)); /* for somebody to look at */
}

/* Another model is no damage. */
TEST_F(Persist, AnotherModelIsNotPassedOver)
{
    run({1, 1}, kSix);
    expect_log("of another model: model.n_layer was 2 when it was saved, and is 1 now");
    Sets sets = kSix;
    sets.push_back("model.n_layer=1");
    run({1, 1}, sets, TW_ERR_MISMATCH);
    EXPECT_TRUE(has_step(6));
}

/* Any rank may be the one: all end after the same step, with a checkpoint of it. */
TEST_F(Persist, AskedToEndAllEndWithACheckpoint)
{
    Sets sets = {"thinwire.steps=6", kAuto};
    std::vector<double> whole = run({2, 2}, {"thinwire.steps=6", "thinwire.checkpoint="});
    for (int rank = 0; rank < 4; rank += 3) {
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints").c_str()));
        stop_rank_ = rank;
        stop_step_ = 2; /* after it: heard of in the next */
        EXPECT_EQ(std::vector<double>(whole.begin(), whole.begin() + 3), run({2, 2}, sets));
        EXPECT_TRUE(is_stopped_);
        EXPECT_TRUE(has_step(3));
        stop_rank_ = -1;
        EXPECT_EQ(std::vector<double>(whole.begin() + 3, whole.end()), run({2, 2}, sets));
        EXPECT_FALSE(is_stopped_);
    }
    stop_rank_ = 1; /* without checkpoints, too */
    EXPECT_EQ(3u, run({2, 2}, {"thinwire.steps=6", "thinwire.checkpoint="}).size());
    EXPECT_TRUE(is_stopped_);
}

/* By the clock of rank 0, so that all ranks take the same step. */
TEST_F(Persist, ACheckpointComesByTheClock)
{
    run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint_minutes=1e-9", "thinwire.checkpoint_keep=9"});
    EXPECT_TRUE(has_step(1) && has_step(2) && has_step(3) && has_step(4));
    ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints").c_str()));
    run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint_minutes=1e6", "thinwire.checkpoint_keep=9"});
    EXPECT_TRUE(!has_step(1) && !has_step(2) && !has_step(3) && has_step(4));
}

/* A step does not wait for its checkpoint, which is there a step later at the earliest; the last one's is. */
TEST_F(Persist, ACheckpointIsWrittenBesideTraining)
{
    std::vector<std::pair<uint64_t, bool>> seen;
    on_first_ = [&](uint64_t step) { seen.emplace_back(step, has_step((int)step)); };
    std::vector<double> beside = run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint_every=1"});
    on_first_ = nullptr;
    EXPECT_EQ((std::vector<std::pair<uint64_t, bool>>{{1, false}, {2, false}, {3, false}, {4, true}}), seen);
    EXPECT_EQ(run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint="}), beside);
}

/* An alarm ends the run; what was being written before it is a checkpoint all the same. */
TEST_F(Persist, AnAlarmLeavesTheCheckpointBeforeIt)
{
    expect_log("the loss jumped from about ");
    run({1, 1}, {"thinwire.steps=4", "thinwire.checkpoint_every=1", "thinwire.loss_jump=0.5"},
        TW_ERR_MISMATCH);
    EXPECT_TRUE(has_step(1));
}

TEST_F(Persist, AFinishedRunIsSavedAsAModelToo)
{
    std::string saved = folder_ + "/saved";
    run({1, 1}, {"thinwire.steps=2"});
    EXPECT_TRUE(run({1, 1}, {"thinwire.steps=2", resume(), "thinwire.save_model=" + saved}).empty());
    tw_safetensors_t *file;
    ASSERT_EQ(TW_OK, tw_safetensors_open((saved + "/model.safetensors").c_str(), &file));
    EXPECT_EQ(28u, tw_safetensors_count(file));
    tw_safetensors_close(file);
}

} // namespace
