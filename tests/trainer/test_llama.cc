/* Models of the Llama family in and out: what transformers saved, trained, saved and begun with again. */
#include <gtest/gtest.h>
#include <jansson.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "safetensors/safetensors.h"
#include "tests/common/fixture.h"
#include "tests/trainer/engine/job.h"
#include "trainer/trainer.h"

namespace
{

using Sets = std::vector<std::string>;

class LlamaFiles : public tw::Fixture, public ::testing::WithParamInterface<const char *>
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "llama." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
        ASSERT_EQ(TW_OK, tw_safetensors_open((from() + "/expected.safetensors").c_str(), &expected_));
        write_text();
    }
    void TearDown() override
    {
        tw_safetensors_close(expected_);
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    static std::string from()
    {
        return std::string("tests/trainer/model/llama/") + GetParam();
    }
    template <typename T>
    std::vector<T> values(const char *name) const
    {
        const tw_safetensors_tensor_t *found = tw_safetensors_find(expected_, name);
        std::vector<T> out(found->bytes / sizeof(T));
        std::memcpy(out.data(), found->data, found->bytes);
        return out;
    }
    /* The text that transformers' loss is of, as a file of tokens; beside it which of them are learned. */
    void write_text()
    {
        std::vector<int32_t> tokens = values<int32_t>("tokens"), targets = values<int32_t>("targets");
        tokens.push_back(targets.back());
        std::string mask(1, '\1');
        for (int32_t target : targets) {
            mask.push_back(target >= 0);
            n_learned_ += target >= 0;
        }
        n_targets_ = targets.size();
        std::ofstream(folder_ + "/text.mask", std::ios::binary) << mask;
        std::vector<uint16_t> words(tokens.begin(), tokens.end());
        std::ofstream(folder_ + "/text.bin", std::ios::binary)
            .write(reinterpret_cast<const char *>(words.data()),
                   static_cast<std::streamsize>(words.size() * sizeof(uint16_t)));
    }
    /* transformers' mean of what is learned. */
    double want() const
    {
        return values<float>("loss")[0] * (double)n_targets_ / (double)n_learned_;
    }
    /* Two ranks, one step at no rate: the validation loss of the weights they began with. */
    tw_trainer_result_t run(const std::string &weights, const Sets &more = {}, tw_status_t want = TW_OK)
    {
        Sets sets = {"thinwire.data=" + folder_ + "/text.bin",
                     "thinwire.val_data=" + folder_ + "/text.bin",
                     "thinwire.sequence_length=11",
                     "thinwire.loss_mask=y",
                     "thinwire.steps=1",
                     "optimizer.params.lr=0",
                     "scheduler.type=none",
                     "thinwire.products=fp32",
                     "model.init_from=" + weights};
        sets.insert(sets.end(), more.begin(), more.end());
        std::vector<const char *> pointers;
        for (const std::string &set : sets) {
            pointers.push_back(set.c_str());
        }
        tw_trainer_result_t results[2] = {};
        tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
            tw_trainer_params_t params = {};
            params.sets = pointers.data();
            params.n_sets = pointers.size();
            params.coll = coll;
            tw_status_t status = tw_trainer_run(&params, &results[rank]);
            EXPECT_TRUE(status == want || (want != TW_OK && status == TW_ERR_PEER)) << status;
        });
        EXPECT_TRUE(want != TW_OK || results[0].val_loss == results[1].val_loss);
        return results[0];
    }
    json_t *config_of(const std::string &folder) const
    {
        json_error_t error;
        json_t *json = json_load_file((folder + "/config.json").c_str(), 0, &error);
        EXPECT_NE(nullptr, json) << error.text;
        return json;
    }

    std::string folder_;
    size_t n_targets_ = 0, n_learned_ = 0;
    tw_safetensors_t *expected_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(, LlamaFiles,
                         ::testing::Values("llama2", "llama3", "mistral", "qwen2", "qwen3", "biased"),
                         [](const auto &name) { return std::string(name.param); });

TEST_P(LlamaFiles, TheLossIsTransformersAndStaysWhenSaved)
{
    double want = this->want();
    std::string out = folder_ + "/out", checkpoints = "thinwire.checkpoint=" + folder_ + "/checkpoints";
    tw_trainer_result_t result = run(from(), {checkpoints, "thinwire.save_model=" + out});
    double first = result.val_loss;
    EXPECT_NEAR(want, first, 2e-6 * want);
    EXPECT_NEAR(want, result.first_loss, 2e-6 * want); /* both sequences are in the step, too */
    EXPECT_EQ(first, run(out).val_loss);
    expect_log("model.init_from means nothing here: thinwire.resume has the weights");
    expect_log("total_num_steps 1 -> 2");
    EXPECT_EQ(first,
              run(from(), {"thinwire.steps=2", checkpoints, "thinwire.resume=" + folder_ + "/checkpoints"})
                  .val_loss);
    /* what both configurations say is the same */
    json_t *before = config_of(from()), *after = config_of(out), *value;
    const char *key;
    size_t n_same = 0;
    json_object_foreach(after, key, value)
    {
        json_t *was = json_object_get(before, key);
        bool is_number = json_is_number(was) && json_is_number(value);
        n_same += was != nullptr;
        EXPECT_TRUE(!was || json_equal(was, value) ||
                    (is_number && json_number_value(was) == json_number_value(value)))
            << key;
    }
    EXPECT_GE(n_same, 14u);
    json_decref(before);
    json_decref(after);
}

/* What no tensor's size shows is part of a checkpoint's model. */
TEST_P(LlamaFiles, ACheckpointOfAnotherModelIsRefused)
{
    if (GetParam() != std::string("qwen2")) {
        GTEST_SKIP() << "one is enough";
    }
    std::string checkpoints = "thinwire.checkpoint=" + folder_ + "/checkpoints";
    run(from(), {checkpoints});
    json_t *json = config_of(from());
    json_object_set_new(json_object_get(json, "rope_parameters"), "factor", json_real(5.0));
    ASSERT_EQ(0, system(("cp -rL " + from() + " " + folder_ + "/other; chmod -R u+w " + folder_).c_str()));
    ASSERT_EQ(0, json_dump_file(json, (folder_ + "/other/config.json").c_str(), 0));
    json_decref(json);
    allow_log("model.init_from means nothing here: thinwire.resume has the weights");
    expect_log("of another model: model.rope_scaling.factor was 4 when it was saved, and is 5 now");
    allow_log("gave the job up");
    run(folder_ + "/other", {"thinwire.resume=" + folder_ + "/checkpoints"}, TW_ERR_MISMATCH);
    expect_log("of another model: model.family was qwen2 when it was saved, and is gpt2 now");
    run("", {"thinwire.resume=" + folder_ + "/checkpoints", "model.vocab_size=23"}, TW_ERR_MISMATCH);
}

} // namespace
