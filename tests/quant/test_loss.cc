#include "quant/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

class Loss : public tw::Fixture
{
  protected:
    static tw_quant_loss_t of(const char *codec, const std::vector<float> &values, size_t most = SIZE_MAX)
    {
        tw_quant_codec_t parsed = {};
        tw_quant_sampler_t *sampler = nullptr;
        tw_quant_loss_t loss = {};
        const tw_quant_message_segment_t segment = {values.data(), nullptr, values.size(), 0, 0};
        EXPECT_EQ(TW_OK, tw_quant_codec_parse(codec, &parsed));
        EXPECT_EQ(TW_OK, tw_quant_sampler_create(&parsed, &sampler));
        EXPECT_EQ(TW_OK, tw_quant_loss_add(sampler, TW_TYPE_FP32, &segment, most, &loss));
        tw_quant_sampler_destroy(sampler);
        return loss;
    }
    static std::vector<float> normal(size_t n)
    {
        std::mt19937 random(1);
        std::normal_distribution<float> draw;
        std::vector<float> values(n);
        for (float &value : values) {
            value = draw(random);
        }
        return values;
    }
};

/* What can be said by hand: of 0, 1, 3 and 7, steps of 1, all is kept; beside 70 they are nothing. */
TEST_F(Loss, ByHand)
{
    std::vector<float> values(128);
    values[0] = 7;
    values[1] = 3;
    values[2] = -1;
    tw_quant_loss_t loss = of("int4:block=128,scale=fp32", values);
    EXPECT_EQ(3u, loss.n_values);
    EXPECT_EQ(0u, loss.n_vanished);
    EXPECT_EQ(0.0, tw_quant_loss_error(&loss));
    values[0] = 70;
    loss = of("int4:block=128,scale=fp32", values);
    EXPECT_EQ(2u, loss.n_vanished);
    EXPECT_DOUBLE_EQ(2.0 / 3, tw_quant_loss_vanished(&loss));
    EXPECT_DOUBLE_EQ(std::sqrt(10.0 / 4910), tw_quant_loss_error(&loss));
    values[5] = INFINITY; /* no measure of the code */
    loss = of("int4:block=128,scale=fp32", values);
    EXPECT_EQ(0u, loss.n_values);
    EXPECT_EQ(0.0, tw_quant_loss_error(&loss));
    EXPECT_EQ(0.0, tw_quant_loss_vanished(&loss));
    loss = of("int4", {});
    EXPECT_EQ(0u, loss.n_values);
}

/* An outlier in each block takes the others' values, which a rotation keeps. */
TEST_F(Loss, AnOutlierTakesWhatIsSmall)
{
    std::vector<float> values = normal(128 * 64);
    tw_quant_loss_t plain = of("int4", values);
    EXPECT_LT(tw_quant_loss_vanished(&plain), 0.25);
    for (size_t i = 0; i < values.size(); i += 128) {
        values[i] = 100;
    }
    tw_quant_loss_t outlier = of("int4", values), rotated = of("int4:hadamard", values);
    EXPECT_GT(tw_quant_loss_vanished(&outlier), 0.95);
    EXPECT_LT(tw_quant_loss_vanished(&rotated), 0.8);
    EXPECT_GT(tw_quant_loss_error(&outlier), 0);
}

/* Of a message, too; however few elements are asked for, enough for one that is encoded. */
TEST_F(Loss, MessagesLoseWhatTheirStepSays)
{
    const std::vector<float> values = normal(300000);
    for (size_t most : {size_t{10}, size_t{40000}, SIZE_MAX}) {
        const tw_quant_loss_t loss = of("ecdq", values, most);
        EXPECT_NEAR(0.29, tw_quant_loss_error(&loss), 0.03) << most;
        EXPECT_LT(tw_quant_loss_vanished(&loss), 0.001);
        EXPECT_GE(loss.n_values, 4096u);
    }
    std::vector<float> few = normal(5000);
    few[7] = INFINITY; /* no measure of the code */
    const tw_quant_loss_t loss = of("ecdq", few);
    EXPECT_EQ(0u, loss.n_values);
    EXPECT_EQ(0u, of("ecdq", {}).n_values);
}

/* A sample says what all of them say, whatever the blocks and the length are. */
TEST_F(Loss, ASampleIsLikeTheWhole)
{
    for (const char *codec : {"int8", "int4", "int2", "int4:block=4096", "int8:block=96"}) {
        for (size_t n : {1u, 127u, 4096u, 4097u, 300000u}) {
            std::vector<float> values = normal(n);
            tw_quant_loss_t all = of(codec, values), some = of(codec, values, 40000);
            EXPECT_EQ(n, all.n_values);
            EXPECT_LE(some.n_values, 90000u);
            EXPECT_GT(some.n_values, 0u);
            if (n > 100000) {
                EXPECT_NEAR(tw_quant_loss_error(&all), tw_quant_loss_error(&some), 0.02) << codec;
                EXPECT_NEAR(tw_quant_loss_vanished(&all), tw_quant_loss_vanished(&some), 0.02) << codec;
            }
        }
    }
}

} // namespace
