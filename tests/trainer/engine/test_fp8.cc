/* model.gather=fp8: layers' matrices are rounded to e4m3 for computing. Whatever they travel by, all ranks
 * compute with the same ones. */
#include "tests/trainer/engine/job.h"

using Sets = std::vector<std::string>;

static const char *const delta = "thinwire.weights=delta";
static const char *const lossless_gradients = "thinwire.gradients=lossless";

struct Shape {
    int n_nodes, ranks_per_node;
};

class TrainFp8 : public tw::Fixture, public ::testing::WithParamInterface<Shape>
{
};

static tw::Outcome train_fp8(int n_nodes, int ranks_per_node, Sets sets)
{
    sets.insert(sets.end(), {"model.gather=fp8", "thinwire.check_every=1"});
    tw::Outcome outcome = tw::train_well(n_nodes, ranks_per_node, sets);
    EXPECT_LT(outcome.result.last_loss, outcome.result.first_loss - 0.3) << sets[0];
    return outcome;
}

TEST_P(TrainFp8, AllWaysHaveTheSameLosses)
{
    const Shape shape = GetParam();
    allow_log("nothing here: all ranks are on one node");
    allow_log("thinwire.check_every means nothing here");
    tw::Outcome bf16 = tw::train_well(shape.n_nodes, shape.ranks_per_node, {});
    tw::Outcome fp8 = train_fp8(shape.n_nodes, shape.ranks_per_node, {"zero_optimization.stage=3"});
    EXPECT_NE(fp8.losses(), bf16.losses());
    EXPECT_NEAR(fp8.result.last_loss, bf16.result.last_loss, 0.1);
    for (const Sets &sets : std::vector<Sets>{{"zero_optimization.stage=0"},
                                              {"zero_optimization.stage=1"},
                                              {"zero_optimization.stage=2"},
                                              {"thinwire.hpz=on"},
                                              {delta},
                                              {delta, lossless_gradients, "thinwire.threads=2"},
                                              {delta, "thinwire.sync_every=2"},
                                              {delta, "zero_optimization.allgather_bucket_size=1"},
                                              {"thinwire.weights=lossless", lossless_gradients}}) {
        tw::Outcome other = train_fp8(shape.n_nodes, shape.ranks_per_node, sets);
        EXPECT_EQ(other.losses(), fp8.losses()) << sets[0];
        EXPECT_EQ(other.result.val_loss, fp8.result.val_loss) << sets[0];
    }
}

INSTANTIATE_TEST_SUITE_P(, TrainFp8,
                         ::testing::Values(Shape{1, 1}, Shape{2, 2}, Shape{4, 1}, Shape{2, 3}, Shape{3, 1}),
                         [](const auto &shape) {
                             return std::to_string(shape.param.n_nodes) + "x" +
                                    std::to_string(shape.param.ranks_per_node);
                         });

using TrainFp8With = tw::Fixture;

TEST_F(TrainFp8With, ChangesAreShorterThanThoseOfBf16)
{
    const Sets wide = {delta, "model.n_embd=64", "thinwire.steps=6"};
    tw::Outcome bf16 = tw::train_well(2, 2, wide);
    Sets fp8 = wide;
    fp8.emplace_back("model.gather=fp8");
    EXPECT_LT(tw::train_well(2, 2, fp8).result.delta_bits, 0.7 * bf16.result.delta_bits);
}

TEST_F(TrainFp8With, OtherModelsAndOptimizersHaveTheSameLosses)
{
    allow_log("thinwire.check_every means nothing here");
    for (const Sets &some : std::vector<Sets>{
             {"optimizer.type=Muon"},
             {"model.family=qwen3", "model.n_kv_head=1", "model.head_dim=2", "model.n_inner=24"},
             {"thinwire.groups=transformer.h.0.*.weight frozen"},
             {"gradient_accumulation_steps=2"}}) {
        Sets with_delta = some, whole = some;
        with_delta.emplace_back(delta);
        whole.emplace_back("zero_optimization.stage=0");
        std::vector<double> losses = train_fp8(2, 2, some).losses();
        EXPECT_EQ(train_fp8(2, 2, with_delta).losses(), losses) << some[0];
        EXPECT_EQ(train_fp8(2, 2, whole).losses(), losses) << some[0];
    }
}

TEST_F(TrainFp8With, RanksThatDifferStop)
{
    expect_log("rank 1: model.gather is 'fp8', on rank 0 it is 'bf16'");
    Sets one = tw::tiny_sets(), other = one;
    other.emplace_back("model.gather=fp8");
    EXPECT_EQ(tw::train_apart(one, other), std::vector<tw_status_t>(2, TW_ERR_MISMATCH));
}

TEST_F(TrainFp8With, WhatItDoesNotGoWithIsRefused)
{
    expect_log("bf16.enabled is false, but model.gather is fp8");
    expect_log("model.gather is fp8, which is for thinwire.device cpu");
    expect_log("model.gather is fp8, but thinwire.weights would round weights once more");
    for (const Sets &sets : std::vector<Sets>{{"bf16.enabled=n"},
                                              {"thinwire.device=cuda"},
                                              {"thinwire.weights=delta4"},
                                              {"thinwire.weights=int8"}}) {
        Sets all = sets;
        all.emplace_back("model.gather=fp8");
        EXPECT_EQ(tw::train(2, 1, all).status, TW_ERR_CONFIG) << sets[0];
    }
}
