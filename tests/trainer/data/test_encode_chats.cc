/* Examples as lines of JSON: tokens and masks as transformers has them, by chats_reference.py. */
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/common/process.h"
#include "trainer/data/data.h"

namespace
{

const std::string kFolder = "tests/trainer/data/chats/";

class Chats : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        const std::string python = process::python_with("tokenizers");
        if (python.empty()) {
            GTEST_SKIP() << "no Python here has tokenizers: tests/plugin/torch/torch_venv.py makes one";
        }
        set_env("TW_PYTHON", python);
        folder_ = ::testing::TempDir() + "chats." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        tw_data_close(data_);
        EXPECT_EQ(0, system(("rm -rf " + folder_ + "/").c_str()));
        tw::Fixture::TearDown();
    }
    tw_status_t open(const std::string &path, tw_data_style_t style = TW_DATA_STYLE_NONE,
                     const char *end = "", const std::string &tokenizer = kFolder + "tokenizer.json")
    {
        tw_data_config_t config = {};
        config.path = path.c_str();
        config.tokenizer = tokenizer.c_str();
        config.cache_dir = folder_.c_str();
        config.chat_style = style;
        config.chat_end = end;
        config.keeps_vocabulary = 1;
        tw_data_close(data_);
        data_ = nullptr;
        return tw_data_open(&config, &data_);
    }
    tw_status_t open_lines(const std::string &lines, tw_data_style_t style = TW_DATA_STYLE_NONE,
                           const char *end = "")
    {
        std::ofstream(folder_ + "/lines.jsonl") << lines;
        return open(folder_ + "/lines.jsonl", style, end);
    }
    /* All tokens but the last one, and what follows each, if that is learned. */
    void read(std::vector<int32_t> *tokens, std::vector<int32_t> *targets)
    {
        size_t n = tw_data_n_tokens(data_, TW_DATA_TRAIN) - 1;
        tw_data_place_t place = {1, 0, 1, 0, 1, 0, 1, n};
        tokens->resize(n);
        targets->resize(n);
        ASSERT_EQ(TW_OK, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens->data(), targets->data()));
    }
    /* As text; what is learned between brackets. The first token is no target. */
    std::string read_text()
    {
        std::vector<int32_t> tokens, targets;
        read(&tokens, &targets);
        auto text_of = [&](int32_t token) {
            char *text = tw_data_tokens_text(data_, &token, 1);
            std::string copy = text;
            free(text);
            return copy;
        };
        std::string all = text_of(tokens[0]);
        bool was_learned = false;
        for (size_t i = 0; i < tokens.size(); i++) {
            bool is_learned = targets[i] != TW_DATA_NO_TARGET;
            all += is_learned == was_learned ? "" : is_learned ? "[" : "]";
            all += i + 1 < tokens.size() ? text_of(tokens[i + 1]) : is_learned ? text_of(targets[i]) : "";
            was_learned = is_learned;
        }
        return all + (was_learned ? "]" : "");
    }

    std::string folder_;
    tw_data_t *data_ = nullptr;
};

TEST_F(Chats, MessagesAreTransformers)
{
    const struct {
        const char *name, *tokenizer;
        tw_data_style_t style;
    } templates[] = {{"chatml", "tokenizer.json", TW_DATA_STYLE_CHATML},
                     {"llama3", "tokenizer.json", TW_DATA_STYLE_LLAMA3},
                     {"blanks_chatml", "blanks_tokenizer.json", TW_DATA_STYLE_CHATML},
                     {"blanks_llama3", "blanks_tokenizer.json", TW_DATA_STYLE_LLAMA3}};
    for (int again = 0; again < 2; again++) { /* from the cache */
        for (const auto &one : templates) {
            ASSERT_EQ(TW_OK, open(kFolder + "chats.jsonl", one.style, "", kFolder + one.tokenizer));
            std::string ids = process::slurp(kFolder + one.name + ".ids");
            std::string mask = process::slurp(kFolder + one.name + ".mask");
            std::vector<int32_t> tokens, targets;
            ASSERT_EQ(mask.size(), tw_data_n_tokens(data_, TW_DATA_TRAIN));
            read(&tokens, &targets);
            auto id = [&](size_t i) { return (uint8_t)ids[2 * i] | (uint8_t)ids[2 * i + 1] << 8; };
            for (size_t i = 0; i < tokens.size(); i++) {
                ASSERT_EQ(id(i), tokens[i]) << one.name << i;
                ASSERT_EQ(mask[i + 1] ? id(i + 1) : TW_DATA_NO_TARGET, targets[i]) << one.name << i;
            }
        }
    }
}

TEST_F(Chats, PromptsAndTexts)
{
    ASSERT_EQ(TW_OK, open_lines("{\"prompt\": \"Who?\", \"completion\": \" God.\"}\n\n"
                                "{\"text\": \"In the beginning\", \"more\": 1}\r\n"
                                "{\"prompt\": \"And\", \"completion\": \"\"}",
                                TW_DATA_STYLE_NONE, "<|endoftext|>"));
    EXPECT_EQ("Who?[ God.<|endoftext|>In the beginning<|endoftext|>]And[<|endoftext|>]", read_text());
    ASSERT_EQ(TW_OK, open_lines("{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}],"
                                " \"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}",
                                TW_DATA_STYLE_CHATML));
    EXPECT_EQ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]", read_text());
}

/* Tokens' places are without their blanks, as in GPT-2's own tokenizer.json; of a last blank nothing is
 * left. */
TEST_F(Chats, PlacesMayBeTrimmed)
{
    std::string json = process::slurp("tests/trainer/data/bpe/gpt2.json");
    const std::string none = "\"post_processor\": null";
    ASSERT_NE(std::string::npos, json.find(none));
    json.replace(json.find(none), none.size(),
                 "\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                 "\"trim_offsets\": true, \"use_regex\": true}");
    std::ofstream(folder_ + "/trimmed.json") << json;
    std::ofstream(folder_ + "/lines.jsonl") << "{\"prompt\": \"Who? \", \"completion\": \" God \"}";
    ASSERT_EQ(TW_OK, open(folder_ + "/lines.jsonl", TW_DATA_STYLE_NONE, "", folder_ + "/trimmed.json"));
    EXPECT_EQ("Who? [ God ]", read_text());
}

TEST_F(Chats, WhatIsNoExampleIsNamedWithItsLine)
{
    auto refused = [&](const std::string &lines, const char *said, tw_data_style_t style) {
        expect_log(said);
        EXPECT_EQ(TW_ERR_FORMAT, open_lines(lines, style)) << said;
    };
    const std::string good = "{\"text\": \"good\"}\n";
    refused(good + "{\"texts\": \"a\"}", "lines.jsonl: line 2: neither messages, nor a prompt with",
            TW_DATA_STYLE_NONE);
    refused(good + "[1]", "lines.jsonl: line 2: no object", TW_DATA_STYLE_NONE);
    refused("{\"text\": \"a\"", "lines.jsonl: line 1: ", TW_DATA_STYLE_NONE);
    refused("{\"messages\": []}", "line 1: there is no message", TW_DATA_STYLE_CHATML);
    refused("{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "line 1: a message has a role and",
            TW_DATA_STYLE_CHATML);
    refused("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "line 1: messages, but thinwire.chat_style does not say", TW_DATA_STYLE_NONE);
    refused("", "lines.jsonl: there is no token in it", TW_DATA_STYLE_NONE);
    refused("{\"text\": \"\\ud83d\"}", "line 1: 'utf-8' codec can't encode", TW_DATA_STYLE_NONE);
    refused("{\"text\": \"\xff\"}", "line 1: 'utf-8' codec can't decode byte 0xff in position 10",
            TW_DATA_STYLE_NONE);
    /* what is empty has its files, but nothing else has left any */
    EXPECT_EQ("2", process::run({"sh", "-c", "printf %s $(ls " + folder_ + " | grep -c chats-)"}).out);
    expect_log("chats.jsonl: lines of JSON need a vocabulary (thinwire.tokenizer)");
    EXPECT_EQ(TW_ERR_INVALID, open(kFolder + "chats.jsonl", TW_DATA_STYLE_CHATML, "", ""));
}

/* With SentencePiece's blanks an example is encoded whole: no blank comes between a prompt and its
 * completion, and a token that has a part of both is learned. */
TEST_F(Chats, BlanksBeforeTexts)
{
    for (const char *name : {"llama2", "mistral"}) {
        std::ofstream(folder_ + "/lines.jsonl") << "{\"prompt\": \"Who made\", \"completion\": \" "
                                                   "God.\"}\n{\"prompt\": \"an\", \"completion\": \"d\"}\n";
        ASSERT_EQ(TW_OK, open(folder_ + "/lines.jsonl", TW_DATA_STYLE_NONE, "<|endoftext|>",
                              "tests/trainer/data/bpe/" + std::string(name) + ".json"));
        EXPECT_EQ(" Who made[ God.<|endoftext|> and<|endoftext|>]", read_text()) << name;
    }
}

} // namespace
