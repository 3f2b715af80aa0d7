/* fp32 training (bf16.enabled false). */
#include <unistd.h>

#include <cstdlib>

#include "tests/trainer/engine/job.h"

namespace
{

using Sets = std::vector<std::string>;

class TrainFp32 : public tw::Fixture
{
  protected:
    static tw::Outcome train(int n_nodes, int ranks_per_node, Sets sets)
    {
        sets.push_back("bf16.enabled=n");
        return tw::train_well(n_nodes, ranks_per_node, sets);
    }
};

TEST_F(TrainFp32, AllStagesHaveTheSameLosses)
{
    const Sets sampled = {"thinwire.sample_steps=5", "thinwire.sample_lines=1", "thinwire.sample_tokens=9"};
    const std::vector<Sets> others = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"},
        {"zero_optimization.stage=2", "zero_optimization.reduce_bucket_size=1"},
        {"thinwire.hpz=on", "thinwire.check_every=2"},
        {"thinwire.lossless_gradients=y", "thinwire.lossless_weights=y"},
        {"thinwire.lossless_gradients=y", "thinwire.lossless_weights=y", "zero_optimization.stage=1"},
        {"thinwire.threads=2"},
        {"zero_optimization.offload_param.device=nvme",
         "zero_optimization.offload_param.nvme_path=" + ::testing::TempDir()},
    };
    for (auto [n_nodes, ranks_per_node] : {std::pair(2, 2), std::pair(3, 1)}) {
        tw::Outcome plain = train(n_nodes, ranks_per_node, sampled);
        EXPECT_LT(plain.result.last_loss, plain.result.first_loss - 0.3);
        for (Sets sets : others) {
            SCOPED_TRACE(sets[0]);
            sets.insert(sets.end(), sampled.begin(), sampled.end());
            tw::Outcome other = train(n_nodes, ranks_per_node, sets);
            EXPECT_EQ(other.losses(), plain.losses());
            EXPECT_EQ(other.result.val_loss, plain.result.val_loss);
            EXPECT_EQ(other.steps.back().grad_norm, plain.steps.back().grad_norm);
            EXPECT_EQ(other.samples, plain.samples);
        }
    }
}

/* Close to what bf16 weights give, and not the same: nothing of a weight is rounded. */
TEST_F(TrainFp32, WeightsAreNotRounded)
{
    const Sets sets = {"thinwire.products=fp32", "communication_data_type=fp32"};
    tw::Outcome fp32 = train(2, 1, sets), bf16 = tw::train(2, 1, sets);
    EXPECT_NE(fp32.result.first_loss, bf16.result.first_loss);
    EXPECT_NEAR(fp32.result.last_loss / bf16.result.last_loss, 1, 0.01);
    EXPECT_NE(fp32.losses(), train(2, 1, {"communication_data_type=bf16"}).losses());
    tw::Outcome rounded = train(2, 1, {"zero_optimization.zero_quantized_weights=y"});
    EXPECT_NE(fp32.losses(), rounded.losses());
    EXPECT_NEAR(fp32.result.last_loss / rounded.result.last_loss, 1, 0.02);
}

/* Weights and gradients have twice the bytes; weights in 8 bits as many as bf16's, but for vectors. */
TEST_F(TrainFp32, TakesTwiceTheBytes)
{
    for (const char *stage : {"0", "1", "2", "3"}) {
        Sets sets = {std::string("zero_optimization.stage=") + stage};
        tw::Outcome fp32 = train(2, 2, sets), bf16 = tw::train(2, 2, sets);
        double m = 2.0 * (double)fp32.result.n_params;
        EXPECT_NEAR(fp32.bytes_per_step() - 2.0 * bf16.bytes_per_step(), 0, 0.05 * m) << stage;
    }
    Sets sets = {"zero_optimization.zero_quantized_weights=y", "communication_data_type=bf16"};
    tw::Outcome quantized = train(2, 2, sets), rounded = tw::train(2, 2, sets);
    double m = 2.0 * (double)quantized.result.n_params;
    EXPECT_NEAR(quantized.bytes_per_step() - rounded.bytes_per_step(), 0, 0.1 * m);
}

/* No masters beside the weights: 2 bytes a parameter less, and no weight widened for a product. */
TEST_F(TrainFp32, TakesLessMemory)
{
    for (const char *stage : {"0", "3"}) {
        Sets sets = {std::string("zero_optimization.stage=") + stage, "thinwire.products=fp32",
                     "communication_data_type=bf16"};
        tw::Outcome fp32 = train(1, 1, sets), bf16 = tw::train(1, 1, sets);
        double less = (double)bf16.result.device_bytes - (double)fp32.result.device_bytes;
        double gathered = *stage == '3' ? 2.0 * (double)fp32.result.n_params : 0.0; /* at most */
        EXPECT_GT(less, 2.0 * (double)fp32.result.n_params - gathered) << stage;
    }
}

TEST_F(TrainFp32, FrozenTensorsMuonAndAccumulation)
{
    for (Sets sets : std::vector<Sets>{{"thinwire.groups=*.h.0.* frozen", "gradient_accumulation_steps=2"},
                                       {"optimizer.type=Muon"}}) {
        tw::Outcome whole = train(2, 1, sets);
        for (const char *other :
             {"zero_optimization.stage=0", "zero_optimization.stage=2", "thinwire.hpz=on"}) {
            Sets more = sets;
            more.push_back(other);
            EXPECT_EQ(whole.losses(), train(2, 1, more).losses()) << sets[0] << " " << other;
        }
    }
}

/* And so does one that was written at another stage. */
TEST_F(TrainFp32, ACheckpointGoesOnAlike)
{
    std::string folder = ::testing::TempDir() + "fp32." + std::to_string(getpid());
    const std::string length = "scheduler.params.total_num_steps=5";
    tw::Outcome whole = train(2, 1, {length});
    tw::Outcome first = train(2, 1, {length, "thinwire.steps=3", "thinwire.checkpoint=" + folder});
    for (const char *stage : {"0", "1", "3"}) {
        std::string at = std::string("zero_optimization.stage=") + stage;
        tw::Outcome rest = train(2, 1, {length, at, "thinwire.resume=" + folder});
        std::vector<double> both = first.losses(), more = rest.losses();
        both.insert(both.end(), more.begin(), more.end());
        EXPECT_EQ(whole.losses(), both) << stage;
    }
    EXPECT_EQ(0, system(("rm -rf " + folder).c_str()));
}

/* Masters are what is saved: a run goes on in the other way, which is said. */
TEST_F(TrainFp32, ACheckpointOfTheOtherKindIsGoneOnFrom)
{
    const std::string length = "scheduler.params.total_num_steps=5";
    for (const char *other : {"n", "y"}) {
        std::string folder = ::testing::TempDir() + "other." + std::to_string(getpid()) + other;
        const std::string one = *other == 'n' ? "bf16.enabled=y" : "bf16.enabled=n";
        tw::Outcome whole = tw::train(2, 1, {length, one});
        tw::Outcome first =
            tw::train(2, 1, {length, one, "thinwire.steps=3", "thinwire.checkpoint=" + folder});
        expect_log(*other == 'n' ? "bf16.enabled y -> n" : "bf16.enabled n -> y");
        tw::Outcome rest =
            tw::train(2, 1, {length, std::string("bf16.enabled=") + other, "thinwire.resume=" + folder});
        EXPECT_EQ(first.status, TW_OK);
        ASSERT_EQ(rest.status, TW_OK);
        ASSERT_EQ(rest.steps.size(), 2u);
        ASSERT_EQ(whole.steps.size(), 5u);
        EXPECT_NEAR(rest.steps[0].loss / whole.steps[3].loss, 1, 0.01);
        EXPECT_NE(rest.steps[0].loss, whole.steps[3].loss);
        EXPECT_EQ(0, system(("rm -rf " + folder).c_str()));
    }
}

TEST_F(TrainFp32, OneRankInBf16IsNamed)
{
    expect_log("rank 1: bf16.enabled is 'n', on rank 0 it is 'y'");
    allow_log("communication_data_type");
    std::vector<std::string> fp32 = tw::tiny_sets();
    fp32.push_back("bf16.enabled=n");
    for (tw_status_t status : tw::train_apart(tw::tiny_sets(), fp32)) {
        EXPECT_EQ(status, TW_ERR_MISMATCH);
    }
}

} // namespace
