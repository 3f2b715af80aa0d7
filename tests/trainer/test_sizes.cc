/* Configurations whose numbers are as large as their keys allow, alone and several at a time: refused with
 * the keys' names, or of sizes that did not wrap. ubsan sees what wraps on the way. */
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/common/fixture.h"
#include "trainer/config/config.h"
#include "trainer/config/table.h"
#include "trainer/fit.h"
#include "trainer/model/model.h"
#include "trainer/plan/plan.h"
#include "trainer/shape.h"

namespace
{

struct Key {
    const tw_config_field_t *field;
    std::string name, text;
};

class Sizes : public ::testing::Test
{
  protected:
    void TearDown() override
    {
        forget();
    }
    void forget()
    {
        tw_model_destroy(model_);
        tw_train_config_destroy(config_);
        model_ = nullptr;
        config_ = nullptr;
    }
    tw_status_t make(const std::vector<std::string> &sets, int world, int n_nodes)
    {
        std::vector<const char *> texts;
        for (const std::string &set : sets) {
            texts.push_back(set.c_str());
        }
        forget();
        TW_TRY(tw_train_config_create(nullptr, texts.data(), texts.size(), &config_));
        options_ = tw_train_config_options(config_);
        TW_TRY(tw_train_config_resolve(config_, world, n_nodes));
        tw_model_config_t shape;
        TW_TRY(tw_trainer_shape(options_, 256, &shape));
        TW_TRY(tw_model_create(&shape, &model_));
        return tw_trainer_check_sizes(options_, model_);
    }
    /* What is made of them, in floating point. */
    void expect_not_wrapped(int world, int n_nodes)
    {
        const tw_model_config_t *shape = tw_model_config_get(model_);
        const double tokens = (double)options_->micro_batch * (double)options_->sequence;
        const double x = tokens * (double)shape->n_embd;
        const tw_model_sizes_t sizes =
            tw_model_sizes_get(model_, (size_t)options_->micro_batch, (size_t)options_->sequence);
        EXPECT_EQ((double)sizes.x_elems, x);
        EXPECT_GE((double)sizes.saved_bytes, 4 * x);
        EXPECT_GE((double)sizes.scratch_bytes, 4 * x);
        EXPECT_GE((double)tw_model_n_params(model_),
                  (double)shape->n_layer * (double)shape->n_embd * (double)shape->n_embd);
        EXPECT_EQ((double)(options_->batch * options_->sequence),
                  tokens * (double)options_->accumulation * world);
        tw_need_t need;
        ASSERT_EQ(tw_need_of(options_, model_, world, n_nodes, &need), TW_OK);
        EXPECT_TRUE(std::isfinite(need.all));
        EXPECT_GE(need.sure, 4 * x);
    }
    /* An error that names one of the keys, or the last part of one: "n_embd". */
    static bool is_named(const std::vector<const Key *> &keys, const tw::LogCapture &log)
    {
        for (const Key *key : keys) {
            const char *dot = strrchr(key->name.c_str(), '.');
            if (log.count(dot ? dot + 1 : key->name) > 0) {
                return true;
            }
        }
        return false;
    }
    void look(const std::vector<const Key *> &keys, int world, int n_nodes)
    {
        std::vector<std::string> sets;
        std::string all;
        for (const Key *key : keys) {
            sets.push_back(key->text);
            all += key->text + " ";
        }
        SCOPED_TRACE(all + "on " + std::to_string(world));
        tw::LogCapture log;
        log.allow("");
        const tw_status_t status = make(sets, world, n_nodes);
        if (status == TW_OK) {
            expect_not_wrapped(world, n_nodes);
        } else {
            EXPECT_TRUE(status == TW_ERR_CONFIG || status == TW_ERR_INVALID) << status;
            EXPECT_TRUE(is_named(keys, log)) << (log.lines().empty() ? "" : log.lines()[0].text);
        }
    }
    tw_train_config_t *config_ = nullptr;
    const tw_train_options_t *options_ = nullptr;
    tw_model_t *model_ = nullptr;
};

/* The ends of each key that is a count, and the largest that a model can have, which is less. */
std::vector<Key> extremes()
{
    const struct {
        const char *name;
        long long most;
    } of_model[] = {{"model.n_layer", 4096},
                    {"model.n_embd", 65536},
                    {"model.n_positions", 1000000},
                    {"model.vocab_size", 65536}};
    std::vector<Key> keys;
    const auto add = [&](const tw_config_field_t *field, double value) {
        keys.push_back(
            {field, field->name, std::string(field->name) + "=" + std::to_string((long long)value)});
    };
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        const tw_config_field_t *field = &tw_train_options_table.fields[i];
        if (field->type == TW_CONFIG_INT) {
            add(field, field->min);
            add(field, field->max);
        }
        for (const auto &one : of_model) {
            if (!strcmp(field->name, one.name)) {
                add(field, (double)one.most);
            }
        }
    }
    return keys;
}

/* The largest matrix that Muon needs whole is rank 2's, who does not sample. */
TEST_F(Sizes, SamplingIsCountedBesideMuon)
{
    const std::vector<std::string> muon = {"optimizer.type=Muon", "model.n_embd=512"};
    std::vector<std::string> samples = muon;
    samples.insert(samples.end(), {"thinwire.sample_steps=1", "thinwire.sample_tokens=1"});
    tw_need_t without, with;
    ASSERT_EQ(make(muon, 4, 1), TW_OK);
    ASSERT_EQ(tw_need_of(options_, model_, 4, 1, &without), TW_OK);
    ASSERT_EQ(make(samples, 4, 1), TW_OK);
    ASSERT_EQ(tw_need_of(options_, model_, 4, 1, &with), TW_OK);
    EXPECT_NEAR(with.all - without.all, tw_plan_sampling_bytes(options_, model_) / 4, 1);
    EXPECT_GT(with.all, without.all);
}

/* Keys of which sizes are products. */
bool is_factor(const Key &key)
{
    for (const char *part : {"batch", "accumulation", "sequence_length", "model.", "bucket", "max_live"}) {
        if (key.name.find(part) != std::string::npos) {
            return true;
        }
    }
    return false;
}

TEST_F(Sizes, EachKeyAtItsEnds)
{
    const std::vector<Key> keys = extremes();
    ASSERT_GT(keys.size(), 60u);
    for (const Key &key : keys) {
        look({&key}, 4, 2);
    }
}

TEST_F(Sizes, EachPairOfFactorsAtItsEnds)
{
    const std::vector<Key> keys = extremes();
    size_t n_pairs = 0;
    for (size_t a = 0; a < keys.size(); a++) {
        for (size_t b = a + 1; b < keys.size() && is_factor(keys[a]); b++) {
            if (is_factor(keys[b]) && keys[a].field != keys[b].field) {
                look({&keys[a], &keys[b]}, 4, 2);
                n_pairs++;
            }
        }
    }
    EXPECT_GT(n_pairs, 300u);
}

/* Each possible by itself. */
TEST_F(Sizes, ThreeFactors)
{
    const std::vector<Key> keys = extremes();
    const auto at_most = [&](const char *name) {
        const Key *found = nullptr;
        for (const Key &key : keys) {
            found = key.name == name ? &key : found;
        }
        return found;
    };
    const Key *micro = at_most("train_micro_batch_size_per_gpu"),
              *sequence = at_most("thinwire.sequence_length"), *width = at_most("model.n_embd"),
              *depth = at_most("model.n_layer");
    look({micro, sequence, width}, 4, 2);
    look({micro, sequence, depth}, 4, 2);
    look({micro, sequence, width, depth}, 4, 2);
    EXPECT_EQ(make({micro->text, sequence->text, width->text, "model.n_head=64"}, 4, 2), TW_ERR_CONFIG);
}

} // namespace
