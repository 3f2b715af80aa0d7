#include <cmath>

#include "tests/trainer/config/config.h"

using TrainSchedule = tw::Fixture;
using tw::config_of;

struct Schedule {
    tw::Config config;

    explicit Schedule(std::vector<const char *> sets)
    {
        for (const char *set :
             {"thinwire.steps=100", "optimizer.params.lr=0.01", "scheduler.params.warmup_num_steps=10"}) {
            sets.push_back(set);
        }
        config = config_of("{}", sets);
        EXPECT_EQ(tw_train_config_resolve(config.get(), 1, 1), TW_OK);
    }
    double at(uint64_t step) const
    {
        return tw_train_lr(tw_train_config_options(config.get()), step);
    }
    double peak() const
    {
        return tw_train_lr_peak(tw_train_config_options(config.get()));
    }
};

TEST_F(TrainSchedule, CosineWarmsUpAndFallsToItsShare)
{
    Schedule s({"scheduler.type=WarmupCosineLR", "scheduler.params.cos_min_ratio=0.1"});
    EXPECT_DOUBLE_EQ(s.at(1), 0.001);
    EXPECT_DOUBLE_EQ(s.at(5), 0.005);
    EXPECT_DOUBLE_EQ(s.at(10), 0.01);
    EXPECT_NEAR(s.at(55), 0.01 * (0.1 + 0.9 * 0.5), 1e-15);
    EXPECT_DOUBLE_EQ(s.at(100), 0.001);
    EXPECT_DOUBLE_EQ(s.at(1000), 0.001);
}

TEST_F(TrainSchedule, WsdKeepsThePeakAndFalls)
{
    Schedule root({"scheduler.type=WSD"});
    EXPECT_DOUBLE_EQ(root.at(5), 0.005);
    EXPECT_DOUBLE_EQ(root.at(10), 0.01);
    EXPECT_DOUBLE_EQ(root.at(80), 0.01);
    EXPECT_DOUBLE_EQ(root.at(85), 0.005); /* a quarter of the decay: half of the rate */
    EXPECT_DOUBLE_EQ(root.at(100), 0);
    EXPECT_DOUBLE_EQ(root.at(1000), 0);
    Schedule line({"scheduler.type=WSD", "scheduler.params.decay_num_steps=40",
                   "scheduler.params.decay_type=linear", "scheduler.params.decay_min_ratio=0.1"});
    EXPECT_DOUBLE_EQ(line.at(60), 0.01);
    EXPECT_DOUBLE_EQ(line.at(80), 0.0055);
    EXPECT_DOUBLE_EQ(line.at(100), 0.001);
}

TEST_F(TrainSchedule, DecayIsALineToZero)
{
    Schedule s({"scheduler.type=WarmupDecayLR"});
    EXPECT_DOUBLE_EQ(s.at(10), 0.01);
    EXPECT_DOUBLE_EQ(s.at(55), 0.005);
    EXPECT_DOUBLE_EQ(s.at(100), 0);
    EXPECT_DOUBLE_EQ(s.at(101), 0);
}

TEST_F(TrainSchedule, WarmupStaysAtItsTop)
{
    Schedule s({"scheduler.type=WarmupLR", "scheduler.params.warmup_max_lr=0.02",
                "scheduler.params.warmup_min_lr=0.01"});
    EXPECT_DOUBLE_EQ(s.at(5), 0.015);
    EXPECT_DOUBLE_EQ(s.at(10), 0.02);
    EXPECT_DOUBLE_EQ(s.at(99), 0.02);
    EXPECT_DOUBLE_EQ(s.peak(), 0.02);
    Schedule log({"scheduler.type=WarmupLR", "scheduler.params.warmup_type=log"});
    EXPECT_DOUBLE_EQ(log.at(1), 0.01 * std::log(2.0) / std::log(10.0));
    EXPECT_DOUBLE_EQ(log.at(4), 0.01 * std::log(5.0) / std::log(10.0));
    EXPECT_DOUBLE_EQ(log.at(9), 0.01);
    EXPECT_DOUBLE_EQ(log.at(10), 0.01);
    Schedule none({"scheduler.type=none"});
    EXPECT_DOUBLE_EQ(none.at(1), 0.01);
    EXPECT_DOUBLE_EQ(none.peak(), 0.01);
}

TEST_F(TrainSchedule, TheCosinesWarmUpHasItsTypeToo)
{
    Schedule s({"scheduler.type=WarmupCosineLR", "scheduler.params.warmup_type=log",
                "scheduler.params.warmup_min_ratio=0.2"});
    EXPECT_DOUBLE_EQ(s.at(3), 0.01 * (0.2 + 0.8 * std::log(4.0) / std::log(10.0)));
    EXPECT_DOUBLE_EQ(s.at(10), 0.01);
    Schedule decay({"scheduler.type=WarmupDecayLR", "scheduler.params.warmup_type=log"});
    EXPECT_DOUBLE_EQ(decay.at(3), 0.01 * std::log(4.0) / std::log(10.0));
    EXPECT_DOUBLE_EQ(decay.at(55), 0.005);
}

/* DeepSpeed's default is log; who has no scheduler from a file has a line. */
TEST_F(TrainSchedule, AFilesWarmUpIsDeepSpeeds)
{
    const struct {
        const char *file;
        std::vector<const char *> sets;
        int type;
    } cases[] = {
        {R"({"scheduler": {"type": "WarmupLR"}})", {}, TW_TRAIN_WARMUP_LOG},
        {R"({"scheduler": {"type": "WarmupDecayLR"}})", {}, TW_TRAIN_WARMUP_LOG},
        {R"({"scheduler": {"type": "WarmupCosineLR"}})", {}, TW_TRAIN_WARMUP_LOG},
        {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear"}}})",
         {},
         TW_TRAIN_WARMUP_LINEAR},
        {R"({"scheduler": {"type": "WarmupLR"}})",
         {"scheduler.params.warmup_type=linear"},
         TW_TRAIN_WARMUP_LINEAR},
        {R"({"scheduler": {"type": "WSD"}})", {}, TW_TRAIN_WARMUP_LINEAR},
        {R"({"scheduler": {"params": {"warmup_num_steps": 9}}})", {}, TW_TRAIN_WARMUP_LINEAR},
        {"{}", {"scheduler.type=WarmupLR"}, TW_TRAIN_WARMUP_LINEAR},
        {"{}", {}, TW_TRAIN_WARMUP_LINEAR},
    };
    for (const auto &one : cases) {
        auto config = config_of(one.file, one.sets);
        ASSERT_TRUE(config) << one.file;
        ASSERT_EQ(tw_train_config_resolve(config.get(), 1, 1), TW_OK);
        EXPECT_EQ(tw_train_config_options(config.get())->warmup_type, one.type) << one.file;
        tw_train_config_say(config.get()); /* of what follows nothing is said */
    }
}

TEST_F(TrainSchedule, NoWarmupAtAll)
{
    Schedule s({"scheduler.type=WarmupCosineLR"});
    Schedule none({"scheduler.type=WarmupCosineLR", "scheduler.params.total_num_steps=10"});
    EXPECT_DOUBLE_EQ(none.at(11), 0.001); /* nothing is left for the cosine */
    EXPECT_GT(s.at(11), 0.0099);
}
