#include <gtest/gtest.h>

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

std::vector<uint16_t> read_ids()
{
    std::string bytes = read_file(kFolder + "ids.bin");
    const uint16_t *ids = reinterpret_cast<const uint16_t *>(bytes.data());
    return std::vector<uint16_t>(ids, ids + bytes.size() / 2);
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
    tw_status_t encode(const std::string &text, std::vector<uint16_t> *ids)
    {
        std::vector<unsigned char> bytes(text.begin(),
                                         text.end()); /* exactly as long, for the sanitizer to guard */
        return tw_bpe_encode(
            bpe_, "text", bytes.data(), bytes.size(),
            [](void *ctx, const uint16_t *tokens, size_t n) {
                auto *all = static_cast<std::vector<uint16_t> *>(ctx);
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
    std::vector<uint16_t> ids;
    ASSERT_EQ(TW_OK, encode(read_file(kFolder + "text.txt"), &ids));
    EXPECT_EQ(read_ids(), ids);
}

TEST_F(Bpe, NothingAndLongWords)
{
    ASSERT_EQ(TW_OK, create());
    std::vector<uint16_t> ids;
    EXPECT_EQ(TW_OK, encode("", &ids));
    EXPECT_TRUE(ids.empty());
    EXPECT_EQ(TW_OK, encode(std::string(100000, 'z'), &ids));
    EXPECT_EQ(100000u, ids.size());
}

TEST_F(Bpe, WhatIsNotUtf8IsRefusedWithItsPlace)
{
    ASSERT_EQ(TW_OK, create());
    std::vector<uint16_t> ids;
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
    expect_refused(TW_ERR_FORMAT, "{\"a\": 65536}", "", "vocab.json: no id from 0 to 65535 for token a");
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
    std::vector<uint16_t> ids = read_ids();
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
    expect_log("bad: not UTF-8 at byte 0");
    tw_data_t *data;
    EXPECT_EQ(TW_ERR_FORMAT, tw_data_open(&config, &data));
    std::string left = "test $(ls " + folder_ + " | grep -c bin) = 1"; /* no half a file either */
    EXPECT_EQ(0, system(left.c_str()));
}

} // namespace
