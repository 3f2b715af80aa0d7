/* A run is the same, bit for bit, with any number of threads a rank. */
#include "tests/trainer/engine/job.h"

namespace
{

using Sets = std::vector<std::string>;

class TrainThreads : public tw::Fixture, public ::testing::WithParamInterface<const char *>
{
  protected:
    /* Large enough for most of a step to be shared. */
    static Sets sets(const Sets &more = {})
    {
        Sets all = {std::string("model.family=") + GetParam(), "model.n_head=4", "model.n_embd=128",
                    "thinwire.sequence_length=128", "thinwire.steps=4"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

TEST_P(TrainThreads, LossesAreTheSame)
{
    tw::Outcome one = tw::train(1, 1, sets({"thinwire.threads=1"}));
    ASSERT_EQ(TW_OK, one.status);
    ASSERT_EQ(4u, one.losses().size());
    for (int n_threads : {2, 3}) {
        tw::Outcome more = tw::train(1, 1, sets({"thinwire.threads=" + std::to_string(n_threads)}));
        ASSERT_EQ(TW_OK, more.status);
        EXPECT_EQ(one.losses(), more.losses());
        EXPECT_EQ(one.result.val_loss, more.result.val_loss);
        for (size_t i = 0; i < one.steps.size(); i++) {
            EXPECT_EQ(one.steps[i].grad_norm, more.steps[i].grad_norm);
        }
    }
}

TEST_P(TrainThreads, RanksMayHaveDifferentNumbers)
{
    Sets lossless = sets({"thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"});
    tw::Outcome one = tw::train_with({0, 1}, lossless, {{"thinwire.threads=1"}, {"thinwire.threads=1"}});
    tw::Outcome other = tw::train_with({0, 1}, lossless, {{"thinwire.threads=3"}, {"thinwire.threads=2"}});
    ASSERT_EQ(TW_OK, one.status);
    ASSERT_EQ(TW_OK, other.status);
    EXPECT_EQ(one.losses(), other.losses());
    EXPECT_TRUE(other.result.bytes_as_planned);
    EXPECT_TRUE(other.result.replicas_equal);
}

INSTANTIATE_TEST_SUITE_P(, TrainThreads, ::testing::Values("gpt2", "llama"));

class TrainThreadsRefused : public tw::Fixture
{
};

TEST_F(TrainThreadsRefused, NumbersThatAreNone)
{
    for (const char *bad : {"-1", "1025", "1e9", "two", "1.5"}) {
        expect_log("--set: this value is refused: thinwire.threads");
        allow_log("thinwire.threads");
        EXPECT_EQ(TW_ERR_CONFIG, tw::train(1, 1, {std::string("thinwire.threads=") + bad}).status) << bad;
    }
}

} // namespace
