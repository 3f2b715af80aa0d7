#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/common/fixture.h"
#include "trainer/data/bpe.h"
#include "trainer/data/data.h"

namespace
{

const std::string kFolder = "tests/trainer/data/bpe/"; /* made by reference.py */

std::string read_file(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

std::vector<uint32_t> read_ids(const std::string &name = "ids.bin")
{
    std::string bytes = read_file(kFolder + name);
    const uint16_t *ids = reinterpret_cast<const uint16_t *>(bytes.data());
    return std::vector<uint32_t>(ids, ids + bytes.size() / 2);
}

class Bpe : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "bpe." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        tw_bpe_destroy(bpe_);
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    std::string write(const std::string &name, const std::string &text)
    {
        std::string path = folder_ + "/" + name;
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    tw_status_t create(const std::string &vocab = kFolder + "vocab.json",
                       const std::string &merges = kFolder + "merges.txt")
    {
        tw_bpe_destroy(bpe_);
        bpe_ = nullptr;
        return tw_bpe_create(vocab.c_str(), merges.c_str(), &bpe_);
    }
    tw_status_t encode(const std::string &text, std::vector<uint32_t> *ids)
    {
        /* Exactly as long, for the sanitizer to guard. */
        std::vector<unsigned char> bytes(text.begin(), text.end());
        return tw_bpe_encode(
            bpe_, "text", bytes.data(), bytes.size(),
            [](void *ctx, const uint32_t *tokens, size_t n) {
                auto *all = static_cast<std::vector<uint32_t> *>(ctx);
                all->insert(all->end(), tokens, tokens + n);
                return TW_OK;
            },
            ids);
    }
    void expect_refused(tw_status_t want, const std::string &vocab, const std::string &merges,
                        const std::string &said)
    {
        expect_log(said);
        EXPECT_EQ(want, create(write("vocab.json", vocab), write("merges.txt", merges))) << said;
        EXPECT_EQ(nullptr, bpe_);
    }

    std::string folder_;
    tw_bpe_t *bpe_ = nullptr;
};

TEST_F(Bpe, GivesTheIdsOfTransformers)
{
    ASSERT_EQ(TW_OK, create());
    EXPECT_EQ(500u, tw_bpe_vocab_size(bpe_));
    std::vector<uint32_t> ids;
    ASSERT_EQ(TW_OK, encode(read_file(kFolder + "text.txt"), &ids));
    EXPECT_EQ(read_ids(), ids);
}

/* As Llama 3, Qwen and GPT-2 have theirs: patterns, words before merges, normal form C. */
TEST_F(Bpe, GivesTheIdsOfTokenizers)
{
    for (const char *name : {"llama3", "qwen", "gpt2"}) {
        std::string path = kFolder + name + ".json";
        tw_bpe_destroy(bpe_);
        bpe_ = nullptr;
        ASSERT_EQ(TW_OK, tw_bpe_create_json(path.c_str(), &bpe_)) << name;
        EXPECT_EQ(402u, tw_bpe_vocab_size(bpe_)) << name;
        std::vector<uint32_t> ids, none;
        ASSERT_EQ(TW_OK, encode(read_file(kFolder + "more.txt"), &ids));
        EXPECT_EQ(read_ids(name + std::string(".ids")), ids) << name;
        EXPECT_EQ(TW_OK, encode("", &none));
        EXPECT_TRUE(none.empty());
        expect_log("text: not UTF-8 at byte 5");
        EXPECT_EQ(TW_ERR_FORMAT, encode("good \xff rest", &ids));
    }
}

/* SentencePiece's blanks, as Llama 2 and Mistral have them: before each part between added tokens, or before
 * the text alone. */
TEST_F(Bpe, GivesTheIdsOfSentencePieces)
{
    for (const char *name : {"llama2", "mistral"}) {
        tw_bpe_destroy(bpe_);
        bpe_ = nullptr;
        ASSERT_EQ(TW_OK, tw_bpe_create_json((kFolder + name + ".json").c_str(), &bpe_)) << name;
        std::vector<uint32_t> ids, none;
        ASSERT_EQ(TW_OK, encode(read_file(kFolder + "more.txt"), &ids));
        EXPECT_EQ(read_ids(name + std::string(".ids")), ids) << name;
        EXPECT_EQ(TW_OK, encode("", &none));
        EXPECT_TRUE(none.empty());
        expect_log("text: not UTF-8 at byte 5");
        EXPECT_EQ(TW_ERR_FORMAT, encode("good \xff rest", &ids));
        std::string all;
        ids.clear();
        EXPECT_EQ(TW_OK, encode(" \xe2\x82\xac \n  x", &ids)); /* blanks come back, and what are bytes */
        for (uint32_t id : ids) {
            size_t n;
            const unsigned char *bytes = tw_bpe_text(bpe_, id, &n);
            all.append(reinterpret_cast<const char *>(bytes), n);
        }
        EXPECT_EQ(std::string(name) == "llama2" ? "  \xe2\x82\xac \n  x" : " \xe2\x82\xac \n  x", all);
    }
}

/* Tokens together are the text that they were made of, but for its normal form. */
TEST_F(Bpe, TokensAreTheText)
{
    auto text_of = [&](const std::string &text) {
        std::vector<uint32_t> ids;
        EXPECT_EQ(TW_OK, encode(text, &ids));
        std::string all;
        for (uint32_t id : ids) {
            size_t n;
            const unsigned char *bytes = tw_bpe_text(bpe_, id, &n);
            EXPECT_GT(n, 0u) << id;
            all.append(reinterpret_cast<const char *>(bytes), n);
        }
        return all;
    };
    size_t n;
    ASSERT_EQ(TW_OK, create());
    const std::string text = read_file(kFolder + "text.txt");
    EXPECT_EQ(text, text_of(text));
    tw_bpe_text(bpe_, 500, &n);
    EXPECT_EQ(0u, n);
    for (const char *name : {"llama3", "gpt2"}) {
        tw_bpe_destroy(bpe_);
        bpe_ = nullptr;
        ASSERT_EQ(TW_OK, tw_bpe_create_json((kFolder + name + ".json").c_str(), &bpe_));
        const std::string more = read_file(kFolder + "more.txt");
        EXPECT_EQ(more, text_of(more)) << name;
    }
}

TEST_F(Bpe, WhatATokenizerAsksForAndIsNotDoneIsNamed)
{
    const struct {
        const char *from, *to, *said;
    } changes[] = {
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type is \"Unigram\""},
        {"\"byte_fallback\": false", "\"byte_fallback\": true",
         "no token for the byte that is written <0x00>"},
        {"\"type\": \"NFC\"", "\"type\": \"NFKC\"", "normalizer is {"},
        {"\"Isolated\"", "\"Removed\"", "pre_tokenizer is {"},
        {"\"use_regex\": false", "\"use_regex\": true", "pre_tokenizer is {"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "pre_tokenizer is {"},
        {"\"lstrip\": false", "\"lstrip\": true", "an added token is {"},
        {"(?!", "(?!(", "the pattern of words does not compile"},
        {"\"merges\": [", "\"merges\": [\"Q\",", "merge 0 is not of two tokens"},
        {"{", "[", "qwen.json:"},
    };
    const std::string good = read_file(kFolder + "qwen.json");
    for (const auto &change : changes) {
        std::string text = good;
        ASSERT_NE(std::string::npos, text.find(change.from)) << change.from;
        text.replace(text.find(change.from), strlen(change.from), change.to);
        expect_log(change.said);
        EXPECT_EQ(TW_ERR_FORMAT, tw_bpe_create_json(write("qwen.json", text).c_str(), &bpe_)) << change.to;
    }
    const struct {
        const char *from, *to, *said;
    } of_blanks[] = {
        {"\"split\": false", "\"split\": true", "pre_tokenizer is {"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}",
         "pre_tokenizer besides a normalizer"},
        {"\"normalized\": false", "\"normalized\": true", "an added token is {"},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", "ignore_merges with byte_fallback is true"},
        {"\"<0x7F>\"", "\"<0x7f>\"", "no token for the byte that is written <0x7F>"},
        {"\"<0x7F>\": ", "\"a\xe2\x96\x81z\": 5, \"<0x7F>\": ", "has a blank inside, which is not done here"},
    };
    const std::string mistral = read_file(kFolder + "mistral.json");
    for (const auto &change : of_blanks) {
        std::string text = mistral;
        ASSERT_NE(std::string::npos, text.find(change.from)) << change.from;
        text.replace(text.find(change.from), strlen(change.from), change.to);
        expect_log(change.said);
        EXPECT_EQ(TW_ERR_FORMAT, tw_bpe_create_json(write("mistral.json", text).c_str(), &bpe_)) << change.to;
    }
    expect_log("tokenizer.model:");
    expect_log("SentencePiece's own file is not read here: transformers writes tokenizer.json beside it");
    EXPECT_EQ(TW_ERR_FORMAT, tw_bpe_create_json(write("tokenizer.model", "\n\x0e").c_str(), &bpe_));
    expect_log("nothing.json:");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_bpe_create_json((folder_ + "/nothing.json").c_str(), &bpe_));
}

/* Of a vocabulary too large for two bytes the cache has tokens of four. */
TEST_F(Bpe, LargeVocabulariesAreKeptWide)
{
    std::string json = read_file(kFolder + "gpt2.json");
    size_t at = json.find("\"id\": 401");
    ASSERT_NE(std::string::npos, at);
    json.replace(at, 9, "\"id\": 128000");
    std::string tokenizer = write("tokenizer.json", json), text = write("text", "ab<|end|>ab");
    tw_data_config_t config = {};
    config.path = text.c_str();
    config.tokenizer = tokenizer.c_str();
    config.cache_dir = folder_.c_str();
    for (int time = 0; time < 2; time++) {
        tw_data_t *data;
        ASSERT_EQ(TW_OK, tw_data_open(&config, &data));
        EXPECT_EQ(128001u, tw_data_vocab_size(data));
        size_t n = tw_data_n_tokens(data, TW_DATA_TRAIN);
        std::vector<int32_t> tokens(n - 1), targets(n - 1);
        tw_data_place_t place = {1, 0, 1, 0, 1, 0, 1, n - 1};
        ASSERT_EQ(TW_OK, tw_data_batch(data, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
        EXPECT_EQ(128000, targets[n / 2 - 1]);
        EXPECT_EQ(tokens[0], targets[n / 2]);
        tw_data_close(data);
    }
    config.vocab = config.merges = tokenizer.c_str();
    tw_data_t *data;
    expect_log("tokenizer.json has all of a vocabulary");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_open(&config, &data));
}

TEST_F(Bpe, NothingAndLongWords)
{
    ASSERT_EQ(TW_OK, create());
    std::vector<uint32_t> ids;
    EXPECT_EQ(TW_OK, encode("", &ids));
    EXPECT_TRUE(ids.empty());
    EXPECT_EQ(TW_OK, encode(std::string(100000, 'z'), &ids));
    EXPECT_EQ(100000u, ids.size());
}

TEST_F(Bpe, WhatIsNotUtf8IsRefusedWithItsPlace)
{
    ASSERT_EQ(TW_OK, create());
    std::vector<uint32_t> ids;
    expect_log("text: not UTF-8 at byte 4");
    EXPECT_EQ(TW_ERR_FORMAT, encode("good\xff rest", &ids));
    expect_log("text: not UTF-8 at byte 17"); /* the part after a mark */
    EXPECT_EQ(TW_ERR_FORMAT, encode("ok<|endoftext|>ok\xc3", &ids));
}

TEST_F(Bpe, WhatIsNoVocabularyIsRefused)
{
    std::string vocab = read_file(kFolder + "vocab.json");
    expect_refused(TW_ERR_FORMAT, "[]", "", "vocab.json: not a JSON object");
    expect_refused(TW_ERR_FORMAT, "{\"a\": 1", "", "vocab.json: not a JSON object");
    expect_refused(TW_ERR_FORMAT, "{\"a\": 1048576}", "", "vocab.json: no id from 0 to 1048575 for token a");
    expect_refused(TW_ERR_FORMAT, "{\"a\": -1}", "", "for token a");
    expect_refused(TW_ERR_FORMAT, "{\"a\": \"1\"}", "", "for token a");
    expect_refused(TW_ERR_FORMAT, "{\"a\": 1}", "", "no token for the byte");
    expect_refused(TW_ERR_FORMAT, vocab, "#version: 0.2\nt h\nt\n", "merges.txt: line 3: not two tokens");
    expect_refused(TW_ERR_FORMAT, vocab, "t h e\n", "merges.txt: line 1: not two tokens");
    expect_refused(TW_ERR_FORMAT, vocab, "Q Q\n", "merges.txt: line 1: a token that the vocabulary lacks");
    expect_log("nothing.json: cannot open");
    EXPECT_EQ(TW_ERR_NOT_FOUND, create(folder_ + "/nothing.json"));
    expect_log("nothing.txt: cannot open");
    EXPECT_EQ(TW_ERR_NOT_FOUND, create(kFolder + "vocab.json", folder_ + "/nothing.txt"));
    EXPECT_EQ(TW_OK, create(kFolder + "vocab.json", write("merges.txt", "")));
}

/* Through the whole of data: encoded once, then taken from the cache. */
TEST_F(Bpe, TextIsEncodedOnce)
{
    std::string vocab = kFolder + "vocab.json", merges = kFolder + "merges.txt", text = kFolder + "text.txt";
    std::vector<uint32_t> ids = read_ids();
    tw_data_config_t config = {};
    config.path = text.c_str();
    config.vocab = vocab.c_str();
    config.merges = merges.c_str();
    config.cache_dir = folder_.c_str();
    for (int time = 0; time < 2; time++) {
        tw_data_t *data;
        ASSERT_EQ(TW_OK, tw_data_open(&config, &data));
        EXPECT_EQ(500u, tw_data_vocab_size(data));
        EXPECT_EQ(ids.size(), tw_data_n_tokens(data, TW_DATA_TRAIN));
        tw_data_place_t place = {1, 0, 1, 0, 1, 0, 1, ids.size() - 1};
        std::vector<int32_t> tokens(ids.size()), targets(ids.size());
        ASSERT_EQ(TW_OK, tw_data_batch(data, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
        for (size_t i = 0; i + 1 < ids.size(); i++) {
            ASSERT_EQ(ids[i], tokens[i]);
            ASSERT_EQ(ids[i + 1], targets[i]);
        }
        tw_data_close(data);
        std::string count = "test $(ls " + folder_ + "/bpe-*.bin | wc -l) = 1";
        EXPECT_EQ(0, system(count.c_str()));
    }
    std::string bad = write("bad", "\xff");
    config.path = bad.c_str();
    expect_log("bad: no UTF-8 text: byte 0xff at 0");
    tw_data_t *data;
    EXPECT_EQ(TW_ERR_FORMAT, tw_data_open(&config, &data));
    std::string left = "test $(ls " + folder_ + " | grep -c bin) = 1"; /* no half a file either */
    EXPECT_EQ(0, system(left.c_str()));
}

/* What is no character is said so: half of one, zeros, tokens that the vocabulary lacks. */
TEST_F(Bpe, DataWriteTokensAsText)
{
    tw_data_config_t config = {};
    std::string text = write("text", "abc \u00e4"), vocab = kFolder + "vocab.json",
                merges = kFolder + "merges.txt";
    config.path = text.c_str();
    config.cache_dir = folder_.c_str();
    config.keeps_vocabulary = 1;
    auto open = [&](const char *vocab_path) {
        tw_data_t *data = nullptr;
        config.vocab = vocab_path;
        config.merges = vocab_path ? merges.c_str() : nullptr;
        EXPECT_EQ(TW_OK, tw_data_open(&config, &data));
        return data;
    };
    auto write_out = [](tw_data_t *data, const std::vector<int32_t> &tokens) {
        char *out = tw_data_tokens_text(data, tokens.data(), tokens.size());
        std::string all = out;
        free(out);
        return all;
    };
    tw_data_t *data = open(nullptr);
    EXPECT_TRUE(tw_data_has_text(data));
    EXPECT_EQ("a\n\u00e4\ufffd\ufffd\ufffdb", write_out(data, {'a', '\n', 0xc3, 0xa4, 0xc3, 0, 300, 'b'}));
    EXPECT_EQ("\ufffd\ufffd\ufffd", write_out(data, {0xed, 0xa0, 0x80})); /* half of a pair of UTF-16 */
    EXPECT_EQ("", write_out(data, {}));
    tw_data_close(data);
    data = open(vocab.c_str());
    int32_t *tokens;
    size_t n;
    ASSERT_EQ(TW_OK, tw_data_text_tokens(data, "prompt", "In the \u00e4", &tokens, &n));
    std::vector<int32_t> all(tokens, tokens + n);
    free(tokens);
    EXPECT_LT(n, 9u);
    EXPECT_EQ("In the \u00e4", write_out(data, all));
    EXPECT_EQ("\ufffd", write_out(data, {499999}));
    expect_log("prompt: not UTF-8 at byte 1");
    EXPECT_EQ(TW_ERR_FORMAT, tw_data_text_tokens(data, "prompt", "a\xff", &tokens, &n));
    tw_data_close(data);
    std::string bare = write("bare.bin", std::string("\1\0\2\0", 4));
    config.path = bare.c_str();
    data = open(nullptr);
    EXPECT_FALSE(tw_data_has_text(data));
    EXPECT_EQ("1 -2 70000", write_out(data, {1, -2, 70000}));
    tw_data_close(data);
}

} // namespace
