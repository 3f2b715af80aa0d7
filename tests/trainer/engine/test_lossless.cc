/* What loses nothing loses nothing: every stage, with hpZ and the lossless delta, gives the same losses bit
 * for bit. */
#include <cmath>
#include <cstdlib>

#include "tests/trainer/engine/job.h"

static const char *const lossless_delta = "thinwire.weights=delta";
static const char *const lossless_gradients = "thinwire.gradients=lossless";
static const char *const lossless_weights = "thinwire.weights=lossless";

struct Shape {
    int n_nodes, ranks_per_node;
};

class TrainLossless : public tw::Fixture, public ::testing::WithParamInterface<Shape>
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

TEST_P(TrainLossless, AllStagesHaveTheSameLosses)
{
    tw::Outcome plain = train({});
    EXPECT_LT(plain.result.last_loss, plain.result.first_loss - 0.3);
    const std::vector<std::vector<std::string>> others = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"},
        {"thinwire.hpz=on"},
        {"thinwire.delta_lossless=y"},
        {"thinwire.delta_lossless=y", "thinwire.sync_every=2"},
        {lossless_gradients},
        {lossless_gradients, lossless_weights},
        {lossless_gradients, lossless_delta},
        {lossless_gradients, "zero_optimization.stage=0"},
        {lossless_gradients, lossless_weights, "zero_optimization.stage=1"},
        {lossless_gradients, lossless_weights, "thinwire.hpz=on", "zero_optimization.reduce_bucket_size=1"},
    };
    if (GetParam().n_nodes == 1) {
        expect_log("nothing here: all ranks are on one node");
    }
    for (const std::vector<std::string> &sets : others) {
        tw::Outcome other = train(sets);
        EXPECT_EQ(other.losses(), plain.losses()) << sets[0];
        EXPECT_EQ(other.result.val_loss, plain.result.val_loss) << sets[0];
        EXPECT_EQ(other.steps.back().grad_norm, plain.steps.back().grad_norm) << sets[0];
    }
}

INSTANTIATE_TEST_SUITE_P(, TrainLossless,
                         ::testing::Values(Shape{1, 1}, Shape{2, 2}, Shape{3, 1}, Shape{2, 3}, Shape{5, 1}),
                         [](const auto &shape) {
                             return std::to_string(shape.param.n_nodes) + "x" +
                                    std::to_string(shape.param.ranks_per_node);
                         });

using TrainSame = tw::Fixture;

/* The engine knows a model by its units and tensors: with fewer elements than ranks, and an output layer in
 * the root. */
TEST_F(TrainSame, ALlamaHasTheSameLossesInAllStages)
{
    const std::vector<std::vector<std::string>> all = {
        {},
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"},
        {"thinwire.hpz=on"},
        {lossless_delta},
        {lossless_gradients, lossless_weights},
        {lossless_gradients, lossless_delta},
    };
    for (const char *family : {"qwen2", "qwen3"}) {
        std::vector<double> losses;
        for (std::vector<std::string> sets : all) {
            sets.insert(sets.end(), {std::string("model.family=") + family, "model.n_kv_head=1",
                                     "model.head_dim=2", "model.n_inner=24", "model.sliding_window=9"});
            tw::Outcome outcome = tw::train(2, 2, sets);
            EXPECT_EQ(outcome.status, TW_OK) << sets[0];
            EXPECT_TRUE(outcome.result.bytes_as_planned) << sets[0];
            EXPECT_TRUE(outcome.result.replicas_equal) << sets[0];
            EXPECT_LT(outcome.result.last_loss, outcome.result.first_loss - 0.3) << sets[0];
            losses = losses.empty() ? outcome.losses() : losses;
            EXPECT_EQ(outcome.losses(), losses) << sets[0];
        }
    }
}

/* Of no use without this: fewer bytes between nodes, with and without replicas. */
TEST_F(TrainSame, LosslessSendsFewerBytes)
{
    auto bytes = [](const std::vector<std::string> &sets) {
        tw::Outcome outcome = tw::train(2, 1, sets);
        EXPECT_EQ(outcome.status, TW_OK);
        EXPECT_TRUE(outcome.result.bytes_as_planned);
        return (double)outcome.result.inter_node_bytes;
    };
    double zero3 = bytes({});
    EXPECT_LT(bytes({lossless_gradients, lossless_weights}), 0.8 * zero3);
    EXPECT_LT(bytes({lossless_gradients, lossless_delta}), 0.85 * bytes({lossless_delta}));
}

static std::string folder()
{
    const char *name = getenv("TEST_TMPDIR");
    return name ? name : "/tmp";
}

static const char *const param_cpu = "zero_optimization.offload_param.device=cpu";
static const char *const param_nvme = "zero_optimization.offload_param.device=nvme";
static const char *const optimizer_cpu = "zero_optimization.offload_optimizer.device=cpu";
static const char *const optimizer_nvme = "zero_optimization.offload_optimizer.device=nvme";

static std::string param_folder()
{
    return "zero_optimization.offload_param.nvme_path=" + folder();
}

static std::string optimizer_folder()
{
    return "zero_optimization.offload_optimizer.nvme_path=" + folder();
}

static std::string inputs_folder()
{
    return "thinwire.activation_path=" + folder();
}

TEST_F(TrainSame, OffloadedStateIsCountedAndItsFolderNamed)
{
    tw::Outcome outcome = tw::train(2, 1, {optimizer_nvme, optimizer_folder()});
    EXPECT_EQ(outcome.status, TW_OK);
    EXPECT_EQ(outcome.result.file_bytes, 12 * outcome.result.n_params);
    expect_log("/nowhere/at/all: cannot hold a file of ");
    allow_log("gave the job up");
    EXPECT_NE(
        tw::train(2, 1, {optimizer_nvme, "zero_optimization.offload_optimizer.nvme_path=/nowhere/at/all"})
            .status,
        TW_OK);
    expect_log("nvme_path names no folder");
    EXPECT_EQ(tw::train(1, 1, {optimizer_nvme}).status, TW_ERR_CONFIG);
}

/* What goes to files is not on the device: 2 bytes a parameter of a shard, 3 of a lossless delta's replica,
 * and layers' inputs. */
TEST_F(TrainSame, OffloadedWeightsAndInputsAreCounted)
{
    tw::Outcome plain = tw::train(2, 1, {}), away = tw::train(2, 1, {param_nvme, param_folder()});
    EXPECT_EQ(away.result.file_bytes, 2 * plain.result.n_params);
    EXPECT_NEAR((double)(plain.result.device_bytes - away.result.device_bytes), (double)plain.result.n_params,
                64);
    tw::Outcome delta = tw::train(2, 1, {lossless_delta}),
                host = tw::train(2, 1, {lossless_delta, param_cpu});
    EXPECT_EQ(delta.result.device_bytes - host.result.device_bytes, 3 * plain.result.n_params);
    EXPECT_EQ(tw::train(2, 1, {lossless_delta, param_nvme, param_folder()}).result.file_bytes,
              6 * plain.result.n_params);
    /* 4 layers of one sequence of 17 tokens and width 32; one place more to work in */
    const std::string layers = "model.n_layer=4", recompute = "thinwire.recompute=y";
    const uint64_t input = 17 * 32 * 4;
    tw::Outcome near = tw::train(2, 1, {layers, recompute}), far = tw::train(2, 1, {layers, inputs_folder()});
    EXPECT_EQ(far.result.file_bytes, 2 * 4 * input);
    EXPECT_EQ(near.result.device_bytes - far.result.device_bytes, 3 * input);
    EXPECT_EQ(tw::train(2, 1, {layers, "activation_checkpointing.cpu_checkpointing=y"}).result.device_bytes,
              far.result.device_bytes);
}

/* The device is a count: what needs a byte more does not start, and says what is needed where; offloaded it
 * fits. */
TEST_F(TrainSame, WhatDoesNotFitOnTheDeviceDoesNotStart)
{
    tw::Outcome free = tw::train(2, 1, {lossless_delta});
    ASSERT_EQ(free.status, TW_OK);
    std::string all = std::to_string(free.result.device_bytes);
    std::string less = std::to_string(free.result.device_bytes - 1);
    EXPECT_EQ(tw::train(2, 1, {lossless_delta, "thinwire.device_mem=" + all}).losses(), free.losses());
    expect_log(all + " bytes are needed on the device, thinwire.device_mem is " + less +
               "; of all: optimizer ");
    allow_log("gave the job up");
    EXPECT_NE(tw::train(2, 1, {lossless_delta, "thinwire.device_mem=" + less}).status, TW_OK);
    expect_log(all + " bytes are needed on the device, thinwire.device_mem is 1; of all: optimizer ");
    EXPECT_NE(tw::train(2, 1, {lossless_delta, "thinwire.device_mem=1"}).status, TW_OK);
    for (const char *away : {param_cpu, optimizer_cpu, "activation_checkpointing.cpu_checkpointing=y"}) {
        tw::Outcome fits = tw::train(2, 1, {lossless_delta, "thinwire.device_mem=" + less, away});
        EXPECT_EQ(fits.status, TW_OK) << away;
        EXPECT_EQ(fits.losses(), free.losses()) << away;
    }
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
        {"thinwire.delta_lossless=y", "zero_optimization.allgather_bucket_size=1"},
        {"zero_optimization.stage3_prefetch_bucket_size=1000000"},
        {"zero_optimization.stage3_prefetch_bucket_size=1000000", "thinwire.delta_lossless=y"},
        {"zero_optimization.stage3_max_live_parameters=0"},
        {optimizer_nvme, optimizer_folder()},
        {optimizer_nvme, optimizer_folder(), lossless_delta},
        {param_cpu, optimizer_cpu},
        {param_cpu, lossless_delta},
        {param_nvme, param_folder()},
        {param_nvme, param_folder(), "thinwire.hpz=on"},
        {param_nvme, param_folder(), optimizer_nvme, optimizer_folder(), inputs_folder(), lossless_delta},
        {"activation_checkpointing.cpu_checkpointing=y"},
        {inputs_folder(), "zero_optimization.stage=1"},
        {inputs_folder(), "model.n_layer=2", "thinwire.val_every=1"},
    };
    for (const std::vector<std::string> &sets : others) {
        tw::Outcome other = tw::train(2, 1, sets);
        EXPECT_EQ(other.status, TW_OK) << sets[0];
        EXPECT_EQ(other.losses(), losses) << sets[0];
        EXPECT_TRUE(other.result.bytes_as_planned) << sets[0];
    }
}

/* A layer of more than a bucket goes slice by slice: the same losses, and as many bytes as planned, of each
 * slice. */
TEST_F(TrainSame, LossesDoNotDependOnSlices)
{
    allow_log("allgather_bucket_size means nothing here"); /* in stage 3 */
    const std::string qgz = "zero_optimization.zero_quantized_gradients=y";
    const std::vector<std::string> wide = {"model.n_embd=160", "model.n_layer=1", "thinwire.steps=3",
                                           "thinwire.sequence_length=4"};
    const std::vector<std::vector<std::string>> all = {
        {},
        {"zero_optimization.stage=2"},
        {"zero_optimization.stage=1"},
        {lossless_delta},
        {qgz},
        {"thinwire.gradient_inner=int8", qgz, "thinwire.delta_bits=4"},
    };
    for (Shape shape : {Shape{2, 1}, Shape{2, 2}}) {
        for (std::vector<std::string> sets : all) {
            sets.insert(sets.end(), wide.begin(), wide.end());
            tw::Outcome whole = tw::train(shape.n_nodes, shape.ranks_per_node, sets);
            sets.insert(sets.end(), {"zero_optimization.reduce_bucket_size=140000",
                                     "zero_optimization.allgather_bucket_size=1"});
            tw::Outcome sliced = tw::train(shape.n_nodes, shape.ranks_per_node, sets);
            EXPECT_EQ(whole.status, TW_OK) << sets[0];
            EXPECT_EQ(sliced.status, TW_OK) << sets[0];
            EXPECT_EQ(sliced.losses(), whole.losses()) << sets[0];
            EXPECT_TRUE(sliced.result.bytes_as_planned) << sets[0];
            EXPECT_TRUE(sliced.result.replicas_equal) << sets[0];
            /* more operations: more signatures, or lengths */
            EXPECT_GT(sliced.result.inter_node_bytes, whole.result.inter_node_bytes) << sets[0];
        }
    }
}

TEST_F(TrainSame, AccumulationIsTheSameInAllStages)
{
    const std::string four = "train_batch_size=8", twice = "gradient_accumulation_steps=2";
    tw::Outcome plain = tw::train(2, 1, {four, twice});
    ASSERT_EQ(plain.status, TW_OK);
    for (const char *other :
         {"activation_checkpointing.cpu_checkpointing=y", param_cpu, "zero_optimization.stage=0",
          "zero_optimization.stage=2", "thinwire.hpz=on", "thinwire.delta_lossless=y"}) {
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
