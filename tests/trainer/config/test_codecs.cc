#include <cstdio>
#include <string>

#include "tests/trainer/config/config.h"

using tw::config_of;
using tw::options_of;

namespace
{

class TrainCodecs : public tw::Fixture
{
  protected:
    /** "weights gradients" in full, on 2 nodes of 2 ranks; "" where it is refused. */
    static std::string texts(const std::vector<const char *> &sets, const char *json = "{}")
    {
        auto config = config_of(json, sets);
        if (!config || tw_train_config_resolve(config.get(), 4, 2) != TW_OK) {
            return "";
        }
        return std::string(options_of(config).weights) + " " + options_of(config).gradients;
    }

    static std::string facts(const std::vector<const char *> &sets)
    {
        auto config = config_of("{}", sets);
        tw_lines_t lines = {};
        EXPECT_EQ(tw_train_config_resolve(config.get(), 4, 2), TW_OK);
        tw_train_config_facts(config.get(), &lines);
        std::string text = lines.text;
        tw_lines_cleanup(&lines);
        return text;
    }
};

TEST_F(TrainCodecs, TextsAreThoseOfTheCodecs)
{
    EXPECT_EQ(texts({}), "plain plain");
    EXPECT_EQ(texts({"thinwire.weights=delta", "thinwire.gradients=lossless"}), "delta lossless");
    EXPECT_EQ(texts({"thinwire.weights=lossless"}), "lossless plain");
    EXPECT_EQ(texts({"thinwire.weights=int8", "thinwire.gradients=int4"}),
              "int8:block=2048 int4:block=128,hadamard");
    EXPECT_EQ(texts({"thinwire.weights=int4:block=64,stochastic"}), "int4:block=64,stochastic plain");
    EXPECT_EQ(texts({"thinwire.gradients=int4:block=64,hadamard=no"}), "plain int4:block=64,hadamard=no");
    EXPECT_EQ(texts({"thinwire.gradients=int4:hadamard=no,block=64"}), "plain int4:block=64,hadamard=no");
    EXPECT_EQ(texts({"thinwire.gradients=int8:hadamard=no"}), "plain int8:block=2048,hadamard=no");
    EXPECT_EQ(texts({"thinwire.weights=delta4"}), "delta4:block=128,hadamard plain");
    EXPECT_EQ(texts({"thinwire.weights=delta2:hadamard=no"}), "delta2:block=64,hadamard=no plain");
    EXPECT_EQ(texts({"thinwire.weights=delta8"}), "delta8:block=2048 plain");
    EXPECT_EQ(texts({"thinwire.weights=exact"}), "plain plain");
}

TEST_F(TrainCodecs, WhatIsNoneIsRefused)
{
    allow_log("quant: ");
    expect_log("thinwire.weights: 'int3' is refused: expected plain");
    EXPECT_EQ(texts({"thinwire.weights=int3"}), "");
    expect_log("thinwire.gradients: 'delta' is refused");
    EXPECT_EQ(texts({"thinwire.gradients=delta"}), "");
    expect_log("thinwire.weights: 'delta5' is refused");
    EXPECT_EQ(texts({"thinwire.weights=delta5"}), "");
    expect_log("thinwire.gradients: 'int4;*.embed=plain' is refused");
    EXPECT_EQ(texts({"thinwire.gradients=int4;*.embed=plain"}), "");
    expect_log("thinwire.weights is longer than");
    EXPECT_EQ(texts({("thinwire.weights=int8:" + std::string(300, 'x')).c_str()}), "");
}

/* What keys of before say comes to the same text. */
TEST_F(TrainCodecs, KeysOfBeforeAreTexts)
{
    const char *qwz = "zero_optimization.zero_quantized_weights=y",
               *qgz = "zero_optimization.zero_quantized_gradients=y";
    EXPECT_EQ(texts({qwz, qgz}), texts({"thinwire.weights=int8", "thinwire.gradients=int4"}));
    EXPECT_EQ(texts({qgz, "thinwire.gradient_bits=8"}), "plain int8:block=128,hadamard");
    EXPECT_EQ(texts({qgz, "thinwire.gradient_hadamard=n", "thinwire.gradient_block=256"}),
              "plain int4:block=256,hadamard=no");
    EXPECT_EQ(texts({qwz, "thinwire.weight_block=64"}), "int8:block=64 plain");
    EXPECT_EQ(texts({"thinwire.lossless_weights=y", "thinwire.lossless_gradients=y"}), "lossless lossless");
    EXPECT_EQ(texts({"thinwire.delta_lossless=y"}), "delta plain");
    for (int bits : {8, 4, 2}) {
        std::string older = "thinwire.delta_bits=" + std::to_string(bits),
                    now = "thinwire.weights=delta" + std::to_string(bits);
        EXPECT_EQ(texts({older.c_str()}), texts({now.c_str()}));
    }
    EXPECT_EQ(texts({"thinwire.delta_bits=4", "thinwire.delta_hadamard=n", "thinwire.delta_block=64"}),
              "delta4:block=64,hadamard=no plain");
}

TEST_F(TrainCodecs, TwoKeysThatSayTheSameAreAnErrorThatNamesBoth)
{
    const struct {
        std::vector<const char *> sets;
        const char *said;
    } cases[] = {
        {{"thinwire.weights=delta", "thinwire.delta_bits=4"},
         "thinwire.weights and thinwire.delta_bits exclude each other: both say how weights cross"},
        {{"thinwire.weights=plain", "thinwire.lossless_weights=y"},
         "thinwire.weights and thinwire.lossless_weights exclude"},
        {{"thinwire.weights=int8", "zero_optimization.zero_quantized_weights=y"},
         "thinwire.weights and zero_optimization.zero_quantized_weights exclude"},
        {{"thinwire.gradients=int4", "zero_optimization.zero_quantized_gradients=y"},
         "thinwire.gradients and zero_optimization.zero_quantized_gradients exclude"},
        {{"thinwire.delta_bits=4", "thinwire.delta_lossless=y"},
         "thinwire.delta_bits and thinwire.delta_lossless exclude"},
        {{"thinwire.delta_lossless=y", "zero_optimization.zero_quantized_weights=y"},
         "thinwire.delta_lossless and zero_optimization.zero_quantized_weights exclude"},
        {{"thinwire.lossless_gradients=y", "zero_optimization.zero_quantized_gradients=y"},
         "both say how gradients cross"},
    };
    for (const auto &one : cases) {
        expect_log(one.said);
        EXPECT_EQ(texts(one.sets), "") << one.said;
    }
    EXPECT_EQ(texts({"thinwire.weights=delta", "thinwire.delta_bits=0"}), "delta plain");
    EXPECT_EQ(texts({"thinwire.gradients=int8:block=64"},
                    R"({"zero_optimization": {"zero_quantized_gradients": false}})"),
              "plain int8:block=64,hadamard");
}

/* Whoever says how weights travel, in whatever way, has not asked for the program's default. */
TEST_F(TrainCodecs, TheProgramsDefaultsGiveWay)
{
    const char *weights = "?thinwire.weights=delta", *gradients = "?thinwire.gradients=lossless";
    EXPECT_EQ(texts({weights, gradients}), "delta lossless");
    EXPECT_EQ(texts({"thinwire.gradients=int4:block=128", weights}), "delta int4:block=128,hadamard");
    EXPECT_EQ(texts({"thinwire.weights=int8", weights, gradients}), "int8:block=2048 lossless");
    EXPECT_EQ(texts({"thinwire.delta_lossless=n", weights, gradients}), "plain lossless");
    EXPECT_EQ(texts({"thinwire.delta_bits=8", weights}), "delta8:block=2048 plain");
    EXPECT_EQ(texts({"bf16.enabled=n", weights, gradients}), "plain lossless");
}

/* A run that goes on with another codec without loss goes on as it was. */
TEST_F(TrainCodecs, FactsAreOfWhatIsLost)
{
    EXPECT_EQ(facts({}), facts({"thinwire.weights=delta", "thinwire.gradients=lossless"}));
    EXPECT_EQ(facts({}), facts({"thinwire.lossless_weights=y"}));
    EXPECT_NE(facts({}), facts({"thinwire.weights=delta4"}));
    EXPECT_NE(facts({}), facts({"thinwire.weights=int8"}));
    EXPECT_NE(facts({}), facts({"thinwire.gradients=int4"}));
    EXPECT_EQ(facts({"thinwire.delta_bits=4"}), facts({"thinwire.weights=delta4"}));
    EXPECT_EQ(facts({"thinwire.lag_bound=2"}), facts({"thinwire.lag_bound=3"}));
    EXPECT_NE(facts({"thinwire.lag_bound=2", "thinwire.lag_plain=y"}),
              facts({"thinwire.lag_bound=3", "thinwire.lag_plain=y"}));
}

} // namespace
