#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "quant/arithmetic/float.h"
#include "safetensors/safetensors.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "trainer/checkpoint/checkpoint.h"

namespace
{

constexpr tw_model_config_t kReference = {31, 13, 2, 3, 24, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
constexpr const char *kFile = "tests/trainer/model/reference.safetensors";

class Weights : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(TW_OK, tw_model_create(&kReference, &model_));
        tensors_ = tw_model_tensors(model_, &n_tensors_);
        folder_ = ::testing::TempDir() + "weights." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        tw_weights_close(weights_);
        tw_model_destroy(model_);
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    std::vector<float> read(size_t tensor)
    {
        std::vector<float> values(tensors_[tensor].n_elems);
        tw_weights_read(weights_, tensor, 0, values.size(), values.data());
        return values;
    }
    /* A file with all of the model's tensors in fp32, element i of each being i, but for what `change` does
     * to them. */
    template <typename F>
    std::string write(F change, const std::string &name = "/model.safetensors")
    {
        std::string path = folder_ + name;
        std::vector<std::string> names;
        std::vector<tw_safetensors_spec_t> specs;
        for (size_t t = 0; t < n_tensors_; t++) {
            names.push_back(tensors_[t].name);
            specs.push_back(
                {nullptr, TW_TYPE_FP32, tensors_[t].n_dims, {tensors_[t].shape[0], tensors_[t].shape[1]}});
        }
        change(&names, &specs);
        for (size_t t = 0; t < specs.size(); t++) {
            specs[t].name = names[t].c_str();
        }
        tw_safetensors_writer_t *writer;
        EXPECT_EQ(TW_OK,
                  tw_safetensors_writer_create(path.c_str(), specs.data(), specs.size(), nullptr, &writer));
        for (const auto &spec : specs) {
            size_t n = spec.dims[0] * (spec.n_dims == 2 ? spec.dims[1] : 1);
            for (size_t i = 0; i < n; i++) {
                float value = static_cast<float>(i);
                EXPECT_EQ(TW_OK, tw_safetensors_writer_write(writer, &value, sizeof(value)));
            }
        }
        EXPECT_EQ(TW_OK, tw_safetensors_writer_finish(writer));
        return path;
    }

    tw_model_t *model_ = nullptr;
    const tw_model_tensor_t *tensors_ = nullptr;
    size_t n_tensors_ = 0;
    tw_weights_t *weights_ = nullptr;
    std::string folder_;
};

using Names = std::vector<std::string>;
using Specs = std::vector<tw_safetensors_spec_t>;

/* transformers itself wrote the weights in it. */
TEST_F(Weights, ReadsWhatTransformersWrote)
{
    ASSERT_EQ(TW_OK, tw_weights_open(kFile, model_, &weights_));
    tw_safetensors_t *file;
    ASSERT_EQ(TW_OK, tw_safetensors_open(kFile, &file));
    for (size_t t = 0; t < n_tensors_; t++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_find(file, tensors_[t].name);
        std::vector<uint16_t> bits(tensor->n_elems);
        std::memcpy(bits.data(), tensor->data, tensor->bytes);
        std::vector<float> values = read(t);
        for (size_t i = 0; i < bits.size(); i++) {
            ASSERT_EQ(tw_float_from_bf16(bits[i]), values[i]) << tensors_[t].name;
        }
        float part[3];
        tw_weights_read(weights_, t, 5, 3, part);
        EXPECT_EQ(values[6], part[1]);
    }
    tw_safetensors_close(file);
}

/* As the published GPT-2 has it: no prefix, masks, and an output layer of its own. */
TEST_F(Weights, ReadsTheBareModel)
{
    std::string path = write([](Names *names, Specs *specs) {
        for (auto &name : *names) {
            name = name.substr(strlen("transformer."));
        }
        names->insert(names->end(), {"h.0.attn.bias", "lm_head.weight"});
        specs->insert(specs->end(),
                      {{nullptr, TW_TYPE_FP32, 2, {13, 13}}, {nullptr, TW_TYPE_FP32, 2, {31, 24}}});
    });
    ASSERT_EQ(TW_OK, tw_weights_open(path.c_str(), model_, &weights_));
    for (size_t t = 0; t < n_tensors_; t++) {
        EXPECT_EQ(static_cast<float>(tensors_[t].n_elems - 1), read(t).back());
    }
}

/* One layer more than the model has, and a bias: named, but not masks, nor more than a few. */
TEST_F(Weights, WhatIsNotTakenIsNamed)
{
    std::string path = write([](Names *names, Specs *specs) {
        for (int i = 0; i < 9; i++) {
            names->push_back("transformer.h.2.extra." + std::to_string(i));
            specs->push_back({nullptr, TW_TYPE_FP32, 1, {4}});
        }
        names->push_back("transformer.h.0.attn.bias");
        specs->push_back({nullptr, TW_TYPE_FP32, 2, {13, 13}});
    });
    ASSERT_EQ(TW_OK, tw_weights_open(path.c_str(), model_, &weights_));
    expect_log("9 tensors are not taken, for this model has none of these names: transformer.h.2.extra.0, "
               "transformer.h.2.extra.1");
    tw_weights_say_left(path.c_str(), weights_);
    tw_weights_close(weights_);
    path = write([](Names *, Specs *) {});
    ASSERT_EQ(TW_OK, tw_weights_open(path.c_str(), model_, &weights_));
    tw_weights_say_left(path.c_str(), weights_); /* nothing */
}

/* All but the first tensor in one file, that in another. */
TEST_F(Weights, ReadsSeveralFiles)
{
    write(
        [](Names *names, Specs *specs) {
            names->resize(1);
            specs->resize(1);
        },
        "/a.safetensors");
    write(
        [](Names *names, Specs *specs) {
            names->erase(names->begin());
            specs->erase(specs->begin());
        },
        "/b.safetensors");
    std::string index = folder_ + "/model.safetensors.index.json", map;
    for (size_t t = 0; t < n_tensors_; t++) {
        map += std::string(t > 0 ? ", \"" : "\"") + tensors_[t].name + "\": \"" +
               (t == 0 ? "a.safetensors\"" : "b.safetensors\"");
    }
    auto write_index = [&](const std::string &text) { std::ofstream(index) << text; };
    write_index("{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
    for (const std::string &path : {index, folder_}) {
        ASSERT_EQ(TW_OK, tw_weights_open(path.c_str(), model_, &weights_));
        for (size_t t = 0; t < n_tensors_; t++) {
            EXPECT_EQ(static_cast<float>(tensors_[t].n_elems - 1), read(t).back());
        }
        tw_weights_close(weights_);
        weights_ = nullptr;
    }
    expect_log("index.json: no weight_map");
    write_index("{}");
    EXPECT_EQ(TW_ERR_FORMAT, tw_weights_open(folder_.c_str(), model_, &weights_));
    expect_log("index.json: tensor 'x' is in no file beside it");
    for (const char *name : {"\"../a.safetensors\"", "7"}) {
        write_index(std::string("{\"weight_map\": {\"x\": ") + name + "}}");
        EXPECT_EQ(TW_ERR_FORMAT, tw_weights_open(index.c_str(), model_, &weights_));
    }
    expect_log("c.safetensors: cannot open");
    write_index("{\"weight_map\": {\"x\": \"c.safetensors\"}}");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_weights_open(index.c_str(), model_, &weights_));
    expect_log("no tensor 'transformer.wpe.weight'");
    write_index("{\"weight_map\": {\"x\": \"a.safetensors\"}}");
    EXPECT_EQ(TW_ERR_MISMATCH, tw_weights_open(index.c_str(), model_, &weights_));
    expect_log("neither model.safetensors nor model.safetensors.index.json is there");
    EXPECT_EQ(0, unlink(index.c_str()));
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_weights_open(folder_.c_str(), model_, &weights_));
}

TEST_F(Weights, AnOutputLayerOfItsOwnIsRefused)
{
    std::string path = write([](Names *names, Specs *specs) {
        names->push_back("lm_head.weight");
        specs->push_back({nullptr, TW_TYPE_FP32, 2, {31, 24}});
    });
    EXPECT_EQ(TW_OK, tw_weights_open(path.c_str(), model_, &weights_));
    tw_weights_close(weights_);
    weights_ = nullptr;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x42');
    file.close();
    expect_log("lm_head.weight is not transformer.wte.weight");
    EXPECT_EQ(TW_ERR_MISMATCH, tw_weights_open(path.c_str(), model_, &weights_));
}

TEST_F(Weights, WhatIsAnotherModelIsRefused)
{
    expect_log("no tensor 'transformer.h.1.mlp.c_proj.bias'");
    EXPECT_EQ(TW_ERR_MISMATCH, tw_weights_open(write([](Names *names, Specs *specs) {
                                                   names->pop_back();
                                                   specs->pop_back();
                                               }).c_str(),
                                               model_, &weights_));
    expect_log("tensor 'transformer.wte.weight' of F32 and 720 elements is not the model's: 31 x 24");
    EXPECT_EQ(TW_ERR_MISMATCH,
              tw_weights_open(write([](Names *, Specs *specs) { (*specs)[0].dims[0] = 30; }).c_str(), model_,
                              &weights_));
    expect_log("cannot open");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_weights_open((folder_ + "/nothing").c_str(), model_, &weights_));
}

/* From a checkpoint of three ranks to a whole model, rounded to bf16. */
TEST_F(Weights, ExportsACheckpoint)
{
    std::string checkpoints = folder_ + "/checkpoints", exported = folder_ + "/exported";
    auto value_of = [](size_t tensor, size_t elem) {
        return std::sin(static_cast<float>(tensor * 100000 + elem));
    };
    tw::World ranks({0, 0, 0});
    ranks.run([&](int rank) {
        std::vector<std::vector<float>> values(n_tensors_);
        std::vector<tw_checkpoint_piece_t> pieces(n_tensors_);
        for (size_t t = 0; t < n_tensors_; t++) {
            pieces[t].tensor = t;
            pieces[t].first = tw_coll_shard_offset(tensors_[t].n_elems, 3, rank);
            pieces[t].n_elems = tw_coll_shard_elems(tensors_[t].n_elems, 3, rank);
            for (size_t i = 0; i < pieces[t].n_elems; i++) {
                values[t].push_back(value_of(t, pieces[t].first + i));
            }
            for (float *&kind : pieces[t].values) {
                kind = values[t].data();
            }
        }
        tw_checkpoint_state_t save = {};
        save.folder = checkpoints.c_str();
        save.keep = 1;
        save.model = model_;
        save.pieces = pieces.data();
        save.n_pieces = n_tensors_;
        EXPECT_EQ(TW_OK, tw_checkpoint_save(ranks.coll(rank), &save));
    });
    tw_checkpoint_t *checkpoint;
    ASSERT_EQ(TW_OK, tw_checkpoint_open(checkpoints.c_str(), model_, &checkpoint));
    /* which tokens end a text is said by the first folder that does, in one of three files */
    std::string first = folder_ + "/first", second = folder_ + "/second";
    ASSERT_EQ(0, system(("mkdir " + first + " " + second).c_str()));
    std::ofstream(first + "/config.json") << R"({"bos_token_id": 3, "eos_token_id": null})";
    std::ofstream(first + "/tokenizer_config.json")
        << R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null})";
    std::ofstream(first + "/tokenizer.json")
        << R"({"added_tokens": [{"id": 7, "content": "<s>"}, {"id": 8, "content": "</s>"}]})";
    std::ofstream(second + "/generation_config.json") << R"({"eos_token_id": 1, "pad_token_id": [5]})";
    const char *const sources[] = {"", first.c_str(), second.c_str(), nullptr};
    EXPECT_EQ(TW_OK, tw_weights_export(checkpoint, model_, TW_TYPE_BF16, exported.c_str(), sources));
    tw_checkpoint_close(checkpoint);
    ASSERT_EQ(TW_OK, tw_weights_open((exported + "/model.safetensors").c_str(), model_, &weights_));
    for (size_t t = 0; t < n_tensors_; t++) {
        std::vector<float> got = read(t);
        for (size_t i = 0; i < got.size(); i++) {
            ASSERT_EQ(tw_float_from_bf16(tw_float_to_bf16(value_of(t, i))), got[i]);
        }
    }
    std::ifstream in(exported + "/config.json");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    EXPECT_NE(std::string::npos, text.find("\"n_embd\": 24"));
    EXPECT_NE(std::string::npos, text.find("\"GPT2LMHeadModel\""));
    EXPECT_NE(std::string::npos, text.find("\"bos_token_id\": 3"));
    EXPECT_NE(std::string::npos, text.find("\"eos_token_id\": 8"));
    EXPECT_NE(std::string::npos, text.find("\"pad_token_id\": [\n    5"));
}

} // namespace
