/* The feature sets' names, and that each is what it says whatever the configuration says. */
#include <cstring>
#include <string>
#include <vector>

#include "tests/common/fixture.h"

extern "C" {
#include "trainer/config/config.h"
#include "trainer/trainer.h"
}

namespace
{

class TrainerSets : public tw::Fixture
{
};

TEST_F(TrainerSets, EveryNameIsFound)
{
    size_t n = 0;
    for (const tw_trainer_set_t *set; (set = tw_trainer_set_get(n)); n++) {
        EXPECT_EQ(tw_trainer_set_find(set->name), set);
    }
    EXPECT_EQ(n, 18U);
    EXPECT_EQ(tw_trainer_set_find("zero4"), nullptr);
}

/* What is in force, but for where it comes from. */
std::string values_of(std::vector<const char *> keys, const tw_trainer_set_t *set)
{
    tw_train_config_t *config = nullptr;
    for (const char *const *key = set->keys; *key; key++) {
        keys.push_back(*key);
    }
    EXPECT_EQ(tw_train_config_create(nullptr, keys.data(), keys.size(), &config), TW_OK);
    EXPECT_EQ(tw_train_config_resolve(config, 4, 2), TW_OK) << set->name;
    tw_lines_t lines = {};
    tw_train_config_lines(config, &lines);
    std::string values = lines.text;
    tw_lines_cleanup(&lines);
    tw_train_config_destroy(config);
    return values;
}

TEST_F(TrainerSets, WhatAConfigurationHasOnIsSwitchedOff)
{
    for (size_t i = 0; tw_trainer_set_get(i); i++) {
        const tw_trainer_set_t *set = tw_trainer_set_get(i);
        EXPECT_EQ(values_of({}, set),
                  values_of({"thinwire.delta_bits=4", "thinwire.hpz=on",
                             "zero_optimization.zero_quantized_gradients=y", "thinwire.lossless_weights=y"},
                            set))
            << set->name;
        EXPECT_EQ(values_of({}, set),
                  values_of({"thinwire.delta_lossless=y", "zero_optimization.stage=1",
                             "zero_optimization.zero_quantized_weights=y", "thinwire.lossless_gradients=y"},
                            set))
            << set->name;
    }
}

TEST(TrainSets, NamesFromBeforeAreTaken)
{
    EXPECT_STREQ(tw_trainer_set_find("delta-exact")->name, "delta");
    EXPECT_STREQ(tw_trainer_set_find("delta-exact-g4")->name, "delta-g4");
    EXPECT_EQ(tw_trainer_set_find("exact"), nullptr);
}

} // namespace
