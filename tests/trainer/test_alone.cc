/* What a run that nobody watches meets: it goes on by itself, keeps the best, and passes bad steps over. */
#include <jansson.h>

#include <cmath>

#include "safetensors/safetensors.h"
#include "tests/trainer/persist.h"

namespace
{

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
    std::string other = "sed -i 's/\"run\": \"[0-9a-f]*\"/\"run\": \"0123456789abcdef\"/' ";
    ASSERT_EQ(0, system((other + newest + "manifest.json").c_str()));
    again("the run's id in it", four, "step-00000006/manifest.json: damaged");
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

/* ---- only a validation --------------------------------------------------------------------------------- */

TEST_F(Persist, WithoutStepsOnlyAValidation)
{
    std::vector<double> whole = run({1, 1}, {"thinwire.steps=3"});
    double want = val_loss_;
    EXPECT_TRUE(run({1, 1}, {"thinwire.steps=0", kAuto}).empty());
    EXPECT_EQ(want, val_loss_);
    EXPECT_TRUE(run({1, 1}, {"thinwire.steps=0", "thinwire.checkpoint=", resume()}).empty());
    EXPECT_EQ(want, val_loss_);
    EXPECT_TRUE(run({1, 1}, {"thinwire.steps=0", "thinwire.checkpoint="}).empty()); /* of weights as drawn */
    EXPECT_GT(val_loss_, want);
    EXPECT_TRUE(has_step(3) && !has_step(0));
}

/* ---- what is kept as a model --------------------------------------------------------------------------- */

TEST_F(Persist, TheBestIsKept)
{
    std::string best = folder_ + "/best";
    Sets sets = {"thinwire.steps=8",        "thinwire.val_every=1",        "thinwire.save_best=" + best,
                 "optimizer.params.lr=0.5", "thinwire.checkpoint_keep=99", kAuto};
    run({1, 1}, sets);
    ASSERT_EQ(8u, val_losses_.size());
    size_t at = (size_t)(std::min_element(val_losses_.begin(), val_losses_.end()) - val_losses_.begin());
    ASSERT_LT(at, 7u) << "at this learning rate it gets worse again";
    for (size_t i = 0; i < 8; i++) { /* a checkpoint wherever it got better, and at the end */
        bool is_better =
            i == 0 || val_losses_[i] < *std::min_element(val_losses_.begin(), val_losses_.begin() + (long)i);
        EXPECT_EQ(is_better || i == 7, has_step((int)i + 1)) << i + 1;
    }
    double lowest = val_losses_[at];
    run({1, 1}, {"thinwire.steps=0", "thinwire.checkpoint=", "model.init_from=" + best});
    EXPECT_NEAR(lowest, val_loss_, 1e-5 * lowest);
    sets[0] = "thinwire.steps=9"; /* what goes on knows what was best */
    ASSERT_EQ(0, system(("rm -rf " + best).c_str()));
    allow_log("scheduler.params.total_num_steps 8 -> 9");
    run({1, 1}, sets);
    ASSERT_EQ(1u, val_losses_.size());
    EXPECT_EQ(val_losses_[0] < lowest, access((best + "/model.safetensors").c_str(), F_OK) == 0);
    expect_log("thinwire.save_best needs thinwire.checkpoint");
    run({1, 1}, {"thinwire.checkpoint=", "thinwire.save_best=x"}, TW_ERR_CONFIG);
}

/* With what a tokenizer needs: of the model it began with, and of this run, which is stronger. */
TEST_F(Persist, TokenizersLieBesideTheModel)
{
    auto content = [&](const std::string &name) {
        std::ifstream file(folder_ + "/" + name);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    std::string first = folder_ + "/first", second = folder_ + "/second", third = folder_ + "/third";
    run({1, 1}, {"thinwire.steps=1", "thinwire.save_model=" + first});
    EXPECT_EQ("", content("first/tokenizer.json"));
    std::ofstream(first + "/tokenizer_config.json") << "{}";
    std::ofstream(first + "/tokenizer.json") << "not read";
    allow_log("there are steps of another run");
    run({1, 1}, {"thinwire.steps=1", "model.init_from=" + first, "thinwire.save_model=" + second});
    EXPECT_EQ("{}", content("second/tokenizer_config.json"));
    EXPECT_EQ("not read", content("second/tokenizer.json"));
}

/* ---- bad steps ----------------------------------------------------------------------------------------- */

const Sets kSkip = {"thinwire.steps=16",         "scheduler.params.total_num_steps=16",
                    "thinwire.bad_step=skip",    "thinwire.loss_z=1",
                    "thinwire.norm_z=1.5",       "thinwire.z_window=4",
                    "thinwire.bad_steps_most=16"};

Sets with(Sets sets, const Sets &more)
{
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
}

/* Common noise is out of these bounds now and then: in the same steps on all ranks and in all exact sets. */
TEST_F(Persist, BadStepsAreSkipped)
{
    allow_log("deviations above the last ones");
    std::vector<double> want =
        run({2, 2}, with(kSkip, {"zero_optimization.stage=3", "thinwire.checkpoint="}));
    std::vector<int> bad = bad_;
    ASSERT_EQ(16u, want.size());
    EXPECT_GT(std::count(bad.begin(), bad.end(), 1), 0);
    EXPECT_LT(std::count(bad.begin(), bad.end(), 1), 12);
    EXPECT_EQ(0, std::count(bad.begin(), bad.begin() + 4, 1)); /* too few to compare with */
    for (const Sets &more : std::vector<Sets>{
             {"zero_optimization.stage=0"},
             {"zero_optimization.stage=1"},
             {"zero_optimization.stage=2"},
             {"zero_optimization.stage=3", "thinwire.hpz=on"},
             {"zero_optimization.stage=3", "thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"}}) {
        SCOPED_TRACE(more.back());
        EXPECT_EQ(want, run({2, 2}, with(with(kSkip, more), {"thinwire.checkpoint="})));
        EXPECT_EQ(bad, bad_);
    }
    EXPECT_NE(want, run({2, 2}, {"thinwire.steps=16", "scheduler.params.total_num_steps=16",
                                 "thinwire.checkpoint="}));
}

/* What they are told by is in the checkpoint. */
TEST_F(Persist, BadStepsAreTheSameAfterAResume)
{
    allow_log("deviations above the last ones");
    std::vector<double> whole = run({1, 1}, with(kSkip, {"thinwire.checkpoint="}));
    std::vector<int> bad = bad_;
    for (uint64_t step : {2, 6, 11}) { /* before there are enough, in the first round, in a later one */
        SCOPED_TRACE(step);
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints").c_str()));
        stop_rank_ = 1;
        stop_step_ = step;
        run({1, 1}, with(kSkip, {kAuto}));
        stop_rank_ = -1;
        EXPECT_EQ(std::vector<double>(whole.begin() + (long)step + 1, whole.end()),
                  run({1, 1}, with(kSkip, {kAuto})));
        EXPECT_EQ(std::vector<int>(bad.begin() + (long)step + 1, bad.end()), bad_);
    }
}

/* Back to the last checkpoint, and on with other data: the same in all exact sets. */
TEST_F(Persist, BadStepsAreRolledBack)
{
    Sets sets = with(kSkip, {"thinwire.bad_step=rollback", "thinwire.checkpoint_every=3"});
    allow_log("back to the last checkpoint");
    allow_log("there are steps of another run");
    std::vector<double> want;
    for (const Sets &more : std::vector<Sets>{{"zero_optimization.stage=3"},
                                              {"zero_optimization.stage=0"},
                                              {"zero_optimization.stage=3", "thinwire.delta_lossless=y"}}) {
        SCOPED_TRACE(more.back());
        std::vector<double> losses = run({2, 2}, with(sets, more));
        ASSERT_EQ(16u, steps_.back());
        EXPECT_GT(losses.size(), 16u);
        for (size_t i = 1; i < losses.size(); i++) { /* a multiple of 3 was saved before it */
            EXPECT_EQ(bad_[i - 1] ? (steps_[i - 1] - 1) / 3 * 3 + 1 : steps_[i - 1] + 1, steps_[i]);
        }
        want = want.empty() ? losses : want;
        EXPECT_EQ(want, losses);
    }
    ASSERT_EQ(0, system(("rm -rf " + folder_ + "/checkpoints").c_str()));
    expect_log("there is no checkpoint yet to go back to");
    run({1, 1}, with(sets, {"thinwire.checkpoint_every=0"}), TW_ERR_NOT_FOUND);
    expect_log("thinwire.bad_step is rollback: it needs thinwire.checkpoint to go back to");
    run({1, 1}, {"thinwire.bad_step=rollback", "thinwire.checkpoint="}, TW_ERR_CONFIG);
}

/* Weights so large that sums of them are not finite: 0x7f7f as bf16. */
void enlarge(const std::string &path, const char *name)
{
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t bytes = 0;
    file.read(reinterpret_cast<char *>(&bytes), sizeof(bytes));
    std::string text(bytes, ' ');
    file.read(&text[0], (std::streamsize)bytes);
    json_t *header = json_loadb(text.data(), text.size(), 0, nullptr);
    json_t *offsets = json_object_get(json_object_get(header, name), "data_offsets");
    json_int_t first = json_integer_value(json_array_get(offsets, 0)),
               end = json_integer_value(json_array_get(offsets, 1));
    ASSERT_GT(end, first) << name;
    file.seekp((std::streamoff)(sizeof(bytes) + bytes) + first);
    file << std::string((size_t)(end - first), '\x7f');
    json_decref(header);
}

/* Gradients that are not finite, of weights that are: skipped, but not for ever. */
TEST_F(Persist, WhatIsNotFiniteIsSkippedToo)
{
    std::string saved = folder_ + "/saved";
    Sets sets = {"thinwire.steps=9",       "thinwire.checkpoint=",      "model.init_from=" + saved,
                 "thinwire.bad_step=skip", "thinwire.bad_steps_most=2", "thinwire.val_sequences=0"};
    run({1, 1}, {"thinwire.steps=1", "thinwire.save_model=" + saved});
    enlarge(saved + "/model.safetensors", "transformer.wte.weight");
    expect_log("is not finite");
    expect_log("step 1: the gradient is not finite: skipped");
    expect_log("step 2: the gradient is not finite: skipped");
    expect_log("step 3: the gradient is not finite; there were 2 bad steps before it");
    EXPECT_EQ(2u, run({1, 1}, sets, TW_ERR_MISMATCH).size());
}

/* ---- data ---------------------------------------------------------------------------------------------- */

/* Patterns, weights, documents, epochs: what comes next is a matter of the step alone. */
TEST_F(Persist, ManyFilesAreGoneOnWith)
{
    std::string parts = "cd " + folder_ + "; split -n 5 text part_; head -c 3000 text > few";
    ASSERT_EQ(0, system(parts.c_str()));
    allow_log("there are steps of another run");
    for (const Sets &data : std::vector<Sets>{{"thinwire.data=" + folder_ + "/part_*"},
                                              {"thinwire.data=" + folder_ + "/part_*:2," + folder_ + "/few:1",
                                               "thinwire.document_token=10"}}) {
        SCOPED_TRACE(data[0]);
        expect_same_losses({1, 1}, data);
        std::vector<double> losses = run({1, 1}, with(data, {"thinwire.steps=3"}));
        EXPECT_EQ(losses, run({1, 1}, with(data, {"thinwire.steps=3"})));
        EXPECT_NE(losses, run({1, 1}, {"thinwire.steps=3"}));
    }
    expect_log("rank 1: data.checksum is '");
    run({1, 1}, {"thinwire.steps=1", "thinwire.data=" + folder_ + "/part_*:2," + folder_ + "/few:1"},
        TW_ERR_MISMATCH, {"thinwire.data=" + folder_ + "/part_*:3," + folder_ + "/few:1"});
}

/* The length in passes through the data: 2 of 11 sequences, 4 a step. */
TEST_F(Persist, EpochsAreALength)
{
    std::ofstream(folder_ + "/text") << std::string(16 * 11 + 1, 'x');
    Sets sets = {"thinwire.epochs=2", "thinwire.val_share=0", "train_batch_size=4", "thinwire.checkpoint="};
    EXPECT_EQ(6u, run({1, 1}, sets).size());
    expect_log("thinwire.epochs is given");
    EXPECT_EQ(6u, run({1, 1}, with(sets, {"thinwire.steps=100"})).size());
}

/* ---- parameter groups ---------------------------------------------------------------------------------- */

/* What is frozen stays, and sends nothing; all exact sets learn the same with it, also after a resume. */
TEST_F(Persist, FrozenTensorsStay)
{
    const std::string frozen =
        "thinwire.groups=transformer.h.0.* frozen, *.wpe.weight frozen, *.wte.* lr=0.5 "
        "decay=0, *.bias decay=0.1";
    const Sets length = {"thinwire.steps=4", "thinwire.checkpoint="};
    std::vector<double> want;
    for (const Sets &more : std::vector<Sets>{
             {"zero_optimization.stage=3"},
             {"zero_optimization.stage=0"},
             {"zero_optimization.stage=1"},
             {"zero_optimization.stage=2"},
             {"zero_optimization.stage=2", "zero_optimization.reduce_bucket_size=1"},
             {"zero_optimization.stage=3", "thinwire.hpz=on"},
             {"zero_optimization.stage=3", "thinwire.lossless_weights=y"},
             {"zero_optimization.stage=3", "thinwire.keep_frozen=n"},
             {"zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme",
              "zero_optimization.offload_param.nvme_path=" + folder_},
             {"zero_optimization.stage=3", "thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"}}) {
        SCOPED_TRACE(more.back());
        allow_log("thinwire.keep_frozen means nothing here"); /* where nothing is frozen */
        run({2, 2}, with(length, more));
        uint64_t all_bytes = inter_node_bytes_;
        std::vector<double> losses = run({2, 2}, with(with(length, more), {frozen}));
        want = want.empty() ? losses : want;
        EXPECT_EQ(want, losses);
        EXPECT_LT(inter_node_bytes_, all_bytes * 9 / 10);
    }
    EXPECT_NE(want, run({2, 2}, length));
    for (const char *stage : {"1", "3"}) { /* what is loaded is gathered whole */
        SCOPED_TRACE(stage);
        expect_same_losses({1, 1}, {frozen, std::string("zero_optimization.stage=") + stage});
    }
}

/* With all but the last norm frozen next to nothing leaves a node, and no rank has moments of the rest. */
TEST_F(Persist, FrozenTensorsTakeNoBytes)
{
    const std::string frozen = "thinwire.groups=transformer.h.* frozen, *.w?e.weight frozen";
    const Sets length = {"thinwire.steps=4", "thinwire.checkpoint=", "thinwire.val_sequences=0"};
    run({2, 2}, with(length, {"zero_optimization.stage=3", "thinwire.keep_frozen=n", frozen}));
    uint64_t gathered = inter_node_bytes_;
    for (const Sets &more : std::vector<Sets>{{"zero_optimization.stage=3"},
                                              {"zero_optimization.stage=3", "thinwire.hpz=on"},
                                              {"zero_optimization.stage=3", "thinwire.delta_lossless=y"},
                                              {"zero_optimization.stage=3", "thinwire.delta_bits=4"},
                                              {"zero_optimization.stage=2"},
                                              {"zero_optimization.stage=0"}}) {
        SCOPED_TRACE(more.back());
        run({2, 2}, with(with(length, more), {frozen}));
        EXPECT_LT(inter_node_bytes_, gathered / 20);
    }
}

TEST_F(Persist, FrozenTensorsHaveNoMoments)
{
    allow_log("there are steps of another run");
    for (const char *stage : {"0", "3"}) {
        Sets sets = {"thinwire.steps=2", std::string("zero_optimization.stage=") + stage};
        run({1, 1}, sets);
        double all = (double)device_bytes_;
        run({1, 1}, with(sets, {"thinwire.groups=transformer.h.* frozen"}));
        double layers = 2 * (12 * 32 * 32 + 13 * 32), ranks = *stage == '0' ? 1 : 2;
        double kept = *stage == '0' ? 0 : 2 * layers; /* whole, on each */
        EXPECT_NEAR(all - 8 * layers / ranks + kept, (double)device_bytes_, 1000) << stage;
        expect_log("thinwire.groups transformer.h.* frozen -> ");
        /* a run that learns them from there on begins with moments of 0 */
        EXPECT_EQ(1u, run({1, 1}, with(sets, {"thinwire.steps=3", "thinwire.groups=", resume()})).size());
    }
}

TEST_F(Persist, FrozenTensorsAreSavedAsTheyWere)
{
    std::string one = folder_ + "/one", two = folder_ + "/two";
    auto values = [](const std::string &folder, const char *name) {
        std::string path = folder + "/model.safetensors", text;
        tw_safetensors_t *file;
        EXPECT_EQ(TW_OK, tw_safetensors_open(path.c_str(), &file));
        const tw_safetensors_tensor_t *tensor = tw_safetensors_find(file, name);
        text.assign(static_cast<const char *>(tensor->data), tensor->bytes);
        tw_safetensors_close(file);
        return text;
    };
    allow_log("there are steps of another run");
    run({1, 1}, {"thinwire.steps=1", "thinwire.save_model=" + one});
    run({1, 1}, {"thinwire.steps=4", "model.init_from=" + one, "thinwire.save_model=" + two,
                 "thinwire.groups=transformer.h.0.attn.* frozen"});
    const char *frozen = "transformer.h.0.attn.c_attn.weight", *other = "transformer.h.0.mlp.c_fc.weight";
    EXPECT_EQ(values(one, frozen), values(two, frozen));
    EXPECT_NE(values(one, other), values(two, other));
}

TEST_F(Persist, GroupsThatMeanNothingAreNamed)
{
    auto refused = [&](const std::string &groups, const char *why) {
        expect_log(why);
        run({1, 1}, {"thinwire.steps=1", "thinwire.groups=" + groups}, TW_ERR_CONFIG);
    };
    refused("transformer.x* frozen", "thinwire.groups: no tensor of the model has this name: transformer.x*");
    refused("*.wte.weight", "thinwire.groups: expected a tensor's name, or a pattern, and what is other");
    refused("*.wte.weight frosen", "thinwire.groups: expected frozen, lr=FACTOR or decay=NUMBER: frosen");
    refused("*.wte.weight lr=x", "thinwire.groups: not a number for it: lr=x");
    expect_log("rank 1: thinwire.groups is '");
    run({1, 1}, {"thinwire.steps=1"}, TW_ERR_MISMATCH, {"thinwire.groups=*.wte.weight frozen"});
}

} // namespace
