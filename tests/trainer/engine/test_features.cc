/* What is quantized has the effect that it promises, and what goes wrong is said. */
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <future>

#include "tests/trainer/engine/job.h"

class TrainFeatures : public tw::Fixture
{
  protected:
    /** Inter-node bytes a step, in units of M, on 2 x 2 ranks. */
    double volume(const std::vector<std::string> &sets, tw::Outcome *out = nullptr)
    {
        tw::Outcome outcome = tw::train(2, 2, sets);
        EXPECT_EQ(outcome.status, TW_OK);
        EXPECT_TRUE(outcome.result.bytes_as_planned);
        EXPECT_TRUE(outcome.result.replicas_equal);
        EXPECT_TRUE(outcome.result.losses_finite);
        EXPECT_LT(outcome.result.last_loss, outcome.result.first_loss);
        if (out) {
            *out = outcome;
        }
        const tw_trainer_result_t &r = outcome.result;
        /* besides each step's small report of losses and norms */
        double reports = 4 * 2 * 216.0;
        return ((double)r.inter_node_bytes / (double)r.steps - reports) / (2.0 * (double)r.n_params);
    }
};

static const char *const qwz = "zero_optimization.zero_quantized_weights=y";
static const char *const qgz = "zero_optimization.zero_quantized_gradients=y";

/* N - 1 = 1: each node sends to the other. Small tensors and short blocks cost more than the large ones of
 * real models. */
TEST_F(TrainFeatures, BytesAreThoseOfThePapers)
{
    EXPECT_NEAR(volume({}), 3, 0.06);
    EXPECT_NEAR(volume({"zero_optimization.stage=0"}), 2, 0.06);
    EXPECT_NEAR(volume({"zero_optimization.stage=2"}), 2, 0.06);
    EXPECT_NEAR(volume({"thinwire.hpz=on"}), 2, 0.06);
    EXPECT_NEAR(volume({qwz}), 2, 0.25);
    EXPECT_NEAR(volume({qgz}), 2.25, 0.25);
    EXPECT_NEAR(volume({qwz, qgz, "thinwire.hpz=on"}), 0.75, 0.25);
    EXPECT_NEAR(volume({qgz, "thinwire.delta_bits=8"}), 0.75, 0.25);
    EXPECT_NEAR(volume({qgz, "thinwire.delta_bits=4"}), 0.5, 0.25);
    EXPECT_NEAR(volume({qgz, "thinwire.delta_bits=2"}), 0.39, 0.25);
    EXPECT_NEAR(volume({"thinwire.gradient_inner=int8", qgz, "thinwire.delta_bits=4"}), 0.5, 0.25);
    EXPECT_LT(volume({"thinwire.delta_lossless=y"}), 1.6);
}

TEST_F(TrainFeatures, QuantizedRunsStayCloseToPlainOnes)
{
    tw::Outcome plain, other;
    volume({}, &plain);
    for (std::vector<std::string> sets :
         std::vector<std::vector<std::string>>{{qwz}, {qgz}, {qgz, "thinwire.delta_bits=4"}}) {
        volume(sets, &other);
        EXPECT_NEAR(other.result.last_loss / plain.result.last_loss, 1, 0.02) << sets[0];
        EXPECT_NE(other.losses(), plain.losses()) << sets[0]; /* the flag does something */
    }
}

/* Of a sample in every 16th step; what loses nothing has nothing to say. */
TEST_F(TrainFeatures, CodesSayWhatTheyLose)
{
    tw::Outcome outcome;
    allow_log("become 0 on the network");
    volume({qwz, qgz, "thinwire.steps=17"}, &outcome);
    for (const tw_trainer_step_t &step : outcome.steps) {
        bool is_due = step.step % 16 == 1;
        EXPECT_EQ(is_due, step.gradients_error > 0.02 && step.gradients_error < 0.4) << step.gradients_error;
        EXPECT_EQ(is_due, step.gradients_zeroed >= 0 && step.gradients_zeroed < 1);
        EXPECT_EQ(is_due, step.weights_error > 0.001 && step.weights_error < 0.02) << step.weights_error;
    }
    volume({"thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"}, &outcome);
    for (const tw_trainer_step_t &step : outcome.steps) {
        EXPECT_TRUE(std::isnan(step.gradients_error) && std::isnan(step.weights_error));
    }
}

/* One scale for thousands of gradients of many sizes: most of them are nothing beside the largest, in step
 * after step. Once. */
TEST_F(TrainFeatures, GradientsThatBecomeNothingAreNamed)
{
    expect_log("become 0 on the network, in 4 bits beside larger ones: they do not learn; set "
               "thinwire.gradients=lossless, int4 without hadamard=no, or int8");
    tw::Outcome outcome = tw::train(
        2, 1, {qgz, "thinwire.gradient_block=4096", "thinwire.steps=50", "thinwire.gradient_hadamard=n"});
    EXPECT_EQ(outcome.status, TW_OK);
    EXPECT_EQ(log_count("become 0 on the network"), 1u);
    EXPECT_GT(outcome.steps[0].gradients_zeroed, 0.4);
}

/* A mean of what is learned, whoever has it: the same on one rank as on four, and in two micro-batches. */
TEST_F(TrainFeatures, MasksCountOnce)
{
    std::string path = ::testing::TempDir() + "masked." + std::to_string(getpid());
    std::ofstream tokens(path + ".bin", std::ios::binary), mask(path + ".mask", std::ios::binary);
    for (uint32_t i = 0; i < 3000; i++) {
        uint16_t token = (uint16_t)(i * i % 97 + i % 7);
        tokens.write(reinterpret_cast<const char *>(&token), sizeof(token));
        mask.put((char)(i % 300 > i % 170)); /* much in some sequences, nothing in others */
    }
    tokens.close();
    mask.close();
    const std::vector<std::string> sets = {"thinwire.data=" + path + ".bin", "thinwire.loss_mask=y",
                                           "train_batch_size=8", "thinwire.products=fp32",
                                           "communication_data_type=fp32"};
    auto train = [&](int nodes, int ranks, const std::vector<std::string> &more) {
        std::vector<std::string> both = sets;
        both.insert(both.end(), more.begin(), more.end());
        tw::Outcome outcome = tw::train(nodes, ranks, both);
        EXPECT_EQ(outcome.status, TW_OK);
        std::vector<double> all = outcome.losses();
        all.push_back(outcome.result.val_loss);
        return all;
    };
    std::vector<double> one = train(1, 1, {}), open = train(1, 1, {"thinwire.loss_mask=n"});
    std::vector<double> four = train(2, 2, {}), micros = train(1, 1, {"gradient_accumulation_steps=4"});
    for (size_t i = 0; i < one.size(); i++) {
        EXPECT_NEAR(four[i], one[i], 3e-6 * one[i]) << i;
        EXPECT_NEAR(micros[i], one[i], 3e-6 * one[i]) << i;
        EXPECT_GT(std::fabs(open[i] - one[i]), 1e-5 * one[i]) << i;
    }
    std::ofstream(path + ".mask", std::ios::binary) << std::string(3000, '\0');
    expect_log("step 1: of its 136 tokens none is learned (thinwire.loss_mask)");
    allow_log("gave the job up");
    EXPECT_EQ(tw::train(1, 1, sets).status, TW_ERR_INVALID);
    unlink((path + ".bin").c_str());
    unlink((path + ".mask").c_str());
}

/* On one node nothing crosses a network, and nothing is rounded for it. */
TEST_F(TrainFeatures, OneNodeIsExact)
{
    expect_log(
        "mean nothing here: all ranks are on one node, nothing crosses a network and nothing is quantized");
    tw::Outcome plain = tw::train(1, 3, {}), other = tw::train(1, 3, {qwz, qgz});
    EXPECT_EQ(plain.status, TW_OK);
    EXPECT_EQ(other.status, TW_OK);
    EXPECT_EQ(other.losses(), plain.losses());
}

TEST_F(TrainFeatures, StepsAddUpToTheRun)
{
    tw::Outcome outcome;
    volume({"thinwire.delta_lossless=y", "thinwire.val_every=2"}, &outcome);
    uint64_t steps = 0;
    for (const tw_trainer_step_t &step : outcome.steps) {
        EXPECT_EQ(std::isnan(step.val_loss), step.step % 2 != 0 && step.step != 5);
        EXPECT_EQ(step.tokens, 4u * 17u);
        steps += step.inter_node_bytes;
    }
    /* the last update's changes come after the last step's figures */
    EXPECT_LE(steps, outcome.result.inter_node_bytes);
    EXPECT_GE(steps, outcome.result.inter_node_bytes * 3 / 5);
    EXPECT_EQ(outcome.result.val_inter_node_bytes > 0, true);
    EXPECT_GT(outcome.result.delta_bits, 0);
}

/* Lines of the text are its documents. What is computed again, and micro-batches one after the other, know
 * them as well. */
TEST_F(TrainFeatures, DocumentsAreApart)
{
    const std::vector<std::string> lines = {"thinwire.document_token=10", "train_batch_size=8"};
    auto losses = [&](std::vector<std::string> more) {
        more.insert(more.end(), lines.begin(), lines.end());
        tw::Outcome outcome = tw::train(1, 2, more);
        EXPECT_EQ(outcome.status, TW_OK);
        std::vector<double> all = outcome.losses();
        all.push_back(outcome.result.val_loss);
        return all;
    };
    std::vector<double> open = losses({}), masked = losses({"thinwire.document_mask=y"});
    for (size_t i = 0; i < open.size(); i++) {
        EXPECT_NE(open[i], masked[i]) << i;
    }
    EXPECT_EQ(masked, losses({"thinwire.document_mask=y", "zero_optimization.stage=0"}));
    EXPECT_EQ(masked, losses({"thinwire.document_mask=y", "thinwire.recompute=y"}));
    std::vector<double> micros = losses({"thinwire.document_mask=y", "gradient_accumulation_steps=4"});
    for (size_t i = 0; i < micros.size(); i++) {
        EXPECT_NEAR(masked[i], micros[i], 1e-4 * masked[i]) << i;
    }
    expect_log("thinwire.document_mask means nothing here: thinwire.document_token is not given");
    EXPECT_EQ(tw::train(1, 1, {"thinwire.document_mask=y"}).status, TW_OK);
}

TEST_F(TrainFeatures, OddShapesAndPartsOfNothing)
{
    for (std::vector<std::string> sets : std::vector<std::vector<std::string>>{
             {}, {"thinwire.delta_lossless=y"}, {qwz, qgz, "thinwire.hpz=on"}}) {
        sets.push_back("model.n_embd=6"); /* biases of fewer elements than ranks */
        sets.push_back("model.n_layer=1");
        sets.push_back("thinwire.steps=3");
        tw::Outcome outcome = tw::train(2, 4, sets);
        EXPECT_EQ(outcome.status, TW_OK);
        EXPECT_TRUE(outcome.result.bytes_as_planned);
        EXPECT_TRUE(outcome.result.losses_finite);
    }
}

/* With a bound that everything exceeds, late blocks are named, and on request follow exactly. */
TEST_F(TrainFeatures, WhatLagsIsNamedAndSentPlain)
{
    allow_log("warmup_num_steps means nothing here");
    expect_log(
        "blocks lag behind their masters by more than thinwire.lag_bound 0.001 updates, most of all in "
        "transformer.");
    const char *bits = "thinwire.delta_bits=4", *bound = "thinwire.lag_bound=1e-3",
               *schedule = "scheduler.type=none";
    tw::Outcome plain, counted, sent;
    double bytes = volume({bits, schedule});
    volume({schedule}, &plain);
    EXPECT_EQ(volume({bits, schedule, bound}, &counted), bytes);
    EXPECT_GT(counted.result.lag_blocks, 0u);
    EXPECT_GT(volume({bits, schedule, bound, "thinwire.lag_plain=y"}, &sent), bytes + 0.1);
    EXPECT_NE(sent.losses(), counted.losses());
    /* closer to what no delta gives */
    EXPECT_LT(std::fabs(sent.result.last_loss - plain.result.last_loss),
              std::fabs(counted.result.last_loss - plain.result.last_loss));
}

/* All stages are the same on nodes of unequal size, too, wherever their ranks are. */
TEST_F(TrainFeatures, NodesOfUnequalSize)
{
    const std::vector<std::vector<int>> places = {{0, 0, 0, 1, 1}, {0, 1, 0, 0}, {0, 0, 1, 2, 2}};
    for (const std::vector<int> &node_of : places) {
        std::vector<double> want;
        for (std::vector<std::string> sets : std::vector<std::vector<std::string>>{
                 {"zero_optimization.stage=0"},
                 {"zero_optimization.stage=1"},
                 {"zero_optimization.stage=2"},
                 {"zero_optimization.stage=3"},
                 {"thinwire.lossless_gradients=y", "thinwire.lossless_weights=y"},
                 {"zero_optimization.stage=2", "zero_optimization.reduce_bucket_size=1"}}) {
            SCOPED_TRACE(sets[0] + " on " + std::to_string(node_of.size()));
            sets.push_back("thinwire.check_every=2");
            allow_log("thinwire.check_every means nothing here");
            tw::Outcome outcome = tw::train_on(node_of, sets);
            EXPECT_EQ(outcome.status, TW_OK);
            EXPECT_TRUE(outcome.result.bytes_as_planned);
            EXPECT_TRUE(outcome.result.replicas_equal);
            want = want.empty() ? outcome.losses() : want;
            EXPECT_EQ(outcome.losses(), want);
        }
        tw::Outcome rounded = tw::train_on(node_of, {qwz, qgz});
        EXPECT_EQ(rounded.status, TW_OK);
        EXPECT_TRUE(rounded.result.bytes_as_planned);
        EXPECT_NEAR(rounded.result.last_loss / want.back(), 1, 0.02);
    }
}

TEST_F(TrainFeatures, ReplicasNeedNodesOfOneSize)
{
    expect_log("5 ranks on 2 nodes, but more than 2 on node 0: replicas need as many ranks on each");
    allow_log("gave the job up");
    for (const char *set : {"thinwire.hpz=on", "thinwire.delta_lossless=y"}) {
        EXPECT_NE(tw::train_on({0, 0, 0, 1, 1}, {set}).status, TW_OK); /* or canceled by another rank */
    }
}

/* Of the same weights, on the same text: whoever computes which part of it. A rate of 0 keeps the first
 * weights. */
TEST_F(TrainFeatures, ValidationDoesNotDependOnTheRanks)
{
    const std::vector<std::string> sets = {"optimizer.params.lr=0", "thinwire.steps=1",
                                           "thinwire.val_sequences=13"};
    tw::Outcome one = tw::train(1, 1, sets);
    ASSERT_EQ(one.status, TW_OK);
    ASSERT_GT(one.result.val_loss, 0);
    for (int world : {3, 4, 6}) {
        tw::Outcome other = tw::train(world, 1, sets);
        ASSERT_EQ(other.status, TW_OK);
        EXPECT_TRUE(other.result.bytes_as_planned);
        EXPECT_EQ(other.result.val_loss, one.result.val_loss) << world;
    }
    /* other micro-batches: products of other shapes, to fp32's last bits */
    for (const char *set : {"train_micro_batch_size_per_gpu=4", "train_micro_batch_size_per_gpu=20"}) {
        std::vector<std::string> more = sets;
        more.push_back(set);
        EXPECT_NEAR(tw::train(2, 1, more).result.val_loss, one.result.val_loss, 1e-6) << set;
    }
    /* no more than there is */
    EXPECT_EQ(tw::train(1, 1, {"optimizer.params.lr=0", "thinwire.steps=1", "thinwire.val_sequences=1000000"})
                  .result.val_loss,
              tw::train(3, 1, {"optimizer.params.lr=0", "thinwire.steps=1", "thinwire.val_sequences=2000000"})
                  .result.val_loss);
}

TEST_F(TrainFeatures, ALossThatJumpsStopsTheRun)
{
    allow_log("warmup_num_steps means nothing here");
    expect_log("the loss jumped");
    tw::Outcome outcome = tw::train(
        2, 1,
        {"optimizer.params.lr=1", "thinwire.loss_jump=1.5", "thinwire.steps=30", "scheduler.type=none"});
    EXPECT_EQ(outcome.status, TW_ERR_MISMATCH);
    EXPECT_LT(outcome.steps.size(), 30u);
}

TEST_F(TrainFeatures, RanksWithDifferentConfigurationsStop)
{
    expect_log("rank 1: optimizer.params.lr is '0.5', on rank 0 it is '0.003'");
    std::vector<std::string> one = tw::tiny_sets(), other = one;
    other.push_back("optimizer.params.lr=0.5");
    EXPECT_EQ(tw::train_apart(one, other), std::vector<tw_status_t>(2, TW_ERR_MISMATCH));
}

TEST_F(TrainFeatures, WrongDataIsNamed)
{
    expect_log("/nowhere/at/all.txt");
    tw::Outcome outcome = tw::train(1, 1, {"thinwire.data=/nowhere/at/all.txt"});
    EXPECT_NE(outcome.status, TW_OK);
    expect_log("the model knows 5 tokens");
    EXPECT_EQ(tw::train(1, 1, {"model.vocab_size=5"}).status, TW_ERR_CONFIG);
    expect_log("tokens for validation are too few for a sequence of 17: there is none");
    outcome = tw::train(1, 1, {"thinwire.val_share=0.0001", "thinwire.steps=1"});
    EXPECT_EQ(outcome.status, TW_OK);
    EXPECT_TRUE(std::isnan(outcome.result.val_loss));
    expect_log("tokens for training are too few for a sequence of 900000 (thinwire.sequence_length)");
    EXPECT_EQ(tw::train(1, 1, {"thinwire.sequence_length=900000"}).status, TW_ERR_CONFIG);
}

/* A rank that lives but does not come is waited for as long as TW_COLL_TIMEOUT says, and named. */
TEST_F(TrainFeatures, ARankThatDoesNotComeIsNamed)
{
    set_env("TW_COLL_TIMEOUT", "3s"); /* more than a loaded machine stands still */
    expect_log("has not moved for ");
    expect_log(" from rank 1");
    allow_log("gave the job up");
    std::promise<void> ended;
    std::shared_future<void> has_ended = ended.get_future();
    std::vector<std::string> sets = tw::tiny_sets();
    std::vector<const char *> pointers;
    for (const std::string &set : sets) {
        pointers.push_back(set.c_str());
    }
    tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
        tw_trainer_params_t params = {};
        tw_trainer_result_t result;
        params.sets = pointers.data();
        params.n_sets = pointers.size();
        params.coll = coll;
        params.ctx = rank == 1 ? &has_ended : nullptr;
        params.on_step = [](void *ctx, const tw_trainer_step_t *) {
            if (ctx) {
                static_cast<std::shared_future<void> *>(ctx)->wait();
            }
        };
        tw_status_t status = tw_trainer_run(&params, &result);
        if (rank == 0) {
            EXPECT_EQ(status, TW_ERR_TIMEOUT);
            ended.set_value();
        } else {
            EXPECT_NE(status, TW_OK);
        }
    });
}
