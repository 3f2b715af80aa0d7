#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "trainer/data/data.h"

namespace
{

class Data : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "data." + std::to_string(getpid());
        std::string command = "mkdir -p " + folder_;
        ASSERT_EQ(0, system(command.c_str()));
    }
    void TearDown() override
    {
        tw_data_close(data_);
        std::string command = "rm -rf " + folder_;
        EXPECT_EQ(0, system(command.c_str()));
        tw::Fixture::TearDown();
    }
    std::string write(const std::string &name, const std::string &bytes)
    {
        std::string path = folder_ + "/" + name;
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    std::string write_words(const std::string &name, const std::vector<uint16_t> &words,
                            const std::vector<int32_t> &header = {})
    {
        std::string bytes(header.empty() ? 0 : 1024, '\0');
        if (!header.empty()) {
            std::memcpy(&bytes[0], header.data(), header.size() * sizeof(int32_t));
        }
        bytes.append(reinterpret_cast<const char *>(words.data()), words.size() * sizeof(uint16_t));
        return write(name, bytes);
    }
    tw_status_t open(const std::string &path, double val_share = 0.0, const std::string &val_path = "")
    {
        tw_data_config_t config = {};
        config.path = path.c_str();
        config.val_path = val_path.c_str();
        config.val_share = val_share;
        config.cache_dir = folder_.c_str();
        tw_data_close(data_);
        data_ = nullptr;
        return tw_data_open(&config, &data_);
    }
    void expect_refused(tw_status_t want, const std::string &path, const std::string &said)
    {
        expect_log(said);
        EXPECT_EQ(want, open(path)) << said;
        EXPECT_EQ(nullptr, data_);
    }
    /* The tokens of a micro-batch; targets are checked to be the next ones. */
    std::vector<int32_t> batch(const tw_data_place_t &place, tw_data_split_t split = TW_DATA_TRAIN)
    {
        size_t n = place.batch * place.seq_len;
        std::vector<int32_t> tokens(n), targets(n);
        EXPECT_EQ(TW_OK, tw_data_batch(data_, split, &place, tokens.data(), targets.data()));
        for (size_t i = 0; i < n; i++) {
            if ((i + 1) % place.seq_len != 0) {
                EXPECT_EQ(tokens[i + 1], targets[i]);
            }
        }
        return tokens;
    }

    std::string folder_;
    tw_data_t *data_ = nullptr;
};

std::vector<uint16_t> counting(size_t n)
{
    std::vector<uint16_t> words(n);
    for (size_t i = 0; i < n; i++) {
        words[i] = static_cast<uint16_t>(i);
    }
    return words;
}

TEST_F(Data, TextIsBytes)
{
    ASSERT_EQ(TW_OK, open(write("text", "ab\xc3\xa4z")));
    EXPECT_EQ(256u, tw_data_vocab_size(data_));
    EXPECT_EQ(5u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    EXPECT_EQ((std::vector<int32_t>{'a', 'b', 0xc3, 0xa4}), batch({1, 0, 1, 0, 1, 0, 1, 4}));
}

TEST_F(Data, TokenFiles)
{
    auto words = counting(700);
    words[3] = 65535;
    for (const std::string &path :
         {write_words("bare.bin", words), write_words("llmc.bin", words, {20240520, 1, 700})}) {
        ASSERT_EQ(TW_OK, open(path));
        EXPECT_EQ(65536u, tw_data_vocab_size(data_));
        EXPECT_EQ(700u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
        EXPECT_EQ((std::vector<int32_t>{0, 1, 2, 65535}), [&] {
            auto all = batch({1, 0, 1, 0, 1, 0, 1, 699});
            all.resize(4);
            return all;
        }()) << path;
    }
}

TEST_F(Data, SplitsDoNotOverlap)
{
    ASSERT_EQ(TW_OK, open(write_words("t.bin", counting(1000)), 0.1));
    EXPECT_EQ(900u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    EXPECT_EQ(100u, tw_data_n_tokens(data_, TW_DATA_VAL));
    EXPECT_EQ(900, batch({1, 0, 1, 0, 1, 0, 1, 99}, TW_DATA_VAL)[0]);
    ASSERT_EQ(TW_OK, open(write_words("t.bin", counting(10)), 0.5, write_words("v.bin", counting(30))));
    EXPECT_EQ(10u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    EXPECT_EQ(30u, tw_data_n_tokens(data_, TW_DATA_VAL));
    EXPECT_EQ(30u, tw_data_vocab_size(data_));
}

TEST_F(Data, AnEpochHasEverySequenceOnceWhoeverGetsIt)
{
    const size_t kSequences = 60, kLength = 7;
    ASSERT_EQ(TW_OK, open(write_words("t.bin", counting(kSequences * kLength + 1))));
    ASSERT_EQ(kSequences, tw_data_n_sequences(data_, TW_DATA_TRAIN, kLength));
    std::map<size_t, std::vector<std::set<int32_t>>> by_world; /* what each step trains on */
    for (size_t world : {1, 2, 3, 6}) {
        std::map<int32_t, int> seen;
        for (uint64_t step = 0; step < 5; step++) {
            std::set<int32_t> of_step;
            for (size_t micro = 0; micro < 2; micro++) {
                for (size_t rank = 0; rank < world; rank++) {
                    auto tokens = batch({3, step, 2, micro, world, rank, 6 / world, kLength});
                    for (size_t b = 0; b < 6 / world; b++) {
                        EXPECT_EQ(0, tokens[b * kLength] % static_cast<int>(kLength));
                        of_step.insert(tokens[b * kLength]);
                        seen[tokens[b * kLength]]++;
                    }
                }
            }
            by_world[world].push_back(of_step);
        }
        EXPECT_EQ(kSequences, seen.size()) << world;
    }
    for (const auto &[world, steps] : by_world) {
        EXPECT_EQ(by_world[1], steps) << world;
    }
}

TEST_F(Data, ResumingNeedsTheStepOnly)
{
    std::string path = write_words("t.bin", counting(500));
    ASSERT_EQ(TW_OK, open(path));
    auto before = batch({5, 1000, 3, 2, 4, 1, 2, 9});
    ASSERT_EQ(TW_OK, open(path));
    EXPECT_EQ(before, batch({5, 1000, 3, 2, 4, 1, 2, 9}));
    EXPECT_NE(before, batch({6, 1000, 3, 2, 4, 1, 2, 9}));
    EXPECT_NE(before, batch({5, 1001, 3, 2, 4, 1, 2, 9}));
}

TEST_F(Data, ValidationIsInOrderAndGoesRound)
{
    ASSERT_EQ(TW_OK, open(write_words("t.bin", counting(100)), 0.21)); /* 21 tokens: 5 sequences of 4 */
    EXPECT_EQ(5u, tw_data_n_sequences(data_, TW_DATA_VAL, 4));
    EXPECT_EQ(79, batch({1, 0, 1, 0, 1, 0, 1, 4}, TW_DATA_VAL)[0]);
    EXPECT_EQ(83, batch({9, 1, 1, 0, 1, 0, 1, 4}, TW_DATA_VAL)[0]);
    EXPECT_EQ(79, batch({1, 5, 1, 0, 1, 0, 1, 4}, TW_DATA_VAL)[0]);
}

TEST_F(Data, WhatIsNoDataIsRefused)
{
    expect_refused(TW_ERR_NOT_FOUND, folder_ + "/nothing", "nothing: cannot open");
    expect_refused(TW_ERR_INVALID, folder_, "not a regular file");
    expect_refused(TW_ERR_FORMAT, write("odd.bin", "abc"), "odd.bin: 3 bytes");
    expect_refused(TW_ERR_FORMAT, write_words("v2.bin", {1, 2}, {20240520, 2, 2}), "version 2");
    expect_refused(TW_ERR_FORMAT, write_words("short.bin", {1, 2}, {20240520, 1, 3}), "says 3 tokens, but 2");
    expect_refused(TW_ERR_FORMAT, write_words("negative.bin", {1, 2}, {20240520, 1, -1}), "says -1 tokens");
    expect_refused(TW_ERR_FORMAT, write("empty", ""), "empty: there is no token in it");
    expect_refused(TW_ERR_FORMAT, write("empty.bin", ""), "empty.bin: there is no token in it");
    expect_refused(TW_ERR_FORMAT, write_words("none.bin", {}, {20240520, 1, 0}), "there is no token in it");
    tw_data_config_t config = {};
    std::string text = write("text", "abc");
    config.path = text.c_str();
    config.val_share = 0.6;
    expect_log("val_share is 0.6");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_open(&config, &data_));
    config.val_share = 0.0;
    config.vocab = "vocab.json";
    expect_log("needs both of its files");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_open(&config, &data_));
}

/* What is no text trains without an error otherwise, to a model of nothing. */
TEST_F(Data, OtherFilesAreNotReadAsText)
{
    const struct {
        const char *name;
        std::string bytes;
        const char *said;
    } cases[] = {
        {"a.parquet", "PAR1\x15\x04", "a.parquet: this is Parquet: write its texts into"},
        {"a.txt.gz", "\x1f\x8b\x08", "a.txt.gz: this is packed by gzip: unpack it first"},
        {"a.zst", "\x28\xb5\x2f\xfd", "packed by zstd"},
        {"a.npy", "\x93NUMPY\x01", "numpy.load(FILE).astype('<u2').tofile('tokens.bin')"},
        {"npy.bin", std::string("\x93NUMPY\x01\0", 8), "npy.bin: this is NumPy's .npy"},
        {"a.npz", "PK\x03\x04", "a zip archive"},
        {"a.json", "[1]", "a.json: this is JSON"},
        {"lines", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "lines: this is JSON"},
        {"random", "the first bytes are text \xe9 latin", "random: no UTF-8 text: byte 0xe9 at 25"},
        {"cut", "ends within a character \xc3", "cut: no UTF-8 text: byte 0xc3 at 24"},
        {"words", std::string("a\0b\0c\0d\0", 8), "words: this is no text: 4 of 8 bytes are 0"},
    };
    for (const auto &one : cases) {
        expect_refused(TW_ERR_FORMAT, write(one.name, one.bytes), one.said);
    }
    expect_refused(TW_ERR_INVALID, write("a.jsonl", "{\"text\": \"a\"}\n"),
                   "a.jsonl: lines of JSON need a vocabulary (thinwire.tokenizer)");
    EXPECT_EQ(TW_OK, open(write("zero", std::string("text with a zero byte in it \0", 29)))); /* some have */
    EXPECT_EQ(TW_OK, open(write("code.c", "{\n    int x;\n}\n"))); /* text, whatever it begins with */
    tw_data_close(data_);
    data_ = nullptr;
    std::string random = folder_ + "/random", fifo = folder_ + "/fifo";
    tw_data_config_t config = {};
    config.path = random.c_str();
    config.token_bytes = 1; /* bytes, as somebody says */
    ASSERT_EQ(TW_OK, tw_data_open(&config, &data_));
    EXPECT_EQ(32u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    ASSERT_EQ(0, mkfifo(fifo.c_str(), 0600)); /* nobody writes */
    expect_refused(TW_ERR_INVALID, fifo, "fifo: not a regular file");
}

/* Every second word is all but zero, as no text has it. */
TEST_F(Data, WiderTokensAreNotReadAsNarrowOnes)
{
    std::vector<uint16_t> wide, wider, few(4000, 1);
    for (uint16_t i = 0; i < 1000; i++) {
        wide.insert(wide.end(), {static_cast<uint16_t>(i * 60), static_cast<uint16_t>(i % 3)});
        wider.insert(wider.end(), {static_cast<uint16_t>(i * 60), 0, 0, 0});
    }
    expect_refused(
        TW_ERR_FORMAT, write_words("wide.bin", wide),
        "wide.bin: this is a file of uint32 tokens, as it seems: every second uint16 is all but 0: "
        "set thinwire.token_bytes=4");
    expect_refused(TW_ERR_FORMAT, write_words("wider.bin", wider), "a file of 64-bit tokens, as it seems");
    EXPECT_EQ(TW_OK, open(write_words("few.bin", few))); /* a vocabulary of two */
    std::string path = folder_ + "/wide.bin", narrow = write_words("narrow.bin", counting(700));
    for (size_t token_bytes : {2, 4}) { /* as somebody says */
        tw_data_config_t config = {};
        config.path = path.c_str();
        config.token_bytes = token_bytes;
        tw_data_close(data_);
        data_ = nullptr;
        ASSERT_EQ(TW_OK, tw_data_open(&config, &data_));
        EXPECT_EQ(4000u / token_bytes, tw_data_n_tokens(data_, TW_DATA_TRAIN));
        tw_data_close(data_);
        data_ = nullptr;
        config.path = narrow.c_str();
        if (token_bytes == 4) {
            expect_log("where no vocabulary has more than 1048576: are they of two bytes");
            EXPECT_EQ(TW_ERR_FORMAT, tw_data_open(&config, &data_));
        }
    }
}

/* llm.c's of Llama 3, and bare ones where they are said to be. */
TEST_F(Data, TokensOfFourBytes)
{
    std::vector<uint16_t> wide = {7, 1, 8, 1, 9, 0};
    const std::vector<int32_t> want = {65543, 65544};
    ASSERT_EQ(TW_OK, open(write_words("llama3.bin", wide, {20240801, 7, 3})));
    EXPECT_EQ(65545u, tw_data_vocab_size(data_));
    EXPECT_EQ(3u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    EXPECT_EQ(want, batch({1, 0, 1, 0, 1, 0, 1, 2}));
    tw_data_fingerprint_t of_one = {}, of_other = {};
    ASSERT_EQ(TW_OK, tw_data_fingerprint_get(data_, &of_one));
    tw_data_close(data_);
    data_ = nullptr;
    tw_data_config_t config = {};
    std::string bare = write_words("bare.bin", wide), narrow = write_words("n.bin", wide, {20240520, 1, 6});
    config.path = bare.c_str();
    config.token_bytes = 4;
    ASSERT_EQ(TW_OK, tw_data_open(&config, &data_));
    EXPECT_EQ(want, batch({1, 0, 1, 0, 1, 0, 1, 2}));
    ASSERT_EQ(TW_OK, tw_data_fingerprint_get(data_, &of_other));
    EXPECT_EQ(of_one.checksum, of_other.checksum);
    tw_data_close(data_);
    data_ = nullptr;
    auto refused = [&](const std::string &path, tw_status_t status, const std::string &said) {
        config.path = path.c_str();
        expect_log(said);
        EXPECT_EQ(status, tw_data_open(&config, &data_)) << said;
    };
    refused(narrow, TW_ERR_FORMAT, "n.bin: tokens of 2 bytes, not 4");
    refused(write_words("odd.bin", {1, 2, 3}), TW_ERR_FORMAT, "no whole number of tokens of four bytes");
    refused(write_words("large.bin", {0xffff, 0x7fff, 1, 0}), TW_ERR_FORMAT, "numbers that are no tokens");
    refused(write_words("negative.bin", {1, 0xffff}), TW_ERR_FORMAT, "numbers that are no tokens");
    config.token_bytes = 3;
    refused(bare, TW_ERR_INVALID, "token_bytes is 3");
}

/* Of each document of ten tokens the last four are learned. */
TEST_F(Data, AMaskSaysWhatIsLearned)
{
    std::string path = write_words("t.bin", counting(101)), mask;
    for (int i = 0; i < 101; i++) {
        mask.push_back(i % 10 >= 6);
    }
    write("t.mask", mask);
    tw_data_config_t config = {};
    config.path = path.c_str();
    config.val_share = 0.3;
    config.has_masks = 1;
    ASSERT_EQ(TW_OK, tw_data_open(&config, &data_));
    EXPECT_TRUE(tw_data_has_masks(data_));
    tw_data_place_t place = {3, 0, 1, 0, 1, 0, 7, 10};
    std::vector<int32_t> tokens(70), targets(70);
    for (tw_data_split_t split : {TW_DATA_TRAIN, TW_DATA_VAL}) {
        uint64_t n_learned = 0, n_targets = 0;
        ASSERT_EQ(TW_OK, tw_data_batch(data_, split, &place, tokens.data(), targets.data()));
        for (size_t i = 0; i < targets.size(); i++) {
            int32_t next = tokens[i] + 1; /* they count up */
            EXPECT_EQ(next % 10 >= 6 ? next : TW_DATA_NO_TARGET, targets[i]);
            n_learned += targets[i] >= 0;
        }
        ASSERT_EQ(TW_OK, tw_data_count_targets(data_, split, &place, 0, 7, &n_targets));
        EXPECT_EQ(n_learned, n_targets);
        EXPECT_EQ(28u, n_targets);
    }
    tw_data_fingerprint_t with = {}, without = {};
    ASSERT_EQ(TW_OK, tw_data_fingerprint_get(data_, &with));
    auto refused = [&](tw_status_t status, const std::string &said) {
        tw_data_close(data_);
        data_ = nullptr;
        expect_log(said);
        EXPECT_EQ(status, tw_data_open(&config, &data_)) << said;
    };
    write("t.mask", mask + "1");
    refused(TW_ERR_FORMAT, "t.mask: 102 bytes for the 101 tokens of ");
    unlink((folder_ + "/t.mask").c_str());
    refused(TW_ERR_NOT_FOUND, "t.mask: cannot open");
    std::string text = write("text", "abc");
    config.path = text.c_str();
    refused(TW_ERR_INVALID, "text has no mask (thinwire.loss_mask)");
    config.path = path.c_str();
    config.has_masks = 0;
    ASSERT_EQ(TW_OK, tw_data_open(&config, &data_));
    EXPECT_FALSE(tw_data_has_masks(data_));
    ASSERT_EQ(TW_OK, tw_data_fingerprint_get(data_, &without));
    EXPECT_NE(with.checksum, without.checksum);
    uint64_t n_targets = 0;
    ASSERT_EQ(TW_OK, tw_data_count_targets(data_, TW_DATA_TRAIN, &place, 5, 7, &n_targets));
    EXPECT_EQ(70u, n_targets);
}

/* What has another header is not to be read as so many tokens. */
TEST_F(Data, OtherKindsOfFilesAreNotReadAsTokens)
{
    std::vector<uint16_t> wide = {7, 1, 8, 1};
    expect_refused(TW_ERR_FORMAT, write_words("llama3.bin", wide, {20240801, 6, 2}),
                   "llama3.bin: a token file of version 6; this reads version 7");
    expect_refused(TW_ERR_FORMAT, write_words("model.bin", wide, {20240326, 3, 1024}),
                   "model.bin: a file of kind 20240326, version 3");
    ASSERT_EQ(TW_OK, open(write_words("bare.bin", counting(700)))); /* no header: a file of tokens */
    ASSERT_EQ(TW_OK, open(write_words("day.bin", wide, {20240801, 7000, 2})));
}

TEST_F(Data, AFingerprintTellsSourcesApart)
{
    auto print = [&](const std::string &path, double val_share = 0.1) {
        tw_data_fingerprint_t out = {};
        EXPECT_EQ(TW_OK, open(path, val_share));
        EXPECT_EQ(TW_OK, tw_data_fingerprint_get(data_, &out));
        return out;
    };
    std::string text(100000, 'x');
    tw_data_fingerprint_t one = print(write("one", text)), same = print(write("same", text));
    EXPECT_EQ(90000u, one.n_train);
    EXPECT_EQ(10000u, one.n_val);
    EXPECT_EQ(256u, one.vocab_size);
    EXPECT_EQ(one.checksum, same.checksum);
    text[77777] = 'y';
    EXPECT_NE(one.checksum, print(write("other", text)).checksum);
    EXPECT_EQ(80000u, print(write("one", text), 0.2).n_train);
}

/* One byte of a large file, wherever it is; of its tokens, if that is what it has. */
TEST_F(Data, AFingerprintIsOfAllBytesOfALargeFile)
{
    for (const char *name : {"large", "large.bin"}) {
        auto checksum = [&](const std::string &bytes) {
            tw_data_fingerprint_t out = {};
            EXPECT_EQ(TW_OK, open(write(name, bytes)));
            EXPECT_EQ(TW_OK, tw_data_fingerprint_get(data_, &out));
            return out.checksum;
        };
        std::string text(40 << 20, 'x');
        uint64_t first = checksum(text);
        EXPECT_EQ(first, checksum(text));
        for (size_t at : {(size_t)6000, (size_t)20 << 20, text.size() - 1}) {
            text[at] = 'y';
            EXPECT_NE(first, checksum(text)) << name << " " << at;
            text[at] = 'x';
        }
    }
}

TEST_F(Data, TooShortForASequence)
{
    int32_t tokens[4], targets[4];
    tw_data_place_t place = {1, 0, 1, 0, 1, 0, 1, 4};
    expect_log("4 tokens for training are too few for a sequence of 4");
    ASSERT_EQ(TW_OK, open(write("text", "abcd")));
    EXPECT_EQ(TW_ERR_INVALID, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens, targets));
    expect_log("0 tokens for validation");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_batch(data_, TW_DATA_VAL, &place, tokens, targets));
    place.rank = 1;
    expect_log("rank 1 of 1");
    EXPECT_EQ(TW_ERR_INVALID, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens, targets));
}

/* Reading a page that the file has lost would kill the process. */
TEST_F(Data, AFileThatIsCutWhileItIsRead)
{
    std::string path = write("t.bin", std::string(100000, 'x'));
    tw_data_place_t place = {1, 0, 1, 0, 1, 0, 8, 1000};
    std::vector<int32_t> tokens(8000), targets(8000);
    ASSERT_EQ(TW_OK, open(path));
    ASSERT_EQ(TW_OK, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
    ASSERT_EQ(0, truncate(path.c_str(), 5000));
    expect_log("t.bin: cut to 5000 bytes since it was opened with 100000");
    EXPECT_EQ(TW_ERR_TRUNCATED, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
    ASSERT_EQ(0, truncate(path.c_str(), 200000)); /* longer is no harm */
    EXPECT_EQ(TW_OK, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens.data(), targets.data()));
}

TEST_F(Data, WithNothingGivenItIsTheKingJamesText)
{
    ASSERT_EQ(TW_OK, open("", 0.1));
    EXPECT_GT(tw_data_n_tokens(data_, TW_DATA_TRAIN), 3900000u);
    auto tokens = batch({1, 0, 1, 0, 1, 0, 1, 3000000});
    EXPECT_EQ("Ge1:1 In the beginning", std::string(tokens.begin(), tokens.begin() + 22));
    ASSERT_EQ(TW_OK, open("", 0.1)); /* the second time from the cache */
}

} // namespace
