/* Runs that stop and go on: the losses are those of a run that did not. */

#include "safetensors/safetensors.h"
#include "tests/common/process.h"
#include "tests/trainer/checkpoint/older.h"
#include "tests/trainer/persist.h"
#include "trainer/checkpoint/checkpoint.h"

namespace
{

TEST_F(Persist, ResumingIsNotHavingStopped)
{
    for (const char *stage : {"0", "1", "2", "3"}) {
        SCOPED_TRACE(stage);
        expect_same_losses({1, 1}, {std::string("zero_optimization.stage=") + stage});
    }
    expect_same_losses({1, 2}, {"zero_optimization.stage=3"});
    expect_same_losses({2, 2}, {"zero_optimization.stage=3", "optimizer.type=Muon"});
}

TEST_F(Persist, ResumingWithDeltasIsNotHavingStopped)
{
    expect_same_losses({2, 2}, {"zero_optimization.stage=3", "thinwire.delta_lossless=y"});
    expect_same_losses({2, 2}, {"zero_optimization.stage=3", "thinwire.delta_bits=4",
                                "zero_optimization.zero_quantized_gradients=y"});
}

/* Weights are rounded for computing alone: checkpoints and models have the masters. */
TEST_F(Persist, OfFp8TheMastersAreKept)
{
    expect_same_losses({2, 2}, {"model.gather=fp8", "thinwire.weights=delta"});
    allow_log("there are steps of another run, up to step ");
    for (const char *gather : {"bf16", "fp8"}) {
        run({2}, {"thinwire.steps=1", "optimizer.params.lr=0", std::string("model.gather=") + gather,
                  "thinwire.save_model=" + folder_ + "/" + gather});
    }
    std::string same = "cmp " + folder_ + "/bf16/model.safetensors " + folder_ + "/fp8/model.safetensors";
    EXPECT_EQ(0, system(same.c_str()));
    expect_log("model.gather fp8 -> bf16");
    run({2}, {"thinwire.steps=2", "thinwire.resume=" + folder_ + "/checkpoints"});
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

/* Whoever serves the model needs what lay beside the one that it comes from: all but weights. */
TEST_F(Persist, ASavedModelHasAllThatItComesFrom)
{
    std::string from = folder_ + "/from", to = folder_ + "/to";
    allow_log("there are steps of another run, up to step ");
    run({2}, {"thinwire.steps=1", "thinwire.save_model=" + from});
    std::string make = "cd " + from + " && for name in chat_template.jinja tokenizer_config.json LICENSE " +
                       "model-00002-of-00002.safetensors model.safetensors.index.json optimizer.pt " +
                       "pytorch_model.bin .hidden; do echo $name > $name; done; mkdir original && " +
                       "sed -i 's/\"eos_token_id\": null/\"eos_token_id\": 10/' config.json && " +
                       "truncate -s 300M big.txt";
    ASSERT_EQ(0, system(make.c_str()));
    for (const char *name : {"", "/model.safetensors"}) { /* the folder, or what lies in it */
        ASSERT_EQ(0, system(("rm -rf " + to).c_str()));
        expect_log("big.txt: left behind: more than 256 MB");
        run({1}, {"thinwire.steps=2", "model.init_from=" + from + name, "thinwire.save_model=" + to});
        std::string check = "cd " + to + " && test \"$(ls | tr '\n' ' ')\" = 'LICENSE chat_template.jinja " +
                            "config.json model.safetensors tokenizer_config.json ' && cmp LICENSE " + from +
                            "/LICENSE && grep -q '\"eos_token_id\": 10' config.json";
        EXPECT_EQ(0, system(check.c_str())) << name;
    }
}

/* Of a tokenizer's folder, in which anything may lie, come the files that belong to it. */
TEST_F(Persist, ASavedModelHasItsTokenizer)
{
    std::string of = folder_ + "/tokenizer", to = folder_ + "/to";
    const std::string python = process::python_with("tokenizers");
    if (python.empty()) {
        GTEST_SKIP() << "no Python here has tokenizers: tests/plugin/torch/torch_venv.py makes one";
    }
    set_env("TW_PYTHON", python);
    std::string make = "mkdir " + of + " && cp tests/trainer/data/bpe/gpt2.json " + of +
                       "/tokenizer.json && cd " + of +
                       " && echo x > chat_template.jinja && echo x > other.txt";
    ASSERT_EQ(0, system(make.c_str()));
    run({1}, {"thinwire.steps=1", "thinwire.sample_steps=1", "thinwire.sample_prompt=line 1",
              "thinwire.cache=" + folder_ + "/cache", "thinwire.tokenizer=" + of + "/tokenizer.json",
              "thinwire.save_model=" + to});
    std::string check = "cd " + to + " && test \"$(ls | tr '\n' ' ')\" = 'chat_template.jinja config.json " +
                        "model.safetensors tokenizer.json '";
    EXPECT_EQ(0, system(check.c_str()));
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

/* Two jobs would replace and remove each other's steps. */
TEST_F(Persist, AFolderInUseIsLeftToTheOther)
{
    Sets sets = {"thinwire.steps=3", "thinwire.checkpoint_every=1"};
    on_first_ = [&](uint64_t step) {
        if (step == 1) {
            on_first_ = nullptr;
            expect_log("checkpoints: another job writes its checkpoints there (run ");
            run({1, 1}, sets, TW_ERR_INVALID);
        }
    };
    EXPECT_EQ(3u, run({2}, sets).size());
    EXPECT_TRUE(has_step(3));
    on_first_ = nullptr;
    allow_log("there are steps of another run, up to step ");
    EXPECT_EQ(3u, run({2}, sets).size()); /* it is free again */
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
    tw::make_manifest_older(path);
    ASSERT_EQ(0, unlink((folder_ + "/checkpoints/run").c_str()));
    expect_log(
        "saved by an older program: whether it had the same model.n_head, model.layer_norm_epsilon, data "
        "and schedule cannot be checked");
    EXPECT_EQ(2u, run({1, 1}, {"thinwire.steps=4", total, resume()}).size());
    EXPECT_EQ(2u, run({1, 1}, {"thinwire.steps=6", total, resume()}).size());
    EXPECT_EQ(1u, log_count("saved by an older program"));
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
