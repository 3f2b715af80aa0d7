/* Exact modes are exact: every stage, with hpZ and the exact delta, gives the same losses bit for bit. */
#include <cmath>
#include <cstdlib>

#include "tests/trainer/engine/job.h"

struct Shape {
    int n_nodes, ranks_per_node;
};

class TrainExact : public tw::Fixture, public ::testing::WithParamInterface<Shape>
{
  protected:
    tw::Outcome train(const std::vector<std::string> &sets)
    {
        tw::Outcome outcome = tw::train(GetParam().n_nodes, GetParam().ranks_per_node, sets);
        EXPECT_EQ(outcome.status, TW_OK);
        EXPECT_TRUE(outcome.result.bytes_as_planned);
        EXPECT_TRUE(outcome.result.replicas_equal);
        return outcome;
    }
};

TEST_P(TrainExact, AllStagesHaveTheSameLosses)
{
    tw::Outcome plain = train({});
    EXPECT_LT(plain.result.last_loss, plain.result.first_loss - 0.3);
    const std::vector<std::vector<std::string>> others = {
        {"zero_optimization.stage=0"}, {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"}, {"thinwire.hpz=on"},
        {"thinwire.delta_exact=y"},    {"thinwire.delta_exact=y", "thinwire.sync_every=2"},
    };
    for (const std::vector<std::string> &sets : others) {
        tw::Outcome other = train(sets);
        EXPECT_EQ(other.losses(), plain.losses()) << sets[0];
        EXPECT_EQ(other.result.val_loss, plain.result.val_loss) << sets[0];
        EXPECT_EQ(other.steps.back().grad_norm, plain.steps.back().grad_norm) << sets[0];
    }
}

INSTANTIATE_TEST_SUITE_P(, TrainExact, ::testing::Values(Shape{1, 1}, Shape{2, 2}, Shape{3, 1}),
                         [](const auto &shape) {
                             return std::to_string(shape.param.n_nodes) + "x" +
                                    std::to_string(shape.param.ranks_per_node);
                         });

using TrainSame = tw::Fixture;

static std::string folder()
{
    const char *name = getenv("TEST_TMPDIR");
    return name ? name : "/tmp";
}

TEST_F(TrainSame, OffloadedStateIsCountedAndItsFolderNamed)
{
    const std::string nvme = "zero_optimization.offload_optimizer.device=nvme";
    tw::Outcome outcome =
        tw::train(2, 1, {nvme, "zero_optimization.offload_optimizer.nvme_path=" + folder()});
    EXPECT_EQ(outcome.status, TW_OK);
    EXPECT_EQ(outcome.result.file_bytes, 12 * outcome.result.n_params);
    expect_log("/nowhere/at/all: cannot hold a file of ");
    allow_log("gave the job up");
    EXPECT_NE(tw::train(2, 1, {nvme, "zero_optimization.offload_optimizer.nvme_path=/nowhere/at/all"}).status,
              TW_OK);
    expect_log("nvme_path names no folder");
    EXPECT_EQ(tw::train(1, 1, {nvme}).status, TW_ERR_CONFIG);
}

/* How it is computed and moved does not change what comes out. */
TEST_F(TrainSame, LossesDoNotDependOnOverlapBucketsOrRecomputation)
{
    std::vector<double> losses = tw::train(2, 1, {}).losses();
    const std::vector<std::vector<std::string>> others = {
        {"zero_optimization.overlap_comm=n"},
        {"thinwire.recompute=y"},
        {"zero_optimization.reduce_bucket_size=1000"},
        {"zero_optimization.stage=1", "zero_optimization.allgather_bucket_size=1000"},
        {"thinwire.delta_exact=y", "zero_optimization.allgather_bucket_size=1"},
        {"zero_optimization.stage3_prefetch_bucket_size=1000000"},
        {"zero_optimization.stage3_prefetch_bucket_size=1000000", "thinwire.delta_exact=y"},
        {"zero_optimization.stage3_max_live_parameters=0"},
        {"zero_optimization.offload_optimizer.device=nvme",
         "zero_optimization.offload_optimizer.nvme_path=" + folder()},
        {"zero_optimization.offload_optimizer.device=nvme",
         "zero_optimization.offload_optimizer.nvme_path=" + folder(), "thinwire.delta_exact=y"},
    };
    for (const std::vector<std::string> &sets : others) {
        tw::Outcome other = tw::train(2, 1, sets);
        EXPECT_EQ(other.status, TW_OK) << sets[0];
        EXPECT_EQ(other.losses(), losses) << sets[0];
    }
}

TEST_F(TrainSame, AccumulationIsTheSameInAllStages)
{
    const std::string four = "train_batch_size=8", twice = "gradient_accumulation_steps=2";
    tw::Outcome plain = tw::train(2, 1, {four, twice});
    ASSERT_EQ(plain.status, TW_OK);
    for (const char *other : {"zero_optimization.stage=0", "zero_optimization.stage=2", "thinwire.hpz=on",
                              "thinwire.delta_exact=y"}) {
        EXPECT_EQ(tw::train(2, 1, {four, twice, other}).losses(), plain.losses()) << other;
    }
    /* the same sequences in other micro-batches: the same loss, but for the order of sums */
    double whole = tw::train(2, 1, {four}).result.first_loss;
    EXPECT_NEAR(plain.result.first_loss / whole, 1, 1e-5);
}

TEST_F(TrainSame, TheFirstLossIsTheSameOnOtherShapes)
{
    double first = tw::train(1, 1, {"train_batch_size=12"}).result.first_loss;
    for (Shape shape : {Shape{2, 2}, Shape{3, 1}, Shape{2, 3}}) {
        tw::Outcome other = tw::train(shape.n_nodes, shape.ranks_per_node, {"train_batch_size=12"});
        EXPECT_NEAR(other.result.first_loss / first, 1, 1e-5);
    }
}
