/* Several files: patterns, weights, kinds of tokens side by side, and where documents begin. */
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/common/fixture.h"
#include "trainer/data/data.h"

namespace
{

constexpr size_t kLength = 4; /* of a sequence */

class Files : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "files." + std::to_string(getpid()) + "/";
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        tw_data_close(data_);
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    template <typename T>
    void write(const std::string &name, const std::vector<T> &tokens, int32_t magic = 0, int32_t version = 0)
    {
        std::ofstream file(folder_ + name, std::ios::binary);
        if (magic) {
            std::vector<int32_t> header(256, 0);
            header[0] = magic;
            header[1] = version;
            header[2] = (int32_t)tokens.size();
            file.write(reinterpret_cast<const char *>(header.data()), 1024);
        }
        file.write(reinterpret_cast<const char *>(tokens.data()),
                   (std::streamsize)(tokens.size() * sizeof(T)));
    }
    /* first, first + 1, ... */
    template <typename T>
    static std::vector<T> row(T first, size_t n)
    {
        std::vector<T> tokens(n);
        for (size_t i = 0; i < n; i++) {
            tokens[i] = (T)(first + i);
        }
        return tokens;
    }
    tw_status_t open(const std::string &path, const std::string &val = "", int64_t document = -1,
                     double share = 0)
    {
        tw_data_config_t config = {};
        config.path = path.c_str();
        config.val_path = val.c_str();
        config.val_share = share;
        config.is_aligned = document >= 0;
        config.document_token = document;
        tw_data_close(data_);
        data_ = nullptr;
        return tw_data_open(&config, &data_);
    }
    /* First tokens of the sequences of some steps of one sequence each; the others follow one by one. */
    std::vector<int32_t> firsts(size_t n, tw_data_split_t split = TW_DATA_TRAIN, uint64_t first_step = 0)
    {
        std::vector<int32_t> found;
        for (size_t i = 0; i < n; i++) {
            tw_data_place_t place = {};
            place.seed = 3;
            place.step = first_step + i;
            place.n_micros = place.world = place.batch = 1;
            place.seq_len = kLength;
            int32_t tokens[kLength], targets[kLength];
            EXPECT_EQ(TW_OK, tw_data_batch(data_, split, &place, tokens, targets));
            for (size_t t = 0; t < kLength; t++) {
                EXPECT_EQ(tokens[0] + (int32_t)t, tokens[t]);
                EXPECT_EQ(tokens[t] + 1, targets[t]);
            }
            found.push_back(tokens[0]);
        }
        return found;
    }

    std::string folder_;
    tw_data_t *data_ = nullptr;
};

/* Of all kinds at once; an epoch has each sequence once, and none reaches into the next file. */
TEST_F(Files, APatternIsOneText)
{
    write("part_0.bin", row<uint16_t>(1000, 21), 20240520, 1);
    write("part_1.bin", row<uint16_t>(2000, 18));
    write("part_2.bin", row<uint32_t>(300000, 9), 20240801, 7);
    write("other.bin", row<uint16_t>(9000, 50));
    ASSERT_EQ(TW_OK, open(folder_ + "part_*.bin"));
    EXPECT_EQ(300009u, tw_data_vocab_size(data_));
    EXPECT_EQ(48u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    ASSERT_EQ(11u, tw_data_n_sequences(data_, TW_DATA_TRAIN, kLength));
    std::vector<int32_t> want = {1000, 1004, 1008, 1012, 1016, 2000, 2004, 2008, 2012, 300000, 300004};
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        std::vector<int32_t> found = firsts(11, TW_DATA_TRAIN, 11 * epoch);
        EXPECT_FALSE(std::is_sorted(found.begin(), found.end()));
        std::sort(found.begin(), found.end());
        EXPECT_EQ(want, found);
    }
    ASSERT_EQ(TW_OK, open(folder_ + "part_0.bin," + folder_ + "part_[12].bin", folder_ + "other.bin"));
    std::vector<int32_t> found = firsts(11);
    std::sort(found.begin(), found.end());
    EXPECT_EQ(want, found);
    EXPECT_EQ((std::vector<int32_t>{9000, 9004, 9008}), firsts(3, TW_DATA_VAL));
}

TEST_F(Files, EachFileKeepsItsEndForValidation)
{
    write("part_0.bin", row<uint16_t>(1000, 20));
    write("part_1.bin", row<uint16_t>(2000, 20));
    ASSERT_EQ(TW_OK, open(folder_ + "part_*.bin", "", -1, 0.25));
    EXPECT_EQ(30u, tw_data_n_tokens(data_, TW_DATA_TRAIN));
    EXPECT_EQ(10u, tw_data_n_tokens(data_, TW_DATA_VAL));
    EXPECT_EQ((std::vector<int32_t>{1015, 2015, 1015}), firsts(3, TW_DATA_VAL));
}

/* Over any 1,024 sequences exactly, and evenly in between; each file in epochs of its own. */
TEST_F(Files, WeightsAreKeptTo)
{
    write("a.bin", row<uint16_t>(0, 4 * 100 + 1));
    write("b.bin", row<uint16_t>(1000, 4 * 7 + 1));
    ASSERT_EQ(TW_OK, open(folder_ + "a.bin:3," + folder_ + "b.bin:1"));
    std::vector<int32_t> found = firsts(2048);
    std::map<int32_t, int> times;
    size_t n_a = 0;
    for (size_t i = 0; i < found.size(); i++) {
        n_a += found[i] < 1000;
        times[found[i]]++;
        EXPECT_NEAR(0.75 * (double)(i + 1), (double)n_a, 1.0) << i;
    }
    EXPECT_EQ(1536u, n_a);
    for (const auto &one : times) { /* 1,536 of 100, and 512 of 7 */
        EXPECT_NEAR(one.first < 1000 ? 15.5 : 73.5, one.second, 0.51) << one.first;
    }
    EXPECT_EQ(std::vector<int32_t>(found.begin() + 1000, found.end()), firsts(1048, TW_DATA_TRAIN, 1000));
}

/* The same sequences whoever gets them. */
TEST_F(Files, RanksShareWhatOneWouldGet)
{
    write("a.bin", row<uint16_t>(0, 4 * 100 + 1));
    write("b.bin", row<uint16_t>(1000, 4 * 7 + 1));
    ASSERT_EQ(TW_OK, open(folder_ + "a.bin:1," + folder_ + "b.bin:1"));
    std::vector<int32_t> alone = firsts(24), together;
    for (size_t i = 0; i < 24; i += 2) {
        tw_data_place_t place = {};
        place.seed = 3;
        place.step = i / 12;
        place.n_micros = 2;
        place.micro = i % 12 / 6;
        place.world = 3;
        place.rank = i % 6 / 2;
        place.batch = 2;
        place.seq_len = kLength;
        int32_t tokens[2 * kLength], targets[2 * kLength];
        EXPECT_EQ(TW_OK, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens, targets));
        together.push_back(tokens[0]);
        together.push_back(tokens[kLength]);
    }
    EXPECT_EQ(alone, together);
}

/* At the next document, if it is not further than the next sequence and all of it is there. */
TEST_F(Files, SequencesBeginWithADocument)
{
    std::vector<uint16_t> tokens = row<uint16_t>(100, 41);
    ASSERT_EQ(TW_OK, (write("a.bin", tokens), open(folder_ + "a.bin", "", 110)));
    std::vector<int32_t> found = firsts(10);
    std::sort(found.begin(), found.end()); /* 108 has moved */
    EXPECT_EQ((std::vector<int32_t>{100, 104, 110, 112, 116, 120, 124, 128, 132, 136}), found);
    ASSERT_EQ(TW_OK, open(folder_ + "a.bin", "", 138)); /* there is no room behind it */
    found = firsts(10);
    std::sort(found.begin(), found.end());
    EXPECT_EQ(136, found.back());
}

TEST_F(Files, WhatIsWrongIsNamed)
{
    write("a.bin", row<uint16_t>(0, 9));
    write("b.bin", row<uint16_t>(0, 9));
    std::string a = folder_ + "a.bin", b = folder_ + "b.bin";
    expect_log("none_*.bin: there is no such file");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open(a + "," + folder_ + "none_*.bin"));
    expect_log("some files have weights and others have none");
    EXPECT_EQ(TW_ERR_INVALID, open(a + ":2," + b));
    expect_log("a weight must be more than 0");
    EXPECT_EQ(TW_ERR_INVALID, open(a + ":0," + b + ":1"));
    expect_log("a weight of 1 is less than 1/1024 of all");
    EXPECT_EQ(TW_ERR_INVALID, open(a + ":1," + b + ":5000"));
    expect_log("a name between two commas is missing");
    EXPECT_EQ(TW_ERR_INVALID, open(a + ",," + b));
    expect_log("a validation goes through its files in order, without weights");
    EXPECT_EQ(TW_ERR_INVALID, open(a, a + ":1," + b + ":2"));
    expect_log("b.bin: too short for a sequence of 16 tokens");
    write("a.bin", row<uint16_t>(0, 99));
    ASSERT_EQ(TW_OK, open(a + ":1," + b + ":1"));
    tw_data_place_t place = {};
    place.n_micros = place.world = 1;
    place.batch = 2;
    place.seq_len = 16;
    int32_t tokens[32], targets[32];
    EXPECT_EQ(TW_ERR_INVALID, tw_data_batch(data_, TW_DATA_TRAIN, &place, tokens, targets));
}

/* A file is a file, whatever its name looks like. */
TEST_F(Files, NamesMayHaveSignsInThem)
{
    write("a,b:2*.bin", row<uint16_t>(0, 9));
    EXPECT_EQ(TW_OK, open(folder_ + "a,b:2*.bin"));
}

} // namespace
