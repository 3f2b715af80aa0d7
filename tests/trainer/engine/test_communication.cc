/* Gradients that travel as fp32 (communication_data_type). */
#include <cmath>
#include <cstdlib>
#include <unistd.h>

#include "tests/trainer/engine/job.h"

namespace
{

using Sets = std::vector<std::string>;

const char *const kFp32 = "communication_data_type=fp32";

class TrainFp32Gradients : public tw::Fixture
{
  protected:
    static tw::Outcome train(int n_nodes, int ranks_per_node, Sets sets)
    {
        sets.push_back(kFp32);
        return tw::train_well(n_nodes, ranks_per_node, sets);
    }
};

TEST_F(TrainFp32Gradients, AllStagesHaveTheSameLosses)
{
    for (auto [n_nodes, ranks_per_node] : {std::pair(2, 2), std::pair(3, 1)}) {
        tw::Outcome plain = train(n_nodes, ranks_per_node, {});
        EXPECT_LT(plain.result.last_loss, plain.result.first_loss - 0.3);
        const std::vector<Sets> others = {
            {"zero_optimization.stage=0"},
            {"zero_optimization.stage=1"},
            {"zero_optimization.stage=2"},
            {"zero_optimization.stage=2", "zero_optimization.reduce_bucket_size=1"},
            {"thinwire.hpz=on"},
            {"thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"},
            {"thinwire.lossless_gradients=y", "zero_optimization.stage=0"},
            {"thinwire.lossless_gradients=y", "thinwire.lossless_weights=y", "zero_optimization.stage=1"},
        };
        for (const Sets &sets : others) {
            tw::Outcome other = train(n_nodes, ranks_per_node, sets);
            EXPECT_EQ(other.losses(), plain.losses()) << sets[0];
            EXPECT_EQ(other.result.val_loss, plain.result.val_loss) << sets[0];
            EXPECT_EQ(other.steps.back().grad_norm, plain.steps.back().grad_norm) << sets[0];
        }
    }
}

/* Close to what bf16's give, and not the same. */
TEST_F(TrainFp32Gradients, TheyAreNotRounded)
{
    tw::Outcome fp32 = train(2, 1, {}), bf16 = tw::train(2, 1, {}),
                old = tw::train(2, 1, {"fp32_allreduce=y"});
    EXPECT_EQ(fp32.result.first_loss, bf16.result.first_loss);
    EXPECT_NE(fp32.losses(), bf16.losses());
    EXPECT_NEAR(fp32.result.last_loss / bf16.result.last_loss, 1, 0.01);
    EXPECT_EQ(fp32.losses(), old.losses()); /* another name of the same */
}

/* On one rank nothing travels: what is sent is what there is. */
TEST_F(TrainFp32Gradients, TheNormIsOfWhatTheRanksHave)
{
    tw::Outcome fp32 = train(1, 1, {}), bf16 = tw::train(1, 1, {});
    EXPECT_NE(fp32.steps[0].grad_norm, bf16.steps[0].grad_norm);
    EXPECT_NEAR(fp32.steps[0].grad_norm / bf16.steps[0].grad_norm, 1, 1e-2);
}

/* M is the model in bf16: each stage's bytes, and 1 M more. */
TEST_F(TrainFp32Gradients, TakeTwiceTheBytes)
{
    for (const char *stage : {"0", "1", "2", "3"}) {
        Sets sets = {std::string("zero_optimization.stage=") + stage};
        tw::Outcome fp32 = train(2, 2, sets), bf16 = tw::train(2, 2, sets);
        double m = 2.0 * (double)fp32.result.n_params, times = *stage == '0' ? 2 : 1;
        EXPECT_NEAR(fp32.bytes_per_step() - bf16.bytes_per_step(), times * m, 0.001 * m) << stage;
    }
    tw::Outcome quantized = train(2, 2, {"zero_optimization.zero_quantized_gradients=y"});
    tw::Outcome rounded = tw::train(2, 2, {"zero_optimization.zero_quantized_gradients=y"});
    double m = 2.0 * (double)quantized.result.n_params;
    EXPECT_NEAR(quantized.bytes_per_step() - rounded.bytes_per_step(), 0, 0.1 * m); /* but vectors */
    EXPECT_NE(quantized.losses(), rounded.losses());
}

TEST_F(TrainFp32Gradients, FrozenTensorsAndAccumulation)
{
    Sets sets = {"thinwire.groups=*.h.0.* frozen", "gradient_accumulation_steps=2"};
    tw::Outcome whole = train(2, 1, sets);
    sets.push_back("zero_optimization.stage=0");
    EXPECT_EQ(whole.losses(), train(2, 1, sets).losses());
}

TEST_F(TrainFp32Gradients, ACheckpointGoesOnAlike)
{
    std::string folder = ::testing::TempDir() + "communication." + std::to_string(getpid());
    tw::Outcome whole = train(2, 1, {"scheduler.params.total_num_steps=5"});
    tw::Outcome first = train(
        2, 1, {"scheduler.params.total_num_steps=5", "thinwire.steps=3", "thinwire.checkpoint=" + folder});
    tw::Outcome rest = train(2, 1, {"scheduler.params.total_num_steps=5", "thinwire.resume=" + folder});
    std::vector<double> both = first.losses(), more = rest.losses();
    both.insert(both.end(), more.begin(), more.end());
    EXPECT_EQ(whole.losses(), both);
    EXPECT_EQ(0, system(("rm -rf " + folder).c_str()));
}

} // namespace
